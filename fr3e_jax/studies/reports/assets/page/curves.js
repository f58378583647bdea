// The curves of a run, drawn by uPlot: one chart for each question, then one for each family of further metrics.

const CURVE_STATE = {axis: 'step', smoothing: 0, search: ''};
const curves = {...CURVE_STATE, logarithmic: new Map()};

function curvesView(node) {
  const body = node.querySelector('.charts');
  const fields = Object.keys(CURVE_STATE).map((name) => node.querySelector(`[name=${name}]`));
  node.querySelector('.thinned').textContent = page.steps_note;
  const take = ({name, value}) => (curves[name] = typeof CURVE_STATE[name] === 'number' ? Number(value) : value);
  choice(fields[0], page.axes, curves.axis, () => {});
  for (const field of fields) {
    field.addEventListener('input', () => {
      take(field);
      drawCharts(body);
      remember();
    });
  }
  fillHeadline(node.querySelector('.headline'));
  return {
    drawn: () => drawCharts(body),
    state: () =>
      Object.entries(CURVE_STATE).map(([name, usual]) => [name, curves[name] === usual ? null : curves[name]]),
    restore: (state) => {
      for (const field of fields) {
        field.value = state.get(field.name) ?? CURVE_STATE[field.name];
        if (!field.value && field.name === 'axis') field.value = CURVE_STATE.axis;
        take(field);
      }
      drawCharts(body);
    },
  };
}

// The charts that have the searched text in their title or in the name of a metric.
function drawCharts(body) {
  clearPlots(body);
  const search = curves.search.toLowerCase();
  const isFound = ({title, metrics}) => [title, ...metrics].some((name) => name.toLowerCase().includes(search));
  const charts = page.charts.filter(isFound);
  const panels = charts.map(chartPanel);
  const more = charts.findIndex(({first}) => !first);
  const nodes = more < 0 ? panels : panels.toSpliced(more, 0, element('h2', {}, 'Every other metric'));
  replace(body, nodes.length ? nodes : element('p', {}, 'There are no such metrics.'));
  panels.forEach((panel, i) => drawChart(panel, charts[i]));
}

function chartPanel({title, metrics, note}) {
  const attributes = {class: 'chart panel', 'data-metrics': metrics.join('\n')};
  return titledPanel(title, attributes, null, plotPlace(title), noteElement(note));
}

function drawChart(panel, chart) {
  const {title, kind, metrics, look} = chart;
  const table = page.metrics[kind];
  const x = page.spent[kind][curves.axis];
  const [, xLabel] = page.axes.find(([name]) => name === curves.axis);
  const yLog = !look.stacked && (curves.logarithmic.get(title) ?? look.logarithmic ?? false);
  const isSmooth = curves.smoothing > 0 && !look.points && !look.stacked;
  const lines = metrics.map((metric, i) => {
    const raw = table[metric].map((value) => (yLog && value !== null && value <= 0 ? null : value));
    const shown = isSmooth ? {y: smoothed(raw), pale: raw} : {y: raw};
    const tone = colour(look.colours?.[metric] ?? `c${(i % 8) + 1}`);
    return {name: chart.names[i], title: chart.meanings[i], colour: tone, ...shown};
  });
  const onClick = (i) => openStep(table.step[i], kind === 'eval');
  const shape = {height: 165, sync: 'run', top: chart.top, yLog};
  drawPlot(panel.querySelector('.plot'), {...look, ...shape, x, xLabel, lines, onClick});
  const turn = () => {
    curves.logarithmic.set(title, !yLog);
    drawChart(panel, chart);
  };
  const scale = {'aria-label': `${visible(title)}: logarithmic scale`, 'aria-pressed': String(yLog)};
  const spent = curves.axis === 'step' ? [] : [[xLabel, x]];
  const columns = [['step', table.step], ...spent, ...metrics.map((metric) => [metric, table[metric]])];
  const buttons = [!look.stacked && button('log', turn, scale), saveButton(title, columns)];
  replace(panel.querySelector('.buttons'), buttons);
}

// Means over the past with exponential weights; the first values weigh no more than the others (as in TensorBoard).
function smoothed(values) {
  let sum = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = curves.smoothing * sum + (1 - curves.smoothing) * value;
    weight = curves.smoothing * weight + (1 - curves.smoothing);
    return sum / weight;
  });
}
