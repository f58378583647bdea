// The page of a comparison: why runs may not compare, one chart of a metric over what the runs spent, the tables, and
// the problems one by one.

let page = null;
const FLAGS_SHOWN = 4;

async function start() {
  page = await unpack('main');
  const find = (selector) => document.querySelector(selector);
  const groups = page.groups.map(({label, runs}) => `${visible(label)} (${runs})`);
  const links = page.reports.map(([name, href]) => [element('a', {href}, visible(name)), ' ']);
  find('#theme').addEventListener('click', switchTheme);
  find('.groups').textContent = groups.join(' · ');
  replace(find('.reports'), links.length > 0 && 'Reports: ', links);
  fillFlags(find('.flags'));
  fillCurve(find('.controls'), find('.curve'));
  replace(find('.tables'), page.tables.map(findingPanel));
  find('.by-problem').hidden = page.problems.length === 0;
  if (page.problems.length) fillProblems(find('.list'), find('[aria-label=answers]'));
  showTheme();
  document.documentElement.dataset.ready = 'yes';
}

// The gravest warnings stand before the curve, the others are folded.
function fillFlags(node) {
  const lines = page.flags.map(({kind, text}) => element('li', {}, element('b', {}, `${kind}: `), visible(text)));
  const [first, others] = node.querySelectorAll('ul');
  replace(first, lines.slice(0, FLAGS_SHOWN));
  replace(others, lines.slice(FLAGS_SHOWN));
  node.hidden = lines.length === 0;
  node.querySelector('details').hidden = lines.length <= FLAGS_SHOWN;
  node.querySelector('summary').textContent = `${lines.length - FLAGS_SHOWN} more`;
}

function fillCurve(controls, place) {
  const [metric, axis, band] = controls.querySelectorAll('select');
  const labelOf = (list) => list.selectedOptions[0].textContent;
  const draw = () => {
    clearPlots(place);
    const {x, groups} = page.curves[metric.value][axis.value];
    const series = groups.map((curve, i) => {
      const [low, high] = curve?.[band.value] ?? [];
      return {name: page.groups[i].label, x, y: curve?.mean ?? x.map(() => null), low, high, dots: curve?.dots};
    });
    const labels = {x_label: labelOf(axis), y_label: labelOf(metric)};
    const finding = {type: 'Figure', title: metric.value, name: 'curve', kind: 'lines', ...labels, series};
    replace(place, findingPanel(finding));
    place.firstChild.draw(375);
  };
  choice(metric, page.metrics, page.metric, draw);
  choice(axis, page.axes, page.axes[0][0], draw);
  band.addEventListener('change', draw);
  document.addEventListener('theme', draw);
  new ResizeObserver(draw).observe(place.parentNode);
}

// Who solves which problem, and the answers of the groups side by side.
function fillProblems(node, place) {
  const open = (problem) => {
    problems.chosen = problem;
    markChosen(problems);
    replace(
      place,
      element('h3', {}, visible(problem.name)),
      element('p', {class: 'text question', 'aria-label': 'question'}, visible(problem.question)),
      problem.gold && element('p', {}, 'gold answer: ', element('b', {class: 'text'}, visible(problem.gold))),
      element(
        'div',
        {class: 'beside'},
        problem.answers.map((answer, i) => answer && answerElement(page.groups[i], answer)),
      ),
    );
  };
  const orders = [['stored', 'those that differ first']];
  const problems = makeList(node, {label: 'problems', items: page.problems, filters: page.filters, orders, open});
  open(problems.shown[0]);
}

function answerElement({label}, answer) {
  const {right, samples, response} = answer;
  const outcome = outcomeOf(answer);
  const share = samples > 0 && `${right} of ${plural(samples, 'sample')} right`;
  return element(
    'div',
    {class: 'panel', 'aria-label': `answer of ${visible(label)}`},
    element('b', {}, visible(label)),
    rowElement(iconElement(outcome), element('span', {class: `tone ${outcome.tone}`}, outcome.word), share),
    element('p', {class: 'text'}, visible(response)),
  );
}

// The list of problems holds no address.
function remember() {}

start();
