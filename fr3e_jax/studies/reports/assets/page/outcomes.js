// How a rollout ended, as icon, colour and word: `page.outcomes` has {word, tone, path} by the name of an outcome.

// "cut" is a response that the length cap ended without an answer.
function outcomeOf({finished, outcome}) {
  if (!finished && ['no_answer', null].includes(outcome)) return page.outcomes.cut;
  return page.outcomes[outcome ?? 'none'] ?? {...page.outcomes.none, word: outcome};
}

// Right answers are discs, wrong ones squares, others diamonds: the shape tells them apart without colour.
function icon({tone, path}, x = 0, y = 0) {
  const shapes = {
    right: () => svg('circle', {r: 6.5}),
    wrong: () => svg('rect', {x: -6, y: -6, width: 12, height: 12, rx: 2}),
  };
  const shape = shapes[tone]?.() ?? svg('path', {d: 'M0 -7.8 L7.8 0 L0 7.8 L-7.8 0 Z', class: 'body'});
  const place = {class: `icon ${tone}`, transform: `translate(${x} ${y})`};
  return svg('g', place, shape, svg('path', {d: path, class: 'mark'}));
}

function iconElement(outcome) {
  const {word} = outcome;
  const attributes = {width: 16, height: 16, viewBox: '-8 -8 16 16', role: 'img', 'aria-label': word};
  return svg('svg', attributes, svg('title', {}, word), icon(outcome));
}

// Rewards on a scale that all kinds of colour vision tell apart: orange is 0, blue is 1.
function rewardColour(reward) {
  if (reward === null) return 'var(--muted)';
  const share = Math.round(Math.min(1, Math.max(0, reward)) * 100);
  return share >= 50
    ? `color-mix(in oklab, var(--right) ${2 * share - 100}%, var(--between))`
    : `color-mix(in oklab, var(--wrong) ${100 - 2 * share}%, var(--between))`;
}
