// Data of the page: base64 of gzipped JSON in elements that are no programs. Chunks are unpacked when they are needed.

async function unpack(id) {
  const text = document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return JSON.parse(await new Response(stream).text());
}

const unpacked = new Map();

// The rollouts of a chunk, from its columns: tokens, log-probs and entropies are slices of the flat columns.
async function tree(id) {
  if (!unpacked.has(id)) unpacked.set(id, unpack(id).then(rolloutsOf));
  return unpacked.get(id);
}

// Columns of all tokens or of the prompt; the others have a value for each rollout.
const FLAT = new Set(['prompt_ids', 'token_ids', 'logprobs', 'entropies']);

function rolloutsOf(columns) {
  const rollouts = [];
  const scale = 10 ** page.decimals;
  const value = (n) => (n === null ? null : n / scale);
  let start = 0;
  for (let i = 0; i < columns.id.length; i++) {
    const rollout = {number: i};
    for (const name of Object.keys(columns)) if (!FLAT.has(name)) rollout[name] = columns[name][i];
    const end = start + columns.tokens[i];
    rollout.whole = rollout.tokens === rollout.length;
    rollout.tokens = columns.token_ids.slice(start, end);
    rollout.logprobs = columns.logprobs.slice(start, end).map(value);
    rollout.entropies = columns.entropies.slice(start, end).map(value);
    start = end;
    rollouts.push(rollout);
  }
  const byId = new Map(rollouts.map((rollout) => [rollout.id, rollout]));
  return {prompt: columns.prompt_ids, rollouts, byId};
}

// The texts of tokens in their order. Bytes of a character that spans tokens are shown with the token that ends it;
// the others, and bytes that make no character, are shown as hexadecimal numbers.
function texts(ids) {
  const found = [];
  let waiting = [];
  for (const id of ids) {
    const piece = page.vocabulary ? page.vocabulary[id] : `${id} `;
    if (piece === undefined) found.push(`⟨${id}⟩`);
    else if (typeof piece === 'string') found.push(piece);
    if (piece === undefined || typeof piece === 'string') {
      waiting = [];
      continue;
    }
    waiting.push(...piece);
    const whole = decoded(waiting);
    found.push(whole ?? `⟨${piece.map((byte) => byte.toString(16).toUpperCase().padStart(2, '0')).join(' ')}⟩`);
    if (whole !== null || waiting.length > 4) waiting = [];
  }
  return found;
}

function decoded(bytes) {
  try {
    return new TextDecoder('utf-8', {fatal: true}).decode(new Uint8Array(bytes));
  } catch {
    return null;
  }
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
