// The text of the selected rollout, alone or beside another one, and the numbers of its tokens.

const SHORT_TURN = 60; // tokens of an observation that is not folded

function nameOf(rollout) {
  if (rollout.kind === 'state') return `S${subscript(rollout.state)}, branch ${rollout.branch}`;
  if (rollout.kind === 'eval') return rollout.base ? `sample ${rollout.base}` : 'greedy answer';
  return `base rollout ${rollout.base}${rollout.isKept ? ` of step ${rollout.step}` : ''}`;
}

function readingPane(of) {
  const shown = [look.selected, look.compared].filter((rollout) => rollout);
  const whole = shown.map((rollout) => response(of, rollout));
  const difference = shown.length === 2 ? firstDifference(...whole) : null;
  const fold = ({target}) => {
    look.folded = !target.open;
    remember();
  };
  return element(
    'details',
    {class: 'pane', open: !look.folded, ontoggle: fold},
    element('summary', {}, shown.map((rollout) => `text of ${nameOf(rollout)}`).join(' beside ')),
    element(
      'div',
      {class: shown.length === 2 ? 'reading two' : 'reading'},
      shown.map((rollout, i) => rolloutPanel(of, rollout, whole[i], difference)),
    ),
  );
}

// The first position at which two responses differ. Without the tokens of a parent, a response begins at its fork.
function firstDifference(left, right) {
  const idAt = (whole, position) => whole[position - (whole[0]?.position ?? 0)]?.id;
  let position = Math.max(left[0]?.position ?? 0, right[0]?.position ?? 0);
  while (idAt(left, position) !== undefined && idAt(left, position) === idAt(right, position)) position++;
  return position;
}

function rolloutPanel(of, rollout, whole, difference) {
  const outcome = outcomeOf(rollout);
  const isSelected = rollout === look.selected;
  const base = rollout.kind === 'base' ? rollout : of.byId.get(rollout.parent);
  const lastAnchor = rollout === base ? Infinity : rollout.fork;
  const kindsAt = (position) => ({
    anchor: position <= lastAnchor && base?.anchors.includes(position),
    chosen: isSelected && look.token === position,
    'first-difference': position === difference,
    different: difference !== null && position > difference,
  });
  const parted =
    difference > (whole.at(-1)?.position ?? -1)
      ? 'has no token after the shared ones'
      : `first difference at token ${difference}`;
  const content = responseElement(of, rollout, whole, kindsAt);
  if (isSelected) {
    content.addEventListener('click', ({target}) => {
      const token = tokenOf(target, whole);
      if (token) pick(rollout, token.position);
    });
  }
  const chosen = isSelected && whole.find((token) => token.position === look.token);
  return element(
    'div',
    {class: 'panel'},
    rowElement(
      iconElement(outcome),
      element('b', {}, nameOf(rollout)),
      element('span', {class: `tone ${outcome.tone}`}, outcome.word),
      difference !== null && element('span', {class: 'note'}, parted),
    ),
    content,
    chosen && element('div', {'aria-live': 'polite'}, details('token', tokenFacts(whole, chosen.position))),
    rolloutDetails(rollout),
  );
}

// The verdict and the text of a response. `kindsAt(position)` has the classes of a token that hold.
function responseElement(of, rollout, whole, kindsAt = () => ({})) {
  const spans = tokenSpans(of, whole, kindsAt);
  const missing = `The text of its ${plural(rollout.length, 'token')} is not in this page.`;
  const label = `text of ${nameOf(rollout)}`;
  const box = element(
    'div',
    {class: 'text', tabindex: 0, role: 'textbox', 'aria-readonly': 'true', 'aria-label': label},
    turnsOf(whole, spans),
    !rollout.whole && noteElement(missing),
  );
  showTips(box, (target) => {
    const token = tokenOf(target, whole);
    return token && tokenTip(whole, token.position);
  });
  const copy = rollout.whole && copyButton('copy the text', () => texts(whole.map((token) => token.id)).join(''));
  return element('div', {}, rowElement(verdictElement(rollout), copy), box);
}

