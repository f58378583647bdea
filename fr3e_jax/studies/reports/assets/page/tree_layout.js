// Where each rollout of a tree lies. Positions count tokens of the response; lanes lie below the trunk. The state with
// the last fork comes first, so no stem crosses a lane.

const ROW = 25;
const GROUP_HEAD = 20;

// The groups of lanes below a trunk: its states from the last to the first, then the base rollouts of the prompt.
function groupsOf(of, parent) {
  const isKept = of.byId.get(parent)?.isKept;
  const branches = of.rollouts.filter((rollout) => rollout.parent === parent && parent !== null);
  const states = [...Map.groupBy(branches, ({id}) => id.slice(0, id.lastIndexOf('/'))).values()];
  const groups = states.map((rollouts) => {
    const [{state: j, fork, value, delta, alpha}] = rollouts;
    return {j, fork, value, delta, alpha, rollouts, title: `S${subscript(j)}${isKept ? `, from token ${fork}` : ''}`};
  });
  groups.sort((a, b) => b.fork - a.fork || b.j - a.j);
  const rollouts = of.rollouts.filter(
    (rollout) => rollout.kind !== 'state' && rollout.id !== parent && !rollout.isKept,
  );
  const value = rollouts[0]?.kind === 'base' ? rollouts[0].value : null;
  const title = parent === null ? 'from the prompt' : 'S₀, from the prompt';
  const fromPrompt = {j: 0, fork: 0, value, alpha: null, delta: null, rollouts, base: true, title};
  return rollouts.length ? [...groups, fromPrompt] : groups;
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
    const right = group.rollouts.filter((rollout) => rollout.outcome === 'right').length;
    group.facts = [...stateFacts(group, 2), `${right} of ${group.rollouts.length} right`].join('   ');
    group.room = 7 * `${group.title}   ${group.facts}`.length;
    group.rows = group.rollouts.map((rollout, n) => ({rollout, y: group.y + GROUP_HEAD + n * ROW}));
    y += GROUP_HEAD + group.rows.length * ROW + 6;
  }
  const x = (position) => MARGIN.left + position * cell;
  const heads = groups.map((group) => MARGIN.left + group.room);
  const size = {height: y + 4, width: Math.max(x(longest) + MARGIN.right, width, ...heads)};
  return {trunk, groups, cell, pool, longest, from, to, x, top, ...size};
}

// Positions of tokens at round distances, for an axis.
function axisTicks({cell, from, to, longest}) {
  const least = 70 / cell;
  const power = 10 ** Math.floor(Math.log10(least));
  const every = Math.max(
    1,
    [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least),
  );
  const first = Math.max(0, Math.floor(from / every));
  const count = Math.max(0, Math.floor(Math.min(longest, to) / every) - first + 1);
  return Array.from({length: count}, (_, n) => (first + n) * every);
}
