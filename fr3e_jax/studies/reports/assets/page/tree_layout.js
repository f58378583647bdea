// Where each rollout of a tree lies. Positions count tokens of the response; lanes lie below the trunk. The state with
// the last fork comes first, so no stem crosses a lane.

const ROW = 25;
const GROUP_HEAD = 20;

// Bases and parents from which states were explored; a parent of an earlier step is an id without a rollout here.
function familiesOf(of) {
  return [...new Set(of.rollouts.filter((rollout) => rollout.parent).map((rollout) => rollout.parent))];
}

function statesOf(of, parent) {
  const states = new Map();
  for (const rollout of of.rollouts) {
    if (rollout.parent !== parent || rollout.parent === null) continue;
    if (!states.has(rollout.state)) {
      states.set(rollout.state, {
        j: rollout.state,
        fork: rollout.fork,
        value: rollout.value,
        alpha: rollout.alpha,
        rollouts: [],
      });
    }
    states.get(rollout.state).rollouts.push(rollout);
  }
  const list = [...states.values()].sort((a, b) => a.fork - b.fork || a.j - b.j);
  const base = of.byId.get(parent);
  // States of several visits may have one fork: changes are those from the mean of the fork before.
  const forks = Map.groupBy(list, (state) => state.fork);
  let before = base && !base.isKept ? base.value : null;
  for (const [fork, together] of forks) {
    for (const state of together)
      state.delta = fork === 0 || before === null || state.value === null ? null : state.value - before;
    before = together.reduce((sum, state) => sum + state.value, 0) / together.length;
  }
  return list;
}

// The groups of lanes below a trunk: its states from the last to the first, then the base rollouts of the prompt.
function groupsOf(of, parent) {
  const isKept = of.byId.get(parent)?.isKept;
  const titled = (state) => `S${subscript(state.j)}${isKept ? `, from token ${state.fork}` : ''}`;
  const states = statesOf(of, parent).map((state) => ({...state, title: titled(state)}));
  states.sort((a, b) => b.fork - a.fork || b.j - a.j);
  const bases = of.rollouts.filter(({kind, id, isKept}) => kind !== 'state' && id !== parent && !isKept);
  if (bases.length) {
    const value = bases[0].kind === 'base' ? bases[0].value : null;
    states.push({
      j: 0,
      fork: 0,
      value,
      alpha: null,
      delta: null,
      rollouts: bases,
      base: true,
      title: parent === null ? 'from the prompt' : 'S₀, from the prompt',
    });
  }
  return states;
}

function subscript(j) {
  return String(j).replace(/\d/g, (digit) => '₀₁₂₃₄₅₆₇₈₉'[digit]);
}

const MARGIN = {left: 34, right: 120};
const MOST_CELL = 90;
const MOST_ZOOM = 4000;

// Heights of the parts above the lanes, the width of a token, and the place of each lane. Tokens are drawn from half a
// width left of what is in sight to half a width right of it.
function layoutOf(of, parent, width, zoom, scrolled) {
  const trunk = of.byId.get(parent) ?? null;
  const groups = groupsOf(of, parent);
  const lanes = groups.flatMap((group) => group.rollouts);
  const longest = Math.max(1, trunk ? trunk.length : 0, ...lanes.map((rollout) => rollout.fork + rollout.length));
  const fitting = (width - MARGIN.left - MARGIN.right) / longest;
  const cell = Math.min(MOST_CELL, Math.min(28, Math.max(fitting, 0.02)) * zoom);
  const [from, to] = [-0.5, 1.5].map((share) => (scrolled + share * width - MARGIN.left) / cell);
  const seen = (start, count) => Math.max(0, Math.min(to, start + count) - Math.max(from, start));
  const total = lanes.reduce((sum, rollout) => sum + seen(rollout.fork, rollout.tokens.length), 0);
  const pool = Math.max(1, Math.ceil(2 / cell), Math.ceil(total / 9000));
  const values = parent !== null && groups.some((group) => !group.base);
  const top = {values: values ? 28 : 14, valueHeight: values ? 52 : 0};
  top.bars = top.values + top.valueHeight + (values ? 12 : 6);
  top.trunk = top.bars + 26;
  let y = trunk ? top.trunk + 34 : values ? top.bars + 12 : 22;
  for (const group of groups) {
    group.y = y;
    y += GROUP_HEAD;
    group.rows = group.rollouts.map((rollout) => {
      const row = {rollout, y};
      y += ROW;
      return row;
    });
    y += 6;
  }
  const x = (position) => MARGIN.left + position * cell;
  return {
    trunk,
    parent,
    groups,
    cell,
    pool,
    longest,
    from,
    to,
    x,
    top,
    height: y + 4,
    width: Math.max(x(longest) + MARGIN.right, width),
  };
}

// Positions of tokens at round distances, for an axis.
function axisTicks(layout) {
  const least = 70 / layout.cell,
    power = 10 ** Math.floor(Math.log10(least));
  const every = Math.max(1, [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least));
  const ticks = [];
  for (let at = Math.max(0, Math.floor(layout.from / every) * every); at <= Math.min(layout.longest, layout.to); at += every)
    ticks.push(at);
  return ticks;
}
