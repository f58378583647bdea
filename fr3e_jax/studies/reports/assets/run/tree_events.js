// Pointer and keys on a tree: hovering reads a token or a rollout, a click or Enter selects it.

function listen(drawing, of) {
  const rolloutAt = (target) => {
    const group = target.closest?.('.lane');
    return group ? of.rollouts[Number(group.dataset.rollout)] : null;
  };
  const tokenAt = (target) => (target.dataset?.token === undefined ? null : Number(target.dataset.token));
  drawing.addEventListener('pointermove', (event) => {
    const rollout = rolloutAt(event.target),
      index = tokenAt(event.target);
    if (rollout && index !== null) tip(event, tokenTip(of, rollout, index));
    else if (rollout) tip(event, rolloutTip(rollout));
    else hideTip();
  });
  drawing.addEventListener('pointerleave', hideTip);
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

function tip(event, text) {
  const box = document.getElementById('tip');
  box.textContent = text;
  box.hidden = false;
  const {width, height} = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  box.style.top = `${event.clientY + height + 26 > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
}

function hideTip() {
  document.getElementById('tip').hidden = true;
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
    `${text}   at ${rollout.fork + index}\nlog-prob ${fixed(token.logprob, 4)}  (p ${number(Math.exp(token.logprob), 3)})\n` +
    `entropy ${fixed(token.entropy, 4)} nats\nadvantage ${fixed(rollout.advantage, 4)}\ntrained: ${trains(token)}`
  );
}
