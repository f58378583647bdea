// The tree of a prompt: trunk as a strip of tokens, states as pins, branches as lanes that leave it where they fork.

const FLOOR = -5; // log-prob at which a bar is empty
const look = {parent: null, selected: null, compared: null, token: null, zoom: 1, folded: false};

function chooseFirst(of, id, token) {
  const selected = of.byId.get(id) ?? of.byId.get(of.families[0]) ?? of.rollouts[0];
  const isThere = response(of, selected).some(({position}) => position === token);
  Object.assign(look, {selected, token: isThere ? token : null, compared: null});
  look.parent = familyOf(of, selected);
}

function familyOf({families}, {id, parent}) {
  if (parent) return parent;
  if (families.includes(id)) return id;
  return families.includes(look.parent) ? look.parent : (families[0] ?? null);
}

function box(kind, x, y, width, height, more = {}) {
  return svg('rect', {class: kind, x, y, width, height, ...more});
}

function label(kind, x, y, text, anchor = 'start') {
  return svg('text', {class: kind, x, y, 'text-anchor': anchor}, text);
}

function drawTree(of, width, scrolled) {
  const layout = layoutOf(of, look.parent, width, look.zoom, scrolled);
  const {trunk, groups, top} = layout;
  look.cell = layout.cell;
  const drawing = svg(
    'svg',
    {width: layout.width, height: layout.height, role: 'group', 'aria-label': 'tree of rollouts'},
    groups.toReversed().map((group) => stem(layout, group)),
    axis(layout),
    top.valueHeight > 0 && values(layout),
    trunk && trunkStrip(layout, of.scale),
    groups.map((group) => [groupHead(layout, group), group.rows.map((row) => lane(layout, row, of.scale))]),
  );
  drawing.setAttribute('viewBox', `0 0 ${layout.width} ${layout.height}`);
  listen(drawing, of);
  return drawing;
}

// Positions of tokens in the response.
function axis(layout) {
  const ticks = axisTicks(layout).map((at) => label('small', layout.x(at), 11, number(at), 'middle'));
  return svg('g', {class: 'axis', 'aria-hidden': true}, ticks);
}

function stem(layout, group) {
  const x = layout.x(group.fork) - 7;
  const start = layout.trunk ? layout.top.trunk + 20 : group.y + 4;
  const path = svg('path', {class: 'stem', d: `M${x} ${start} V${group.rows.at(-1).y + 6}`, 'stroke-width': 2.5});
  path.style.stroke = rewardColour(group.value);
  return path;
}

// V, ΔV and α of a state, as far as it has them.
function stateFacts({value, delta, alpha}, digits) {
  const pairs = [value !== null && `V ${fixed(value, digits)}`, delta !== null && `ΔV ${fixed(delta, digits, '+')}`];
  return [...pairs, alpha && `α ${fixed(alpha, digits)}`].filter(Boolean);
}

function groupHead(layout, group) {
  const x = Math.min(layout.x(group.fork), layout.width - group.room);
  const title = svg('tspan', {'font-weight': 600}, group.title);
  return label('label', x, group.y + 14, [title, svg('tspan', {dx: 8}, group.facts)]);
}

// V(S_j) over the trunk, from V(S_0) at the prompt, with a pin at each anchor.
function values(layout) {
  const {values: top, valueHeight: height} = layout.top;
  const {trunk} = layout;
  const end = layout.x(layout.longest);
  const y = (value) => top + height * (1 - Math.min(1, Math.max(0, value)));
  const frame = Object.entries({1: '1', 0.5: 'V', 0: '0'}).map(([value, name]) => [
    svg('line', {x1: MARGIN.left - 4, x2: end, y1: y(value), y2: y(value), class: 'frame'}),
    label('small', MARGIN.left - 18, y(value) + 4, name),
  ]);
  const states = layout.groups.filter((group) => !group.base && group.value !== null).reverse();
  const isFromPrompt = trunk && !trunk.isKept && trunk.value !== null && states[0]?.j !== 0;
  const points = isFromPrompt ? [{j: 0, fork: 0, value: trunk.value, delta: null}, ...states] : states;
  const course = points.map(({fork, value}) => `${layout.x(fork)},${y(value)}`).join(' ');
  const pin = (state) => {
    const {j, fork, value} = state;
    const x = layout.x(fork);
    const dot = svg('circle', {cx: x, cy: y(value), r: 9});
    dot.style.fill = rewardColour(value);
    return svg(
      'g',
      {class: 'pin', 'data-state': j},
      svg('line', {x1: x, x2: x, y1: y(value), y2: layout.top.trunk + 18}),
      dot,
      label('', x, y(value) + 4, String(j), 'middle'),
      svg('title', {}, `S${subscript(j)}: ${stateFacts(state, 3).join(', ')}`),
    );
  };
  return svg('g', {}, frame, svg('polyline', {class: 'value-line', points: course}), points.map(pin));
}

