// The curves of a run: one chart for each question, over training steps, drawn by uPlot.

const HELD_OUT_NAME = /^(greedy|avg|(avg|pass|maj)@\d+)$/;

// [title, names or pattern of the metrics, options]. Charts without a metric of the run are left out.
const CHARTS = [
  ['Reward', ['reward/mean', 'explore/reward'], {range: [0, 1]}],
  ['Reward functions, of all rollouts', /^rewards\//, {range: [0, 1]}],
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
const curves = {smoothing: 0, logarithmic: new Map(), other: ''};

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
  clearPlots(body);
  const wanted = curves.other ? [[curves.other, [curves.other], {}], ...CHARTS] : CHARTS;
  const panels = [];
  for (const [title, which, options = {}] of wanted) {
    const table = page.metrics[options.of ?? 'train'];
    const found = Array.isArray(which)
      ? which.filter((name) => name in table)
      : Object.keys(table)
          .filter((name) => which.test(name))
          .sort((a, b) => a.localeCompare(b, 'en', {numeric: true}));
    const told = found.filter((name) =>
      table[name].some((value) => value !== null && (value !== 0 || !options.stacked)),
    );
    if (told.length) panels.push([chartPanel(title), title, table, told, options]);
  }
  replace(body, panels.length ? panels.map(([panel]) => panel.node) : element('p', {}, 'There are no metrics yet.'));
  for (const panel of panels) drawChart(...panel);
}

function chartPanel(title) {
  const scale = button('log', null, {'aria-label': `${title}: logarithmic scale`});
  const plot = element('div', {class: 'plot'});
  const legend = element('div', {class: 'legend'});
  const node = element('div', {class: 'chart panel'}, rowElement(element('h3', {}, title), scale), legend, plot);
  return {node, scale, plot, legend};
}

function drawChart(panel, title, table, names, options) {
  const yLog = !options.stacked && (curves.logarithmic.get(title) ?? options.logarithmic ?? false);
  panel.scale.hidden = Boolean(options.stacked);
  panel.scale.setAttribute('aria-pressed', String(yLog));
  panel.scale.onclick = () => {
    curves.logarithmic.set(title, !yLog);
    drawChart(panel, title, table, names, options);
  };
  const steps = table.step;
  const smooth = curves.smoothing > 0 && !options.points && !options.stacked;
  const lines = names.map((name, i) => {
    const raw = table[name].map((value) => (yLog && value !== null && value <= 0 ? null : value));
    const tone = colour(options.colours ? options.colours[i] : `c${(i % 8) + 1}`);
    return {name, raw, y: smooth ? smoothed(raw) : raw, pale: smooth ? raw : null, colour: tone};
  });
  const show = (i) => showLegend(panel.legend, lines, steps, i, options);
  drawPlot(panel.plot, {
    ...{x: steps, lines, height: 190, yLog, range: options.range, stacked: options.stacked, points: options.points},
    sync: 'run',
    onCursor: show,
    onClick: (i) => openStep(steps[i], options.of === 'eval'),
  });
  show(null);
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

function showLegend(legend, lines, steps, i, options) {
  const last = i ?? steps.length - 1;
  const names = lines.map((line) => line.name);
  const entries = lines.map(({name, raw, colour: tone}) => {
    const meaning = page.explanations[options.of ?? 'train'][name];
    const text = `${shortName(name, names)} ${number(raw[last])}`;
    return legendEntry(tone, text, meaning ? `${name}: ${meaning}` : name, Boolean(options.stacked));
  });
  replace(legend, element('span', {class: 'muted'}, `step ${steps[last]}`), entries);
}

function shortName(name, names) {
  const family = name.slice(0, name.indexOf('/') + 1);
  return family && names.every((other) => other.startsWith(family))
    ? name.slice(family.length).replaceAll('_', ' ')
    : name;
}
