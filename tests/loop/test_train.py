"""The training loop from end to end: the files of a run, and its end when there is nothing to learn."""

from __future__ import annotations

import dataclasses
import json
import time
from itertools import groupby

import jax
import numpy as np
import pytest
from runs_here import run_here

from fr3e_jax.configuration import load_config
from fr3e_jax.data.task import load_task
from fr3e_jax.learning.experience import TrainingTrunk
from fr3e_jax.loop import collection
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.runs import rollout_store, tracker_services
from fr3e_jax.runs.checkpoints import Checkpointer
from fr3e_jax.runs.metrics import read_metrics, recorded_scores
from fr3e_jax.runs.rollout_store import read_rollouts
from fr3e_jax.runs.run_directory import RunDirectory
from fr3e_jax.runs.run_state import run_state
from fr3e_jax.studies.analysis.stored_run import StoredRun

PROMISED = (
    "reward/mean length/mean entropy/mean prompts/kept prompts/rejected base_groups/all_right base_groups/all_wrong "
    "advantage/mean advantage/std ratio/mean clip/low clip/high logprob_gap/mean logprob_gap/max gradient_norm/mean "
    "learning_rate "
    "tokens/sampled_tokens tokens/reused_prefix_positions tokens/prefill_positions tokens/lane_steps "
    "tokens/loss_tokens tokens/trained_positions seconds/first_return seconds/score seconds/update seconds/evaluate "
    "wall_seconds cpu_seconds compile/programs compile/cache_hits compile/seconds"
).split()
PROMISED_OF_FR3E = (
    "state_groups/all_right state_groups/all_wrong alpha/mean value/S_0 value/S_1 value/S_2 seconds/explore"
).split()


def host_state(path, step=None):
    with Checkpointer(path / "checkpoints", read_only=True) as checkpoints:
        return checkpoints.host_state(checkpoints.latest_step() if step is None else step)


def stored(path):
    return [record for file in sorted((path / "rollouts").glob("step_*")) for record in read_rollouts(file)]


@pytest.fixture(scope="module")
def grpo_run(session, tmp_path_factory, tiny_run):
    """The same loop with explore off, by configuration alone; surplus is dropped, prompts are rejected."""
    path = tmp_path_factory.mktemp("grpo") / "run"
    twin = tiny_run.changed(
        session,
        explore__enabled=False,
        training__max_steps=2,
        training__batch_rollouts=10,
        training__surplus="drop",
        evaluation__every=0,
        rollout__rollouts_per_prompt=6,
    )
    code = run_here(twin, path)
    assert code == 0
    return path


@pytest.fixture(params=["fr3e", "grpo"])
def a_run(request, finished_run, grpo_run):
    return finished_run if request.param == "fr3e" else grpo_run


def test_a_run_leaves_its_settings_metrics_rollouts_checkpoints_and_summary(finished_run):
    names = {path.name for path in finished_run.iterdir()}
    files = {"config.yaml", "provenance.json", "metrics.jsonl", "rollouts", "checkpoints", "summary.json"}
    assert names == files | {".lock", "status.json"}
    assert load_config(finished_run / "config.yaml").training.batch_rollouts == 20
    assert sorted(path.name for path in (finished_run / "rollouts").iterdir()) == [
        *(f"eval_{step:06d}.jsonl.gz" for step in (0, 2, 4)),
        *(f"step_{step:06d}.jsonl.gz" for step in (1, 2, 3, 4)),
    ]
    kept = {int(path.name) for path in (finished_run / "checkpoints").iterdir()}
    assert {3, 4} <= kept and len(kept) <= 3


def test_every_step_reports_the_promised_metrics(finished_run, grpo_run):
    for path, promised in ((finished_run, PROMISED + PROMISED_OF_FR3E), (grpo_run, PROMISED)):
        records = read_metrics(path / "metrics.jsonl", kind="train")
        assert [record["step"] for record in records] == list(range(1, len(records) + 1))
        for record in records:
            assert not [name for name in promised if name not in record]
            assert all(np.isfinite(value) for name, value in record.items() if name != "kind")
            assert record["logprob_gap/max"] < 1e-4 and record["gradient_norm/mean"] > 0
    assert not [name for name in PROMISED_OF_FR3E if name in record]


