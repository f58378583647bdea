// What the run was: the verdict, what to look at, its scores and what it spent; and every setting.

function fillHeadline(node) {
  const {verdict, facts, alerts, checked, changes} = page.headline;
  const lead = ({text, place}) => button(visible(text), () => showPlace(place));
  const items = (leads) => leads.map((target) => element('li', {}, lead(target)));
  const fact = ([name, value]) => [name, visible(value)];
  node.querySelector('.verdict').textContent = visible(verdict);
  replace(node.querySelector('.alerts'), items(alerts));
  node.querySelector('.no-alerts').textContent = checked.length ? `No alerts. Checked: ${checked.join(', ')}.` : '';
  replace(node.querySelector('.sentences'), items(page.held_out?.sentences ?? []));
  node.querySelector('.changes').append(...changes.map(lead));
  node.querySelector('.details').replaceWith(details('the run', facts.map(fact)));
}

// Where an alert leads: the chart of a metric, the prompts that pass a filter, or a setting.
function showPlace({view, metric, filter, order, setting}) {
  showView(view);
  remember(true);
  if (view === 'held-out' && filter) {
    restoreList(held.list, new Map(Object.entries({filter, order})));
    openProblem(held.list.shown.find((problem) => problem.chunk !== null) ?? held.list.shown[0]);
  } else if (filter) {
    restoreList(prompts.list, new Map([['filter', filter]]));
    if (prompts.list.shown.length) openPrompt(prompts.list.shown[0]);
  }
  if (setting) views.settings.restore(new Map([['search', setting]]));
  for (const node of document.querySelectorAll('.chart')) {
    const isPointed = node.dataset.metrics.split('\n').includes(metric);
    node.classList.toggle('pointed', isPointed);
    if (isPointed) node.scrollIntoView({block: 'center'});
  }
}

// The settings by where they come from. Those that are as usual are folded, unless they are searched for.
function settingsView(node) {
  const search = node.querySelector('input');
  const cell = (text) => element('td', {class: 'text'}, visible(text));
  const tableOf = ({title, columns, rows, folded}) => {
    const isFound = (row) => row.join(' ').toLowerCase().includes(search.value.toLowerCase());
    const shown = rows.filter(isFound).map((row) => row.map(cell));
    const open = shown.length > 0 && (!folded || search.value !== '');
    const content = element('div', {class: 'scroll'}, tableElement(columns, shown));
    return element('details', {open}, element('summary', {}, `${title} (${shown.length})`), content);
  };
  const draw = () => replace(node.querySelector('.settings'), page.settings.map(tableOf));
  search.addEventListener('input', () => {
    draw();
    remember();
  });
  return {
    drawn: draw,
    state: () => [['search', search.value]],
    restore: (state) => {
      search.value = state.get('search') ?? '';
      draw();
    },
  };
}
