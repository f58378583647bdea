"""Devices that only sample: the next batch is sampled while this one trains, and no timing changes a result."""

from __future__ import annotations

import json
import os
import signal
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from run_comparison import assert_same_run, reader

from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.configuration.sampler_rules import uncorrected
from fr3e_jax.learning import dispatch
from fr3e_jax.learning.dispatch import Dispatched
from fr3e_jax.loop.train import train
from fr3e_jax.planning.targets import Programs
from fr3e_jax.programs.decoder_programs import DecoderPrograms
from fr3e_jax.programs.mesh import MeshMismatch, separate_devices
from fr3e_jax.programs.train_programs import TrainPrograms
from fr3e_jax.runs.metrics import read_metrics
from fr3e_jax.session.session import open_session

eight = pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 devices: FR3E_TEST_DEVICES=8 (make test-8)")
AHEAD = {"mesh__sampler_devices": 4, "loss__importance_cap": 2.0, "training__max_steps": 3}


def steps(path) -> list[dict]:
    return read_metrics(path / "metrics.jsonl", kind="train")


@pytest.fixture(scope="module")
def ahead(tmp_path_factory, tiny_run):
    """A run of three steps of FR3E, by the devices' own timing."""
    path = tmp_path_factory.mktemp("ahead") / "run"
    assert train(tiny_run.config(**AHEAD), path) == 0
    return path


@pytest.fixture(scope="module")
def ahead_session(tiny_run):
    return open_session(tiny_run.config(**AHEAD), keeps_routes=True)


@eight
def test_a_step_trains_what_the_step_before_has_sampled(ahead):
    first, *later = steps(ahead)
    assert first["batch/age_max"] == 0 and first["logprob_gap/max"] < 1e-4
    for record in later:
        assert record["batch/age_share_1"] > 0 == record["batch/age_share_0"] and record["batch/age_max"] <= 2
        assert record["sampler_ratio/carried"] > 0.01, "an update lies between"
    assert first["tokens/sampled_tokens"] > 1.5 * later[0]["tokens/sampled_tokens"], "its own batch, and the next"


@eight
def test_weights_move_to_devices_of_their_own(ahead_session):
    model, sampler = ahead_session.model, ahead_session.sampler
    params = model.fresh_params(ahead_session.config)
    copy = sampler.weights.of(params)
    trains, samples = (
        {device.id for device in mesh.devices.flat} for mesh in (model.mesh, sampler.engine.programs.mesh)
    )
    assert (samples, trains) == ({0, 1, 2, 3}, {4, 5, 6, 7}), "the host's small programs run on the first"
    for moved, trained in zip(jax.tree.leaves(copy), jax.tree.leaves(params), strict=True):
        assert {device.id for device in moved.devices()} == samples
        np.testing.assert_array_equal(moved, trained)


@eight
@pytest.mark.parametrize("ready", [False, True])
def test_the_moment_at_which_an_update_goes_on_changes_nothing(
    ahead, ahead_session, tmp_path, tiny_run, monkeypatch, ready
):
    """Without overlap each update ends before sampling begins; else no update holds up a chunk of sampling."""
    updates, unfinished, applied = [], [], []
    start, chunk, apply = Dispatched.__init__, DecoderPrograms.decode_chunk, TrainPrograms.apply

    def started(self, work):
        updates.append(self)
        start(self, work)

    def sampled(self, *arguments, **options):
        unfinished.append(bool(updates) and not updates[-1].is_finished)
        return chunk(self, *arguments, **options)

    def stepped(self, *arguments):
        applied.append(len(unfinished))
        return apply(self, *arguments)

    monkeypatch.setattr(dispatch, "are_computed", lambda arrays: ready or arrays == ())
    monkeypatch.setattr(Dispatched, "__init__", started)
    monkeypatch.setattr(DecoderPrograms, "decode_chunk", sampled)
    monkeypatch.setattr(TrainPrograms, "apply", stepped)
    assert train(tiny_run.config(**AHEAD), tmp_path / "run") == 0
    if ready:
        assert not any(unfinished)
    else:
        assert sum(unfinished) >= 3 * 3 and len(set(applied)) <= 2 * 3
    monkeypatch.undo()
    assert_same_run(tmp_path / "run", ahead, ahead_session)


