// The list of prompts: filters, order, and the way to the next one. It owns which prompt, rollout and token are chosen.

const FILTERS = [
  ['all', 'all prompts', () => true],
  ['mixed', 'mixed only', (p) => p.mixed],
  ['explored', 'explored', (p) => p.states > 0],
  ['flips', 'flip points', (p) => p.flips > 0],
  ['trouble', 'time-outs and errors', (p) => p.trouble > 0],
  ['cut', 'cut at the cap', (p) => p.cut > 0],
  ['all_right', 'all right', (p) => p.bases > 0 && p.right === p.bases],
  ['all_wrong', 'all wrong', (p) => p.bases > 0 && p.right === 0],
];
const ORDERS = [
  ['step', 'in the order of training', (a, b) => a.step - b.step || a.position - b.position],
  ['delta', 'largest |ΔV| first', (a, b) => b.delta - a.delta],
  ['longest', 'longest first', (a, b) => b.longest - a.longest],
  ['hardest', 'hardest first', (a, b) => a.right / (a.bases || 1) - b.right / (b.bases || 1)],
];
const prompts = {filter: 'all', order: 'step', step: '', search: '', shown: [], chosen: null, tree: null};
const LIST_LIMIT = 3000;

function promptsView() {
  page.prompts.forEach((prompt, number) => {
    prompt.number = number;
  });
  const steps = [...new Set(page.prompts.map((prompt) => prompt.step))];
  prompts.list = element('ol', {'aria-label': 'prompts'});
  prompts.count = element('small', {class: 'muted'});
  // A drop-down list whose choice is a condition or the order of the list.
  const listChoice = (name, options) =>
    choice(name, options, prompts[name], (value) => {
      prompts[name] = value;
      listPrompts();
    });
  prompts.stepChoice = listChoice('step', [['', 'all steps'], ...steps.map((step) => [step, `step ${step}`])]);
  prompts.filterChoice = listChoice(
    'filter',
    FILTERS.map(([name, label, test]) => [name, `${label} (${page.prompts.filter(test).length})`]),
  );
  prompts.searchField = element('input', {
    type: 'search',
    placeholder: 'search question or problem  ( / )',
    'aria-label': 'search',
    oninput: (event) => {
      prompts.search = event.target.value.toLowerCase();
      listPrompts();
    },
  });
  prompts.place = element('div', {class: 'panel'}, element('p', {}, 'Choose a prompt.'));
  const list = element(
    'div',
    {class: 'list panel'},
    prompts.searchField,
    rowElement(prompts.stepChoice, prompts.filterChoice, listChoice('order', ORDERS)),
    prompts.count,
    prompts.list,
  );
  const view = element(
    'section',
    {},
    noteElement(samplingSentence()),
    element('div', {class: 'prompts'}, list, prompts.place),
  );
  view.drawn = () => {
    listPrompts();
    if (!prompts.chosen && prompts.shown.length) openPrompt(mostTelling(prompts.shown.slice(Math.floor(prompts.shown.length / 2))));
    else if (prompts.chosen && prompts.tree) drawPrompt();
  };
  return view;
}

// The prompt whose values change most.
function mostTelling(list) {
  return list.reduce((best, prompt) => (prompt.delta + prompt.mixed > best.delta + best.mixed ? prompt : best));
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
    `of those with trouble, explored, mixed, all wrong and all right ones. Of a prompt with more than ` +
    `${account.prompt_tokens.toLocaleString('en')} tokens some rollouts have their numbers here, but no text.`
  );
}

function listPrompts() {
  const test = FILTERS.find(([name]) => name === prompts.filter)[2];
  prompts.shown = page.prompts.filter(
    (prompt) =>
      test(prompt) &&
      (!prompts.step || prompt.step === Number(prompts.step)) &&
      (!prompts.search || `${prompt.question} ${prompt.problem}`.toLowerCase().includes(prompts.search)),
  );
  prompts.shown.sort(ORDERS.find(([name]) => name === prompts.order)[2]);
  replace(prompts.list, prompts.shown.slice(0, LIST_LIMIT).map(listEntry));
  const more = prompts.shown.length > LIST_LIMIT ? `; the first ${LIST_LIMIT} are listed` : '';
  prompts.count.textContent = `${plural(prompts.shown.length, 'prompt')}${more}`;
  markChosen();
}

function listEntry(prompt) {
  const share = element(
    'span',
    {class: 'share', title: `${prompt.right} of ${prompt.bases} base rollouts right`},
    element('i'),
  );
  share.firstChild.style.width = `${(100 * prompt.right) / (prompt.bases || 1)}%`;
  const facts = [`step ${prompt.step}`, share, `${prompt.right}/${prompt.bases}`];
  if (prompt.states) facts.push(`|ΔV| ${fixed(prompt.delta)}`);
  if (prompt.flips) facts.push(plural(prompt.flips, 'flip'));
  if (prompt.trouble) facts.push(`${prompt.trouble} not graded`);
  return element(
    'li',
    {},
    button(
      [
        element('span', {class: 'text question'}, visible(prompt.question || prompt.problem).replaceAll('\n', '↵')),
        element(
          'small',
          {},
          facts.map((fact) => (typeof fact === 'string' ? element('span', {}, fact) : fact)),
        ),
      ],
      () => openPrompt(prompt),
      {'data-prompt': prompt.number},
    ),
  );
}

function markChosen() {
  for (const entry of prompts.list.querySelectorAll('button')) {
    const chosen = prompts.chosen !== null && Number(entry.dataset.prompt) === prompts.chosen.number;
    entry.setAttribute('aria-current', String(chosen));
    if (chosen) {
      const box = prompts.list.getBoundingClientRect(),
        place = entry.getBoundingClientRect();
      if (place.top < box.top || place.bottom > box.bottom)
        prompts.list.scrollTop += place.top - box.top - box.height / 2;
    }
  }
}

async function openPrompt(prompt, rollout = null, token = null) {
  prompts.chosen = prompt;
  markChosen();
  const found = await tree(`prompt-${prompt.number}`);
  if (prompts.chosen !== prompt) return;
  prompts.tree = found;
  chooseFirst(found, rollout, token);
  drawPrompt();
  remember();
}

// The step of a curve: its prompts, or those of the nearest step that has some.
function openStep(step, held) {
  if (held && page.held_out) {
    showView('held-out');
    return;
  }
  showView('prompts');
  const steps = [...new Set(page.prompts.map((prompt) => prompt.step))];
  if (!steps.length) return;
  const nearest = steps.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best));
  prompts.step = String(nearest);
  prompts.stepChoice.value = prompts.step;
  prompts.filter = prompts.filterChoice.value = 'all';
  prompts.search = prompts.searchField.value = '';
  listPrompts();
  prompts.stepNote =
    nearest === step ? '' : `Step ${step} has no prompts here; the nearest that has is step ${nearest}.`;
  openPrompt(mostTelling(prompts.shown));
}

function neighbour(way) {
  const place = prompts.shown.indexOf(prompts.chosen);
  const next = prompts.shown[place < 0 ? 0 : place + way];
  if (next) openPrompt(next);
}
