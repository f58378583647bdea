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
  const difference = shown.length === 2 ? firstDifference(whole[0], whole[1]) : null;
  const fold = (event) => {
    look.folded = !event.target.open;
    remember();
  };
  return element(
    'details',
    {class: 'pane', open: !look.folded, ontoggle: fold},
    element('summary', {}, shown.map((rollout) => `text of ${nameOf(rollout)}`).join(' beside ')),
    element(
      'div',
      {class: shown.length === 2 ? 'reading two' : 'reading'},
      shown.map((rollout, i) => rolloutPanel(of, rollout, whole[i], difference, i === 0)),
    ),
  );
}

// The first position at which two responses differ. Without the tokens of a parent, a response begins at its fork.
function firstDifference(one, other) {
  const idAt = (whole, position) => whole[position - (whole[0]?.position ?? 0)]?.id;
  let position = Math.max(one[0]?.position ?? 0, other[0]?.position ?? 0);
  while (idAt(one, position) !== undefined && idAt(one, position) === idAt(other, position)) position++;
  return position;
}

function rolloutPanel(of, rollout, whole, difference, first) {
  const outcome = outcomeOf(rollout);
  const base = rollout.kind === 'base' ? rollout : of.byId.get(rollout.parent);
  const anchors = new Set(base ? base.anchors : []);
  const box = element('div', {
    class: 'text',
    tabindex: 0,
    role: 'textbox',
    'aria-readonly': 'true',
    'aria-label': `text of ${nameOf(rollout)}`,
  });
  const spans = tokenSpans(of, whole);
  spans.forEach((span, i) => {
    const {position} = whole[i];
    const kinds = {
      anchor: anchors.has(position) && position <= (rollout === base ? Infinity : rollout.fork),
      chosen: first && look.token === position,
      'first-difference': position === difference,
      different: difference !== null && position > difference,
    };
    for (const [kind, holds] of Object.entries(kinds)) if (holds) span.classList.add(kind);
  });
  box.append(...turnsOf(of, whole, spans));
  if (!rollout.whole)
    box.append(noteElement(`The text of its ${plural(rollout.length, 'token')} is not in this page.`));
  showTips(box, (target) => {
    const token = tokenOf(target, whole);
    return token && tokenTip(of, token.rollout, token.index);
  });
  box.addEventListener('click', (event) => {
    const token = tokenOf(event.target, whole);
    if (token && first) pick(rollout, token.position);
  });
  const chosen = first && look.token !== null ? whole.find((token) => token.position === look.token) : null;
  return element(
    'div',
    {class: 'panel'},
    rowElement(
      iconElement(outcome),
      element('b', {}, nameOf(rollout)),
      element('span', {class: `tone ${outcome.tone}`}, outcome.word),
      difference === null
        ? null
        : element(
            'span',
            {class: 'note'},
            difference > (whole.at(-1)?.position ?? -1)
              ? 'has no token after the shared ones'
              : `first difference at token ${difference}`,
          ),
    ),
    verdictElement(rollout),
    box,
    chosen ? tokenDetails(chosen, texts(whole.map((token) => token.id))[whole.indexOf(chosen)]) : null,
    rolloutDetails(rollout),
  );
}

// The answer that the verifier read, and why it judged so.
function verdictElement(rollout) {
  const answer = rollout.extracted === null ? 'none' : element('span', {class: 'text'}, visible(rollout.extracted));
  const gold = element('span', {class: 'text'}, visible(goldOf()));
  return details('verdict', [
    ['answer', answer],
    ['gold answer', goldOf() ? gold : 'not stored'],
    ['reason', rollout.reason || 'no verdict'],
  ]);
}

function goldOf() {
  return (shownView === 'held-out' ? held : prompts).list.chosen.gold;
}

