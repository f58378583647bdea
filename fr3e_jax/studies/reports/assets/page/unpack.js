// Data of the page: base64 of gzipped JSON in elements that are no programs. Chunks are unpacked when they are needed.

async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

const unpacked = new Map();

// The rollouts of a chunk, and the kept successes that they continue.
async function tree(id) {
  if (!unpacked.has(id)) unpacked.set(id, unpack(id).then(rolloutsOf).then(withTrunks));
  return unpacked.get(id);
}

async function withTrunks(of) {
  for (const {parent} of of.rollouts) {
    if (parent === null || of.byId.has(parent) || !Object.hasOwn(page.trunks, parent)) continue;
    const [trunk] = rolloutsOf(await unpack(`trunk-${page.trunks[parent]}`)).rollouts;
    of.rollouts.push({...trunk, number: of.rollouts.length, isKept: true});
    of.byId.set(parent, of.rollouts.at(-1));
  }
  return of;
}

// Fields of all tokens or of the prompt; the others are columns with a value for each rollout.
const FLAT = new Set(['prompt', 'families', 'scale', 'token_ids', 'logprobs', 'entropies']);

// From columns: tokens, log-probs and entropies are slices of the flat ones.
function rolloutsOf(columns) {
  const rollouts = [];
  const numbers = (name, start, end) =>
    columns[name].slice(start, end).map((n) => (n === null ? null : n / 10 ** page.decimals[name]));
  let start = 0;
  for (let i = 0; i < columns.id.length; i++) {
    const rollout = {number: i};
    for (const name of Object.keys(columns)) if (!FLAT.has(name)) rollout[name] = columns[name][i];
    const end = start + columns.tokens[i];
    rollout.whole = rollout.tokens === rollout.length;
    rollout.tokens = columns.token_ids.slice(start, end);
    rollout.logprobs = numbers('logprobs', start, end);
    rollout.entropies = numbers('entropies', start, end);
    start = end;
    rollouts.push(rollout);
  }
  const byId = new Map(rollouts.map((rollout) => [rollout.id, rollout]));
  return {...columns, rollouts, byId};
}

// The texts of tokens in their order. A character that spans tokens stands with the last of them, and the others have
// the empty text. Bytes that make no character are shown as �.
function texts(ids) {
  const decoder = new TextDecoder('utf-8', {ignoreBOM: true});
  const written = ids.map((id) => {
    const piece = page.vocabulary ? (page.vocabulary[id] ?? `⟨${id}⟩`) : `${id} `;
    const isText = typeof piece === 'string';
    return isText ? decoder.decode() + piece : decoder.decode(new Uint8Array(piece), {stream: true});
  });
  if (ids.length) written.push(written.pop() + decoder.decode());
  return written;
}

// The whole response: the tokens that a rollout shares with its parent, then its own.
function response(of, rollout) {
  const parent = rollout.parent ? of.byId.get(rollout.parent) : null;
  const before = parent ? response(of, parent).slice(0, rollout.fork) : [];
  const missing = rollout.parent && before.length < rollout.fork;
  const own = rollout.tokens.map((id, i) => ({
    id,
    rollout,
    index: i,
    position: rollout.fork + i,
    logprob: rollout.logprobs[i],
    entropy: rollout.entropies[i],
    tool: rollout.answers.some(([start, end]) => start <= i && i < end),
    shared: false,
  }));
  const prefix = missing ? [] : before.map((token) => ({...token, shared: true}));
  return [...prefix, ...own];
}
