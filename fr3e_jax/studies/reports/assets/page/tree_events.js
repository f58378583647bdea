// Pointer and keys on a tree: hovering reads a token or a rollout, a click or Enter selects it.

function listen(drawing, of) {
  const rolloutAt = (target) => {
    const group = target.closest?.('.lane');
    return group ? of.rollouts[Number(group.dataset.rollout)] : null;
  };
  const tokenAt = (target) => (target.dataset?.token === undefined ? null : Number(target.dataset.token));
  showTips(drawing, (target) => {
    const rollout = rolloutAt(target),
      index = tokenAt(target);
    if (rollout) return index === null ? rolloutTip(rollout) : tokenTip(of, rollout, index);
    return null;
  });
  drawing.addEventListener('click', (event) => {
    const rollout = rolloutAt(event.target),
      index = tokenAt(event.target);
    if (rollout) pick(rollout, index === null ? null : rollout.fork + index, event.shiftKey);
  });
  drawing.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' && event.key !== ' ') return;
    const rollout = rolloutAt(event.target);
    if (!rollout) return;
    event.preventDefault();
    pick(rollout, null, event.shiftKey);
  });
}

// Select a rollout and one of its tokens, or set it beside the selected one.
function pick(rollout, token = null, beside = false) {
  if ((beside || look.comparing) && rollout !== look.selected) {
    look.compared = rollout;
    look.comparing = false;
  } else {
    if (rollout === look.compared) look.compared = null;
    look.selected = rollout;
    look.token = token;
    look.parent = familyOf(prompts.tree, rollout, familiesOf(prompts.tree));
  }
  drawPrompt();
  remember();
  document.querySelector(`.tree .lane[data-rollout="${rollout.number}"]`)?.focus({preventScroll: true});
}

function rolloutTip(rollout) {
  return (
    `${nameOf(rollout)}: ${outcomeOf(rollout).word}\nreward ${number(rollout.reward)}, advantage ${fixed(rollout.advantage, 3)}, ` +
    plural(rollout.length, 'token') +
    (rollout.whole ? '' : ' (text not in this page)')
  );
}

function tokenTip(of, rollout, index) {
  const token = response(of, rollout).find((one) => one.rollout === rollout && one.index === index);
  const text = spelled(texts(rollout.tokens)[index]);
  return (
    `${text}   at ${rollout.fork + index}\nlog-prob ${fixed(token.logprob, page.decimals.logprobs)}  (p ${number(Math.exp(token.logprob), 3)})\n` +
    `entropy ${fixed(token.entropy, page.decimals.entropies)} nats\nadvantage ${fixed(rollout.advantage, 4)}\ntrained: ${trains(token)}`
  );
}
