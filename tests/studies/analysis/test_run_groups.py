"""Runs gathered from directories and sweeps, and their groups."""

import json

import pytest
from made_up_runs import made_up_run, spending

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.provenance import PROVENANCE_FILE
from fr3e_jax.studies.analysis.run_groups import collect, group_runs, read_run

STEPS = {1: spending(10)}


def labels(paths, **options):
    groups, names = group_runs(collect(paths).runs, **options)
    return {group.label: [run.name for run in group.runs] for group in groups}, names


def test_runs_that_differ_in_seed_name_and_bookkeeping_alone_are_one_group(tmp_path):
    apart = ["name=other", "runtime.trackers=[]", "checkpoint.every=3", "evaluation.every=5"]
    paths = [
        made_up_run(tmp_path / "b", seed=1, training=STEPS),
        made_up_run(tmp_path / "a", seed=0, settings=apart, training=STEPS),
        made_up_run(tmp_path / "c", settings=["explore.num_anchors=7"], training=STEPS),
    ]
    found, names = labels(paths)
    assert found == {"num_anchors=4": ["a", "b"], "num_anchors=7": ["c"]} and names == ["explore.num_anchors"]


def test_names_of_settings_are_whole_where_their_last_part_is_ambiguous(tmp_path):
    a = made_up_run(tmp_path / "a", settings=["optimizer.learning_rate=1e-3", "sft.learning_rate=0.5"], training=STEPS)
    b = made_up_run(tmp_path / "b", settings=["optimizer.learning_rate=2e-3", "sft.learning_rate=0.25"], training=STEPS)
    found, _ = labels([a, b], by=["sft.learning_rate", "optimizer.learning_rate"])
    assert list(found)[0] == "sft.learning_rate=0.5 optimizer.learning_rate=0.001"


MANY = ["explore.num_anchors=2", "explore.rollouts_per_state=2", "rollout.prompts_per_round=3", "training.epochs=2"]


def test_groups_carry_the_names_of_their_recipes(tmp_path):
    def runs(folder, *recipes):
        return [
            made_up_run(tmp_path / folder / f"run{i}", settings=[*more, f"name={name}"], training=STEPS)
            for i, (name, more) in enumerate(recipes)
        ]

    two = ["explore.num_anchors=2"]
    for folder, recipes, expected in (
        ("apart", [("fr3e", []), ("grpo", MANY)], ["fr3e", "grpo"]),
        ("short", [("fr3e", []), ("grpo", two)], ["fr3e", "grpo"]),
        ("same", [("x", []), ("x", two)], ["num_anchors=4", "num_anchors=2"]),
        ("long", [("x", []), ("x", MANY)], ["x 1", "x 2"]),
        ("twice", [("x", []), ("x", two), ("y", MANY)], ["x 1", "x 2", "y"]),
        ("order", [("y", MANY), ("x", []), ("x", two)], ["y", "x 1", "x 2"]),
        (
            "some",
            [("x", []), ("x", two), ("y", ["explore.num_anchors=9"])],
            [f"{n}" for n in ("x num_anchors=4", "x num_anchors=2", "y num_anchors=9")],
        ),
    ):
        assert list(labels(runs(folder, *recipes))[0]) == expected


def test_given_keys_and_labels_win(tmp_path):
    paths = [
        made_up_run(tmp_path / f"run{i}", settings=[f"explore.num_anchors={a}", f"training.epochs={e}"], training=STEPS)
        for i, (a, e) in enumerate([(2, 1), (2, 2), (3, 1)])
    ]
    found, names = labels(paths, by=["explore.num_anchors"], labels=["two", "three"])
    assert found == {"two": ["run0", "run1"], "three": ["run2"]} and names == ["explore.num_anchors"]
    with pytest.raises(ConfigError, match=r"found 1 labels \(two\), expected 2 .* num_anchors=2, num_anchors=3"):
        labels(paths, by=["explore.num_anchors"], labels=["two"])
    with pytest.raises(ConfigError, match="no run has the setting 'explore.anchors'"):
        labels(paths, by=["explore.anchors"])


