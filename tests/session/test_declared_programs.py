"""The programs that a run declares are those that it calls: after them it compiles no other that depends on a shape."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from fr3e_jax.cluster.processes import Processes
from fr3e_jax.loop import run
from fr3e_jax.programs.program import Declarations, Program
from fr3e_jax.rollouts.requests import Branch, Sampling, TrunkRequest
from fr3e_jax.session.declared_programs import declare_programs
from fr3e_jax.session.session import open_session


@pytest.fixture
def compiled():
    """The names of programs that were compiled in this test, in their order."""
    names: list[str] = []

    def listen(event: str, seconds: float, **details) -> None:
        if event.endswith("backend_compile_duration"):
            names.append(details["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def test_a_call_of_the_decoder_compiles_nothing_that_was_not_declared(tiny_run, compiled):
    config = tiny_run.config()
    jax.clear_caches()  # else programs of earlier tests are not compiled again
    session = open_session(config)
    model, engine = session.model, session.sampler.engine
    declared = declare_programs(Declarations(), session, model.train_programs(config), model.critic_programs(config))
    params = session.sampler.weights.of(model.fresh_params(config))
    for one in declared:
        one.prepare()
    assert {"jit(prefill)", "jit(decode_chunk)", "jit(promote)"} <= set(compiled)
    compiled.clear()
    how = Sampling(config.rollout.temperature, stop_ids=session.texts.codec.stop_ids)
    cap, prompts = config.rollout.max_response_tokens, config.rollout.prompts_per_round
    ids = np.arange(2, 2 + config.data.max_prompt_tokens, dtype=np.int32)
    several = range(config.rollout.rollouts_per_prompt)
    requests = [TrunkRequest(ids, [Branch(len(ids), (0, i, m), cap, how) for m in several]) for i in range(prompts)]
    rollouts, promoted = engine.sample(params, requests, lambda index, rollouts, wait: [0])
    explored = [
        TrunkRequest(trunk, [Branch(len(ids), (1, *key), cap, how) for _ in range(2)])
        for key, trunk in promoted.items()
    ]
    engine.sample(params, explored)
    assert compiled == []


@pytest.mark.parametrize(("cores", "asked", "ahead"), [(1, True, False), (2, True, True), (2, False, False)])
def test_threads_compile_ahead_only_beside_a_core_that_samples(tiny_run, monkeypatch, cores, asked, ahead):
    monkeypatch.setattr(run, "usable_cores", lambda: cores)
    monkeypatch.setattr(run, "compiled_ahead", lambda *parts: "threads")
    learner, session = SimpleNamespace(programs=None, critic=None), SimpleNamespace(processes=Processes())
    config = tiny_run.config(runtime__compile_ahead=asked)
    started = SimpleNamespace(config=config, session=session, state=SimpleNamespace(learner=learner))
    assert (run.TrainingRun.compiled_ahead(started) == "threads") == ahead


def test_a_call_waits_for_the_thread_that_compiles_its_program(compiled):
    entered, go_on = threading.Event(), threading.Event()

    def slow(x):
        entered.set()
        go_on.wait()
        return x + 1

    program, results = Program(slow), []
    ahead = threading.Thread(target=program.prepare, args=(jax.ShapeDtypeStruct((3,), np.float32),))
    ahead.start()
    entered.wait()
    caller = threading.Thread(target=lambda: results.append(program(np.ones(3, np.float32))))
    caller.start()
    go_on.set()
    ahead.join()
    caller.join()
    assert results[0].tolist() == [2, 2, 2] and compiled == ["jit(slow)"]
