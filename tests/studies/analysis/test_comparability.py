"""Lines about runs that do not compare."""

import json

import pytest
from made_up_runs import held_out_samples, made_up_run, spending

from fr3e_jax.studies.analysis.comparability import flags
from fr3e_jax.studies.analysis.run_groups import collect, group_runs

SCORES = {0: {"greedy": 0.25, "prompts": 4}, 1: {"greedy": 0.5, "prompts": 4}}
OTHER = ["explore.num_anchors=2"]


def told(*paths, swept=None, by=()):
    """kind -> lines."""
    found = collect(paths)
    groups, _ = group_runs(found.runs, by=by)
    lines = {}
    for flag in flags(groups, swept=swept, left_out=found.left_out):
        lines.setdefault(flag.kind, []).append(flag.text)
    return lines


@pytest.fixture
def run(tmp_path):
    """A function that makes a run of a group, with the same metrics as every other unless it is told otherwise."""

    def make(name, **changes):
        given = {"training": {1: spending(100, cpu=10.0)}, "evaluations": SCORES} | changes
        return made_up_run(tmp_path / name, **given)

    return make


def test_replicates_and_groups_that_differ_as_meant_raise_no_flag(run):
    paths = [run(f"{n}{seed}", seed=seed, settings=more) for n, more in (("a", []), ("b", OTHER)) for seed in (0, 1)]
    assert told(*paths) == {} and told(*paths, swept=["explore.num_anchors"]) == {}


def test_more_settings_than_the_swept_ones_are_named(run):
    lines = told(run("a"), run("b", settings=[*OTHER, "training.epochs=2"]), swept=["explore.num_anchors"])
    assert lines["settings"] == ["the runs differ in more than explore.num_anchors: training.epochs"]


def test_a_group_that_was_forced_together_names_the_values_that_it_mixes(run):
    lines = told(run("a"), run("b", seed=1, settings=["training.epochs=2"]), by=["explore.num_anchors"])
    text = "made_up mixes values of training.epochs: 1: made_up (seed 0); 2: made_up (seed 1)"
    assert lines["settings"] == [text]


def test_unequal_budgets_are_named_as_set_and_as_spent(run):
    lines = told(run("a"), run("b", settings=[*OTHER, "training.max_steps=7"], training={1: spending(90, cpu=10.0)}))
    first, second = "num_anchors=4 max_steps=100", "num_anchors=2 max_steps=7"
    assert lines["budget"] == [
        f"training.max_steps differs: 100: {first}; 7: {second}",
        f"the runs spent different numbers of sampled tokens: 100: {first}; 90: {second}",
    ]
    assert "budget" not in told(run("c"), run("d", settings=OTHER, training={1: spending(96, cpu=10.0)}))


def test_other_held_out_sets_are_named_by_setting_size_content_and_score_before_training(run):
    settings = told(run("a"), run("b", settings=["evaluation.samples=32"]))
    assert settings["held-out"] == ["evaluation.samples differs: 16: samples=16; 32: samples=32"]
    sizes = told(run("c"), run("d", settings=OTHER, evaluations={0: {"greedy": 0.25, "prompts": 3}}))
    text = "the held-out sets have different sizes: 4 problems: num_anchors=4; 3 problems: num_anchors=2"
    assert sizes["held-out"] == [text]
    e, f, g = run("e"), run("f", settings=OTHER), run("g", settings=OTHER, seed=1)
    for path, prompt in ((e, [5]), (f, [7]), (g, [5])):
        held_out_samples(path, 1, {("order", 0): [1, 0]}, prompt=prompt)
    [line] = told(e, f)["held-out"]
    assert line.startswith("the held-out problems differ: set ") and line.endswith(": num_anchors=2")
    assert "held-out" not in told(e, g)
    start = told(run("h"), run("i", settings=OTHER, evaluations={0: {"greedy": 0.75, "prompts": 4}}))
    [line] = start["held-out"]
    assert line.startswith("seed 0: the scores before training differ") and "greedy 0.75: num_anchors=2" in line


