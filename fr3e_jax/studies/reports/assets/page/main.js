// The page: its views, the address of what is shown, and keys.

let page = null;
const views = {};
const VIEWS = [
  ['curves', 'Curves', curvesView],
  ['prompts', 'Prompts and trees', promptsView],
  ['held-out', 'Held-out problems', heldOutView],
  ['figures', 'Figures', figuresView],
  ['settings', 'Settings', settingsView],
];
let shownView = null;

async function start() {
  page = await unpack('main');
  theme(savedTheme());
  const place = element('main');
  const tabs = element('nav', {role: 'tablist', 'aria-label': 'views'});
  for (const [name, label, build] of VIEWS) {
    const node = build();
    node.hidden = true;
    node.id = `view-${name}`;
    const open = () => {
      showView(name);
      remember();
    };
    views[name] = {node, tab: button(label, open, {role: 'tab', 'aria-controls': node.id})};
    tabs.append(views[name].tab);
    place.append(views[name].node);
  }
  const {run} = page;
  replace(
    document.getElementById('page'),
    element(
      'header',
      {},
      rowElement(
        element(
          'h1',
          {},
          visible(run.name),
          element('span', {class: 'muted'}, run.recipe && run.recipe !== run.name ? `  ${visible(run.recipe)}` : ''),
        ),
        rowElement(element('span', {id: 'fresh'}), themeButton(), button('?', help, {'aria-label': 'help'})),
      ),
      tabs,
    ),
    place,
    element('div', {id: 'tip', hidden: true, role: 'tooltip'}),
    helpDialog(),
  );
  addEventListener('keydown', keys);
  addEventListener('hashchange', follow);
  let width = innerWidth;
  addEventListener('resize', () => {
    if (innerWidth !== width) {
      width = innerWidth;
      views[shownView]?.node.drawn();
    }
  });
  document.addEventListener('theme', () => {
    if (shownView === 'curves' || shownView === 'figures') views[shownView].node.drawn();
  });
  await follow();
  document.documentElement.dataset.ready = 'yes';
}

function showView(name) {
  if (!views[name]) return;
  for (const [other, view] of Object.entries(views)) {
    view.node.hidden = other !== name;
    view.tab.setAttribute('aria-selected', String(other === name));
  }
  const changed = shownView !== name;
  shownView = name;
  if (changed) views[name].node.drawn();
}

// -- the address -----------------------------------------------------------------------------------------------------

let written = '';

function remember() {
  const parts = [['view', shownView]];
  if (shownView === 'prompts' && prompts.chosen) {
    parts.push(['prompt', `${prompts.chosen.step}/${prompts.chosen.position}`]);
    if (look.selected) parts.push(['rollout', look.selected.id]);
    if (look.token !== null) parts.push(['token', look.token]);
    if (look.compared) parts.push(['beside', look.compared.id]);
  }
  if (shownView === 'held-out' && held.chosen) parts.push(['problem', page.held_out.problems.indexOf(held.chosen)]);
  written = `#${parts.map(([name, value]) => `${name}=${encodeURIComponent(value).replaceAll('%2F', '/')}`).join('&')}`;
  history.replaceState(null, '', written);
}

async function follow() {
  if (location.hash === written && written) return;
  const address = new URLSearchParams(location.hash.slice(1));
  const view = address.get('view') ?? (address.has('prompt') ? 'prompts' : 'curves');
  const [step, position] = (address.get('prompt') ?? '').split('/').map(Number);
  const prompt = address.has('prompt')
    ? page.prompts.find((one) => one.step === step && one.position === position)
    : null;
  if (prompt) prompts.chosen = prompt;
  const problem = page.held_out?.problems[Number(address.get('problem') ?? NaN)];
  if (problem) held.chosen = problem;
  showView(views[view] ? view : 'curves');
  if (prompt) {
    await openPrompt(prompt, address.get('rollout'), address.has('token') ? Number(address.get('token')) : null);
    const beside = prompts.tree.byId.get(address.get('beside'));
    if (beside) {
      look.compared = beside;
      drawPrompt();
    }
  }
  if (problem) await openProblem(problem);
}

start().catch((error) => {
  document.getElementById('page').textContent =
    `This page could not be drawn: ${error.message}. It needs a browser of 2023 or newer.`;
  throw error;
});
