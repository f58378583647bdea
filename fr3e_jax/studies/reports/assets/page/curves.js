// The curves of a run: one chart for each question, over training steps, drawn by uPlot.

const HELD_OUT_NAME = /^(greedy|avg|(avg|pass|maj)@\d+)$/;

// [title, names or pattern of the metrics, options]. Charts without a metric of the run are left out.
const CHARTS = [
  ['Reward', ['reward/mean', 'explore/reward'], {range: [0, 1]}],
  ['Held-out problems', HELD_OUT_NAME, {of: 'eval', range: [0, 1], points: true}],
  ['Held-out problems by benchmark', /^[^/]+\/(greedy|avg@\d+)$/, {of: 'eval', range: [0, 1], points: true}],
  ['Entropy (nats a token)', ['entropy/mean', 'entropy/trained']],
  ['Response length (tokens)', ['length/mean', 'explore/length']],
  [
    'Prompts by their base rollouts',
    ['base_groups/all_right', 'base_groups/mixed', 'base_groups/all_wrong'],
    {stacked: true, colours: ['right', 'between', 'wrong']},
  ],
  [
    'Explored states by their rollouts',
    ['state_groups/all_right', 'state_groups/mixed', 'state_groups/all_wrong'],
    {stacked: true, colours: ['right', 'between', 'wrong']},
  ],
  ['Values of states', /^value\/S_\d+$/, {range: [0, 1]}],
  ['Modulation of advantages', ['alpha/mean', 'alpha/min', 'alpha/max']],
  ['Clipped share of tokens', ['clip/low', 'clip/high', 'clip/dual']],
  ['Gap of sampler and trainer (nats)', ['logprob_gap/mean', 'logprob_gap/max'], {logarithmic: true}],
  ['Loss', ['loss/policy', 'loss/supervised', 'critic/loss']],
  ['Gradient norm', ['gradient_norm/mean', 'gradient_norm/max']],
  ['Load of the busiest expert (even: 1)', ['router/busiest_expert', 'router/busiest_expert_max']],
  ['Recorded experts that routers would not choose', ['router/changed_routes']],
  ['Advantages of trained tokens', ['advantage/mean', 'advantage/std', 'advantage/max_abs']],
  ['Verdicts', /^verifier\//, {stacked: true}],
  [
    'Tokens by kind',
    [
      'tokens/sampled_tokens',
      'tokens/loss_tokens',
      'tokens/trained_positions',
      'tokens/reused_prefix_positions',
      'tokens/prefill_positions',
    ],
  ],
  ['Seconds by stage', /^seconds\/(?!grading_wait)/, {stacked: true}],
  ['Prompts of a step', ['prompts/kept', 'prompts/rejected', 'prompts/expanded']],
];
const HEIGHT = 190;
const curves = {smoothing: 0, logarithmic: new Map(), plots: [], other: ''};

function curvesView() {
  const body = element('div', {class: 'charts'});
  const names = Object.keys(page.metrics.train).filter((name) => name !== 'step');
  const draw = () => drawCharts(body, names);
  const smoothing = element('input', {
    type: 'range',
    min: 0,
    max: 0.95,
    step: 0.05,
    value: curves.smoothing,
    'aria-label': 'smoothing',
    oninput: (event) => {
      curves.smoothing = Number(event.target.value);
      draw();
    },
  });
  const others = choice(
    'another metric',
    [['', 'one more metric …'], ...names.map((name) => [name, name])],
    curves.other,
    (name) => {
      curves.other = name;
      draw();
    },
  );
  const view = element(
    'section',
    {},
    overviewFacts(),
    rowElement(
      element('label', {class: 'row'}, 'smoothing', smoothing),
      others,
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
  return view;
}

function drawCharts(body, names) {
  for (const plot of curves.plots) plot.destroy();
  curves.plots = [];
  const wanted = curves.other ? [[curves.other, [curves.other], {}], ...CHARTS] : CHARTS;
  const panels = [];
  for (const [title, which, options = {}] of wanted) {
    const table = page.metrics[options.of ?? 'train'];
    const found = Array.isArray(which)
      ? which.filter((name) => name in table)
      : Object.keys(table)
          .filter((name) => which.test(name))
          .sort(inOrder);
    const told = found.filter((name) =>
      table[name].some((value) => value !== null && (value !== 0 || !options.stacked)),
    );
    if (told.length) panels.push([chartPanel(title), title, table, told, options]);
  }
  replace(body, panels.length ? panels.map(([panel]) => panel.node) : element('p', {}, 'There are no metrics yet.'));
  for (const [panel, title, table, told, options] of panels) drawChart(panel, title, table, told, options);
}

function inOrder(a, b) {
  return a.localeCompare(b, 'en', {numeric: true});
}

function chartPanel(title) {
  const scale = button('log', null, {'aria-label': `${title}: logarithmic scale`});
  const plot = element('div', {class: 'plot'});
  const legend = element('div', {class: 'legend'});
  return {
    node: element('div', {class: 'chart panel'}, rowElement(element('h3', {}, title), scale), legend, plot),
    scale,
    plot,
    legend,
  };
}

function drawChart(panel, title, table, names, options) {
  const logarithmic = !options.stacked && (curves.logarithmic.get(title) ?? options.logarithmic ?? false);
  panel.scale.hidden = Boolean(options.stacked);
  panel.scale.setAttribute('aria-pressed', String(logarithmic));
  panel.scale.onclick = () => {
    curves.logarithmic.set(title, !logarithmic);
    for (const plot of curves.plots.filter((one) => one.root.parentNode === panel.plot)) plot.destroy();
    curves.plots = curves.plots.filter((one) => one.root.isConnected);
    drawChart(panel, title, table, names, options);
  };
  const steps = table.step;
  const raw = names.map((name) =>
    table[name].map((value) => (logarithmic && value !== null && value <= 0 ? null : value)),
  );
  const smooth = curves.smoothing > 0 && !options.points && !options.stacked;
  const colours = names.map((_, i) => colour(options.colours ? options.colours[i] : `c${(i % 8) + 1}`));
  const lines = options.stacked ? stacked(raw) : smooth ? raw.map(smoothed) : raw;
  const below = smooth ? raw : []; // the unsmoothed lines, pale
  const series = [
    {},
    ...below.map((_, i) => ({stroke: `${colours[i]}55`, width: 1, points: {show: false}})),
    ...lines.map((_, i) => ({
      label: names[i],
      stroke: colours[i],
      width: options.stacked ? 1 : 1.8,
      fill: options.stacked && i === lines.length - 1 ? `${colours[i]}bb` : undefined,
      spanGaps: true,
      points: {show: options.points || steps.length === 1, size: 5, fill: colours[i]},
    })),
  ];
  const bands = lines.slice(1).map((_, i) => ({series: [i + 1, i + 2], fill: `${colours[i]}bb`, dir: -1}));
  const show = (i) => showLegend(panel.legend, names, raw, colours, steps, i, options);
  const plot = new uPlot(
    {
      width: Math.max(220, panel.plot.clientWidth),
      height: HEIGHT,
      series,
      legend: {show: false},
      bands: options.stacked ? bands : undefined,
      cursor: {sync: {key: 'run'}, points: {show: !options.stacked}},
      scales: {x: {time: false}, y: {distr: logarithmic ? 3 : 1, range: yRange(options, logarithmic)}},
      axes: axes(logarithmic),
      hooks: {setCursor: [(one) => show(one.cursor.idx ?? null)]},
    },
    [steps, ...below, ...lines],
    panel.plot,
  );
  plot.over.addEventListener('click', () => {
    const i = plot.cursor.idx;
    if (i !== null && i !== undefined) openStep(steps[i], options.of === 'eval');
  });
  curves.plots.push(plot);
  show(null);
}

function yRange(options, logarithmic) {
  if (logarithmic) return undefined;
  return (_, low, high) => {
    if (low === null) return [0, 1];
    if (options.range)
      return [Math.min(options.range[0], low), Math.max(high * 1.05, Math.min(options.range[1], high + 0.1))];
    if (options.stacked) return [0, high];
    const pad = (high - low || Math.abs(high) || 1) * 0.08;
    return [low >= 0 && low - pad < 0.5 * high ? 0 : low - pad, high + pad];
  };
}

function axes(logarithmic) {
  const common = {
    stroke: colour('muted'),
    grid: {stroke: colour('line'), width: 0.7},
    ticks: {stroke: colour('line'), width: 0.7},
    font: '11px system-ui, sans-serif',
  };
  return [
    {...common, space: 60, size: 26, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? tick : ''))},
    {
      ...common,
      size: 52,
      values: (_, ticks) => ticks.map((tick) => (tick === null ? '' : logarithmic ? exponent(tick) : number(tick, 3))),
      ...(logarithmic
        ? {
            filter: (_, ticks) =>
              ticks.map((tick) =>
                Number.isInteger(Math.log10(tick)) || Math.abs(Math.log10(tick) % 1) < 1e-9 ? tick : null,
              ),
          }
        : {}),
    },
  ];
}

function exponent(value) {
  return value >= 0.01 && value < 1e5 ? number(value, 2) : value.toExponential(0).replace('-', '−').replace('e+', 'e');
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

// Upper edges of bands: each holds its own value and those after it, so the first band is at the top.
function stacked(columns) {
  const edges = columns.map((column) => column.slice());
  for (let i = columns.length - 2; i >= 0; i--) {
    edges[i] = edges[i].map((value, n) =>
      value === null && edges[i + 1][n] === null ? null : (value ?? 0) + (edges[i + 1][n] ?? 0),
    );
  }
  return edges;
}

function showLegend(legend, names, raw, colours, steps, i, options) {
  const last = i ?? raw[0].length - 1;
  const entries = names.map((name, n) => {
    const mark = element('i', {class: options.stacked ? 'block' : null});
    mark.style.background = colours[n];
    const meaning = page.explanations[options.of ?? 'train'][name];
    return element('span', {title: meaning ? `${name}: ${meaning}` : name}, mark, `${shortName(name, names)} ${number(raw[n][last])}`);
  });
  replace(legend, element('span', {class: 'muted'}, `step ${steps[last]}`), entries);
}

function shortName(name, names) {
  const family = name.slice(0, name.indexOf('/') + 1);
  return family && names.every((other) => other.startsWith(family))
    ? name.slice(family.length).replaceAll('_', ' ')
    : name;
}