def test_other_data_behind_equal_settings_are_named_by_what_the_checkpoints_record(run):
    a, b, c = run("a"), run("b", settings=OTHER), run("c", seed=1)
    for path, step, training in ((a, 3, "7 problems, aa"), (b, 10, "7 problems, bb")):
        identity = {"training_data": training, "tokenizer": path.name, "held_out_data": {"": path.name}}
        newest = json.dumps({"host": {"identity": identity}}).encode()
        older = json.dumps({"host": {"identity": {"training_data": "older"}}}).encode()
        for number, content in ((2, older), (9, b"torn"), (step, newest)):
            host = path / "checkpoints" / str(number) / "host"
            host.mkdir(parents=True)
            (host / "metadata").write_bytes(content)
    lines = told(a, b, c)
    assert lines["data"] == [
        "training data differs: 7 problems, aa: num_anchors=4 (seed 0); 7 problems, bb: num_anchors=2"
    ]
    assert lines["model"][0].startswith("tokenizer differs: ") and lines["held-out"][0].startswith(
        "held-out data differs"
    )
    assert "data" not in told(a, b, c, swept=["data.train"])


def test_other_models_are_named_unless_they_were_swept(run):
    a, b = run("a"), run("b", settings=["model.hidden_size=32"])
    assert told(a, b)["model"] == ["model.hidden_size differs: 64: hidden_size=64; 32: hidden_size=32"]
    assert "model" not in told(a, b, swept=["model.hidden_size"])


def test_other_code_versions_and_devices_are_named(run):
    a, b = run("a"), run("b", settings=OTHER, commit="fedcba9876543210", dirty=True)
    path = b / "provenance.json"
    provenance = json.loads(path.read_bytes())
    provenance["versions"]["jax"] = "0.1"
    path.write_text(json.dumps(provenance | {"device_kind": "TPU v4", "earlier": [{"git": None}]}))
    lines = told(a, b)
    assert lines["code"][:2] == [
        "the runs used different code: 0123456789: num_anchors=4; unknown and fedcba9876: num_anchors=2",
        "the code had changes that no commit holds: num_anchors=2",
    ]
    assert lines["code"][2].startswith("the version of jax differs: ") and len(lines["code"]) == 3
    text = "the devices differ, so seconds do not compare: cpu: num_anchors=4; TPU v4: num_anchors=2"
    assert lines["machine"] == [text]


def test_a_run_without_provenance_is_named_once(run):
    a, b = run("a"), run("b", settings=OTHER)
    (b / "provenance.json").unlink()
    lines = told(a, b)
    assert lines["code"] == ["without provenance.json, code, versions and device are unknown: num_anchors=2"]
    assert "machine" not in lines


def test_compilation_within_the_seconds_is_named(run):
    cold = {1: spending(100, cpu=10.0) | {"compile/seconds": 2.0}}
    [line] = told(run("a"), run("b", settings=OTHER, training=cold))["machine"]
    assert line.startswith("the seconds hold compilation") and line.endswith(": 0 s: num_anchors=4; 2 s: num_anchors=2")


def test_unfinished_runs_runs_without_evaluation_and_runs_left_out_are_named(run, tmp_path):
    lines = told(run("a"), run("b", seed=1, finished=False), run("c", seed=2, evaluations={}), tmp_path / "absent")
    assert lines["state"] == [
        "made_up (seed 1, b) is interrupted at step 1 of 100 (no status was written)",
        "made_up (seed 2, c) has no evaluation: it counts in the training metrics only",
    ]
    [line] = lines["left out"]
    assert "absent: found no such directory" in line


def test_seeds_that_do_not_pair_and_settings_changed_on_the_way_are_named(run):
    a, b, c = run("a"), run("b"), run("c", seed=3, settings=OTHER)
    (b / "config.step_000006.yaml").write_text("")
    lines = told(a, b, c)
    assert lines["seeds"] == [
        "the groups have different seeds, and pairs need the same: num_anchors=4: 0; num_anchors=2: 3",
        "num_anchors=4 has several runs of seed 0; each counts as a replicate",
    ]
    assert lines["settings"] == ["num_anchors=4 (seed 0, b) changed its settings after step 6"]
    assert told(a, c)["seeds"][-1].startswith("each group has one run")
