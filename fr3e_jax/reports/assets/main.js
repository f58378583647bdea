// The page: its views, the address of what is shown, keys, and the colours of day and night.

let page = null;
const views = {};
const VIEWS = [['curves', 'Curves', curvesView], ['prompts', 'Prompts and trees', promptsView], ['held-out', 'Held-out problems', heldOutView],
  ['figures', 'Figures', figuresView], ['settings', 'Settings', settingsView]];
let shownView = null;

async function start() {
  page = await unpack('main');
  theme(savedTheme());
  const place = element('main');
  const tabs = element('nav', {role: 'tablist', 'aria-label': 'views'});
  for (const [name, label, build] of VIEWS) {
    views[name] = {node: build()};
    views[name].node.hidden = true;
    views[name].node.id = `view-${name}`;
    views[name].tab = button(label, () => { showView(name); remember(); }, {role: 'tab', 'aria-controls': `view-${name}`});
    tabs.append(views[name].tab);
    place.append(views[name].node);
  }
  const {run} = page;
  replace(document.getElementById('page'), element('header', {},
    element('div', {class: 'row'}, element('h1', {}, visible(run.name), element('span', {class: 'muted'}, run.recipe && run.recipe !== run.name ? `  ${visible(run.recipe)}` : '')),
      element('div', {class: 'row'}, element('span', {id: 'fresh'}), button('light / dark', switchTheme, {id: 'theme'}), button('?', help, {'aria-label': 'help'}))), tabs),
  place, element('div', {id: 'tip', hidden: true, role: 'tooltip'}), helpDialog());
  addEventListener('keydown', keys);
  addEventListener('hashchange', follow);
  let width = innerWidth;
  addEventListener('resize', () => { if (innerWidth !== width) { width = innerWidth; views[shownView]?.node.drawn(); } });
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => theme(savedTheme()));
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
  const prompt = address.has('prompt') ? page.prompts.find((one) => one.step === step && one.position === position) : null;
  if (prompt) prompts.chosen = prompt;
  const problem = page.held_out?.problems[Number(address.get('problem') ?? NaN)];
  if (problem) held.chosen = problem;
  showView(views[view] ? view : 'curves');
  if (prompt) {
    await openPrompt(prompt, address.get('rollout'), address.has('token') ? Number(address.get('token')) : null);
    const beside = prompts.tree.byId.get(address.get('beside'));
    if (beside) { look.compared = beside; drawPrompt(); }
  }
  if (problem) await openProblem(problem);
}

// -- day and night ---------------------------------------------------------------------------------------------------

function savedTheme() {
  try {
    return localStorage.getItem('fr3e-theme');
  } catch {
    return null; // a page from disk may have no storage
  }
}

function theme(chosen) {
  const dark = chosen ? chosen === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  if (shownView === 'curves') views.curves.node.drawn();
}

function switchTheme() {
  const next = document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark';
  try {
    localStorage.setItem('fr3e-theme', next);
  } catch { /* the choice holds for this page only */ }
  theme(next);
}

// -- keys ------------------------------------------------------------------------------------------------------------

const KEYS = [['1 … 5', 'the views'], ['j, k', 'next and previous prompt'], ['↑, ↓', 'branch above and below'], ['←, →', 'token before and after'],
  ['c', 'compare the selected branch with another'], ['/', 'search'], ['t', 'light or dark'], ['Esc', 'close, compare no more'], ['?', 'this help']];

function helpDialog() {
  return element('dialog', {id: 'help', 'aria-label': 'help'}, element('h3', {}, 'Keys'),
    element('table', {}, element('tbody', {}, KEYS.map(([name, text]) => element('tr', {}, element('td', {}, element('kbd', {}, name)), element('td', {}, text))))),
    element('p', {class: 'note'}, 'A base rollout answers the prompt. At its anchors, the tokens of highest entropy, states S₁, S₂, … begin; ' +
      'each is rolled out again several times. V(S) is the mean reward of these rollouts, ΔV is its change from the state before, ' +
      'α modulates their advantages. A flip is a change of V across one half.'),
    button('close', () => document.getElementById('help').close()));
}

function help() {
  document.getElementById('help').showModal();
}

function keys(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === 'Escape' && typing) event.target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || typing || document.getElementById('help').open) return;
  const act = {
    j: () => neighbour(1), k: () => neighbour(-1), c: () => { look.comparing = !look.comparing; drawPrompt(); },
    ArrowDown: () => moveLane(1), ArrowUp: () => moveLane(-1), ArrowLeft: () => moveToken(-1), ArrowRight: () => moveToken(1),
    Escape: () => { look.compared = null; look.comparing = false; drawPrompt(); remember(); },
  }[event.key];
  const plain = {'?': help, t: switchTheme, '/': () => { showView('prompts'); prompts.searchField.focus(); }}[event.key];
  const number = Number(event.key);
  if (plain) plain();
  else if (number >= 1 && number <= VIEWS.length) { showView(VIEWS[number - 1][0]); remember(); }
  else if (act && shownView === 'prompts' && prompts.tree) act();
  else return;
  event.preventDefault();
}

function moveLane(way) {
  const lanes = [...document.querySelectorAll('.tree .lane')];
  const at = lanes.findIndex((lane) => lane.classList.contains('selected'));
  const next = lanes[at + way];
  if (!next) return;
  const parent = look.parent;
  pick(prompts.tree.rollouts[Number(next.dataset.rollout)]);
  if (look.parent !== parent && !prompts.tree.byId.has(parent)) look.parent = parent;
}

function moveToken(way) {
  const {selected} = look;
  const end = selected.fork + selected.tokens.length - 1;
  const at = look.token === null ? (way > 0 ? selected.fork : end) : Math.min(end, Math.max(0, look.token + way));
  pick(selected, at);
}

start().catch((error) => {
  document.getElementById('page').textContent = `This page could not be drawn: ${error.message}. It needs a browser of 2023 or newer.`;
  throw error;
});
