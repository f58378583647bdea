// What keys do; the help of the page lists them.

function keys(event) {
  const {key, target} = event;
  const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName);
  if (key === 'Escape' && isTyping) target.blur();
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping || document.querySelector(':popover-open')) return;
  const list = shownView === 'held-out' ? held.list : prompts.list;
  const acts = {
    '?': () => document.getElementById('help').showPopover(),
    t: switchTheme,
    '/': () => {
      if (shownView !== 'held-out') showView('prompts');
      list?.search.focus();
    },
  };
  if (list?.chosen && ['prompts', 'held-out'].includes(shownView)) {
    acts.j = () => neighbour(list, 1);
    acts.k = () => neighbour(list, -1);
  }
  if (shownView === 'prompts' && prompts.tree) {
    acts.c = () => prompts.place.querySelector('[aria-label="compare with"]').focus();
    acts.ArrowDown = () => moveLane(1);
    acts.ArrowUp = () => moveLane(-1);
    acts.ArrowLeft = () => moveToken(-1);
    acts.ArrowRight = () => moveToken(1);
    acts.Escape = () => compare(null);
  }
  const act = acts[key];
  const tab = [...document.querySelectorAll('[role=tab]')][Number(key) - 1];
  if (act) act();
  else if (tab) tab.click();
  else return;
  event.preventDefault();
}

function moveLane(way) {
  const lanes = [...document.querySelectorAll('.tree .lane')];
  const next = lanes[lanes.findIndex((lane) => lane.classList.contains('selected')) + way];
  if (next) pick(prompts.tree.rollouts[Number(next.dataset.rollout)]);
}

function moveToken(way) {
  const {selected, token} = look;
  const end = selected.fork + selected.tokens.length - 1;
  const start = way > 0 ? selected.fork : end;
  pick(selected, token === null ? start : Math.min(end, Math.max(0, token + way)));
}
