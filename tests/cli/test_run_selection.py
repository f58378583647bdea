"""``--resume`` finds the intended run and its saved settings; a new run never overwrites another."""

from __future__ import annotations

from pathlib import Path

import pytest

from fr3e_jax.cli.parser import build_parser
from fr3e_jax.cli.run_selection import locate_policy, locate_run, separated, settings_of_run
from fr3e_jax.cli.verb_table import load_verb
from fr3e_jax.configuration import ConfigError, load_config, save_config, to_yaml


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"name: demo\nruntime: {{output_dir: {tmp_path}}}\n")
    return str(path)


def make_run(recipe: str, directory: str, *overrides: str, verb: str = "train") -> Path:
    run_dir = Path(recipe).parent / directory
    save_config(load_config(recipe, overrides), run_dir, verb=verb, platform="cpu", device_kind="cpu")
    return run_dir


def locate(recipe: str, *arguments: str, verb: str = "train"):
    parsed = build_parser(verb, "", load_verb(verb)).parse_intermixed_args([recipe, *arguments])
    return locate_run(separated(parsed), verb)


def test_resume_takes_the_newest_run_of_the_recipes_name_and_verb(recipe):
    newest = make_run(recipe, "demo-20250102-000000", "seed=2")
    make_run(recipe, "demo-20250101-000000", "seed=1")
    make_run(recipe, "demo-large-20250103-000000", "name=demo-large")
    make_run(recipe, "other-20250104-000000", "name=other")
    make_run(recipe, "demo-20250105-000000", verb="sft")
    config, run_dir, resume = locate(recipe, "--resume")
    assert (run_dir, resume, config.seed) == (newest, True, 2)


def test_resume_passes_by_runs_that_failed_before_their_first_checkpoint(recipe):
    resumable = make_run(recipe, "demo-20250101-000000", "seed=1")
    (resumable / "checkpoints" / "4").mkdir(parents=True)
    make_run(recipe, "demo-20250102-000000", "seed=2")
    (make_run(recipe, "demo-20250103-000000", "seed=3") / "checkpoints").mkdir()
    assert locate(recipe, "--resume")[1] == resumable


@pytest.mark.parametrize("file", ["config.yaml", "provenance.json"])
@pytest.mark.parametrize("damage", [b"", b"\0\0", b"{", b"[1", None], ids=["empty", "zeros", "torn", "list", "missing"])
def test_a_run_with_a_damaged_file_is_still_the_newest(recipe, file, damage, capsys):
    make_run(recipe, "demo-20250101-000000", "seed=1")
    newest = make_run(recipe, "demo-20250102-000000", "seed=2")
    make_run(recipe, "demo-large-20250103-000000", "name=demo-large")
    make_run(recipe, "demo-20250104-000000", verb="sft")
    (newest / "checkpoints").mkdir()
    for run_dir in (newest, newest.with_name("demo-large-20250103-000000")):
        (run_dir / file).unlink() if damage is None else (run_dir / file).write_bytes(damage)
    if file == "provenance.json":
        assert locate(recipe, "--resume")[1] == newest
    else:
        with pytest.raises(ConfigError, match=str(newest)) as caught:
            locate(recipe, "--resume")
        assert len(str(caught.value).splitlines()) <= 2
    assert capsys.readouterr().err == "", "the resumed run names the damage of its provenance, once"


def test_overrides_win_over_the_saved_settings_of_a_resumed_run(recipe):
    make_run(recipe, "demo-20250101-000000", "seed=1", "explore.num_anchors=2")
    config, _, _ = locate(recipe, "--resume", "explore.num_anchors=3")
    assert (config.seed, config.explore.num_anchors) == (1, 3)


def test_profiled_run_is_resumed_without_its_profile_unless_asked(recipe):
    run_dir = make_run(recipe, "demo-20250101-000000", "runtime.profile_steps=6")
    assert locate(recipe, "--resume")[0].runtime.profile_steps == 0
    assert locate(recipe, "--resume", str(run_dir), "runtime.profile_steps=3")[0].runtime.profile_steps == 3
    assert locate(recipe, "--resume", "runtime.profile_steps=2")[0].runtime.profile_steps == 2


def test_setting_after_resume_is_not_taken_for_a_directory(recipe):
    run_dir = make_run(recipe, "demo-20250101-000000")
    config, found, _ = locate(recipe, "--resume", "seed=7")
    assert (config.seed, found) == (7, run_dir)


