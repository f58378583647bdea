// The page of a comparison: why runs may not compare, one chart of a metric over what the runs spent, the tables, and
// the problems one by one.

let page = null;
const BANDS = [
  ['range', 'smallest to largest run'],
  ['interval', 'bootstrap 95 % of the mean'],
  ['none', 'none'],
];
const FLAGS_SHOWN = 4;

async function start() {
  page = await unpack('main');
  theme(savedTheme());
  const shown = {metric: page.metric, axis: page.axes[0][0], band: 'range'};
  const chart = element('div', {class: 'panel'});
  const draw = () => {
    clearPlots(chart);
    const finding = chosenFigure(shown);
    replace(chart, figurePlace(finding));
    drawFigure(chart.querySelector('.plot'), finding, 400);
  };
  const select = (name, options) =>
    element(
      'label',
      {class: 'row muted'},
      name,
      choice(name, options, shown[name], (value) => {
        shown[name] = value;
        draw();
      }),
    );
  replace(
    document.getElementById('page'),
    element(
      'header',
      {},
      rowElement(element('h1', {}, 'Comparison of runs'), themeButton()),
      noteElement(page.groups.map(({label, runs}) => `${visible(label)} (${runs})`).join(' · ')),
      page.reports.length ? noteElement('Reports: ', page.reports.map(([name, href]) => [element('a', {href}, visible(name)), ' ']).flat()) : null,
    ),
    element(
      'main',
      {class: 'comparison'},
      page.flags.length ? flagPanel() : null,
      rowElement(select('metric', page.metrics), select('axis', page.axes), select('band', BANDS)),
      chart,
      noteElement(
        'Lines are means over the runs of a group. A line ends where the shortest of its runs ends; nothing is ' +
          'extrapolated. An evaluation after a step stands at the total that was spent up to the end of that step.',
      ),
      page.tables.map(findingPanel),
      page.problems.length ? problemPanel() : null,
    ),
    element('div', {id: 'tip', hidden: true, role: 'tooltip'}),
  );
  document.addEventListener('theme', draw);
  new ResizeObserver(draw).observe(chart.parentNode);
  draw();
  document.documentElement.dataset.ready = 'yes';
}

// The gravest warnings stand before the curve, the others are folded.
function flagPanel() {
  const lines = page.flags.map(({kind, text}) => element('li', {}, element('b', {}, `${kind}: `), visible(text)));
  const folded = lines.slice(FLAGS_SHOWN);
  return element(
    'div',
    {class: 'panel flags', 'aria-label': 'before you compare'},
    element('h3', {}, 'Before you compare'),
    element('ul', {}, lines.slice(0, FLAGS_SHOWN)),
    folded.length ? element('details', {}, element('summary', {}, `${folded.length} more`), element('ul', {}, folded)) : null,
  );
}

function chosenFigure({metric, axis, band}) {
  const {x, groups} = page.curves[metric][axis];
  const labelOf = (options, name) => options.find(([option]) => option === name)[1];
  const series = groups.map((curve, i) => {
    const ends = curve?.[band];
    return {name: page.groups[i].label, x, y: curve?.mean ?? x.map(() => null), low: ends?.[0], high: ends?.[1]};
  });
  return {title: metric, kind: 'lines', x_label: labelOf(page.axes, axis), y_label: labelOf(page.metrics, metric), series};
}

// Who solves which problem, and the answers of the groups side by side.
function problemPanel() {
  const solvers = (problem) => problem.answers.filter((answer) => answer?.solved).length;
  const answered = (problem) => problem.answers.filter((answer) => answer).length;
  const place = element('div', {class: 'panel', 'aria-label': 'answers'});
  const open = (problem) => {
    problems.chosen = problem;
    markChosen(problems);
    replace(
      place,
      element('h3', {}, visible(problem.name)),
      element('p', {class: 'text question', 'aria-label': 'question'}, visible(problem.question)),
      problem.gold ? element('p', {}, 'gold answer: ', element('b', {class: 'text'}, visible(problem.gold))) : null,
      element('div', {class: 'beside'}, problem.answers.map((answer, i) => answer && answerElement(page.groups[i].label, answer))),
    );
  };
  const problems = makeList({
    label: 'problems',
    items: page.problems,
    placeholder: 'words of question or answer',
    filters: [
      ['all', 'all problems', () => true],
      ['differ', 'some groups solve it', (one) => solvers(one) > 0 && solvers(one) < answered(one)],
      ...page.groups.map(({label}, i) => [
        `only-${i}`,
        `only ${shortened(label, 30)}`,
        (one) => one.answers[i]?.solved && solvers(one) === 1,
      ]),
      ['each', 'each group solves it', (one) => solvers(one) === answered(one)],
      ['none', 'no group solves it', (one) => solvers(one) === 0],
    ],
    orders: [['stored', 'those that differ first', () => 0]],
    ranges: () => ({}),
    facts: ({name, question, gold, answers}) => [name, question, gold, ...answers.map((one) => one?.response)].join(' '),
    chunk: () => null,
    entry: ({name, question, answers}) => [
      element('span', {class: 'text question'}, shortened(question || name, 120)),
      element('small', {}, answers.map((one) => (one ? iconElement(OUTCOMES[one.solved ? 'right' : 'wrong']) : '–'))),
    ],
    open,
  });
  showList(problems);
  open(problems.shown[0]);
  const view = element('div', {class: 'prompts'}, problems.node, place);
  return element('div', {}, element('h2', {}, 'Problem by problem'), noteElement('The last evaluation of one run of each group.'), view);
}

function answerElement(label, answer) {
  const outcome = outcomeOf(answer);
  const share = answer.samples ? `${answer.right} of ${plural(answer.samples, 'sample')} right` : null;
  return element(
    'div',
    {class: 'panel', 'aria-label': `answer of ${visible(label)}`},
    element('b', {}, visible(label)),
    rowElement(iconElement(outcome), element('span', {class: `tone ${outcome.tone}`}, outcome.word), share),
    element('p', {class: 'text'}, visible(answer.response)),
  );
}

// The list of problems holds no address.
function remember() {}

start();
