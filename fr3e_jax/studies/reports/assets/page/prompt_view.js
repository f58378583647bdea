// One prompt: its question, its tree with a key, the table of its states, and the pane of texts.

function drawPrompt() {
  const of = prompts.tree,
    prompt = prompts.list.chosen;
  const families = familiesOf(of);
  const note = prompts.stepNote;
  prompts.stepNote = '';
  const before = prompts.place.querySelector('.tree .scroll')?.scrollLeft ?? 0;
  const drawing = element('div', {class: 'scroll'});
  const draw = () => replace(drawing, drawTree(of, roomFor(26), drawing.scrollLeft));
  replace(
    prompts.place,
    rowElement(
      button('‹ previous', () => neighbour(prompts.list, -1), {title: 'k'}),
      button('next ›', () => neighbour(prompts.list, 1), {title: 'j'}),
      element('b', {}, `step ${prompt.step}, prompt ${prompt.position}`),
      element('span', {class: 'muted text'}, visible(prompt.problem)),
      goldElement(prompt.gold),
      button('copy link', copyLink),
    ),
    note ? noteElement(note) : null,
    promptElement(of),
    families.length > 1 ? familyButtons(of, families) : null,
    keptNote(of),
    visitsElement(of),
    element('div', {class: 'tree'}, key(of), zoomButtons(drawing), drawing),
    stateTable(of),
    readingPane(of),
  );
  draw();
  const token = MARGIN.left + look.token * look.cell,
    width = drawing.clientWidth;
  const inSight = look.token === null || (before <= token && token <= before + width);
  drawing.scrollLeft = inSight ? before : token - width / 2;
  draw();
  let drawn = drawing.scrollLeft;
  drawing.addEventListener('scroll', () => {
    if (Math.abs(drawing.scrollLeft - drawn) < width / 2) return;
    drawn = drawing.scrollLeft;
    draw();
  });
  scrollToChosen();
}

// The width of the panel without its edges; while a window is opened, it may have none.
function roomFor(edges) {
  return Math.max(240, prompts.place.clientWidth - edges);
}

// The turns of a prompt with their roles.
function promptElement(of) {
  return element(
    'div',
    {class: 'text question', 'aria-label': 'question'},
    of.prompt.map(([role, text]) =>
      element('div', {class: 'turn'}, role ? element('b', {class: 'role'}, visible(role)) : null, visible(text)),
    ),
  );
}

function goldElement(gold) {
  return gold ? element('span', {}, 'gold answer ', element('b', {class: 'text'}, visible(gold))) : null;
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

function familyButtons(of, families) {
  return element(
    'div',
    {class: 'row', role: 'group', 'aria-label': 'explored base rollouts'},
    element('span', {class: 'muted'}, 'explored:'),
    families.map((parent) => {
      const base = of.byId.get(parent);
      const choose = () => {
        look.parent = parent;
        pick(base ?? of.rollouts.find((rollout) => rollout.parent === parent));
      };
      const label = [base ? iconElement(outcomeOf(base)) : null, ` ${base ? nameOf(base) : parent}`];
      return button(label, choose, {'aria-pressed': String(parent === look.parent)});
    }),
  );
}

// Where a kept success comes from.
function keptNote(of) {
  const trunk = of.byId.get(look.parent);
  if (look.parent === null || (trunk && !trunk.isKept)) return null;
  if (!trunk) return noteElement(`These branches continue rollout ${look.parent}, which is not in this page.`);
  const {position} = prompts.list.chosen;
  const origin = page.prompts.find((prompt) => prompt.step === trunk.step && prompt.position === position);
  return noteElement(
    `These branches continue base rollout ${trunk.base}, a success that step ${trunk.step} sampled and the run kept. `,
    origin ? button('show its prompt', () => openPrompt(origin, {rollout: trunk.id})) : null,
  );
}

// A kept success over the run. Each row of dots is a step that continued it, from the depths where the dots are.
function visitsElement(of) {
  const id = [look.parent, look.selected.id].find((one) => one !== null && Object.hasOwn(page.visits, one));
  const trunk = of.byId.get(id);
  if (!trunk) return null;
  const visits = page.visits[id];
  const steps = [...new Set(visits.map(([step]) => step))];
  const {step: shown, position} = prompts.list.chosen;
  const open = (step) => {
    const prompt = page.prompts.find((one) => one.step === step && one.position === position);
    if (prompt) openPrompt(prompt);
  };
  const said = (step) => {
    const states = visits.filter(([one]) => one === step);
    const depths = [...new Set(states.map(([, fork]) => fork))].join(', ');
    const sum = (column) => states.reduce((total, state) => total + state[column], 0);
    return `step ${step}: from token ${depths}: ${sum(2)} of ${sum(3)} right`;
  };
  const width = Math.min(640, roomFor(40)),
    row = Math.max(4, Math.min(12, 140 / steps.length));
  const x = (fork) => MARGIN.left + (fork / trunk.length) * (width - MARGIN.left - 20);
  const y = (step) => 24 + steps.indexOf(step) * row;
  const label = (words, place, top, anchor = 'start') =>
    svg('text', {x: place, y: top, class: 'small', 'text-anchor': anchor}, String(words));
  const height = y(steps.at(-1)) + 10;
  const drawing = svg(
    'svg',
    {width, height, role: 'img', 'aria-label': 'depths of the kept success by step'},
    [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * trunk.length)).map((fork) => [
      svg('line', {class: 'frame', x1: x(fork), x2: x(fork), y1: 16, y2: height}),
      label(fork, x(fork), 11, 'middle'),
    ]).flat(),
    [steps[0], steps.at(-1)].map((step) => label(step, 2, y(step) + 4)),
    visits.map(([step, fork, right, all]) => {
      const dot = svg('circle', {class: 'visit', cx: x(fork), cy: y(step), r: Math.min(5, row * 0.6), 'data-step': step});
      dot.style.fill = rewardColour(right / all);
      if (step === shown) dot.classList.add('shown');
      return dot;
    }),
  );
  showTips(drawing, ({dataset}) => dataset?.step && said(Number(dataset.step)));
  drawing.addEventListener('click', ({target}) => target.dataset.step && open(Number(target.dataset.step)));
  return element(
    'details',
    {class: 'tree visits', open: true},
    element('summary', {}, `Kept success: continued at ${plural(steps.length, 'step')}; tokens across, steps down`),
    choice('visit', steps.map((step) => [step, said(step)]), shown, (step) => open(Number(step))),
    drawing,
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

// The chosen token comes to the middle; without one, the middle of what is in sight stays there.
function zoomButtons(drawing) {
  const zoom = (factor) => {
    const half = drawing.clientWidth / 2;
    const middle = look.token ?? (drawing.scrollLeft + half - MARGIN.left) / look.cell;
    look.zoom = Math.min(MOST_ZOOM, Math.max(1, look.zoom * factor));
    drawPrompt();
    prompts.place.querySelector('.tree .scroll').scrollLeft = MARGIN.left + middle * look.cell - half;
    remember();
  };
  const compare = button(look.comparing ? 'choose the second rollout …' : 'compare with …', compareNext, {
    'aria-pressed': String(look.comparing),
    title: 'c, or Shift and a click on a branch',
  });
  return rowElement(
    button('−', () => zoom(1 / 1.6), {'aria-label': 'narrower tokens', disabled: look.zoom <= 1}),
    button('+', () => zoom(1.6), {'aria-label': 'wider tokens', disabled: look.cell >= MOST_CELL}),
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
      numberCell(base ? fixed(base.entropies[state.fork]) : '–'),
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
