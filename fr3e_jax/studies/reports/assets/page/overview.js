// What the run was: the verdict, what to look at, its scores and what it spent; and every setting.

function headlineElement() {
  const {facts, verdict, alerts, changes, progress} = page.headline;
  const sentences = page.held_out?.sentences ?? [];
  const leads = ({text, place}) => button(visible(text), () => showPlace(place));
  return element(
    'div',
    {class: 'headline', 'aria-label': 'what happened'},
    element('p', {class: 'verdict'}, visible(verdict)),
    alerts.length
      ? element(
          'ul',
          {class: 'alerts', 'aria-label': 'look at'},
          alerts.map((alert) => element('li', {}, leads(alert))),
        )
      : noteElement('No alerts: entropy, gap of sampler and trainer, clipping, verdicts, lengths and learning rate were checked.'),
    sentences.length ? element('ul', {class: 'sentences', 'aria-label': 'held-out problems'}, sentences.map((sentence) => element('li', {}, leads(sentence)))) : null,
    changes.length ? rowElement(noteElement('half of its change had the'), changes.map(leads)) : null,
    element(
      'dl',
      {class: 'details', 'aria-label': 'the run'},
      [...facts, ['state', page.run.reason || page.run.state], ...progressFacts(progress)].map(([name, value]) =>
        element('div', {}, element('dt', {}, name), element('dd', {'data-fact': name}, visible(value))),
      ),
    ),
    scoreCards(),
  );
}

function progressFacts({step, max_steps: steps, sampled_tokens: tokens, max_sampled_tokens: most, left}) {
  const of = (limit) => (limit ? ` of ${number(limit)}` : '');
  return [
    ['training steps', number(step) + of(steps)],
    ...(tokens ? [['sampled tokens', number(tokens) + of(most)]] : []),
    ...(left ? [['left', left]] : []),
  ];
}

function scoreCards() {
  const table = page.metrics.eval,
    [chart] = page.charts.filter(({kind, first}) => kind === 'eval' && first);
  const known = (chart?.metrics ?? []).map((name) => [name, table[name].filter((value) => value !== null)]);
  return element(
    'div',
    {class: 'facts'},
    known.map(([name, values]) =>
      element(
        'div',
        {class: 'fact panel'},
        element('b', {}, [...new Set([values[0], values.at(-1)])].map((value) => `${(100 * value).toFixed(1)}%`).join('\u00a0→\u00a0')),
        element('span', {}, `held-out ${visible(name)}`),
      ),
    ),
  );
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
  if (setting) {
    settingSearch.value = setting;
    settingSearch.dispatchEvent(new Event('input'));
  }
  for (const node of document.querySelectorAll('.chart')) {
    const pointed = node.dataset.metrics.split('\n').includes(metric);
    node.classList.toggle('pointed', pointed);
    if (pointed) node.scrollIntoView({block: 'center'});
  }
}

let settingSearch = null;

function settingsView() {
  const {run} = page;
  const rows = (pairs) =>
    tableElement(
      null,
      pairs.map(([name, value]) => [
        element('th', {}, visible(name)),
        element('td', {class: 'text'}, visible(typeof value === 'string' ? value : JSON.stringify(value))),
      ]),
    );
  settingSearch = element('input', {type: 'search', placeholder: 'search a setting', 'aria-label': 'search a setting'});
  const place = element('div', {class: 'scroll'});
  const list = () => replace(place, rows(Object.entries(run.settings).filter(([name]) => name.includes(settingSearch.value))));
  settingSearch.addEventListener('input', list);
  const view = element(
    'section',
    {},
    element('h2', {}, 'Origin'),
    element('div', {class: 'scroll'}, rows(Object.entries(run.provenance))),
    element('h2', {}, 'Settings'),
    settingSearch,
    place,
  );
  view.drawn = list;
  return view;
}