// The answer that the verifier read, and why it judged so.
function verdictElement(rollout) {
  const {gold} = (shownView === 'held-out' ? held : prompts).list.chosen;
  const text = (words) => element('span', {class: 'text'}, visible(words));
  return details('verdict', [
    (rollout.extracted !== null || rollout.outcome === 'no_answer') && ['answer', text(rollout.extracted ?? 'none')],
    ['gold answer', gold ? text(gold) : 'not stored'],
    ['reason', rollout.reason || 'no verdict'],
  ]);
}

// The tokens of a response in its turns: what a tool or an environment wrote folds.
function turnsOf(whole, spans) {
  if (!whole.some((token) => token.tool)) return spans;
  const turns = [];
  whole.forEach(({tool}, i) => {
    if (turns.at(-1)?.tool !== tool) turns.push({tool, inside: []});
    turns.at(-1).inside.push(spans[i]);
  });
  const {observation} = page.run;
  let count = 0;
  return turns.map(({tool, inside}) => {
    const name = tool ? `${observation} ${count}` : `turn ${++count}`;
    const open = !tool || inside.length <= SHORT_TURN || inside.some((span) => span.classList.contains('chosen'));
    return element(
      'details',
      {class: 'turn', open},
      element('summary', {}, `${name}, ${plural(inside.length, 'token')}`),
      inside,
    );
  });
}

// The tokens of a text, coloured by entropy.
function tokenSpans(of, tokens, kindsAt) {
  const written = texts(tokens.map((token) => token.id));
  return tokens.map(({position, shared, tool, entropy}, i) => {
    const span = element('span', {class: 'tk', 'data-at': position}, visible(written[i]));
    const kinds = {shared, tool, ...kindsAt(position)};
    for (const [kind, holds] of Object.entries(kinds)) if (holds) span.classList.add(kind);
    span.style.setProperty('--h', Math.round(55 * Math.min(1, (entropy ?? 0) / of.scale)));
    return span;
  });
}

function tokenOf({dataset}, whole) {
  return dataset.at === undefined ? null : whole.find((token) => token.position === Number(dataset.at));
}

// What is known of the token at a position of a response.
function tokenFacts(whole, position) {
  const at = whole.findIndex((token) => token.position === position);
  const token = whole[at];
  const {logprobs, entropies} = page.decimals;
  const trained = token.tool ? 'no, a tool wrote it' : page.trained[token.rollout.trained];
  return [
    ['token', spelled(texts(whole.map(({id}) => id))[at])],
    ['id', String(token.id)],
    ['position', String(position)],
    ['log-prob', fixed(token.logprob, logprobs)],
    ['probability', number((token.logprob ?? null) === null ? null : Math.exp(token.logprob))],
    ['entropy', fixed(token.entropy, entropies)],
    ['trained', token.shared ? 'not in this rollout, it shares the token' : trained],
  ];
}

function tokenTip(whole, position) {
  const lines = tokenFacts(whole, position).map((fact) => fact.join(' '));
  return lines.join('\n');
}

// All digits that were stored.
function exact(value) {
  return value === null ? '–' : String(value).replace('-', '−');
}

function rolloutDetails(rollout) {
  const value = rollout.kind === 'state' ? `V(S${subscript(rollout.state)})` : 'V(S₀)';
  const facts = [
    ['reward', exact(rollout.reward)],
    ['outcome', rollout.outcome ?? 'not graded'],
    ['advantage', exact(rollout.advantage)],
    ['tokens', rollout.fork ? `${rollout.fork} shared + ${rollout.length}` : String(rollout.length)],
    ['ended', rollout.finished ? 'by a stop token' : 'at the length cap'],
    rollout.value !== null && [value, exact(rollout.value)],
    rollout.alpha !== null && ['α', exact(rollout.alpha)],
    ['id', rollout.id],
  ];
  return details('rollout', facts);
}
