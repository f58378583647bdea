// Where each rollout of a tree lies. Positions count tokens of the response; lanes lie below the trunk. The state with
// the last fork comes first, so no stem crosses a lane.

const ROW = 22;
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
  const list = [...states.values()].sort((a, b) => a.j - b.j);
  const base = of.byId.get(parent);
  let before = base ? base.value : null;
  for (const state of list) {
    state.delta = state.j === 0 || before === null || state.value === null ? null : state.value - before;
    before = state.value;
  }
  return list;
}

// The groups of lanes below a trunk: its states from the last to the first, then the base rollouts of the prompt.
function groupsOf(of, parent) {
  const states = statesOf(of, parent).map((state) => ({...state, title: `S${subscript(state.j)}`}));
  states.sort((a, b) => b.fork - a.fork || b.j - a.j);
  const bases = of.rollouts.filter((rollout) => rollout.kind !== 'state' && rollout.id !== parent);
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

const MARGIN = {left: 34, right: 84};

// Heights of the parts above the lanes, the width of a token, and the place of each lane.
function layoutOf(of, parent, width, zoom) {
  const trunk = of.byId.get(parent) ?? null;
  const groups = groupsOf(of, parent);
  const lanes = groups.flatMap((group) => group.rollouts);
  const longest = Math.max(1, trunk ? trunk.length : 0, ...lanes.map((rollout) => rollout.fork + rollout.length));
  const fitting = (width - MARGIN.left - MARGIN.right) / longest;
  const cell = Math.min(28, Math.max(fitting, 0.02)) * zoom;
  const total = lanes.reduce((sum, rollout) => sum + rollout.tokens.length, trunk ? trunk.tokens.length : 0);
  const pool = Math.max(1, Math.ceil(2 / cell), Math.ceil(total / 9000));
  const values = parent !== null && groups.some((group) => !group.base);
  const top = {values: values ? 14 : 0, valueHeight: values ? 52 : 0};
  top.bars = top.values + top.valueHeight + (values ? 12 : 6);
  top.trunk = top.bars + 26;
  let y = trunk ? top.trunk + 34 : values ? top.bars + 12 : 8;
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
    x,
    top,
    height: y + 4,
    width: Math.max(x(longest) + MARGIN.right, width),
  };
}