def test_a_setting_that_an_older_version_did_not_write_has_its_default(tmp_path):
    old, new = (made_up_run(tmp_path / name, seed=seed, training=STEPS) for seed, name in enumerate(("old", "new")))
    text = (old / "config.yaml").read_text()
    assert "  block_credit: false\n" in text
    (old / "config.yaml").write_text(text.replace("  block_credit: false\n", ""))
    assert len(labels([old, new])[0]) == 1


def write_sweep(folder, runs):
    """``runs``: name, settings, exit code; the folder has moved since."""
    listed = [{"run_dir": f"/moved/{name}", "settings": given, "exit_code": code} for name, given, code in runs]
    (folder / "sweep.json").write_text(json.dumps({"runs": listed}))
    return folder


def test_a_sweep_that_has_moved_gives_its_runs_swept_settings_and_failures(tmp_path):
    for index in range(3):
        made_up_run(tmp_path / f"{index}", seed=index, training=STEPS, finished=index == 0)
    (tmp_path / "9").mkdir()
    (tmp_path / "1" / "status.json").write_text('{"state": "failed", "reason": "the disk is full"}')
    given = [{"seed": str(i), "explore.num_anchors": str(i % 2), "training.max_steps": "7"} for i in range(4)]
    names = zip(["0", "1", "2", "9"], given, [0, 1, None, 2], strict=True)
    found = collect([write_sweep(tmp_path, list(names))])
    assert [run.state for run in found.runs] == [
        "finished",
        "failed, exit code 1 at step 1 of 100 (the disk is full)",
        "interrupted at step 1 of 100 (no status was written)",
    ]
    assert found.swept == ["explore.num_anchors"]
    [line] = found.left_out
    assert "holds no run; it ended with exit code 2, see its log.txt" in line


def test_a_folder_of_runs_is_read_and_a_run_named_twice_counts_once(tmp_path):
    for seed in (0, 1):
        made_up_run(tmp_path / f"run{seed}", seed=seed, training=STEPS)
    found = collect([tmp_path, tmp_path / "run1"])
    assert [run.name for run in found.runs] == ["run0", "run1"] and found.swept is None and not found.left_out


def test_what_cannot_be_compared_is_left_out_with_its_reason(tmp_path):
    good = [made_up_run(tmp_path / f"good{i}", seed=i, training=STEPS) for i in (0, 1)]
    torn, settings, empty = (made_up_run(tmp_path / name, training=STEPS) for name in ("torn", "settings", "empty"))
    (torn / "metrics.jsonl").write_text("{nonsense\n")
    (settings / "config.yaml").write_text("a: [1")
    (empty / "metrics.jsonl").write_text("")
    no_run = tmp_path / "folder"
    no_run.mkdir()
    wrong = made_up_run(tmp_path / "wrong", training=STEPS)
    (wrong / "metrics.jsonl").write_text('["no", "record"]\n{"kind": "train"}\n')
    found = collect([*good, torn, settings, empty, no_run, tmp_path / "absent", wrong])
    assert [run.name for run in found.runs] == ["good0", "good1"]
    reasons = ["line 1: found b'{nonsense'", "config.yaml cannot be read", "is missing or empty"]
    reasons += ["a directory without runs", "no such directory", "line 1: found a list"]
    assert len(found.left_out) == 6
    for line, reason in zip(found.left_out, reasons, strict=True):
        assert reason in line


def test_one_run_is_not_compared(tmp_path):
    run = made_up_run(tmp_path / "run", training=STEPS)
    with pytest.raises(ConfigError, match=r"found only one run, .*run \(.*absent.*\); expected at least two"):
        collect([run, tmp_path / "absent"])
    with pytest.raises(ConfigError, match="sweep.json cannot be read"):
        (tmp_path / "sweep.json").write_text("{")
        collect([tmp_path])


def test_tokens_of_rft_train_once_whatever_the_epochs_of_training(tmp_path):
    path = made_up_run(tmp_path / "run", settings=["training.epochs=2"], training={1: spending(100, loss=20)})
    wasted = lambda: read_run(path).curves.final("wasted_tokens")
    assert wasted() == pytest.approx(0.9)
    provenance = json.loads((path / PROVENANCE_FILE).read_text())
    (path / PROVENANCE_FILE).write_text(json.dumps(provenance | {"verb": "rft"}))
    assert wasted() == pytest.approx(0.8)
