// How a rollout ended, as icon, colour and word. The names are those of fr3e_jax/verdict.py; "cut" is a
// response that the length cap ended without an answer.

const OUTCOMES = {
  right: {word: 'right', tone: 'right', path: 'M-4 0.5 L-1.2 3.2 L4 -3'},
  wrong: {word: 'wrong', tone: 'wrong', path: 'M-3 -3 L3 3 M3 -3 L-3 3'},
  restated: {word: 'restated the question', tone: 'wrong', path: 'M-3.5 -1.5 H3.5 M-3.5 1.5 H3.5'},
  other_form: {word: 'another form than asked', tone: 'wrong', path: 'M-3.5 1 Q-1.7 -3 0 0 T3.5 -1'},
  string_only: {word: 'unreadable answer', tone: 'wrong', path: 'M-3 -2 H3 M0 -2 V3'},
  refused: {word: 'beyond a limit', tone: 'wrong', path: 'M-3.2 0 H3.2'},
  no_answer: {word: 'no answer', tone: 'none', path: 'M-3.2 3.2 L3.2 -3.2'},
  cut: {word: 'cut at the length cap', tone: 'none', path: 'M-3.5 0 H2 M2.6 -3.5 V3.5'},
  timeout: {word: 'verifier timed out', tone: 'trouble', path: 'M0 -3.4 V0 L2.6 1.6'},
  worker_died: {word: 'verifier died', tone: 'trouble', path: 'M0 -3.5 V1 M0 2.8 V3.6'},
  error: {word: 'verifier raised', tone: 'trouble', path: 'M0 -3.5 V1 M0 2.8 V3.6'},
  none: {word: 'not graded', tone: 'trouble', path: 'M-1.6 0 H1.6'},
};

function outcomeOf(rollout) {
  if (!rollout.finished && (rollout.outcome === 'no_answer' || rollout.outcome === null)) return OUTCOMES.cut;
  return OUTCOMES[rollout.outcome ?? 'none'] ?? {...OUTCOMES.none, word: rollout.outcome};
}

// Right answers are discs, wrong ones squares, others diamonds: the shape tells them apart without colour.
function icon(outcome, x = 0, y = 0) {
  const body =
    outcome.tone === 'right'
      ? svg('circle', {r: 6.5})
      : outcome.tone === 'wrong'
        ? svg('rect', {x: -6, y: -6, width: 12, height: 12, rx: 2})
        : svg('path', {d: 'M0 -7.8 L7.8 0 L0 7.8 L-7.8 0 Z', class: 'body'});
  return svg(
    'g',
    {class: `icon ${outcome.tone}`, transform: `translate(${x} ${y})`},
    body,
    svg('path', {d: outcome.path, class: 'mark'}),
  );
}

function iconElement(outcome) {
  return svg(
    'svg',
    {width: 16, height: 16, viewBox: '-8 -8 16 16', role: 'img', 'aria-label': outcome.word},
    svg('title', {}, outcome.word),
    icon(outcome),
  );
}

// Rewards on a scale that all kinds of colour vision tell apart: orange is 0, blue is 1.
function rewardColour(reward) {
  if (reward === null) return 'var(--muted)';
  const share = Math.round(Math.min(1, Math.max(0, reward)) * 100);
  return share >= 50
    ? `color-mix(in oklab, var(--right) ${2 * share - 100}%, var(--between))`
    : `color-mix(in oklab, var(--wrong) ${100 - 2 * share}%, var(--between))`;
}
