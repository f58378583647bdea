// The tree of a prompt: trunk as a strip of tokens, states as pins, branches as lanes that leave it where they fork.

const FLOOR = -5; // log-prob at which a bar is empty
const look = {parent: null, selected: null, compared: null, comparing: false, token: null, zoom: 1, folded: false};

function chooseFirst(of, id, token) {
  const families = familiesOf(of);
  const wanted = id ? of.byId.get(id) : null;
  look.selected = wanted ?? of.byId.get(mostChanging(of, families)) ?? of.rollouts[0];
  look.parent = familyOf(of, look.selected, families);
  look.token = token;
  look.compared = null;
  look.comparing = false;
}

function familyOf(of, rollout, families) {
  if (rollout.parent) return rollout.parent;
  if (families.includes(rollout.id)) return rollout.id;
  return families.includes(look.parent) ? look.parent : mostChanging(of, families);
}

function mostChanging(of, families) {
  const change = (parent) => Math.max(0, ...statesOf(of, parent).map((state) => Math.abs(state.delta ?? 0)));
  return families.reduce((best, parent) => (best === null || change(parent) > change(best) ? parent : best), null);
}

// The greatest entropy of a tree has the full colour; a small one has at least half a nat for it.
function entropyScale(of) {
  let most = 0.5;
  for (const rollout of of.rollouts) for (const entropy of rollout.entropies) if (entropy > most) most = entropy;
  return most;
}

function drawTree(of, width, scrolled) {
  const layout = layoutOf(of, look.parent, width, look.zoom, scrolled);
  const scale = entropyScale(of);
  look.cell = layout.cell;
  const drawing = svg('svg', {
    width: layout.width,
    height: layout.height,
    role: 'group',
    'aria-label': 'tree of rollouts',
    viewBox: `0 0 ${layout.width} ${layout.height}`,
  });
  for (const group of [...layout.groups].reverse()) drawing.append(...stem(layout, group));
  drawing.append(axis(layout));
  if (layout.top.valueHeight) drawing.append(values(layout));
  if (layout.trunk) drawing.append(trunkStrip(layout, scale));
  for (const group of layout.groups)
    drawing.append(groupHead(layout, group), ...group.rows.map((row) => lane(layout, row, scale)));
  listen(drawing, of);
  return drawing;
}

// Positions of tokens in the response.
function axis(layout) {
  const label = (at) => svg('text', {class: 'small', x: layout.x(at), y: 11, 'text-anchor': 'middle'}, number(at));
  return svg('g', {class: 'axis', 'aria-hidden': true}, axisTicks(layout).map(label));
}

function stem(layout, group) {
  const x = layout.x(group.fork) - 7,
    last = group.rows[group.rows.length - 1];
  const start = layout.trunk ? layout.top.trunk + 20 : group.y + 4;
  const path = svg('path', {class: 'stem', d: `M${x} ${start} V${last.y + 6}`, 'stroke-width': 2.5});
  path.style.stroke = rewardColour(group.value);
  return [path];
}

function groupHead(layout, group) {
  const right = group.rollouts.filter((rollout) => rollout.outcome === 'right').length;
  const facts = [];
  if (group.value !== null && group.value !== undefined) facts.push(`V ${fixed(group.value)}`);
  if (group.delta !== null && group.delta !== undefined) facts.push(`ΔV ${signed(group.delta)}`);
  if (group.alpha !== null && group.alpha !== undefined) facts.push(`α ${fixed(group.alpha)}`);
  facts.push(`${right} of ${group.rollouts.length} right`);
  const x = Math.min(layout.x(group.fork), Math.max(MARGIN.left, layout.width - 280));
  return svg(
    'text',
    {x, y: group.y + 14, class: 'label'},
    svg('tspan', {'font-weight': 600}, group.title),
    svg('tspan', {dx: 8}, facts.join('   ')),
  );
}