// The tokens of a response in its turns: what a tool or an environment wrote folds.
function turnsOf(of, whole, spans = tokenSpans(of, whole)) {
  if (!whole.some((token) => token.tool)) return spans;
  const turns = [];
  whole.forEach(({tool}, i) => {
    if (turns.at(-1)?.tool !== tool) turns.push({tool, spans: []});
    turns.at(-1).spans.push(spans[i]);
  });
  const observed = (page.run.settings['environment.kind'] ?? 'none') === 'none' ? 'answer of the tool' : 'observation';
  let count = 0;
  return turns.map(({tool, spans: inside}) => {
    const name = tool ? `${observed} ${count}` : `turn ${++count}`;
    const open = !tool || inside.length <= SHORT_TURN || inside.some((span) => span.classList.contains('chosen'));
    const title = element('summary', {}, `${name}, ${plural(inside.length, 'token')}`);
    return element('details', {class: 'turn', open}, title, inside);
  });
}

// The tokens of a text, coloured by entropy.
function tokenSpans(of, tokens) {
  const scale = entropyScale(of),
    written = texts(tokens.map((token) => token.id));
  return tokens.map((token, i) => {
    const span = element('span', {class: 'tk', 'data-at': token.position}, visible(written[i]));
    if (token.shared) span.classList.add('shared');
    if (token.tool) span.classList.add('tool');
    span.style.setProperty('--h', Math.round(55 * Math.min(1, (token.entropy ?? 0) / scale)));
    return span;
  });
}

function tokenOf(target, whole) {
  const at = target.dataset?.at;
  return at === undefined ? null : whole.find((token) => token.position === Number(at));
}

function trains(token) {
  const {rollout} = token;
  if (token.shared) return 'not in this rollout, it shares the token';
  if (token.tool) return 'no, a tool wrote it';
  if (rollout.advantage !== null) return 'yes';
  if (rollout.kind === 'eval') return 'no, an evaluation';
  if (!rollout.kept) return 'no, the rewards of its group are equal';
  return trainsByBlocks(rollout) ? 'yes, by blocks' : 'no';
}

// The blocks of a base rollout between its anchors have advantages of their own, which are not stored.
function trainsByBlocks(rollout) {
  return (
    rollout.kind === 'base' &&
    rollout.kept &&
    rollout.anchors.length > 0 &&
    Boolean(page.run.settings['explore.block_credit'])
  );
}

function trainsSomehow(rollout) {
  return rollout.advantage !== null || trainsByBlocks(rollout);
}

function details(label, pairs) {
  return element(
    'dl',
    {class: 'details', 'aria-label': label},
    pairs.map(([name, value]) =>
      element('div', {}, element('dt', {}, name), element('dd', {'data-fact': name}, value)),
    ),
  );
}

function tokenDetails(token, text) {
  return element(
    'div',
    {'aria-live': 'polite'},
    details('token', [
      ['token', element('span', {class: 'text'}, spelled(text))],
      ['id', String(token.id)],
      ['position', String(token.position)],
      ['log-prob', fixed(token.logprob, page.decimals.logprobs)],
      ['probability', number(Math.exp(token.logprob), 4)],
      ['entropy', fixed(token.entropy, page.decimals.entropies)],
      ['token advantage', token.tool ? '–' : exact(token.rollout.advantage)],
      ['trained', trains(token)],
    ]),
  );
}

// All digits that were stored.
function exact(value) {
  return value === null ? '–' : String(value).replace('-', '−');
}

function rolloutDetails(rollout) {
  const facts = [
    ['reward', exact(rollout.reward)],
    ['outcome', rollout.outcome ?? 'not graded'],
    ['advantage', exact(rollout.advantage)],
    ['tokens', rollout.fork ? `${rollout.fork} shared + ${rollout.length}` : String(rollout.length)],
    ['ended', rollout.finished ? 'by a stop token' : 'at the length cap'],
  ];
  if (rollout.value !== null)
    facts.push([rollout.kind === 'state' ? `V(S${subscript(rollout.state)})` : 'V(S₀)', exact(rollout.value)]);
  if (rollout.alpha !== null) facts.push(['α', exact(rollout.alpha)]);
  if (rollout.answers.length) facts.push(['tool texts', String(rollout.answers.length)]);
  facts.push(['id', rollout.id]);
  return details('rollout', facts);
}
