// The held-out problems: their list, and the answers to one of them at every evaluation, side by side.

const COURSES = [
  ['learned', 'learned'],
  ['forgotten', 'forgotten'],
  ['changing', 'changing'],
  ['solved', 'solved from the start'],
  ['unsolved', 'never solved'],
];
const MOST_ICONS = 9;
const held = {list: null, tree: null};

function heldOutView() {
  const table = page.held_out;
  if (!table) {
    const view = element('section', {}, element('p', {}, 'The run has stored no samples of its evaluations.'));
    view.drawn = () => {};
    return view;
  }
  const last = (problem) => problem.right.at(-1);
  const share = (problem) => last(problem)[0] / (last(problem)[1] || 1);
  const byIndex = (a, b) => a.benchmark.localeCompare(b.benchmark) || a.index - b.index;
  held.list = makeList({
    label: 'held-out problems',
    items: table.problems,
    filters: [
      ['all', 'all problems', () => true],
      ...COURSES.map(([name, label]) => [name, label, (problem) => problem.course === name]),
    ],
    orders: [
      ['course', 'by course, learned ones on top', () => 0],
      ['earliest', 'solved earliest first', (a, b) => (a.since ?? Infinity) - (b.since ?? Infinity) || byIndex(a, b)],
      ['hardest', 'hardest at the end first', (a, b) => share(a) - share(b)],
      ['easiest', 'easiest at the end first', (a, b) => share(b) - share(a)],
      ['index', 'in their order', byIndex],
    ],
    placeholder: 'words of question or answers  ( / )',
    ranges: () => ({}),
    facts: ({question, problem, gold, benchmark}) => `${question} ${problem} ${gold} ${benchmark}`,
    chunk: ({chunk}) => (chunk === null ? null : `held-out-${chunk}`),
    entry: heldEntry,
    open: (problem) => openProblem(problem),
  });
  held.place = element('div', {class: 'panel'}, element('p', {}, 'Choose a problem.'));
  const present = table.problems.filter((problem) => problem.chunk !== null).length;
  const some = present < table.problems.length ? ` The answers to ${present} of them are here, of each course in its turn.` : '';
  const view = element(
    'section',
    {},
    noteElement(
      `${outOf(table.problems.length, table.stored_problems, 'problem')} at ` +
        `${outOf(table.steps.length, table.stored_steps, 'evaluation')}. The icons are the greedy answers, ` +
        `the bar is the share of right samples at the last one.${some}`,
    ),
    element('div', {class: 'prompts'}, held.list.node, held.place),
  );
  view.drawn = () => {
    if (!held.list.shown.length) showList(held.list);
    if (!held.list.chosen) openProblem(table.problems.find((problem) => problem.chunk !== null), {push: false});
  };
  view.state = () => [...listState(held.list), ['problem', held.list.chosen && nameOfProblem(held.list.chosen)]];
  view.restore = async (state) => {
    restoreList(held.list, state);
    const problem = table.problems.find((one) => nameOfProblem(one) === state.get('problem'));
    if (problem) await openProblem(problem, {push: false});
  };
  return view;
}

function nameOfProblem({benchmark, problem}) {
  return benchmark ? `${benchmark}: ${problem}` : problem;
}

function heldEntry(problem) {
  const every = Math.ceil(problem.greedy.length / MOST_ICONS);
  const icons = problem.greedy.filter((_, i) => i % every === 0 || i === problem.greedy.length - 1);
  const [right, all] = problem.right.at(-1);
  return [
    element('span', {class: 'text question'}, visible(problem.question || problem.problem).replaceAll('\n', '↵')),
    element(
      'small',
      {},
      icons.map((solved) => (solved === null ? '–' : iconElement(OUTCOMES[solved ? 'right' : 'wrong']))),
      problem.course === 'learned' ? element('span', {}, `since step ${problem.since}`) : null,
    all ? [shareBar(right, all, all, `${right} of ${all} samples right`), `${right}/${all}`] : null,
      element('span', {}, visible(nameOfProblem(problem))),
      problem.chunk === null ? element('span', {}, 'no text here') : null,
    ),
  ];
}

async function openProblem(problem, {push = true} = {}) {
  if (!problem) return;
  held.list.chosen = problem;
  markChosen(held.list);
  const of = problem.chunk === null ? null : await tree(`held-out-${problem.chunk}`);
  if (held.list.chosen !== problem) return;
  held.tree = of;
  replace(
    held.place,
    rowElement(element('b', {}, visible(nameOfProblem(problem))), goldElement(problem.gold)),
    of ? promptElement(of) : noteElement(`Its answers are not in this page. ${visible(problem.question)}`),
    of ? element('div', {class: 'evaluations'}, page.held_out.steps.map((step) => answersAt(of, step))) : null,
  );
  remember(push);
}

// The answers of one evaluation: a button for each sample, and the text of the chosen one.
function answersAt(of, step) {
  const rollouts = of.rollouts.filter((rollout) => rollout.step === step).sort((a, b) => a.base - b.base);
  const sampled = rollouts.filter((rollout) => rollout.base > 0);
  const place = element('div');
  const samples = rollouts.map((rollout) => {
    const label = `${nameOf(rollout)}: ${outcomeOf(rollout).word}, ${rollout.extracted ?? 'no answer'}`;
    const show = (event) => {
      for (const other of samples) {
        other.setAttribute('aria-pressed', String(other === event.currentTarget));
        other.tabIndex = other === event.currentTarget ? 0 : -1;
      }
      replace(place, answerText(of, rollout));
    };
    return button([iconElement(outcomeOf(rollout)), ` ${shortened(rollout.extracted ?? '–', 12)}`], show, {
      'aria-label': visible(label),
      'aria-pressed': 'false',
    });
  });
  samples[0]?.click();
  const right = sampled.filter((rollout) => rollout.outcome === 'right').length;
  return element(
    'div',
    {class: 'answer', 'data-step': step},
    element('h3', {}, step === 0 ? 'before training' : `step ${step}`),
    sampled.length ? element('small', {class: 'muted'}, `${right} of ${plural(sampled.length, 'sample')} right`) : null,
    element('div', {class: 'samples', role: 'group', 'aria-label': 'samples', onkeydown: moveFocus}, samples),
    place,
  );
}

function answerText(of, rollout) {
  const whole = response(of, rollout);
  const box = element('div', {class: 'text', 'aria-label': `text of ${nameOf(rollout)}`}, turnsOf(of, whole));
  showTips(box, ({dataset}) => dataset?.at && tokenTip(of, rollout, Number(dataset.at)));
  return element(
    'div',
    {},
    verdictElement(rollout),
    rollout.whole ? box : noteElement('The text is not in this page.'),
  );
}
