// The same held-out problem at every evaluation: a table of problems, and the answers to one of them in time.

const COURSES = [
  ['', 'all problems'],
  ['learned', 'learned'],
  ['forgotten', 'forgotten'],
  ['changing', 'changing'],
  ['solved', 'solved from the start'],
  ['unsolved', 'never solved'],
];
const held = {course: '', chosen: null, tree: null};

function heldOutView() {
  const table = page.held_out;
  if (!table) {
    const view = element('section', {}, element('p', {}, 'The run has stored no samples of its evaluations.'));
    view.drawn = () => {};
    return view;
  }
  held.grid = element('div', {class: 'grid'});
  held.place = element('div', {class: 'panel'}, element('p', {}, 'Choose a problem.'));
  const count = (course) => table.problems.filter((problem) => !course || problem.course === course).length;
  const told = table.problems.filter((problem) => problem.chunk !== null).length;
  const some =
    told < table.problems.length
      ? ` The answers of ${told} of them are here; a problem of each course in its turn.`
      : '';
  const courses = COURSES.map(([name, label]) => [name, `${label} (${count(name)})`]);
  const courseChoice = choice('course', courses, '', (course) => {
    held.course = course;
    heldTable();
  });
  const view = element(
    'section',
    {},
    noteElement(
      `${outOf(table.problems.length, table.stored_problems, 'problem')} at ` +
        `${outOf(table.steps.length, table.stored_steps, 'evaluation')}. The icon is the greedy answer, ` +
        `the bar is the share of right samples.${some}`,
    ),
    element('div', {class: 'held'}, element('div', {class: 'panel'}, courseChoice, held.grid), held.place),
  );
  view.drawn = () => {
    heldTable();
    if (!held.chosen) openProblem(table.problems.find((problem) => problem.chunk !== null));
  };
  return view;
}

function heldTable() {
  const {problems, steps} = page.held_out;
  const shown = problems.filter((problem) => !held.course || problem.course === held.course).slice(0, 300);
  const grid = tableElement(
    ['problem', ...steps.map(String)],
    shown.map((problem) => {
      const name = visible(`${problem.benchmark} ${problem.index}`.trim());
      const opener = problem.chunk === null ? name : button(name, () => openProblem(problem));
      return [opener, ...problem.greedy.map((right, i) => heldCell(right, problem.right[i]))];
    }),
  );
  grid.querySelectorAll('tbody tr').forEach((line, n) => {
    line.setAttribute('aria-current', String(shown[n] === held.chosen));
    line.addEventListener('click', () => openProblem(shown[n]));
  });
  replace(held.grid, grid);
}

function heldCell(right, [count, all]) {
  const share = all ? element('span', {class: 'share', title: `${count} of ${all} samples right`}, element('i')) : null;
  if (share) {
    share.style.width = '22px';
    share.firstChild.style.width = `${(100 * count) / all}%`;
  }
  return element(
    'span',
    {class: 'row', title: share?.title},
    right === null ? '–' : iconElement(right ? OUTCOMES.right : OUTCOMES.wrong),
    share,
  );
}

async function openProblem(problem) {
  if (!problem || problem.chunk === null) return;
  held.chosen = problem;
  held.tree = await tree(`held-out-${problem.chunk}`);
  heldTable();
  const of = held.tree,
    steps = page.held_out.steps;
  replace(
    held.place,
    element('h3', {}, visible(problem.problem)),
    element('p', {class: 'text'}, textOf(of.prompt)),
    steps.map((step) => answerAt(of, step)),
  );
  remember();
}

function answerAt(of, step) {
  const rollouts = of.rollouts.filter((rollout) => rollout.step === step).sort((a, b) => a.base - b.base);
  const greedy = rollouts.find((rollout) => rollout.base === 0),
    sampled = rollouts.filter((rollout) => rollout.base > 0);
  const place = element('div');
  const show = (rollout) => replace(place, rollout ? answerText(of, rollout) : null);
  const dots = sampled.map((rollout) => {
    const outcome = outcomeOf(rollout),
      title = `sample ${rollout.base}: ${outcome.word}`;
    return button('', () => show(rollout), {class: outcome.tone, 'aria-label': title, title});
  });
  show(greedy);
  const right = sampled.filter((rollout) => rollout.outcome === 'right').length;
  return element(
    'div',
    {class: 'answer', 'data-step': step},
    rowElement(
      element('b', {}, step === 0 ? 'before training' : `step ${step}`),
      greedy ? button(['greedy ', iconElement(outcomeOf(greedy))], () => show(greedy)) : null,
      element('span', {class: 'muted'}, `${right} of ${plural(sampled.length, 'sample')} right`),
      element('span', {class: 'dots'}, dots),
    ),
    place,
  );
}

function answerText(of, rollout) {
  const box = element('span', {class: 'text', 'aria-label': nameOf(rollout)}, tokenSpans(of, response(of, rollout)));
  showTips(box, ({dataset}) => dataset?.at && tokenTip(of, rollout, Number(dataset.at)));
  return element(
    'div',
    {},
    element('span', {class: 'muted'}, `${nameOf(rollout)}: `),
    rollout.whole ? box : 'its text is not in this page',
  );
}