def test_evaluations_come_before_between_and_after(finished_run, grpo_run):
    def steps(path):
        return [record["step"] for record in read_metrics(path / "metrics.jsonl", kind="eval")]

    assert steps(finished_run) == [0, 2, 4] and steps(grpo_run) == [0, 2]


@pytest.mark.parametrize("algorithm", ["fr3e", "grpo++"])
def test_the_summary_sums_up_the_run(finished_run, grpo_run, algorithm):
    path = finished_run if algorithm == "fr3e" else grpo_run
    summary = json.loads((path / "summary.json").read_text())
    records = read_metrics(path / "metrics.jsonl", kind="train")
    assert (summary["recipe"], summary["algorithm"], summary["seed"]) == ("tiny", algorithm, 0)
    assert (summary["steps"], summary["updates"]) == (len(records), sum(r["updates"] for r in records))
    for name in ("sampled_tokens", "loss_tokens", "trained_positions"):
        assert summary[name] == sum(record[f"tokens/{name}"] for record in records)
    evaluations = read_metrics(path / "metrics.jsonl", kind="eval")
    for name, record in (("before", evaluations[0]), ("after", evaluations[-1])):
        assert summary[name] == {key: value for key, value in record.items() if key not in ("step", "kind")}
        assert {"avg@3", "pass@1", "pass@2", "greedy"} <= summary[name].keys()
    assert 0 < summary["cpu_seconds"] and 0 < summary["wall_seconds"]
    assert summary["compilations"]["programs"] >= sum(record["compile/programs"] for record in records)


def test_the_ledger_counts_the_stored_rollouts(a_run):
    records = read_metrics(a_run / "metrics.jsonl", kind="train")
    everything = stored(a_run)
    assert {record.step for record in everything} == {record["step"] for record in records}
    for record in records:
        rollouts = [r for r in everything if r.step == record["step"]]
        prompts = {r.prompt_position: len(r.prompt_ids) for r in rollouts}
        assert record["tokens/sampled_tokens"] == sum(len(r.token_ids) for r in rollouts)
        assert record["tokens/lane_steps"] >= record["tokens/sampled_tokens"]
        assert record["tokens/prefill_positions"] == sum(prompts.values())
        assert record["tokens/reused_prefix_positions"] == sum(len(r.prompt_ids) + r.fork for r in rollouts)
        assert record["prompts/kept"] + record["prompts/rejected"] == len(prompts)
    positions = [r.prompt_position for r in everything if r.kind == "base"]
    assert sorted(set(positions)) == list(range(len(set(positions)))), "a prompt was skipped"


def test_the_trained_tokens_are_the_kept_ones_less_the_carried_ones(finished_run):
    carried = [TrainingTrunk.from_json(content) for content in host_state(finished_run)["partial_batch"]]
    waiting = sum(len(branch.token_ids) for trunk in carried for branch in trunk.branches)
    kept = sum(len(r.token_ids) for r in stored(finished_run) if r.kind == "state" and r.kept)
    assert json.loads((finished_run / "summary.json").read_text())["loss_tokens"] == kept - waiting


def test_records_of_explored_rollouts_agree_with_their_bases(finished_run):
    records = {record.id: record for record in stored(finished_run)}
    states = [record for record in records.values() if record.kind == "state"]
    assert len(states) > 40
    for record in states:
        parent = records[record.parent]
        assert parent.kind == "base" and parent.kept and parent.step == record.step
        assert (parent.prompt_ids, parent.base) == (record.prompt_ids, record.base)
        assert record.fork == parent.anchors[record.state - 1]
        assert record.fork + len(record.token_ids) <= 10
        # Drawn from the same prefix under the same weights.
        assert record.entropies[0] == pytest.approx(parent.entropies[record.fork], abs=1e-5)
    for _, members in groupby(states, key=lambda r: (r.parent, r.state)):
        members = list(members)
        rewards = [record.reward for record in members]
        assert len(members) == 3
        assert members[0].value == pytest.approx(np.mean(rewards), abs=1e-6)
        assert {record.kept for record in members} == {len(set(rewards)) > 1}
        for record in members:
            wanted = record.alpha * (record.reward - record.value)
            assert record.advantage == (pytest.approx(wanted, abs=1e-5) if record.kept else None)


