"""The programs of a run with the arguments that they will be called with, from its declared shapes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from fr3e_jax.configuration.evaluation_sets import set_settings
from fr3e_jax.configuration.schema import Config
from fr3e_jax.learning.trained_trunks import trains_trunks
from fr3e_jax.learning.update import reads_old_logprobs
from fr3e_jax.policy.rows import Rows, Trunks
from fr3e_jax.programs.critic_programs import CriticPrograms
from fr3e_jax.programs.decoder_programs import DecoderCall
from fr3e_jax.programs.decoder_state import DecodeState
from fr3e_jax.programs.program import Declarations, Declared
from fr3e_jax.programs.shardings import abstract_arrays
from fr3e_jax.programs.train_programs import RecordedRoutes, TrainPrograms, TrainRows
from fr3e_jax.rollouts.declared_shapes import base_call, explore_call, return_call
from fr3e_jax.rollouts.requests import STREAM_NAMES
from fr3e_jax.session.session import Session

_THREADS = 2  # that compile while the run samples


def declare_programs(
    declare: Declarations, session: Session, programs: TrainPrograms, critic: CriticPrograms | None = None
) -> list[Declared]:
    """Declare all programs that depend on a shape, in the order of their first use, and return them.

    Args:
      declare: gets them.
      session: of the run; no weight of it is read.
      programs, critic: of the run.
    """
    config, sampler, shapes = session.config, session.sampler, session.shapes
    weights, decoder = sampler.weights, sampler.engine.programs
    recognised = sampler.toolbox or sampler.stops
    table = None if recognised is None else recognised.table.shape
    calls = decoder_calls(config, len(session.texts.codec.stop_ids), table)
    arrays = programs.abstract_arrays()
    trained = arrays["params"]
    policy = trained if programs.base is None else programs.base.abstract_below(trained)
    declare(programs.init_optimizer, trained)
    rollout_params = abstract_arrays(weights.abstract, weights.shardings)
    if weights.copies:
        declare(weights.reshard, policy)
    decoder.declare(declare, rollout_params, shapes, calls)
    routes = RecordedRoutes(decoder.routes, decoder.routes_type) if decoder.routes else None
    options = {"trained_trunks": trains_trunks(config.explore), "routes": routes}
    batches = [programs.abstract_batch(shape, **options) for shape in shapes.rows]
    if critic is not None and batches:
        critic.declare(declare, trained, [batch.rows for batch in batches])
    if batches:
        balances = config.model.experts.balance_coefficient > 0
        programs.declare(declare, batches, scores=_scores(config), balances=balances)
    return declare.programs()


def decoder_calls(config: Config, stops: int, table: tuple[int, int] | None = None) -> list[DecoderCall]:
    """The kinds of calls of the decoder that a run makes, in the order in which it first makes them.

    ``stops``: the number of its stop ids; ``table``: see `DecoderCall`.
    """
    common = {"names": STREAM_NAMES, "stops": max(stops, 1), "table": table}
    filtered = config.rollout.top_p < 1
    promotes = config.explore.enabled
    calls = [
        _evaluation_call(config, common),
        DecoderCall("prompts", *base_call(config), filtered, promotes, **common),
    ]
    if promotes:
        calls.append(DecoderCall("promoted", *explore_call(config), filtered, False, **common))
    if config.returns.size:
        calls.append(DecoderCall("responses", *return_call(config), filtered, False, **common))
    return calls


def _evaluation_call(config: Config, common: dict) -> DecoderCall:
    plans = [config.evaluation, *set_settings(config.evaluation, config.data.eval).values()]
    prompts, answers = sum(plan.prompts for plan in plans), max(plan.samples for plan in plans) + 1
    return DecoderCall("prompts", prompts, answers, answers, any(plan.top_p < 1 for plan in plans), False, **common)


def _scores(config: Config) -> bool:
    """Score batches before an update: the log-probs of a batch's first mini-batch alone come from its gradient pass."""
    training = config.training
    single = 2 * training.batch_rollouts < 3 * training.mini_batch_rollouts
    return (
        not single
        or config.kl.coefficient > 0
        or config.advantage.base_estimator == "gae"
        or reads_old_logprobs(config)
    )


@contextmanager
def compiled_ahead(session: Session, programs: TrainPrograms, critic: CriticPrograms | None) -> Iterator[None]:
    """Compile the declared programs in a few threads within the block; the run calls them as they become ready.

    Their results do not change. A program that fails here fails where the run calls it.
    """
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="compile")
    declare = Declarations(lambda declared: pool.submit(declared.prepare))
    pool.submit(declare_programs, declare, session, programs, critic)
    try:
        yield
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def sizes_text(declared: Declared) -> str:
    """The sizes that set a program apart from others of its name."""
    parts = [text for x in (*declared.arguments, *declared.options.values()) for text in [_sizes(x)] if text]
    numbers = {name: x for name, x in declared.options.items() if type(x) is int}
    return ", ".join(dict.fromkeys([*parts, *(f"{name} {x}" for name, x in numbers.items())]))


def _sizes(x: Any) -> str:
    if isinstance(x, DecodeState):
        slots, lanes = x.active.shape
        rings = f", rings of {x.capacity}, trunks of {x.trunks.hidden.shape[1]}" if x.lanes else ""
        return f"{slots} slots of {lanes} lanes{rings}"
    if isinstance(x, TrainRows):
        x = x.rows
    if isinstance(x, Rows):
        (rows, trunk), capacity = x.trunk_ids.shape, x.branch_ids.shape[-1]
        return f"{rows} row{'s' * (rows != 1)} of {trunk} + {x.lanes} x {capacity}"
    if isinstance(x, Trunks):
        return f"trunks {x.hidden.shape[0]} x {x.hidden.shape[1]}"
    return "x".join(map(str, getattr(x, "shape", ())))
