"""The rehearsal of a run asks for the programs that the run then calls."""

from __future__ import annotations

import copy
import threading

import jax
import numpy as np
import pytest
import scripted_environment

from fr3e_jax.loop import arpo, compiling_ahead
from fr3e_jax.loop.rehearsal import Forecast, Programs, expected, rehearse
from fr3e_jax.loop.train import train
from fr3e_jax.programs.program import Program, before_compiling, keep_executables
from fr3e_jax.runs.metrics import read_metrics, without_timing
from fr3e_jax.session.session import open_session

NOT_REHEARSED = {"sums", "tree_norm"}
"""Programs of a checkpoint: small, and called after the first steps."""

pytestmark = pytest.mark.skipif(jax.device_count() > 1, reason="executables are kept on one device: make test")


def programs_of(session) -> Programs:
    return Programs(session.model.train_programs(session.config), session.model.critic_programs(session.config))


@pytest.fixture
def called(tmp_path, monkeypatch):
    """The programs that ask for an executable, as (name, key)."""
    found, original = set(), Program.executable

    def executable(self, key, args, keywords):
        found.add((self.name, key))
        return original(self, key, args, keywords)

    monkeypatch.setattr(Program, "executable", executable)
    yield found
    keep_executables(None)


METHODS = {
    "fr3e": {},
    "grpo": {"explore__enabled": False},
    "ppo": {"explore__enabled": False, "advantage__base_estimator": "gae"},
    "reference": {"explore__enabled": False, "kl__coefficient": 0.1, "rollout__param_dtype": "bfloat16"},
    "environment": {
        "environment__kind": f"{scripted_environment.__file__}:Posing",
        "environment__turn_end": scripted_environment.TURN_END,
        "environment__max_observation_tokens": 3,
    },
    "adaptive_return": {"explore__enabled": False, "returns__size": 8, "returns__max_success_rate": 0.9},
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_run_calls_the_programs_of_its_rehearsal(tmp_path, tiny_run, called, method):
    settings = METHODS[method] | {"training__row_shapes": 2, "training__max_steps": 2, "rollout__cache_sizes": 1}
    config = tiny_run.config(
        runtime__compilation_cache=str(tmp_path / "cache"), runtime__compile_ahead=False, **settings
    )
    rehearsed = rehearse(
        session := open_session(copy.deepcopy(config)), expected(config, steps=6), programs_of(session)
    )
    forecast = {(call.program.name, call.key) for call in rehearsed.calls.values()} | set(called)
    called.clear()
    assert train(config, tmp_path / "run") == 0
    missed = {(name, key) for name, key in called - forecast if name not in NOT_REHEARSED}
    assert not missed, f"{len(missed)} of {len(called)}: {sorted(name for name, _ in missed)}"
    assert {"decode_chunk", "accumulate", "apply_gradients"} <= {name for name, _ in called}


def test_a_rehearsal_changes_nothing_and_repeats_itself(tiny_run):
    session = open_session(tiny_run.config(training__row_shapes=2))
    programs, engine = programs_of(session), session.sampler.engine
    counts, decoder = copy.deepcopy(engine.counts), engine.programs
    twice = [
        [(call.program.name, call.key, call.count) for call in found.calls.values()]
        for found in (rehearse(session, expected(session.config), programs) for _ in range(2))
    ]
    assert twice[0] == twice[1]
    assert engine.counts == counts and engine.programs is decoder
    assert session.grader.grader is not None


def test_tools_pause_in_a_rehearsal_as_in_the_run_and_responses_branch_after_answers(tiny_run, monkeypatch):
    asked = []
    make = arpo.TrunkRequest
    monkeypatch.setattr(arpo, "TrunkRequest", lambda *args: asked.append(args) or make(*args))
    config = tiny_run.config(
        explore__enabled=False,
        rollout__max_response_tokens=40,
        tools__kind="calculator",
        tools__max_output_tokens=4,
        tools__branching=True,
        tools__initial_rollouts=1,
        evaluation__every=0,
    )
    session = open_session(config)
    found = rehearse(session, expected(config, steps=1), programs_of(session)).calls.values()
    decoded = [call for call in found if call.program.name == "decode_chunk"]
    table = session.sampler.toolbox.table
    assert decoded and all(
        any(getattr(x, "shape", None) == table.shape for x in jax.tree.leaves((call.args, call.keywords)))
        for call in decoded
    )
    assert not session.sampler.toolbox.counts.total()
    forks = [len(branch.prefix.token_ids) for _, branches, _ in asked for branch in branches]
    assert 0 in forks and max(forks) > 1, "from the prompt where the rule accepts no answer, else from inside"
    assert {"promote", "insert_trunks"} <= {call.program.name for call in found}


def test_longer_responses_need_larger_rings(tiny_run):
    session = open_session(tiny_run.config(rollout__max_response_tokens=100, evaluation__every=0))
    rings = {}
    for length in (10, 90):
        found = rehearse(session, Forecast(np.array([length]), steps=1), programs_of(session))
        decoded = [call for call in found.calls.values() if call.program.name == "decode_chunk"]
        rings[length] = {call.args[1].capacity for call in decoded}
    assert rings == {10: {64}, 90: {64, 128}}


@pytest.mark.slow
def test_programs_compiled_ahead_change_no_number(tmp_path, tiny_run, monkeypatch, capsys):
    """One run compiles by itself, one has a thread that does, and in one the thread fails."""
    ahead, threads = [], []
    prepare = Program.prepare
    monkeypatch.setattr(Program, "prepare", lambda self, *call: (ahead.append(self.name), prepare(self, *call)))

    def wait_for_it(start):
        """Let the run go on when the thread has ended, whichever of the two is quicker."""
        join = lambda: [thread.join() for thread in threading.enumerate() if thread.name == "compiling ahead"]
        before_compiling(start and (lambda: (start(), join())))

    monkeypatch.setattr(compiling_ahead, "before_compiling", wait_for_it)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)  # there, earlier tests have left their programs
    jax.config.update("jax_enable_compilation_cache", False)
    runs = {}
    for name in ("alone", "ahead", "failing"):
        config = tiny_run.config(
            runtime__compilation_cache=str(tmp_path / f"cache_{name}"),
            runtime__compile_ahead=name != "alone",
            training__row_shapes=2,
            training__max_steps=2,
        )
        if name == "failing":
            monkeypatch.setattr(compiling_ahead, "rehearse", lambda *_: threads.append("failing") or 1 / 0)
        assert train(config, tmp_path / name) == 0
        runs[name] = [without_timing(record) for record in read_metrics(tmp_path / name / "metrics.jsonl")]
        assert bool(ahead) == (name != "alone")
    keep_executables(None)
    jax.config.update("jax_enable_compilation_cache", True)
    assert runs["alone"] == runs["ahead"] == runs["failing"]
    assert {"accumulate", "decode_chunk"} <= set(ahead)
    assert threads == ["failing"]
    assert "programs are not compiled ahead: ZeroDivisionError" in capsys.readouterr().err
