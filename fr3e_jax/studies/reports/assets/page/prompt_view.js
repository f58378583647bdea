// One prompt: its question, its tree with a key, the table of its states, and the pane of texts.

function drawPrompt() {
  const of = prompts.tree,
    prompt = prompts.chosen;
  const width = prompts.place.clientWidth - 26;
  const families = familiesOf(of);
  const note = prompts.stepNote;
  prompts.stepNote = '';
  const kept = prompts.place.querySelector('.tree .scroll')?.scrollLeft ?? 0;
  const drawing = element('div', {class: 'scroll'}, drawTree(of, width));
  replace(
    prompts.place,
    rowElement(
      button('‹ previous', () => neighbour(-1), {title: 'k'}),
      button('next ›', () => neighbour(1), {title: 'j'}),
      element('b', {}, `step ${prompt.step}, prompt ${prompt.position}`),
      element('span', {class: 'muted text'}, visible(prompt.problem)),
      button('copy link', copyLink),
    ),
    note ? noteElement(note) : null,
    element('p', {class: 'text question', 'aria-label': 'question'}, textOf(of.prompt)),
    families.length > 1 || (families.length && !of.byId.has(families[0])) ? familyButtons(of, families) : null,
    missingParent(of),
    element('div', {class: 'tree'}, key(of), zoomButtons(of), drawing),
    stateTable(of),
    readingPane(of),
  );
  drawing.scrollLeft = kept;
  scrollToChosen();
}

// The pane of the text stays in sight below the tree; only the text scrolls in it.
function scrollToChosen() {
  const token = document.querySelector('.reading .tk.chosen'),
    box = token?.closest('.text');
  if (box) box.scrollTop += token.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
}

function copyLink(event) {
  const copied = () => replace(event.target, 'copied');
  navigator.clipboard?.writeText(location.href).then(copied, () => {});
}

function textOf(ids) {
  return visible(
    page.vocabulary ? texts(ids).join('') : `token ids, as the run's tokenizer is not there: ${ids.join(' ')}`,
  );
}

function familyButtons(of, families) {
  return element(
    'div',
    {class: 'row', role: 'group', 'aria-label': 'explored base rollouts'},
    element('span', {class: 'muted'}, 'explored:'),
    families.map((parent) => {
      const base = of.byId.get(parent);
      return button(
        [base ? iconElement(outcomeOf(base)) : null, ` ${base ? `base ${base.base}` : parent}`],
        () => {
          look.parent = parent;
          if (base) pick(base);
          else {
            look.selected = of.rollouts.find((rollout) => rollout.parent === parent);
            drawPrompt();
          }
        },
        {'aria-pressed': String(parent === look.parent)},
      );
    }),
  );
}

function missingParent(of) {
  if (look.parent === null || of.byId.has(look.parent)) return null;
  const [step, position] = look.parent.split('/').map(Number);
  const origin = page.prompts.find((prompt) => prompt.step === step && prompt.position === position);
  return noteElement(
    `These branches leave rollout ${look.parent}, which step ${step} sampled. `,
    origin ? button('show it', () => openPrompt(origin, look.parent)) : 'It is not in this page.',
  );
}

function key(of) {
  return element(
    'div',
    {class: 'key'},
    element('span', {}, 'entropy 0', element('i', {class: 'ramp entropy'}), `${number(entropyScale(of), 2)} nats`),
    element('span', {}, 'reward 0', element('i', {class: 'ramp reward'}), '1'),
    element('span', {}, 'bar: log-prob, full at 0, empty at −5'),
    element('span', {}, 'line: width is |advantage|, dotted does not train'),
    [...new Set(of.rollouts.map(outcomeOf))].map((outcome) => element('span', {}, iconElement(outcome), outcome.word)),
  );
}

function zoomButtons() {
  const zoom = (factor) => {
    look.zoom = Math.min(40, Math.max(1, look.zoom * factor));
    drawPrompt();
  };
  const compare = button(look.comparing ? 'choose the second rollout …' : 'compare with …', compareNext, {
    'aria-pressed': String(look.comparing),
    title: 'c, or Shift and a click on a branch',
  });
  return rowElement(
    button('−', () => zoom(1 / 1.6), {'aria-label': 'narrower tokens', disabled: look.zoom <= 1}),
    button('+', () => zoom(1.6), {'aria-label': 'wider tokens'}),
    compare,
    look.compared ? button('compare no more', compareNoMore) : null,
  );
}

function compareNext() {
  look.comparing = !look.comparing;
  drawPrompt();
}

function compareNoMore() {
  look.compared = null;
  look.comparing = false;
  drawPrompt();
  remember();
}

function stateTable(of) {
  const states = look.parent === null ? [] : statesOf(of, look.parent);
  if (!states.length) return null;
  const base = of.byId.get(look.parent);
  const rows = states.map((state) => {
    const trained = state.rollouts.filter((rollout) => rollout.advantage !== null).length;
    const right = state.rollouts.filter((rollout) => rollout.outcome === 'right').length;
    const token = base && base.tokens.length > state.fork ? spelled(texts(base.tokens)[state.fork]) : '–';
    return [
      `S${subscript(state.j)}`,
      numberCell(state.fork),
      element('td', {class: 'text'}, token),
      numberCell(base ? fixed(base.entropies[state.fork], 3) : '–'),
      numberCell(fixed(state.value, 3)),
      numberCell(state.delta === null ? '–' : signed(state.delta, 3)),
      numberCell(fixed(state.alpha, 3)),
      numberCell(`${right}/${state.rollouts.length}`),
      trained ? `${trained} train` : 'equal rewards: trains nothing',
    ];
  });
  const head = ['state', 'at', 'token', 'entropy', 'V', 'ΔV', 'α', 'right', 'training'];
  return element(
    'details',
    {},
    element('summary', {}, `States of this trunk (${states.length})`),
    element('div', {class: 'scroll'}, tableElement(head, rows)),
  );
}

function numberCell(content) {
  return element('td', {class: 'number'}, String(content));
}
