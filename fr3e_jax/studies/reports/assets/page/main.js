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
  build();
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

// Build the views from the data of the page.
function build() {
  const place = element('main');
  const tabs = element('nav', {role: 'tablist', 'aria-label': 'views', onkeydown: moveFocus});
  for (const [name, label, view] of VIEWS) {
    const node = filled(view(), {id: `view-${name}`, role: 'tabpanel', 'aria-label': label, hidden: true}, []);
    const open = () => {
      showView(name);
      remember(true);
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
        rowElement(
          element('span', {id: 'fresh', class: 'muted', role: 'status'}),
          themeButton(),
          button('?', help, {'aria-label': 'help'}),
        ),
      ),
      tabs,
    ),
    place,
    element('div', {id: 'tip', hidden: true, role: 'tooltip'}),
    helpDialog(),
  );
}

function showView(name) {
  if (!views[name]) return;
  for (const [other, view] of Object.entries(views)) {
    view.node.hidden = other !== name;
    view.tab.setAttribute('aria-selected', String(other === name));
    view.tab.tabIndex = other === name ? 0 : -1;
  }
  const changed = shownView !== name;
  shownView = name;
  if (changed) views[name].node.drawn();
}

// -- the address -----------------------------------------------------------------------------------------------------

let followed = ''; // the address that the page shows; another one waits to be followed

// Write what is shown into the address. `push` lets the browser go back to what was shown before.
function remember(push = false) {
  const parts = [['view', shownView], ...(views[shownView].node.state?.() ?? [])];
  const said = parts.filter(([, value]) => value !== null && value !== undefined && value !== '');
  const address = `#${said.map(([name, value]) => `${name}=${encodeURIComponent(value).replaceAll('%2F', '/')}`).join('&')}`;
  if (location.hash !== followed || address === followed) return;
  history[push ? 'pushState' : 'replaceState'](null, '', address);
  followed = location.hash;
}

// Show what the address says.
async function follow() {
  followed = location.hash;
  const state = new URLSearchParams(location.hash.slice(1));
  const view = state.get('view') ?? (state.has('prompt') ? 'prompts' : 'curves');
  const name = views[view] ? view : 'curves';
  showView(name);
  await views[name].node.restore?.(state);
}

start().catch((error) => {
  document.getElementById('page').textContent =
    `This page could not be drawn: ${error.message}. It needs a browser of 2023 or newer.`;
  throw error;
});