function trunkStrip(layout, scale) {
  const {trunk, top, cell} = layout;
  const bar = ({start, count, logprob}) => {
    const height = 22 * Math.max(0, Math.min(1, 1 - logprob / FLOOR));
    const x = layout.x(start) + cell * 0.12;
    return box('bar', x, top.bars + 22 - height, Math.max(0.6, cell * count * 0.76), height);
  };
  const strip = laneGroup(
    trunk,
    `trunk, ${nameOf(trunk)}`,
    box('back', MARGIN.left - 4, top.bars - 2, cell * trunk.length + 8, 50, {rx: 3}),
    svg('line', {class: 'frame', x1: layout.x(0), x2: layout.x(trunk.length), y1: top.bars, y2: top.bars}),
    pieces(trunk, layout, 0).map(bar),
    cells(layout, trunk, 0, top.trunk, scale),
    lanePath(layout, trunk, top.trunk + 9, layout.x(0), 5),
    laneEnd(layout, trunk, top.trunk + 9),
  );
  strip.classList.add('trunk');
  return strip;
}

function lane(layout, {rollout, y}, scale) {
  const x = layout.x(rollout.fork);
  return laneGroup(
    rollout,
    nameOf(rollout),
    box('back', x - 4, y - 2, layout.cell * rollout.length + 70, 24, {rx: 3}),
    lanePath(layout, rollout, y, x - 7),
    cells(layout, rollout, rollout.fork, y, scale),
    laneEnd(layout, rollout, y),
  );
}

function laneGroup(rollout, name, ...content) {
  const facts = `${outcomeOf(rollout).word}, reward ${number(rollout.reward)}, advantage ${fixed(rollout.advantage)}`;
  const kinds = {
    lane: true,
    selected: rollout === look.selected,
    compared: rollout === look.compared,
    idle: rollout.advantage === null && rollout.trained !== 'blocks',
  };
  const attributes = {
    class: Object.keys(kinds)
      .filter((kind) => kinds[kind])
      .join(' '),
    tabindex: rollout === look.selected ? 0 : -1,
    role: 'button',
    'data-rollout': rollout.number,
    'aria-label': `${name}: ${facts}`,
  };
  return svg('g', attributes, ...content);
}

// Width by advantage, colour by reward; a rollout that does not train is dotted.
function lanePath(layout, rollout, y, from, bend = 7) {
  const width = rollout.advantage === null ? 1.4 : Math.min(6, 1.2 + 3 * Math.abs(rollout.advantage));
  const end = layout.x(rollout.fork + rollout.length) + 4;
  const line = y + 17;
  const isBent = from < layout.x(rollout.fork);
  const start = isBent ? `M${from} ${line - 9} Q${from} ${line} ${from + bend} ${line}` : `M${from} ${line}`;
  const path = svg('path', {class: 'path', d: `${start} H${end}`, 'stroke-width': width});
  path.style.stroke = rewardColour(rollout.reward);
  return path;
}

function laneEnd(layout, rollout, y) {
  const {extracted, advantage} = rollout;
  const x = layout.x(rollout.fork + rollout.length) + 13;
  const answer = extracted !== null && extracted !== '' && `\u2068${shortened(extracted, 8)}\u2069`;
  const facts = [answer, advantage !== null && fixed(advantage, 2, '+')];
  const text = facts.filter((fact) => fact).join('  ');
  return svg('g', {}, icon(outcomeOf(rollout), x, y + 9), label('small', x + 12, y + 13, text));
}

// Stretches of tokens in sight; each stands for its token of the highest entropy.
function pieces({tokens, entropies, logprobs, answers}, {pool, from, to}, fork) {
  const stretches = [];
  const first = Math.max(0, Math.floor((from - fork) / pool) * pool);
  for (let start = first; start < Math.min(to - fork, tokens.length); start += pool) {
    const count = Math.min(pool, tokens.length - start);
    let token = start;
    for (let i = start + 1; i < start + count; i++) if ((entropies[i] ?? 0) > (entropies[token] ?? 0)) token = i;
    const tool = answers.some(([begin, end]) => begin <= token && token < end);
    stretches.push({start, count, token, tool, entropy: entropies[token] ?? 0, logprob: logprobs[token] ?? 0});
  }
  return stretches;
}

function cells(layout, rollout, fork, y, scale) {
  const {cell} = layout;
  const written = cell >= 9 && layout.pool === 1 ? texts(rollout.tokens).map(spelled) : [];
  const hasEnd = rollout.finished && rollout.whole;
  const drawn = pieces(rollout, layout, fork).map(({start, count, token, tool, entropy}) => {
    const x = layout.x(fork + start);
    const opacity = (0.04 + 0.5 * Math.min(1, entropy / scale)).toFixed(3);
    const look = {'data-token': token, 'fill-opacity': tool ? null : opacity};
    const square = box(tool ? 'cell tool' : 'cell', x, y, Math.max(0.5, cell * count - (cell > 4 ? 1 : 0)), 14, look);
    const room = Math.max(3, Math.floor((cell + 2) / 7.3));
    const text = hasEnd && start === rollout.tokens.length - 1 ? '⊣' : shortened(written[start] ?? '', room);
    const fits = written.length && [...text].length * 7.3 <= cell + 2;
    return [square, fits && label('token', x + cell / 2, y + 11.5, text, 'middle')];
  });
  const isChosen = look.selected === rollout && look.token !== null && look.token >= fork;
  return [drawn, isChosen && box('token-mark', layout.x(look.token), y - 1, Math.max(3, cell - 1), 16)];
}
