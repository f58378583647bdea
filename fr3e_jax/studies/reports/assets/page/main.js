// The page: its views, the address of what is shown, and keys.

let page = null;
let shownView = null;
const VIEWS = {
  curves: curvesView,
  prompts: promptsView,
  'held-out': heldOutView,
  figures: figuresView,
  settings: settingsView,
};
// By the name of a view: {node, tab, drawn() once it is in sight, state() as pairs of the address, restore(state)}.
const views = {};

async function start() {
  page = await unpack('main');
  showTheme();
  build();
  addEventListener('keydown', keys);
  addEventListener('hashchange', follow);
  let width = innerWidth;
  addEventListener('resize', () => {
    if (innerWidth !== width) views[shownView]?.drawn();
    width = innerWidth;
  });
  document.addEventListener('theme', () => views[shownView].drawn());
  await follow();
  document.documentElement.dataset.ready = 'yes';
}

// Fill the page with its data.
function build() {
  const {name, recipe} = page.run;
  document.getElementById('name').textContent = visible(name);
  document.getElementById('recipe').textContent = recipe === name ? '' : visible(recipe);
  document.getElementById('theme').addEventListener('click', switchTheme);
  document.querySelector('[role=tablist]').addEventListener('keydown', moveFocus);
  for (const [view, make] of Object.entries(VIEWS)) {
    const node = document.getElementById(`view-${view}`);
    const tab = document.querySelector(`[aria-controls=${node.id}]`);
    tab.addEventListener('click', () => {
      showView(view);
      remember(true);
    });
    views[view] = {node, tab, ...make(node)};
  }
}

function showView(name) {
  for (const [other, {node, tab}] of Object.entries(views)) {
    node.hidden = other !== name;
    tab.setAttribute('aria-selected', String(other === name));
    tab.tabIndex = other === name ? 0 : -1;
  }
  views[name].tab.scrollIntoView({block: 'nearest', inline: 'nearest'});
  const isOther = shownView !== name;
  shownView = name;
  if (isOther) views[name].drawn();
}

// -- the address -----------------------------------------------------------------------------------------------------

let followed = ''; // the address that the page shows; another one waits to be followed

// Write what is shown into the address. `push` lets the browser go back to what was shown before.
function remember(push = false) {
  const pairs = [['view', shownView], ...views[shownView].state()].filter(([, value]) => (value ?? '') !== '');
  const words = pairs.map(([name, value]) => `${name}=${encodeURIComponent(value).replaceAll('%2F', '/')}`);
  const address = `#${words.join('&')}`;
  if (location.hash !== followed || address === followed) return;
  history[push ? 'pushState' : 'replaceState'](null, '', address);
  followed = location.hash;
}

// Show what the address says.
async function follow() {
  followed = location.hash;
  const state = new URLSearchParams(location.hash.slice(1));
  const view = state.get('view') ?? (state.has('prompt') ? 'prompts' : 'curves');
  const name = Object.hasOwn(views, view) ? view : 'curves';
  showView(name);
  await views[name].restore(state);
}

start().catch((error) => {
  document.getElementById('page').textContent =
    `This page could not be drawn: ${error.message}. It needs a browser of 2024 or newer.`;
  throw error;
});
