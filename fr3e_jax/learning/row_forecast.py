"""The shapes of micro-batches for a whole run, chosen before it from the lengths that its recipe expects.

A shape costs a compilation of each program that reads rows: seconds for a small model, minutes for 7B parameters on a
pod. With ``training.row_shapes`` a run has at most so many, and knows them before its first step. They are those that
cost least for mini-batches of random lengths. Such a menu depends on the recipe alone, so `fr3e compile`, a resumed run
and every process choose the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.long_rows import Budget, chosen_shapes
from fr3e_jax.learning.row_menu import RowMenu
from fr3e_jax.learning.row_plan import plan_rows
from fr3e_jax.learning.row_shapes import Branch, Plan, RowShape
from fr3e_jax.learning.setup import LearningSetup
from fr3e_jax.learning.trained_trunks import owns_of, planned_sizes
from fr3e_jax.rollouts.expected_lengths import expected_lengths

_BATCHES = 6  # mini-batches that shapes are chosen for
_ENOUGH = 6144  # branches that shapes of long rows are chosen for: fewer mini-batches where each has thousands
_WORTH = 0.99  # another shape must leave at most this part of the work
_MOST_TRIED = 12  # shapes to choose from

Sizes = tuple[list[list[int]], list[list[int]]]  # of each trunk, the forks of its branches, and their tokens


def restored_menu(setup: LearningSetup, shards: int, content: list[list[int]]) -> RowMenu:
    """The menu of a checkpoint; where it is closed and its rows do not lie evenly on ``shards``, one planned anew."""
    menu = RowMenu.from_json(content, closed=setup.config.training.row_shapes > 0)
    uneven = menu.closed and any(shape.rows % shards for shape in menu.shapes)
    return planned_menu(setup, shards) if uneven else menu


def planned_menu(setup: LearningSetup, shards: int) -> RowMenu:
    """The closed menu of a run; an open one without ``training.row_shapes``. ``shards``: of rows."""
    config = setup.config
    most = config.training.row_shapes
    if not most:
        return RowMenu()
    batches = list(expected_mini_batches(config))
    options = {
        "tokens": config.training.micro_batch_tokens,
        "shards": shards,
        "fixed": None,
        "longest": config.rollout.max_response_tokens,
        "key_cost": setup.key_cost,
        "position_cost": setup.position_cost,
    }
    grown = RowMenu()
    for forks, lengths in batches:
        plan_rows(forks, lengths, menu=grown, **options)
    if not grown.shapes:
        return _of_long_rows(config, batches, shards, setup.key_cost, most)
    return _of_crossing_rows(grown, batches, options, most)


def _of_crossing_rows(grown: RowMenu, batches: list[Sizes], options: dict, most: int) -> RowMenu:
    """The shapes of ``grown`` with which the batches cost least."""
    budget = Budget(options["tokens"], options["shards"], options["key_cost"])
    tried = grown.shapes[:_MOST_TRIED]

    def cost(shapes: Sequence[RowShape]) -> float:
        menu, total = RowMenu(list(shapes), closed=True), 0.0
        for forks, lengths in batches:
            plan: Plan = plan_rows(forks, lengths, menu=menu, **options)
            total += sum(budget.cost(shape) for _, shape in plan)
        return total if len(menu.shapes) == len(shapes) else math.inf

    best, least = [], math.inf
    while len(best) < most:
        found = [(cost([*best, shape]), n, shape) for n, shape in enumerate(tried) if shape not in best]
        now, _, shape = min(found, default=(math.inf, 0, None))
        if shape is None or now > _WORTH * least:
            break
        best, least = [*best, shape], now
    return RowMenu(best or tried[:most], closed=True)


def _of_long_rows(config: Config, batches: list[Sizes], shards: int, key_cost: float, most: int) -> RowMenu:
    budget = Budget(config.training.micro_batch_tokens, shards, key_cost)
    by_length = lambda forks, lengths: sorted(map(Branch, range(len(forks)), forks, lengths), key=lambda b: -b.length)
    enough = max(_ENOUGH // config.training.mini_batch_rollouts, 1)
    families = [list(map(by_length, *batch)) for batch in batches[:enough]]
    cap, prompt = config.rollout.max_response_tokens, config.data.max_prompt_tokens
    longest_trunk = prompt + cap - 1 if config.explore.enabled or config.returns.size else prompt
    return RowMenu(chosen_shapes(families, budget, cap, longest_trunk, most), closed=True)


def expected_mini_batches(config: Config, count: int = _BATCHES) -> Iterator[Sizes]:
    """Mini-batches of random lengths: forks and tokens of the branches of each trunk."""
    random = np.random.default_rng(0)
    for _ in range(count):
        forks: list[list[int]] = []
        lengths: list[list[int]] = []
        while sum(map(len, forks)) < config.training.mini_batch_rollouts:
            for trunk in _trunks_of_a_prompt(config, random):
                forks.append([fork for fork, _ in trunk])
                lengths.append([length for _, length in trunk])
        yield planned_sizes(forks, lengths, owns_of(config, forks))[:2]


def _trunks_of_a_prompt(config: Config, random: np.random.Generator) -> Iterator[list[tuple[int, int]]]:
    """The training trunks of one prompt: (fork, tokens) of the branches of each."""
    rollout, explore, returns = config.rollout, config.explore, config.returns
    cap, longest = rollout.max_response_tokens, config.data.max_prompt_tokens
    expected = expected_lengths(rollout.expected_tokens, cap)
    prompt = int(random.integers(-(-longest // 4), longest + 1))
    draw = lambda before=0: max(int(random.choice(expected)) - before, 1)
    from_state = lambda before, count: [(prompt + before, draw(before)) for _ in range(count)]
    if not explore.enabled or explore.train_base:
        yield from_state(0, rollout.rollouts_per_prompt)
    if returns.size:
        depth = int(random.integers(0, draw()))
        yield [
            one
            for part in range(returns.depths)
            for one in from_state(depth * part // returns.depths, returns.rollouts)
        ]
    if explore.enabled:
        for _ in range(max(min(explore.max_correct + explore.max_wrong, rollout.rollouts_per_prompt), 1)):
            base = draw()
            anchors = sorted(random.integers(0, base, explore.num_anchors).tolist())
            states = [0, *anchors] if explore.initial_state == "fresh" else anchors
            own = [one for state in states for one in from_state(state, explore.rollouts_per_state)]
            yield own * explore.train_states + [(prompt, base)] * (explore.block_credit or not explore.train_states)