def test_existing_directory_with_an_equals_sign_is_resumed(recipe, monkeypatch):
    monkeypatch.chdir(make_run(recipe, "seed=3", "seed=3").parent)
    config, found, _ = locate(recipe, "--resume", "seed=3")
    assert (config.seed, found) == (3, Path("seed=3"))


def test_resume_prefers_runtime_run_dir_to_the_newest_run(recipe):
    named = make_run(recipe, "named", "seed=9")
    make_run(recipe, "demo-20250101-000000")
    config, found, _ = locate(recipe, "--resume", f"runtime.run_dir={named}")
    assert (found, config.seed) == (named, 9)


def test_resume_without_a_matching_run_names_the_run_and_folder(recipe):
    make_run(recipe, "demo-20250101-000000", verb="sft")
    with pytest.raises(ConfigError, match=f"no train run named demo in {Path(recipe).parent}; start one without"):
        locate(recipe, "--resume")


def test_directory_without_settings_is_refused(recipe, tmp_path):
    with pytest.raises(ConfigError, match=r"is not a run directory: it has no config\.yaml"):
        locate(recipe, "--resume", str(tmp_path / "nowhere"))


@pytest.mark.parametrize("option", [(), ("--continue",)])
def test_a_start_that_failed_before_its_first_step_is_begun_again_with_the_corrected_settings(recipe, option):
    named = make_run(recipe, "named", "seed=5")
    (named / "metrics.jsonl").write_text('{"step": 0, "kind": "eval"}\n')
    config, run_dir, resume = locate(recipe, f"runtime.run_dir={named}", "seed=6", *option)
    assert (config.seed, run_dir, resume) == (6, named, False)


def finish_a_step(run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").write_text('{"step": 1, "kind": "train"}\n')


def test_new_run_does_not_overwrite_another(recipe):
    named = make_run(recipe, "named")
    finish_a_step(named)
    with pytest.raises(ConfigError, match="holds a run already; continue it with --resume"):
        locate(recipe, f"runtime.run_dir={named}", verb="sft")


def test_continue_starts_the_named_run_and_then_resumes_it(recipe, tmp_path):
    setting = f"runtime.run_dir={tmp_path}/mine"
    _, run_dir, resume = locate(recipe, "--continue", setting)
    assert (run_dir, resume) == (tmp_path / "mine", False)
    finish_a_step(make_run(recipe, "mine", "seed=5", setting))
    config, run_dir, resume = locate(recipe, "--continue", setting)
    assert (run_dir, resume, config.seed) == (tmp_path / "mine", True, 5)


def test_continue_names_what_the_recipe_says_now_and_the_run_does_not_take_up(recipe, tmp_path, capsys):
    setting = f"runtime.run_dir={tmp_path}/mine"
    finish_a_step(make_run(recipe, "mine", setting))
    assert locate(recipe, "--continue", setting, "runtime.profile_steps=1")[2] and capsys.readouterr().out == ""
    Path(recipe).write_text(Path(recipe).read_text() + "training: {max_steps: 7}\n")
    config, *_ = locate(recipe, "--continue", setting)
    assert config.training.max_steps != 7
    said = f"fr3e: training.max_steps: 7 in the recipe, {config.training.max_steps} in the run"
    assert capsys.readouterr().out.startswith(said)
    assert locate(recipe, "--continue", setting, "training.max_steps=7")[0].training.max_steps == 7
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--continue"], "--continue needs runtime.run_dir=DIR"),
        (["--continue", "runtime.run_dir=x", "--resume"], "--continue and --resume exclude each other"),
    ],
)
def test_continue_needs_a_run_directory_and_no_resume(recipe, arguments, message):
    with pytest.raises(ConfigError, match=message):
        locate(recipe, *arguments)


def test_a_run_of_a_model_with_its_own_sizes_gives_its_settings_to_a_recipe(tmp_path):
    """Its settings hold the sizes of random weights, too, which nothing reads beside ``model.path``."""
    config = load_config("demo_fr3e", ["model.compute_dtype=bfloat16"], training=False)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    assert settings_of_run("demo_fr3e", ["seed=3"], tmp_path).model == config.model


def test_a_shipped_model_stands_in_place_of_a_recipe_in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    verb = load_verb("serve")
    config, run_dir = locate_policy(build_parser("serve", "", verb).parse_intermixed_args(["warm_starts/order"]))
    assert (config.model.path, run_dir) == ("warm_starts/order", None)