def test_modulation_follows_the_states_of_one_base(finished_run):
    records = stored(finished_run)
    start = {record.id: record.value for record in records if record.kind == "base"}
    compared = 0
    states = [record for record in records if record.kind == "state"]
    for parent, members in groupby(states, key=lambda r: r.parent):
        value, alpha = {0: start[parent]}, {}
        for record in members:
            value[record.state], alpha[record.state] = record.value, record.alpha
        for state, found in alpha.items():
            assert found == pytest.approx(np.exp(value[state - 1] - value[state]), rel=1e-5)
            compared += 1
    assert compared > 15


def test_grpo_trains_the_base_rollouts_of_kept_prompts(grpo_run):
    records = stored(grpo_run)
    assert {record.kind for record in records} == {"base"} and not any(record.anchors for record in records)
    for _, members in groupby(records, key=lambda r: r.prompt_position):
        rewards, advantages = zip(*[(record.reward, record.advantage) for record in members], strict=True)
        if len(set(rewards)) == 1:
            assert set(advantages) == {None}
        else:
            wanted = (np.array(rewards) - np.mean(rewards)) / np.std(rewards)
            np.testing.assert_allclose(advantages, wanted, atol=1e-4)


def test_dropped_surplus_is_stored_but_does_not_train(grpo_run):
    """Two groups of six fill a batch of ten; the third group of the round is dropped."""
    for record in read_metrics(grpo_run / "metrics.jsonl", kind="train"):
        assert record["batch/trunks"] == 2 and record["batch/carried_rollouts"] == 0
        rollouts = read_rollouts(grpo_run / "rollouts" / f"step_{record['step']:06d}.jsonl.gz")
        assert record["tokens/loss_tokens"] < sum(len(r.token_ids) for r in rollouts if r.kept)
    assert host_state(grpo_run)["partial_batch"] == []


def test_the_last_checkpoint_is_ranked_by_the_last_evaluation(grpo_run):
    after = json.loads((grpo_run / "summary.json").read_text())["after"]
    assert run_state(RunDirectory(grpo_run)).state == "finished"
    assert host_state(grpo_run)["evaluated"] == after
    scores = recorded_scores(grpo_run / "metrics.jsonl", "avg@3")
    with Checkpointer(grpo_run / "checkpoints", scores=scores, read_only=True) as checkpoints:
        assert checkpoints.all_steps() == [1, 2] and checkpoints.best_step() == 2


def test_trackers_get_the_metrics_and_trees_that_the_run_writes(session, tmp_path, tiny_run, monkeypatch):
    calls = []

    class Tracker:
        def start(self, run):
            calls.append(("start", run.settings["seed"]))
            return "7"

        def metrics(self, step, numbers):
            calls.append(("metrics", step, numbers))

        def table(self, name, step, columns, rows):
            calls.append((f"table {name}", step, len(rows)))

        def finish(self, failed):
            calls.append(("finish", failed))

    monkeypatch.setitem(tracker_services.SERVICES, "wandb", Tracker)
    twin = tiny_run.changed(session, runtime__trackers=["wandb"])
    monkeypatch.setattr("fr3e_jax.loop.records.TABLE_EVERY", 2)
    assert run_here(twin, tmp_path / "run") == 0
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [call[1] for call in calls if call[0] == "metrics"] == [record["step"] for record in records]
    shown = next(call[2] for call in calls if call[0] == "metrics" and call[1] == 1)
    assert shown["reward/mean"] == next(r["reward/mean"] for r in records if r["step"] == 1 and r["kind"] == "train")
    assert calls[0] == ("start", session.config.seed) and calls[-1] == ("finish", False)
    assert [call[1] for call in calls if call[0] == "table rollouts"] == [2, 4]
    evaluations = [record for record in records if record["kind"] == "eval"]
    assert [call[2] for call in calls if call[0] == "table held_out"] == [4 * 4 for _ in evaluations]


