// The prompts of the run: their list, and which prompt, rollout and token are chosen.

const FILTERS = [
  ['all', 'all prompts', () => true],
  ['mixed', 'mixed only', isMixed],
  ['explored', 'explored', (p) => p.stratum !== 'returned' && p.states > 0],
  ['returned', 'kept successes', (p) => p.stratum === 'returned'],
  ['flips', 'flip points', (p) => p.flips > 0],
  ['cut', 'cut at the cap', (p) => p.cut > 0],
  ['all_right', 'all right', (p) => p.verdicts > 0 && p.right === p.answers],
  ['all_wrong', 'all wrong', (p) => p.verdicts > 0 && p.right === 0],
  ['trouble', 'time-outs and errors', (p) => p.trouble > 0],
  ['ungraded', 'without a verdict', (p) => p.verdicts === 0],
];
const ORDERS = [
  ['step', 'in the order of training', inOrder],
  ['delta', 'largest |ΔV| first', (a, b) => b.delta - a.delta || inOrder(a, b)],
  ['longest', 'longest first', (a, b) => b.lengths[1] - a.lengths[1] || inOrder(a, b)],
  ['hardest', 'hardest first', (a, b) => rightShare(a) - rightShare(b) || b.verdicts - a.verdicts || inOrder(a, b)],
];
const prompts = {list: null, tree: null};

function isMixed(prompt) {
  return prompt.right > 0 && prompt.right < prompt.answers;
}

// Prompts without a verdict come last.
function rightShare(prompt) {
  return prompt.verdicts ? prompt.right / prompt.verdicts : 2;
}

function inOrder(a, b) {
  return a.step - b.step || a.position - b.position;
}

function promptsView() {
  page.prompts.forEach((prompt, number) => {
    prompt.number = number;
  });
  const outcomes = [...new Set(page.prompts.flatMap((prompt) => prompt.outcomes))].sort();
  const byOutcome = (outcome) => [outcome, `some: ${OUTCOMES[outcome].word}`, (p) => p.outcomes.includes(outcome)];
  prompts.list = makeList({
    label: 'prompts',
    items: page.prompts,
    filters: [...FILTERS, ...outcomes.map(byOutcome)],
    orders: ORDERS,
    placeholder: 'words, reward<0.5, step=3  ( / )',
    ranges: ({step, rewards, lengths}) => ({step: [step, step], reward: rewards, length: lengths}),
    facts: ({question, problem, gold}) => `${question} ${problem} ${gold}`,
    chunk: (prompt) => `prompt-${prompt.number}`,
    entry: promptEntry,
    open: (prompt) => openPrompt(prompt),
  });
  prompts.place = element('div', {class: 'panel'}, element('p', {}, 'Choose a prompt.'));
  const view = element(
    'section',
    {},
    noteElement(samplingSentence()),
    element('div', {class: 'prompts'}, prompts.list.node, prompts.place),
  );
  view.drawn = () => {
    if (!prompts.list.shown.length) showList(prompts.list);
    const {shown, chosen} = prompts.list;
    if (chosen && prompts.tree) drawPrompt();
    else if (!chosen && shown.length) openPrompt(mostTelling(shown.slice(Math.floor(shown.length / 2))), {push: false});
  };
  view.state = () => {
    const {chosen} = prompts.list;
    return [
      ...listState(prompts.list),
      ['prompt', chosen && `${chosen.step}/${chosen.position}`],
      ['rollout', chosen && look.selected?.id],
      ['token', look.token],
      ['beside', look.compared?.id],
      ['zoom', look.zoom > 1 ? Number(look.zoom.toFixed(2)) : null],
      ['text', look.folded ? 'folded' : null],
    ];
  };
  view.restore = async (state) => {
    restoreList(prompts.list, state);
    look.zoom = Math.min(MOST_ZOOM, Math.max(1, Number(state.get('zoom')) || 1));
    look.folded = state.get('text') === 'folded';
    const prompt = page.prompts.find(({step, position}) => `${step}/${position}` === state.get('prompt'));
    if (!prompt) return;
    const token = state.has('token') ? Number(state.get('token')) : null;
    await openPrompt(prompt, {rollout: state.get('rollout'), token, beside: state.get('beside'), push: false});
  };
  return view;
}

// The prompt whose values change most; of prompts without states, a mixed one.
function mostTelling(list) {
  const telling = (prompt) => prompt.delta || (isMixed(prompt) ? 0.001 : 0);
  return list.reduce((best, prompt) => (telling(prompt) > telling(best) ? prompt : best));
}

function samplingSentence() {
  const account = page.sampling;
  const read = Object.values(account.prompts_read).reduce((a, b) => a + b, 0);
  if (!account.steps_stored) return 'The run has stored no rollouts (runtime.store_rollouts).';
  const all = account.steps_read.length === account.steps_stored;
  const steps = all
    ? `all ${account.steps_stored} steps`
    : `${account.steps_read.length} of ${account.steps_stored} steps, ` + 'one of each stretch of the run';
  if (all && account.prompts_shown === read) return `All ${plural(read, 'prompt')} of ${steps} are here.`;
  return (
    `${account.prompts_shown} of ${plural(read, 'prompt')} of ${steps}: drawn at random (seed ${account.seed}) by turns ` +
    `of those with trouble, explored, returned to, mixed, all wrong and all right ones. Of a prompt with more than ` +
    `${account.prompt_tokens.toLocaleString('en')} tokens some rollouts have their numbers here, but no text.`
  );
}

function promptEntry(prompt) {
  const {right, verdicts, answers} = prompt;
  const kind = prompt.stratum === 'returned' ? 'continuations of a kept success' : 'base rollouts';
  const title = verdicts ? `${right} of ${answers} ${kind} right` : `no verdict on ${answers} ${kind}`;
  const facts = [`step ${prompt.step}`, shareBar(right, verdicts, answers, title), verdicts ? `${right}/${answers}` : '–'];
  if (prompt.stratum === 'returned') facts.push('of a kept success');
  if (prompt.states) facts.push(`|ΔV| ${fixed(prompt.delta)}`);
  if (prompt.flips) facts.push(plural(prompt.flips, 'flip'));
  if (prompt.trouble) facts.push(`${prompt.trouble} not graded`);
  return [
    element('span', {class: 'text question'}, visible(prompt.question || prompt.problem).replaceAll('\n', '↵')),
    element('small', {}, facts.map((fact) => (typeof fact === 'string' ? element('span', {}, fact) : fact))),
  ];
}

async function openPrompt(prompt, {rollout = null, token = null, beside = null, push = true} = {}) {
  const {list} = prompts;
  list.chosen = prompt;
  markChosen(list);
  const opened = await tree(`prompt-${prompt.number}`);
  if (list.chosen !== prompt) return;
  prompts.tree = opened;
  chooseFirst(opened, rollout, token);
  look.compared = opened.byId.get(beside) ?? null;
  drawPrompt();
  remember(push);
}

// The step of a curve: its prompts, or those of the nearest step that has some.
function openStep(step, held) {
  if (held && page.held_out) {
    showView('held-out');
    remember(true);
    return;
  }
  showView('prompts');
  const steps = [...new Set(page.prompts.map((prompt) => prompt.step))];
  if (!steps.length) return;
  const nearest = steps.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best));
  restoreList(prompts.list, new Map([['search', `step=${nearest}`]]));
  prompts.stepNote =
    nearest === step ? '' : `Step ${step} has no prompts here; the nearest that has is step ${nearest}.`;
  openPrompt(mostTelling(prompts.list.shown));
}
