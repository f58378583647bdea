// One prompt in full: its question, its tree, and the text of the selected rollout, alone or beside another one.

function drawPrompt() {
  const of = prompts.tree, prompt = prompts.chosen;
  const width = prompts.place.clientWidth - 26;
  const families = familiesOf(of);
  const note = prompts.stepNote;
  prompts.stepNote = '';
  const kept = prompts.place.querySelector('.tree .scroll')?.scrollLeft ?? 0;
  const drawing = element('div', {class: 'scroll'}, drawTree(of, width));
  replace(prompts.place,
    element('div', {class: 'row'}, button('‹ previous', () => neighbour(-1), {title: 'k'}), button('next ›', () => neighbour(1), {title: 'j'}),
      element('b', {}, `step ${prompt.step}, prompt ${prompt.position}`), element('span', {class: 'muted text'}, visible(prompt.problem)),
      button('copy link', copyLink)),
    note ? element('p', {class: 'note'}, note) : null,
    element('p', {class: 'text question', 'aria-label': 'question'}, textOf(of.prompt)),
    families.length > 1 || (families.length && !of.byId.has(families[0])) ? familyButtons(of, families) : null,
    missingParent(of),
    element('div', {class: 'tree'}, key(of), zoomButtons(of), drawing),
    stateTable(of),
    readingPane(of));
  drawing.scrollLeft = kept;
  scrollToChosen();
}

// The pane of the text stays in sight below the tree; only the text scrolls in it.
function scrollToChosen() {
  const token = document.querySelector('.reading .tk.chosen'), box = token?.closest('.text');
  if (box) box.scrollTop += token.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 2;
}

function copyLink(event) {
  const label = event.target;
  navigator.clipboard?.writeText(location.href).then(() => { label.textContent = 'copied'; }, () => {});
}

function textOf(ids) {
  return visible(page.vocabulary ? texts(ids).join('') : `token ids, as the run's tokenizer is not there: ${ids.join(' ')}`);
}

function familyButtons(of, families) {
  return element('div', {class: 'row', role: 'group', 'aria-label': 'explored base rollouts'},
    element('span', {class: 'muted'}, 'explored:'), families.map((parent) => {
      const base = of.byId.get(parent);
      return button([base ? iconElement(outcomeOf(base)) : null, ` ${base ? `base ${base.base}` : parent}`],
        () => {
          look.parent = parent;
          if (base) pick(base); else { look.selected = of.rollouts.find((rollout) => rollout.parent === parent); drawPrompt(); }
        }, {'aria-pressed': String(parent === look.parent)});
    }));
}

function missingParent(of) {
  if (look.parent === null || of.byId.has(look.parent)) return null;
  const [step, position] = look.parent.split('/').map(Number);
  const origin = page.prompts.find((prompt) => prompt.step === step && prompt.position === position);
  return element('p', {class: 'note'}, `These branches leave rollout ${look.parent}, which step ${step} sampled. `,
    origin ? button('show it', () => openPrompt(origin, look.parent)) : 'It is not in this page.');
}

function key(of) {
  return element('div', {class: 'key'},
    element('span', {}, 'entropy 0', element('i', {class: 'ramp entropy'}), `${number(entropyScale(of), 2)} nats`),
    element('span', {}, 'reward 0', element('i', {class: 'ramp reward'}), '1'),
    element('span', {}, 'bar: log-prob, full at 0, empty at −5'),
    element('span', {}, 'line: width is |advantage|, dotted does not train'),
    [...new Set(of.rollouts.map(outcomeOf))].map((outcome) => element('span', {}, iconElement(outcome), outcome.word)));
}

function zoomButtons() {
  const zoom = (factor) => { look.zoom = Math.min(40, Math.max(1, look.zoom * factor)); drawPrompt(); };
  return element('div', {class: 'row'}, button('−', () => zoom(1 / 1.6), {'aria-label': 'narrower tokens', disabled: look.zoom <= 1}),
    button('+', () => zoom(1.6), {'aria-label': 'wider tokens'}),
    button(look.comparing ? 'choose the second rollout …' : 'compare with …', () => { look.comparing = !look.comparing; drawPrompt(); },
      {'aria-pressed': String(look.comparing), title: 'c, or Shift and a click on a branch'}),
    look.compared ? button('compare no more', () => { look.compared = null; drawPrompt(); remember(); }) : null);
}

// -- states ----------------------------------------------------------------------------------------------------------

function stateTable(of) {
  const states = look.parent === null ? [] : statesOf(of, look.parent);
  if (!states.length) return null;
  const base = of.byId.get(look.parent);
  const rows = states.map((state) => {
    const trained = state.rollouts.filter((rollout) => rollout.advantage !== null).length;
    const token = base && base.tokens.length > state.fork ? spelled(texts(base.tokens)[state.fork]) : '–';
    return element('tr', {}, element('td', {}, `S${subscript(state.j)}`), cellOf(state.fork), element('td', {class: 'text'}, token),
      cellOf(base ? fixed(base.entropies[state.fork], 3) : '–'), cellOf(fixed(state.value, 3)), cellOf(state.delta === null ? '–' : signed(state.delta, 3)),
      cellOf(fixed(state.alpha, 3)), cellOf(`${state.rollouts.filter((r) => r.outcome === 'right').length}/${state.rollouts.length}`),
      element('td', {}, trained ? `${trained} train` : 'equal rewards: trains nothing'));
  });
  return element('details', {}, element('summary', {}, `States of this trunk (${states.length})`), element('div', {class: 'scroll'},
    element('table', {}, element('thead', {}, element('tr', {},
      ['state', 'at', 'token', 'entropy', 'V', 'ΔV', 'α', 'right', 'training'].map((name) => element('th', {}, name)))),
    element('tbody', {}, rows))));
}