def test_each_evaluation_keeps_its_responses_and_they_give_its_metrics(finished_run):
    run = StoredRun.open(finished_run)
    assert run.steps("eval") == [record["step"] for record in run.evaluations] == [0, 2, 4]
    for record in run.evaluations:
        rollouts = list(run.rollouts(record["step"], "eval"))
        greedy, samples = ([r.reward for r in rollouts if bool(r.base) == sampled] for sampled in (False, True))
        assert len(rollouts) == 4 * len(greedy) and {r.kind for r in rollouts} == {"eval"}
        assert np.mean(greedy) == pytest.approx(record["greedy"])
        assert np.mean(samples) == pytest.approx(record["avg@3"])
        assert np.mean([len(r.token_ids) for r in rollouts if r.base]) == pytest.approx(record["length/mean"])


# -- stopping ----------------------------------------------------------------------------------------------------------


def test_a_run_without_signal_stops_with_its_counts(session, tmp_path, tiny_run, capsys):
    twin = tiny_run.changed(session, rollout__max_rounds_without_signal=2)
    twin = tiny_run.graded_by(twin, Grader(all_wrong))
    code = run_here(twin, tmp_path / "run")
    assert code == 1
    message = capsys.readouterr().err
    assert message.startswith("fr3e: stopped at step 1: 2 rounds in a row gave nothing to train on")
    assert "of 6 prompts 0 were all right, 6 all wrong, 0 mixed" in message
    for advice in ("too hard", "fr3e sft", "rollout.rollouts_per_prompt (now 4)", "rollout.temperature (now 1)"):
        assert advice in message
    assert not [*(tmp_path / "run" / "checkpoints").iterdir()], "no step is finished"
    assert not (tmp_path / "run" / "summary.json").exists()
    ending = run_state(RunDirectory(tmp_path / "run"))
    assert ending.state == "failed" and ending.reason.startswith("step 1: 2 rounds in a row gave nothing")


def all_wrong(problem, response, finished):
    return 0.0


def test_a_run_without_signal_saves_the_last_finished_step(session, tmp_path, tiny_run, capsys):
    """Its rounds since belong to no step: a resumed run, perhaps with other settings, samples them again."""
    graded = []

    def verifier(problem, response, finished):
        if problem.id.startswith("train/"):
            graded.append(problem.id)
        return float(len(graded) % 2) if len(set(graded)) <= 6 else 0.0

    settings = {"explore__enabled": False, "rollout__max_rounds_without_signal": 1, "checkpoint__every": 9}
    twin = tiny_run.changed(session, evaluation__every=0, **settings)
    assert run_here(tiny_run.graded_by(twin, tiny_run.in_order(verifier)), tmp_path / "run") == 1
    host = host_state(tmp_path / "run")
    assert (host["step"], host["stream"]["position"]) == (1, 6) and host["partial_batch"]
    assert run_here(tiny_run.changed(twin, training__max_steps=2), tmp_path / "run") == 0


@pytest.mark.parametrize(("ruined_step", "every", "saved"), [(3, 1, [1, 2]), (2, 10, [])])
def test_a_non_finite_update_leaves_only_checkpoints_of_whole_finite_steps(
    session, tmp_path, tiny_run, capsys, monkeypatch, ruined_step, every, saved
):
    """Between checkpoints, weights that only some mini-batches have moved belong to no step."""

    def poisoned(explore, step, credited, **options):
        trunks = original(explore, step, credited, **options)
        if step == ruined_step:
            branch = trunks[0].branches[0]
            branch.advantages = np.full_like(branch.advantages, np.nan)
        return trunks

    original = collection.explored_trunks
    monkeypatch.setattr(collection, "explored_trunks", poisoned)
    twin = tiny_run.changed(session, training__surplus="drop", checkpoint__every=every, evaluation__every=0)
    code = run_here(twin, tmp_path / "run")
    message = capsys.readouterr().err
    assert code == 1 and f"stopped at step {ruined_step}" in message and "expected finite numbers" in message
    with Checkpointer(tmp_path / "run" / "checkpoints", read_only=True) as checkpoints:
        assert checkpoints.all_steps() == saved
        for step in saved:
            arrays, host = checkpoints.restore(step, session.model.train_programs(session.config).abstract_arrays())
            assert host["step"] == step
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(arrays["params"]))


