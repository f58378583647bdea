// The curves of a run, drawn by uPlot: one chart for each question, then one for each family of further metrics.

const CURVE_STATE = [
  ['axis', 'step'],
  ['smoothing', 0],
  ['search', ''],
];
const curves = {...Object.fromEntries(CURVE_STATE), logarithmic: new Map()};

function curvesView() {
  const body = element('div', {class: 'charts'});
  const draw = () => drawCharts(body);
  const changes = (name) => (event) => {
    curves[name] = event.target.type === 'range' ? Number(event.target.value) : event.target.value;
    draw();
    remember();
  };
  const view = element(
    'section',
    {},
    headlineElement(),
    rowElement(
      element(
        'label',
        {class: 'row'},
        'over',
        choice('axis of the curves', page.axes, curves.axis, (name) => changes('axis')({target: {value: name}}), {'data-curves': 'axis'}),
      ),
      element(
        'label',
        {class: 'row'},
        'smoothing',
        element('input', {
          ...{type: 'range', min: 0, max: 0.95, step: 0.05, value: curves.smoothing, 'aria-label': 'smoothing', 'data-curves': 'smoothing'},
          oninput: changes('smoothing'),
        }),
      ),
      element('input', {
        ...{type: 'search', placeholder: 'find a metric', 'aria-label': 'find a metric', value: curves.search, 'data-curves': 'search'},
        oninput: changes('search'),
      }),
      element(
        'span',
        {class: 'note'},
        'Click a step to see its prompts.',
        page.training_steps > page.metrics.train.step.length
          ? ` ${page.metrics.train.step.length} of ${page.training_steps} steps, at equal distances.`
          : null,
      ),
    ),
    body,
  );
  view.drawn = draw;
  view.state = () => CURVE_STATE.map(([name, usual]) => [name, curves[name] === usual ? null : curves[name]]);
  view.restore = async (state) => {
    for (const [name, usual] of CURVE_STATE) {
      const value = state.get(name) ?? usual;
      curves[name] = typeof usual === 'number' ? Number(value) : value;
      view.querySelector(`[data-curves=${name}]`).value = value;
    }
    if (!page.axes.some(([name]) => name === curves.axis)) curves.axis = 'step';
    draw();
  };
  return view;
}

function drawCharts(body) {
  clearPlots(body);
  const measured = ({kind, look}) => (name) =>
    page.metrics[kind][name].some((value) => value !== null && (value !== 0 || !look.stacked));
  const sought = ({title, metrics}) => [title, ...metrics].some((name) => name.toLowerCase().includes(curves.search.toLowerCase()));
  const panels = page.charts
    .map((chart) => ({...chart, metrics: chart.metrics.filter(measured(chart))}))
    .filter((chart) => chart.metrics.length && sought(chart))
    .map((chart) => [chartPanel(chart), chart]);
  const more = panels.findIndex(([, chart]) => !chart.first);
  const nodes = panels.map(([panel]) => panel.node);
  if (more >= 0) nodes.splice(more, 0, element('h2', {}, 'Every other metric'));
  replace(body, nodes.length ? nodes : element('p', {}, 'There are no such metrics yet.'));
  for (const [panel, chart] of panels) drawChart(panel, chart);
}

function chartPanel({title, metrics}) {
  const scale = button('log', null, {'aria-label': `${visible(title)}: logarithmic scale`});
  const plot = element('div', {class: 'plot', role: 'img', 'aria-label': visible(title)});
  const [legend, note, saved] = [element('div', {class: 'legend'}), noteElement(), element('span', {class: 'saved'})];
  const node = element(
    'div',
    {class: 'chart panel', 'data-metrics': metrics.join('\n')},
    rowElement(element('h3', {}, visible(title)), element('span', {class: 'row'}, scale, saved)),
    legend,
    plot,
    note,
  );
  return {node, scale, plot, legend, note, saved};
}

function drawChart(panel, chart) {
  const {title, kind, metrics, look} = chart,
    table = page.metrics[kind],
    steps = table.step,
    x = page.spent[kind][curves.axis];
  const yLog = !look.stacked && (curves.logarithmic.get(title) ?? look.logarithmic ?? false);
  panel.scale.hidden = Boolean(look.stacked);
  panel.scale.setAttribute('aria-pressed', String(yLog));
  panel.scale.onclick = () => {
    curves.logarithmic.set(title, !yLog);
    drawChart(panel, chart);
  };
  const smooth = curves.smoothing > 0 && !look.points && !look.stacked;
  const lines = metrics.map((name, i) => {
    const raw = table[name].map((value) => (yLog && value !== null && value <= 0 ? null : value));
    const tone = colour(look.colours?.[name] ?? `c${(i % 8) + 1}`);
    return {name, raw, y: smooth ? smoothed(raw) : raw, pale: smooth ? raw : null, colour: tone};
  });
  const label = page.axes.find(([name]) => name === curves.axis)[1];
  const top = look.cut ? usualTop(lines, steps, panel.note) : null;
  const show = (i) => showLegend(panel.legend, lines, steps, i, chart);
  drawPlot(panel.plot, {
    ...{x, lines, height: 190, yLog, range: look.range, stacked: look.stacked, points: look.points, top, xLabel: label},
    sync: 'run',
    onCursor: show,
    onClick: (i) => openStep(steps[i], kind === 'eval'),
  });
  show(null);
  const columns = [['step', steps], ...(curves.axis === 'step' ? [] : [[label, x]]), ...metrics.map((name) => [name, table[name]])];
  replace(panel.saved, saveButtons(title, () => columns, panel.plot, lines));
}

// The top of an axis that steps far above the others leave: those that compile, or evaluate. A note names them.
function usualTop(lines, steps, note) {
  const sums = steps.map((_, i) => lines.reduce((sum, line) => sum + (line.y[i] ?? 0), 0));
  const top = 3 * sums.toSorted((a, b) => a - b)[Math.floor(0.8 * sums.length)];
  const above = steps.filter((_, i) => sums[i] > top);
  const named = above.slice(0, 4).map((step) => `step ${step} (${number(sums[steps.indexOf(step)], 3)})`);
  note.textContent = above.length && top ? `Beyond the axis: ${named.join(', ')}${above.length > 4 ? ' …' : ''}` : '';
  return above.length && top ? top : null;
}

// Means over the past with exponential weights; the first values weigh no more than the others (as in TensorBoard).
function smoothed(values) {
  let sum = 0,
    weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = curves.smoothing * sum + (1 - curves.smoothing) * value;
    weight = curves.smoothing * weight + (1 - curves.smoothing);
    return sum / weight;
  });
}

function showLegend(legend, lines, steps, i, {kind, look}) {
  const names = lines.map((line) => line.name);
  const entries = lines.map(({name, raw, colour: tone}) => {
    const meaning = page.explanations[kind][name];
    const value = i === null ? (raw.findLast((known) => known !== null) ?? null) : raw[i];
    const text = `${visible(shortName(name, names))} ${number(value)}`;
    return legendEntry(tone, text, visible(meaning ? `${name}: ${meaning}` : name), Boolean(look.stacked));
  });
  replace(legend, element('span', {class: 'muted'}, i === null ? 'last' : `step ${steps[i]}`), entries);
}

function shortName(name, names) {
  const family = name.slice(0, name.indexOf('/') + 1);
  return family && names.every((other) => other.startsWith(family))
    ? name.slice(family.length).replaceAll('_', ' ')
    : name;
}
