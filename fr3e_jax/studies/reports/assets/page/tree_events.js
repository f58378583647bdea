// Pointer and keys on a tree: hovering reads a token or a rollout, a click or Enter selects it.

function listen(drawing, of) {
  const rolloutAt = (target) => of.rollouts[target.closest('.lane')?.dataset.rollout];
  const choose = (event) => {
    const rollout = rolloutAt(event.target);
    const index = event.target.dataset.token;
    if (rollout) pick(rollout, index === undefined ? null : rollout.fork + Number(index), event.shiftKey);
    return rollout;
  };
  showTips(drawing, (target) => {
    const rollout = rolloutAt(target);
    const index = target.dataset.token;
    if (!rollout || index === undefined) return target.closest('.lane')?.ariaLabel;
    return tokenTip(response(of, rollout), rollout.fork + Number(index));
  });
  drawing.addEventListener('click', choose);
  drawing.addEventListener('keydown', (event) => {
    if (['Enter', ' '].includes(event.key) && choose(event)) event.preventDefault();
  });
}

// Select a rollout and one of its tokens, or set it beside the selected one.
function pick(rollout, token = null, beside = false) {
  if (beside && rollout !== look.selected) {
    look.compared = rollout;
  } else {
    const compared = rollout === look.compared ? null : look.compared;
    Object.assign(look, {selected: rollout, token, compared, parent: familyOf(prompts.tree, rollout)});
  }
  drawPrompt();
  remember();
  document.querySelector(`.tree .lane[data-rollout="${rollout.number}"]`)?.focus({preventScroll: true});
}