// V(S_j) over the trunk, from V(S_0) at the prompt, with a pin at each anchor.
function values(layout) {
  const {values: top, valueHeight: height} = layout.top;
  const y = (value) => top + height * (1 - Math.min(1, Math.max(0, value)));
  const part = svg('g', {});
  for (const [value, label] of [
    [1, '1'],
    [0.5, 'V'],
    [0, '0'],
  ]) {
    part.append(
      svg('line', {x1: MARGIN.left - 4, x2: layout.x(layout.longest), y1: y(value), y2: y(value), class: 'frame'}),
      svg('text', {x: MARGIN.left - 18, y: y(value) + 4, class: 'small'}, label),
    );
  }
  const states = layout.groups.filter((group) => !group.base && group.value !== null).reverse();
  const points =
    layout.trunk && !layout.trunk.isKept && layout.trunk.value !== null && states[0]?.j !== 0
      ? [{j: 0, fork: 0, value: layout.trunk.value, delta: null}, ...states]
      : states;
  part.append(
    svg('polyline', {class: 'value-line', points: points.map((p) => `${layout.x(p.fork)},${y(p.value)}`).join(' ')}),
  );
  for (const point of points) {
    const x = layout.x(point.fork);
    const dot = svg('circle', {cx: x, cy: y(point.value), r: 9});
    dot.style.fill = rewardColour(point.value);
    const pin = svg(
      'g',
      {class: 'pin', 'data-state': point.j},
      svg('line', {x1: x, x2: x, y1: y(point.value), y2: layout.top.trunk + 18}),
      dot,
      svg('text', {x, y: y(point.value) + 4, fill: 'var(--ground)'}, String(point.j)),
    );
    pin.querySelector('text').style.fill = 'var(--ground)';
    pin.append(
      svg(
        'title',
        {},
        `S${subscript(point.j)}: V ${fixed(point.value, 3)}` +
          (point.delta === null ? '' : `, ΔV ${signed(point.delta, 3)}`) +
          (point.alpha ? `, α ${fixed(point.alpha, 3)}` : ''),
      ),
    );
    part.append(pin);
  }
  return part;
}

function trunkStrip(layout, scale) {
  const {trunk, top} = layout;
  const strip = laneGroup(trunk, `trunk, ${nameOf(trunk)}`);
  strip.classList.add('trunk');
  strip.append(
    svg('rect', {
      class: 'back',
      x: MARGIN.left - 4,
      y: top.bars - 2,
      width: layout.cell * trunk.length + 8,
      height: 50,
      rx: 3,
    }),
  );
  strip.append(svg('line', {class: 'frame', x1: layout.x(0), x2: layout.x(trunk.length), y1: top.bars, y2: top.bars}));
  for (const piece of pieces(trunk, layout, 0)) {
    const height = 22 * Math.max(0, Math.min(1, 1 - piece.logprob / FLOOR));
    strip.append(
      svg('rect', {
        class: 'bar',
        x: layout.x(piece.start) + layout.cell * 0.12,
        y: top.bars + 22 - height,
        width: Math.max(0.6, layout.cell * piece.count * 0.76),
        height,
      }),
    );
  }
  strip.append(...cells(layout, trunk, 0, top.trunk, scale));
  strip.append(lanePath(layout, trunk, top.trunk + 9, layout.x(0), 5), laneEnd(layout, trunk, top.trunk + 9));
  return strip;
}

function lane(layout, row, scale) {
  const {rollout, y} = row;
  const group = laneGroup(rollout, nameOf(rollout));
  group.append(
    svg('rect', {
      class: 'back',
      x: layout.x(rollout.fork) - 4,
      y: y - 2,
      width: layout.cell * rollout.length + 70,
      height: 24,
      rx: 3,
    }),
  );
  group.append(lanePath(layout, rollout, y, layout.x(rollout.fork) - 7));
  group.append(...cells(layout, rollout, rollout.fork, y, scale), laneEnd(layout, rollout, y));
  return group;
}