def test_a_step_with_a_fully_carried_batch_samples_nothing(session, tmp_path, tiny_run):
    """One round fills several batches: the later steps train on rollouts of the first. No evaluation is asked for."""
    twin = tiny_run.changed(
        session,
        evaluation__start=False,
        evaluation__end=False,
        explore__enabled=False,
        training__batch_rollouts=4,
        training__mini_batch_rollouts=4,
        training__max_steps=2,
        evaluation__every=0,
        rollout__reject_degenerate=False,
    )
    code = run_here(twin, tmp_path / "run")
    assert code == 0
    first, second = read_metrics(tmp_path / "run" / "metrics.jsonl", kind="train")
    assert first["batch/carried_rollouts"] == 0 and first["tokens/sampled_tokens"] > 0
    assert second["batch/carried_rollouts"] == 4 and second["tokens/sampled_tokens"] == 0
    assert "logprob_gap/max" not in second
    assert read_rollouts(tmp_path / "run" / "rollouts" / "step_000002.jsonl.gz") == []
    assert read_metrics(tmp_path / "run" / "metrics.jsonl", kind="eval") == []
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["before"] == summary["after"] == {}


def test_rows_that_cannot_be_encoded_never_end_a_run(session, tmp_path, tiny_run, capsys):
    """Every fourth problem, held-out ones among them: dropped, counted, and named when drawn."""
    task = load_task(tiny_run.config(data__task=f"{tiny_run.task}:SomeUnspellable").data)
    settings = {"training__max_steps": 2, "evaluation__every": 0, "runtime__console": "plain"}
    twin = dataclasses.replace(tiny_run.changed(session, **settings), task=task)
    assert run_here(twin, tmp_path / "run") == 0
    records = read_metrics(tmp_path / "run" / "metrics.jsonl", kind="train")
    dropped = int(records[-1]["data/dropped_unspeakable"])
    assert dropped > 0 and host_state(tmp_path / "run")["stream"]["dropped_unspeakable"] == dropped
    assert not [record for record in stored(tmp_path / "run") if int(record.problem_id.rpartition("/")[2]) % 4 == 0]
    printed = capsys.readouterr().out
    assert "prompts of the held-out data cannot be encoded and are dropped:\n  problem 'test/40': character" in printed
    assert printed.count("of the training data is dropped: problem 'train/") == dropped


# -- background writes -------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_saved_after_everything_it_claims(session, tmp_path, tiny_run, monkeypatch):
    """On a slow disk, all files that a resumed run relies on are complete before the checkpoint begins."""
    run_dir, seen = tmp_path / "run", []
    write, save = rollout_store.write_rollouts, Checkpointer.save

    def slow_write(*arguments, **named):
        time.sleep(0.1)
        write(*arguments, **named)

    def noting_save(self, step, *arguments):
        records = read_metrics(run_dir / "metrics.jsonl")
        files = sorted(path.name for path in (run_dir / "rollouts").iterdir())
        seen.append((step, [(r["step"], r["kind"]) for r in records], files))
        return save(self, step, *arguments)

    monkeypatch.setattr(rollout_store, "write_rollouts", slow_write)
    monkeypatch.setattr(Checkpointer, "save", noting_save)
    assert run_here(tiny_run.changed(session, training__max_steps=2, evaluation__every=0), run_dir) == 0
    eval_0, eval_2, step_1, step_2 = (
        f"{name}.jsonl.gz" for name in ("eval_000000", "eval_000002", "step_000001", "step_000002")
    )
    assert seen == [
        (1, [(0, "eval"), (1, "train")], [eval_0, step_1]),
        (2, [(0, "eval"), (1, "train"), (2, "train"), (2, "eval")], [eval_0, eval_2, step_1, step_2]),
    ]


def test_a_write_that_fails_stops_the_run_and_claims_nothing(session, tmp_path, tiny_run, monkeypatch, capsys):
    write = rollout_store.write_rollouts

    def full(run_dir, step, records, **named):
        if step == 2:
            raise OSError("no space left on device")
        return write(run_dir, step, records, **named)

    monkeypatch.setattr(rollout_store, "write_rollouts", full)
    assert run_here(tiny_run.changed(session, evaluation__every=0), tmp_path / "run") == 1
    message = capsys.readouterr().err
    assert "stopped at step" in message and "writing the rollouts of step 2 failed" in message
    assert "OSError: no space left on device" in message and "--resume" in message
    steps = [record["step"] for record in read_metrics(tmp_path / "run" / "metrics.jsonl", kind="train")]
    assert steps == [1]
    assert host_state(tmp_path / "run")["step"] == 1
