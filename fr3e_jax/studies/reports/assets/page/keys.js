// What keys do, and the help that lists them.

const KEYS = [
  ['1 … 5', 'the views'],
  ['j, k', 'next and previous prompt'],
  ['↑, ↓', 'branch above and below'],
  ['←, →', 'token before and after'],
  ['c', 'compare the selected branch with another'],
  ['/', 'search'],
  ['t', 'light or dark'],
  ['Esc', 'close, compare no more'],
  ['?', 'this help'],
];

function helpDialog() {
  return element(
    'dialog',
    {id: 'help', 'aria-label': 'help'},
    element('h3', {}, 'Keys'),
    tableElement(
      null,
      KEYS.map(([name, text]) => [element('kbd', {}, name), text]),
    ),
    noteElement(
      'A base rollout answers the prompt. At its anchors, the tokens of highest entropy, states S₁, S₂, … begin; ' +
        'each is rolled out again several times. V(S) is the mean reward of these rollouts, ΔV is its change from the state before, ' +
        'α modulates their advantages. A flip is a change of V across one half.',
    ),
    button('close', () => document.getElementById('help').close()),
  );
}

function help() {
  document.getElementById('help').showModal();
}

function keys(event) {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === 'Escape' && typing) event.target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || typing || document.getElementById('help').open) return;
  const list = shownView === 'held-out' ? held.list : prompts.list;
  const act = {
    j: () => neighbour(list, 1),
    k: () => neighbour(list, -1),
    c: compareNext,
    ArrowDown: () => moveLane(1),
    ArrowUp: () => moveLane(-1),
    ArrowLeft: () => moveToken(-1),
    ArrowRight: () => moveToken(1),
    Escape: compareNoMore,
  }[event.key];
  const plain = {
    '?': help,
    t: switchTheme,
    '/': () => {
      if (shownView !== 'held-out') showView('prompts');
      (shownView === 'held-out' ? held.list : prompts.list)?.fields.search.focus();
    },
  }[event.key];
  const number = Number(event.key);
  if (plain) plain();
  else if (number >= 1 && number <= VIEWS.length) {
    showView(VIEWS[number - 1][0]);
    remember(true);
  } else if (act && shownView === 'prompts' && prompts.tree) act();
  else if (act && shownView === 'held-out' && list && /[jk]/.test(event.key)) act();
  else return;
  event.preventDefault();
}

function moveLane(way) {
  const lanes = [...document.querySelectorAll('.tree .lane')];
  const at = lanes.findIndex((lane) => lane.classList.contains('selected'));
  const next = lanes[at + way];
  if (!next) return;
  pick(prompts.tree.rollouts[Number(next.dataset.rollout)]);
}

function moveToken(way) {
  const {selected} = look;
  const end = selected.fork + selected.tokens.length - 1;
  const at = look.token === null ? (way > 0 ? selected.fork : end) : Math.min(end, Math.max(0, look.token + way));
  pick(selected, at);
}
