// The prompts of the run: their list, and which prompt, rollout and token are chosen.

const prompts = {list: null, tree: null, place: null};

function promptsView(node) {
  node.querySelector('.note').textContent = page.sampling.sentence;
  node.querySelector('.prompts').hidden = page.prompts.length === 0;
  prompts.place = node.querySelector('.chosen-item');
  prompts.list = makeList(node.querySelector('.list'), {
    ...page.lists.prompts,
    label: 'prompts',
    items: page.prompts,
    open: openPrompt,
  });
  return {
    drawn: () => {
      if (prompts.list.chosen && prompts.tree) drawPrompt();
      else if (!prompts.list.chosen) openTelling();
    },
    state: () => [
      ...listState(prompts.list),
      ['prompt', prompts.list.chosen?.address],
      ['rollout', prompts.list.chosen && look.selected?.id],
      ['token', look.token],
      ['beside', look.compared?.id],
      ['zoom', look.zoom > 1 ? Number(look.zoom.toFixed(2)) : null],
      ['text', look.folded ? 'folded' : null],
    ],
    restore: async (state) => {
      restoreList(prompts.list, state);
      look.zoom = Math.min(MOST_ZOOM, Math.max(1, Number(state.get('zoom')) || 1));
      look.folded = state.get('text') === 'folded';
      const prompt = page.prompts.find(({address}) => address === state.get('prompt'));
      if (!prompt && !prompts.list.shown.includes(prompts.list.chosen)) openTelling();
      if (!prompt) return;
      const token = Number(state.get('token') ?? NaN);
      await openPrompt(prompt, {rollout: state.get('rollout'), token, beside: state.get('beside'), push: false});
    },
  };
}

// A prompt of the later half of those that are listed.
function openTelling() {
  const {shown} = prompts.list;
  if (shown.length) openPrompt(mostTelling(shown.slice(Math.floor(shown.length / 2))), {push: false});
}

// The prompt whose values change most; of prompts without states, a mixed one.
function mostTelling(list) {
  const telling = ({delta, tags}) => delta || (tags.includes('mixed') ? 0.001 : 0);
  return list.reduce((best, prompt) => (telling(prompt) > telling(best) ? prompt : best));
}

async function openPrompt(prompt, {rollout = null, token = null, beside = null, push = true} = {}) {
  const {list} = prompts;
  list.chosen = prompt;
  markChosen(list);
  const opened = await tree(prompt.chunk);
  if (list.chosen !== prompt) return;
  prompts.tree = opened;
  chooseFirst(opened, rollout, token);
  look.compared = opened.byId.get(beside) ?? null;
  drawPrompt();
  remember(push);
}

// The step of a curve: its prompts, or those of the nearest step that has some.
function openStep(step, isEvaluation) {
  const isHeldOut = isEvaluation && page.held_out;
  showView(isHeldOut ? 'held-out' : 'prompts');
  if (isHeldOut) remember(true);
  const steps = prompts.list.items.map((prompt) => prompt.step);
  if (isHeldOut || !steps.length) return;
  const nearest = steps.reduce((best, other) => (Math.abs(other - step) < Math.abs(best - step) ? other : best));
  restoreList(prompts.list, new Map([['search', `step=${nearest}`]]));
  const other = `Step ${step} has no prompts here; the nearest that has is step ${nearest}.`;
  prompts.stepNote = nearest === step ? '' : other;
  openPrompt(mostTelling(prompts.list.shown));
}