@eight
def test_a_resumed_run_equals_an_uninterrupted_one(ahead, ahead_session, tmp_path, tiny_run, monkeypatch):
    """The signal comes while step 2 trains and samples: the step is finished, and its next batch is saved with it."""
    path, updates, go_on = tmp_path / "run", [], Dispatched.go_on

    def interrupted(self):
        if self not in updates:
            updates.append(self)
            if len(updates) == 2:
                os.kill(os.getpid(), signal.SIGTERM)
        go_on(self)

    with monkeypatch.context() as patch:
        patch.setattr(Dispatched, "go_on", interrupted)
        assert train(tiny_run.config(**AHEAD), path) == 0
    with reader(path) as checkpoints:
        waiting = checkpoints.host_state(checkpoints.latest_step())["partial_batch"]
    assert checkpoints.latest_step() == 2 and sum(len(trunk["branches"]) for trunk in waiting) >= 20
    assert train(tiny_run.config(**AHEAD), path, resume=True) == 0
    assert_same_run(path, ahead, ahead_session)


METHODS = {
    "adapters": {"model__lora__rank": 2, "mesh__sampler_devices": 6, "kl__coefficient": 0.1},
    "grpo": {"explore__enabled": False, "mesh__sampler_devices": 2, "training__surplus": "drop"},
    "returns": {"explore__enabled": False, "returns__size": 4, "mesh__rollout_tensor": 2, "mesh__tensor": 2},
    "teacher": {"teacher__path": "warm_starts/order", "teacher__entropy_share": 0.3, "teacher__param_dtype": "int8"},
    "critic": {"explore__enabled": False, "advantage__base_estimator": "gae", "shaping__steps": ["sequence_weighting"]},
}


@eight
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_methods_and_meshes_sample_ahead_and_resume(method, tmp_path, tiny_run):
    settings = AHEAD | METHODS[method] | {"evaluation__every": 1, "training__max_steps": 2}
    assert train(tiny_run.config(**settings), tmp_path / "whole") == 0
    assert train(tiny_run.config(**settings | {"training__max_steps": 1}), tmp_path / "parts") == 0
    assert train(tiny_run.config(**settings), tmp_path / "parts", resume=True) == 0
    assert_same_run(tmp_path / "parts", tmp_path / "whole", open_session(tiny_run.config(**settings)))
    assert all(record["batch/age_share_0"] == 0 for record in steps(tmp_path / "whole")[1:])


@eight
def test_a_batch_that_does_not_come_ends_no_step(tmp_path, tiny_run, monkeypatch):
    """A step trains whole although no prompt gives a signal for the next one, which then asks again and stops."""
    from fr3e_jax.loop import collection

    rounds, original = [], collection.run_round

    def silent(session, state, policy, stages, batch, missing):
        trunks = batch.trunks
        original(session, state, policy, stages, batch, missing)
        if state.step > 1:
            rounds.append(state.step)
            batch.trunks, batch.silent_rounds = trunks, rounds.count(state.step)

    monkeypatch.setattr(collection, "run_round", silent)
    path = tmp_path / "run"
    assert train(tiny_run.config(**AHEAD, rollout__max_rounds_without_signal=2), path) == 1
    assert rounds == [2, 2, 3, 3]
    with reader(path) as checkpoints:
        assert checkpoints.latest_step() == 2
    assert json.loads((path / "status.json").read_text())["state"] == "failed"


@eight
def test_programs_are_compiled_for_the_devices_that_run_them(tiny_run):
    programs = Programs(tiny_run.config(**AHEAD, mesh__rollout_tensor=1), jax.devices(), vocab_size=22)
    for name, of_sampler in {"decode": True, "explore": True, "accumulate": False, "reshard": False}.items():
        target = programs.target(name)
        leaves = jax.tree.leaves(target.arguments)
        devices = {frozenset(leaf.sharding.device_set) for leaf in leaves if leaf.sharding is not None}
        assert devices == {frozenset(jax.devices()[:4] if of_sampler else jax.devices()[4:])}
        assert target.lower()


def test_rollouts_of_other_weights_are_corrected_unless_a_recipe_says_otherwise():
    assert load_config("demo", ["mesh.sampler_devices=4"]).loss.importance_cap == 2
    (note,) = uncorrected(load_config("demo", ["mesh.sampler_devices=4", "loss.importance_cap=0"]))
    assert "mesh.sampler_devices=4" in note and "sampler_ratio/carried tells" in note


def test_several_processes_are_refused():
    devices = [SimpleNamespace(process_index=i // 4) for i in range(8)]
    with pytest.raises(MeshMismatch, match="mesh.sampler_devices=4 is for one process .* there are 2 processes"):
        separate_devices(devices, 4)
    assert separate_devices(devices, 0) == (devices, [])


def test_too_many_devices_are_refused(tiny_run):
    count = jax.device_count()
    with pytest.raises(ConfigError, match=f"sampler_devices={count} leaves none of the {count} devices to train"):
        open_session(tiny_run.config(mesh__sampler_devices=count), keeps_routes=True)
    assert open_session(tiny_run.config(mesh__sampler_devices=count)).model.mesh.size == count, "nothing trains"
