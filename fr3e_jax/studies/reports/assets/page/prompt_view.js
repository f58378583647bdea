// One prompt: its question, its tree with a key, and the pane of texts.

function drawPrompt() {
  const {tree: of, place, list} = prompts;
  const {step, position, problem, gold} = list.chosen;
  const scrolled = place.querySelector('.tree .scroll')?.scrollLeft ?? 0;
  const drawing = element('div', {class: 'scroll'});
  const draw = () => replace(drawing, drawTree(of, roomFor(26), drawing.scrollLeft));
  const visits = visitsOf(of);
  replace(
    place,
    rowElement(
      button('‹ previous', () => neighbour(list, -1), {title: 'k'}),
      button('next ›', () => neighbour(list, 1), {title: 'j'}),
      element('b', {}, `step ${step}, prompt ${position}`),
      element('span', {class: 'muted text'}, visible(problem)),
      goldElement(gold),
    ),
    prompts.stepNote && noteElement(prompts.stepNote),
    promptElement(of),
    keptNote(of),
    visits && visitChoice(visits),
    element('div', {class: 'tree'}, key(of), treeButtons(of, drawing), drawing),
    readingPane(of),
    visits && visitsPanel(visits),
  );
  prompts.stepNote = '';
  place.querySelector('#figure-visits')?.draw(110);
  draw();
  const token = MARGIN.left + look.token * look.cell;
  const width = drawing.clientWidth;
  const isInSight = look.token === null || (scrolled <= token && token <= scrolled + width);
  drawing.scrollLeft = isInSight ? scrolled : token - width / 2;
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
  const turn = ([role, text]) =>
    element('div', {class: 'turn'}, role && element('b', {class: 'role'}, visible(role)), visible(text));
  return element('div', {class: 'text question', 'aria-label': 'question'}, of.prompt.map(turn));
}

function goldElement(gold) {
  return gold ? element('span', {}, 'gold answer ', element('b', {class: 'text'}, visible(gold))) : null;
}

// The pane of the text stays in sight below the tree; only the text scrolls in it.
function scrollToChosen() {
  const token = document.querySelector('.reading .tk.chosen');
  const box = token?.closest('.text');
  if (box) box.scrollTop += token.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
}

// Where a kept success comes from.
function keptNote(of) {
  const trunk = of.byId.get(look.parent);
  if (look.parent === null || (trunk && !trunk.isKept)) return null;
  if (!trunk) return noteElement(`These branches continue rollout ${look.parent}, which is not in this page.`);
  const {items, chosen} = prompts.list;
  const origin = items.find(({step, position}) => step === trunk.step && position === chosen.position);
  return noteElement(
    `These branches continue base rollout ${trunk.base}, a success that step ${trunk.step} sampled and the run kept. `,
    origin && button('show its prompt', () => openPrompt(origin, {rollout: trunk.id})),
  );
}

// The states of each step that continued a kept success, as [step, token, right, continuations].
function visitsOf(of) {
  const id = [look.parent, look.selected.id].find((name) => name !== null && Object.hasOwn(page.visits, name));
  return of.byId.has(id) ? Map.groupBy(page.visits[id], ([step]) => step) : null;
}

function visitChoice(visits) {
  const {step: shown, position} = prompts.list.chosen;
  const open = (step) => {
    const prompt = prompts.list.items.find((item) => item.step === Number(step) && item.position === position);
    if (prompt) openPrompt(prompt);
  };
  const said = [...visits].map(([step, states]) => {
    const depths = [...new Set(states.map(([, fork]) => fork))].join(', ');
    const sum = (column) => states.reduce((total, state) => total + state[column], 0);
    return [step, `step ${step}: from token ${depths}: ${sum(2)} of ${sum(3)} right`];
  });
  return rowElement(choice(element('select', {'aria-label': 'visit'}), said, shown, open));
}

// A kept success over the run: the depths from which each step continued it.
function visitsPanel(visits) {
  const most = Math.max(...[...visits.values()].map((states) => states.length));
  const series = Array.from({length: most}, (_, n) => {
    const reached = [...visits].filter(([, states]) => states.length > n);
    return {name: `depth ${n + 1}`, x: reached.map(([step]) => step), y: reached.map(([, states]) => states[n][1])};
  });
  const title = `Kept response: continued at ${plural(visits.size, 'step')}`;
  const labels = {x_label: 'training step', y_label: 'token from which it was continued'};
  return findingPanel({type: 'Figure', name: 'visits', title, ...labels, series});
}

function key(of) {
  const node = element('div', {class: 'key'}, document.getElementById('key').content.cloneNode(true));
  const outcomes = [...new Set(of.rollouts.map(outcomeOf))];
  node.querySelector('.most').textContent = `${number(of.scale, 2)} nats`;
  node.append(...outcomes.map((outcome) => element('span', {}, iconElement(outcome), outcome.word)));
  return node;
}

// The explored rollout that is the trunk, the zoom, and the rollout beside the selected one. While zooming, the chosen
// token comes to the middle; without one, the middle of what is in sight stays there.
function treeButtons(of, drawing) {
  const zoom = (factor) => {
    const half = drawing.clientWidth / 2;
    const middle = look.token ?? (drawing.scrollLeft + half - MARGIN.left) / look.cell;
    look.zoom = Math.min(MOST_ZOOM, Math.max(1, look.zoom * factor));
    drawPrompt();
    prompts.place.querySelector('.tree .scroll').scrollLeft = MARGIN.left + middle * look.cell - half;
    remember();
  };
  const named = (id) => {
    const rollout = of.byId.get(id);
    return [id, rollout ? `${nameOf(rollout)}: ${outcomeOf(rollout).word}` : id];
  };
  const choose = (parent) => {
    look.parent = parent;
    pick(of.byId.get(parent) ?? of.rollouts.find((rollout) => rollout.parent === parent));
  };
  const others = of.rollouts.filter((rollout) => rollout !== look.selected).map(({id}) => named(id));
  const trunks = element('select', {'aria-label': 'explored rollout'});
  const beside = element('select', {'aria-label': 'compare with', title: 'c, or Shift and a click on a branch'});
  return rowElement(
    of.families.length > 1 && choice(trunks, of.families.map(named), look.parent, choose),
    button('−', () => zoom(1 / 1.6), {'aria-label': 'narrower tokens', disabled: look.zoom <= 1}),
    button('+', () => zoom(1.6), {'aria-label': 'wider tokens', disabled: look.cell >= MOST_CELL}),
    choice(beside, [['', 'compare with …'], ...others], look.compared?.id ?? '', (id) =>
      compare(of.byId.get(id) ?? null),
    ),
  );
}

function compare(rollout) {
  look.compared = rollout;
  drawPrompt();
  remember();
}