function laneGroup(rollout, where) {
  const group = svg('g', {
    class: 'lane',
    tabindex: rollout === look.selected ? 0 : -1,
    role: 'button',
    'data-rollout': rollout.number,
    'aria-label': `${where}: ${outcomeOf(rollout).word}, reward ${number(rollout.reward)}, advantage ${fixed(rollout.advantage)}`,
  });
  if (rollout === look.selected) group.classList.add('selected');
  if (rollout === look.compared) group.classList.add('compared');
  if (!trainsSomehow(rollout)) group.classList.add('idle');
  return group;
}

// Width by advantage, colour by reward; a rollout that does not train is dotted.
function lanePath(layout, rollout, y, from, bend = 7) {
  const width = rollout.advantage === null ? 1.4 : Math.min(6, 1.2 + 3 * Math.abs(rollout.advantage));
  const end = layout.x(rollout.fork + rollout.length) + 4,
    line = y + 17;
  const start =
    from < layout.x(rollout.fork) ? `M${from} ${line - 9} Q${from} ${line} ${from + bend} ${line}` : `M${from} ${line}`;
  const path = svg('path', {class: 'path', d: `${start} H${end}`, 'stroke-width': width});
  path.style.stroke = rewardColour(rollout.reward);
  return path;
}

function laneEnd(layout, rollout, y) {
  const x = layout.x(rollout.fork + rollout.length) + 13;
  const end = svg('g', {}, icon(outcomeOf(rollout), x, y + 9));
  const facts = [rollout.extracted === null ? null : shortened(rollout.extracted, 8)];
  if (rollout.advantage !== null) facts.push(signed(rollout.advantage));
  end.append(svg('text', {x: x + 12, y: y + 13, class: 'small'}, facts.filter((fact) => fact).join('  ')));
  return end;
}

// Stretches of tokens in sight; each stands for its token of the highest entropy.
function pieces(rollout, {pool, from, to}, fork) {
  const found = [];
  const first = Math.max(0, Math.floor((from - fork) / pool) * pool);
  for (let start = first; start < Math.min(to - fork, rollout.tokens.length); start += pool) {
    const count = Math.min(pool, rollout.tokens.length - start);
    let most = start;
    for (let i = start + 1; i < start + count; i++)
      if ((rollout.entropies[i] ?? 0) > (rollout.entropies[most] ?? 0)) most = i;
    found.push({
      start,
      count,
      token: most,
      entropy: rollout.entropies[most] ?? 0,
      logprob: rollout.logprobs[most] ?? 0,
      tool: rollout.answers.some(([from, to]) => from <= most && most < to),
    });
  }
  return found;
}

function cells(layout, rollout, fork, y, scale) {
  const written = layout.cell >= 9 && layout.pool === 1 ? texts(rollout.tokens).map(spelled) : [];
  const drawn = [];
  for (const piece of pieces(rollout, layout, fork)) {
    const cell = svg('rect', {
      class: piece.tool ? 'cell tool' : 'cell',
      x: layout.x(fork + piece.start),
      y,
      width: Math.max(0.5, layout.cell * piece.count - (layout.cell > 4 ? 1 : 0)),
      height: 14,
      'data-token': piece.token,
    });
    if (!piece.tool) cell.setAttribute('fill-opacity', (0.04 + 0.5 * Math.min(1, piece.entropy / scale)).toFixed(3));
    drawn.push(cell);
    const last = piece.start === rollout.tokens.length - 1 && rollout.finished && rollout.whole;
    const text = last ? '⊣' : shortened(written[piece.start] ?? '', Math.max(3, Math.floor((layout.cell + 2) / 7.3)));
    if (written.length && [...text].length * 7.3 <= layout.cell + 2) {
      drawn.push(svg('text', {class: 'token', x: layout.x(fork + piece.start) + layout.cell / 2, y: y + 11.5}, text));
    }
  }
  if (look.selected === rollout && look.token !== null && look.token >= fork) {
    drawn.push(
      svg('rect', {
        class: 'token-mark',
        x: layout.x(look.token),
        y: y - 1,
        width: Math.max(3, layout.cell - 1),
        height: 16,
      }),
    );
  }
  return drawn;
}
