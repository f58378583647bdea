// What the run was: its result, what it spent, and every setting.

function overviewFacts() {
  const {metrics, run} = page;
  const last = (table, name) => (table[name] ? (table[name].filter((value) => value !== null).at(-1) ?? null) : null);
  const facts = [];
  for (const name of Object.keys(metrics.eval).filter((one) => HELD_OUT_NAME.test(one))) {
    const known = metrics.eval[name].filter((value) => value !== null);
    if (known.length)
      facts.push([
        `held-out ${name}`,
        known.length > 1 ? `${percent(known[0])}\u00a0→\u00a0${percent(known.at(-1))}` : percent(known[0]),
      ]);
  }
  const tokens = (metrics.train['tokens/sampled_tokens'] ?? []).reduce((sum, value) => sum + (value ?? 0), 0);
  facts.push(
    ['training steps', String(run.last_step)],
    ['sampled tokens', number(run.summary?.sampled_tokens ?? tokens)],
  );
  const cpu = run.summary?.cpu_seconds ?? last(metrics.train, 'cpu_seconds');
  if (cpu !== null) facts.push(['CPU time', duration(cpu)]);
  facts.push([run.reason ? `state: ${visible(run.reason)}` : 'state', run.state]);
  return element(
    'div',
    {class: 'facts'},
    facts.map(([name, value]) => element('div', {class: 'fact panel'}, element('b', {}, value), element('span', {}, name))),
  );
}

function percent(value) {
  return `${(100 * value).toFixed(1)}%`;
}

function duration(seconds) {
  if (seconds < 100) return `${seconds.toFixed(0)} s`;
  return seconds < 6000 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

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
  const search = element('input', {type: 'search', placeholder: 'search a setting', 'aria-label': 'search a setting'});
  const place = element('div', {class: 'scroll'});
  const list = () => replace(place, rows(Object.entries(run.settings).filter(([name]) => name.includes(search.value))));
  search.addEventListener('input', list);
  const view = element(
    'section',
    {},
    element('h2', {}, 'Origin'),
    element('div', {class: 'scroll'}, rows(Object.entries(run.provenance))),
    element('h2', {}, 'Settings'),
    search,
    place,
  );
  view.drawn = list;
  return view;
}
