// The held-out problems: their list, and the answers to one of them at every evaluation, side by side.

const held = {list: null, place: null};

function heldOutView(node) {
  const table = page.held_out;
  node.querySelector('.note').textContent = table?.sentence ?? 'The run has stored no samples of its evaluations.';
  node.querySelector('.prompts').hidden = !table;
  if (!table) return {drawn: () => {}, state: () => [], restore: () => {}};
  const items = table.problems;
  held.place = node.querySelector('.chosen-item');
  held.list = makeList(node.querySelector('.list'), {
    ...page.lists.held_out,
    label: 'held-out problems',
    items,
    open: openProblem,
  });
  return {
    drawn: () => held.list.chosen || openProblem(items.find(({chunk}) => chunk !== null) ?? items[0], {push: false}),
    state: () => [...listState(held.list), ['problem', held.list.chosen?.address]],
    restore: async (state) => {
      restoreList(held.list, state);
      const listed = held.list.shown.includes(held.list.chosen) ? null : held.list.shown[0];
      const problem = items.find(({address}) => address === state.get('problem')) ?? listed;
      if (problem) await openProblem(problem, {push: false});
    },
  };
}

async function openProblem(problem, {push = true} = {}) {
  held.list.chosen = problem;
  markChosen(held.list);
  const of = problem.chunk === null ? null : await tree(problem.chunk);
  if (held.list.chosen !== problem) return;
  replace(
    held.place,
    rowElement(element('b', {}, visible(problem.address)), goldElement(problem.gold)),
    of ? promptElement(of) : noteElement(`Its answers are not in this page. ${visible(problem.question)}`),
    of &&
      element(
        'div',
        {class: 'evaluations'},
        page.held_out.steps.map((step) => answersAt(of, step)),
      ),
  );
  remember(push);
}

// The answers of an evaluation: a button for each sample, and the text of the chosen one.
function answersAt(of, step) {
  const rollouts = of.rollouts.filter((rollout) => rollout.step === step).sort((a, b) => a.base - b.base);
  const sampled = rollouts.filter((rollout) => rollout.base > 0);
  const right = sampled.filter((rollout) => rollout.outcome === 'right').length;
  const place = element('div');
  const samples = rollouts.map((rollout) => {
    const show = ({currentTarget}) => {
      for (const other of samples) {
        other.setAttribute('aria-pressed', String(other === currentTarget));
        other.tabIndex = other === currentTarget ? 0 : -1;
      }
      replace(place, responseElement(of, rollout, response(of, rollout)));
    };
    const label = `${nameOf(rollout)}: ${[outcomeOf(rollout).word, rollout.extracted ?? []].flat().join(', ')}`;
    const content = [iconElement(outcomeOf(rollout)), ` ${shortened(rollout.extracted ?? '', 12)}`];
    return button(content, show, {'aria-label': visible(label), 'aria-pressed': 'false'});
  });
  samples[0]?.click();
  return element(
    'div',
    {class: 'answer', 'data-step': step},
    element('h3', {}, step === 0 ? 'before training' : `step ${step}`),
    sampled.length ? element('small', {class: 'muted'}, `${right} of ${plural(sampled.length, 'sample')} right`) : null,
    element('div', {class: 'samples', role: 'group', 'aria-label': 'samples', onkeydown: moveFocus}, samples),
    place,
  );
}