function cellOf(content) {
  return element('td', {class: 'number'}, String(content));
}

// -- texts -----------------------------------------------------------------------------------------------------------

function nameOf(rollout) {
  if (rollout.kind === 'state') return `S${subscript(rollout.state)}, branch ${rollout.branch}`;
  if (rollout.kind === 'eval') return rollout.base ? `sample ${rollout.base}` : 'greedy answer';
  return `base rollout ${rollout.base}`;
}

function readingPane(of) {
  const shown = [look.selected, look.compared].filter((rollout) => rollout);
  const whole = shown.map((rollout) => response(of, rollout));
  const difference = shown.length === 2 ? firstDifference(whole[0], whole[1]) : null;
  return element('div', {class: shown.length === 2 ? 'reading two' : 'reading'},
    shown.map((rollout, i) => rolloutPanel(of, rollout, whole[i], difference, i === 0)));
}

function firstDifference(one, other) {
  let i = 0;
  while (i < one.length && i < other.length && one[i].id === other[i].id) i++;
  return i;
}

function rolloutPanel(of, rollout, whole, difference, first) {
  const outcome = outcomeOf(rollout);
  const base = rollout.kind === 'base' ? rollout : of.byId.get(rollout.parent);
  const anchors = new Set(base ? base.anchors : []);
  const scale = entropyScale(of), written = texts(whole.map((token) => token.id));
  const box = element('div', {class: 'text', tabindex: 0, role: 'textbox', 'aria-readonly': 'true', 'aria-label': `text of ${nameOf(rollout)}`});
  whole.forEach((token, i) => {
    const span = element('span', {class: 'tk', 'data-at': token.position}, visible(written[i]));
    span.style.setProperty('--h', Math.round(90 * Math.min(1, (token.entropy ?? 0) / scale)));
    const kinds = {shared: token.shared, tool: token.tool, anchor: anchors.has(token.position), chosen: first && look.token === token.position,
      'first-difference': i === difference, different: difference !== null && i > difference};
    for (const [kind, holds] of Object.entries(kinds)) if (holds) span.classList.add(kind);
    box.append(span);
  });
  if (!rollout.whole) box.append(element('p', {class: 'note'}, `The text of its ${plural(rollout.length, 'token')} is not in this page.`));
  box.addEventListener('pointermove', (event) => {
    const token = tokenOf(event.target, whole);
    if (token) tip(event, tokenTip(of, token.rollout, token.index)); else hideTip();
  });
  box.addEventListener('pointerleave', hideTip);
  box.addEventListener('click', (event) => {
    const token = tokenOf(event.target, whole);
    if (token && first) pick(rollout, token.position);
  });
  const chosen = first && look.token !== null ? whole.find((token) => token.position === look.token) : null;
  return element('div', {class: 'panel'},
    element('div', {class: 'row'}, iconElement(outcome), element('b', {}, nameOf(rollout)),
      element('span', {class: `tone-${outcome.tone}`}, outcome.word),
      difference === null ? null : element('span', {class: 'note'}, difference === whole.length
        ? 'has no token after the shared ones' : `first difference at token ${difference}`)),
    box, chosen ? tokenDetails(chosen, written[whole.indexOf(chosen)]) : null, rolloutDetails(rollout));
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
  return rollout.kind === 'base' && rollout.kept && rollout.anchors.length > 0 && Boolean(page.run.settings['explore.block_credit']);
}

function trainsSomehow(rollout) {
  return rollout.advantage !== null || trainsByBlocks(rollout);
}

function details(label, pairs) {
  return element('dl', {class: 'details', 'aria-label': label},
    pairs.map(([name, value]) => element('div', {}, element('dt', {}, name), element('dd', {'data-fact': name}, value))));
}

function tokenDetails(token, text) {
  return element('div', {'aria-live': 'polite'}, details('token', [
    ['token', element('span', {class: 'text'}, spelled(text))], ['id', String(token.id)], ['position', String(token.position)],
    ['log-prob', fixed(token.logprob, page.decimals)],
    ['probability', number(Math.exp(token.logprob), 4)], ['entropy', fixed(token.entropy, page.decimals)],
    ['token advantage', token.tool ? '–' : exact(token.rollout.advantage)], ['trained', trains(token)]]));
}

// All digits that were stored.
function exact(value) {
  return value === null ? '–' : String(value).replace('-', '−');
}

function rolloutDetails(rollout) {
  const facts = [['reward', exact(rollout.reward)], ['outcome', rollout.outcome ?? 'not graded'], ['advantage', exact(rollout.advantage)],
    ['tokens', rollout.fork ? `${rollout.fork} shared + ${rollout.length}` : String(rollout.length)],
    ['ended', rollout.finished ? 'by a stop token' : 'at the length cap']];
  if (rollout.value !== null) facts.push([rollout.kind === 'state' ? `V(S${subscript(rollout.state)})` : 'V(S₀)', exact(rollout.value)]);
  if (rollout.alpha !== null) facts.push(['α', exact(rollout.alpha)]);
  if (rollout.answers.length) facts.push(['tool texts', String(rollout.answers.length)]);
  facts.push(['id', rollout.id]);
  return details('rollout', facts);
}
