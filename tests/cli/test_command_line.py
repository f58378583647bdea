"""Verbs pass checked settings to their functions; a mistake is one line and exit code 2; help is complete and fast."""

from __future__ import annotations

import collections
import re
import shlex
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from fr3e_jax import __version__
from fr3e_jax.cli import main
from fr3e_jax.cli.verb_table import VERBS, load_verb
from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.configuration.describe import FIRST
from fr3e_jax.configuration.settings import sections, settings

REPOSITORY = Path(__file__).parents[2]
FUNCTIONS = {
    "loop.train": "train",
    "verbs.evaluations": "evaluate_all",
    "verbs.supervised.demonstrations": "sft",
    "verbs.supervised.rejection_sampling": "rft",
}


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"name: tried\nruntime: {{output_dir: {tmp_path / 'runs'}}}\n")
    return str(path)


@pytest.fixture
def calls(monkeypatch) -> list[tuple]:
    """Stand-ins for the functions of the verbs; each call is recorded and returns 0."""
    recorded: list[tuple] = []
    for module, function in FUNCTIONS.items():
        stand_in = types.ModuleType(f"fr3e_jax.{module}")
        stand_in.Subject = collections.namedtuple("Subject", "config run_dir steps")
        record = lambda *arguments, name=function, **options: recorded.append((name, *arguments)) or 0
        setattr(stand_in, function, record)
        monkeypatch.setitem(sys.modules, stand_in.__name__, stand_in)
    monkeypatch.setattr("fr3e_jax.verbs.sample.sample", lambda *arguments: recorded.append(("sample", *arguments)) or 0)
    return recorded


def test_train_passes_the_settings_and_no_run_directory_by_default(recipe, calls):
    assert main(["train", recipe, "explore.num_anchors=2"]) == 0
    [(name, config, run_dir, resume)] = calls
    assert (name, config.explore.num_anchors, run_dir, resume) == ("train", 2, None, False)


def test_run_dir_is_passed_to_the_verb(recipe, calls, tmp_path):
    assert main(["sft", recipe, f"runtime.run_dir={tmp_path / 'here'}"]) == 0
    assert calls[0][0] == "sft" and calls[0][2:] == (tmp_path / "here", False)


@pytest.mark.parametrize(("verb", "options"), [("eval", []), ("sample", ["--prompt", "1+2>"])])
def test_verb_with_a_run_takes_only_the_model_settings_from_the_run(recipe, calls, tmp_path, verb, options):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "config.yaml").write_text("model: {hidden_size: 128, compute_dtype: bfloat16}\nseed: 5\n")
    assert main([verb, recipe, "model.compute_dtype=float32", *options, "--run", str(run_dir)]) == 0
    [(name, config, *others)] = calls
    given = others[0][0].run_dir if verb == "eval" else others[-1]
    assert (name, given, config.model.hidden_size) == ("evaluate_all" if verb == "eval" else verb, run_dir, 128)
    assert (config.seed, config.name, config.model.compute_dtype) == (0, "tried", "float32")


def test_eval_without_a_run_evaluates_the_recipes_model(recipe, calls):
    assert main(["eval", recipe]) == 0
    [(name, config, subjects, results)] = calls
    assert subjects == [(config, None, ())] and results == []


def test_sample_passes_prompt_number_and_format(recipe, calls):
    assert main(["sample", recipe, "rollout.temperature=0", "--prompt", "1+2>", "--num", "3", "--json"]) == 0
    [(name, config, *rest)] = calls
    assert (name, rest, config.rollout.temperature) == ("sample", ["1+2>", 3, True, None], 0)


def test_settings_and_options_can_come_in_any_order(recipe, calls):
    assert main(["sample", "--num", "2", recipe, "--prompt", "x", "seed=4"]) == 0
    assert calls[0][1].seed == 4 and calls[0][3] == 2


def test_exit_code_of_the_verb_is_returned(recipe, calls, monkeypatch):
    monkeypatch.setattr(sys.modules["fr3e_jax.loop.train"], "train", lambda *arguments, callbacks: 1)
    assert main(["train", recipe]) == 1


def test_configuration_error_from_inside_a_verb_is_a_usage_error(recipe, calls, monkeypatch, capsys):
    def refuse(*arguments, callbacks):
        raise ConfigError("mesh.tensor=2 needs\n 2 devices")

    monkeypatch.setattr(sys.modules["fr3e_jax.loop.train"], "train", refuse)
    assert main(["train", recipe]) == 2
    assert capsys.readouterr().err == "fr3e: error: mesh.tensor=2 needs 2 devices\n"


@pytest.mark.parametrize("verb", ["train", "sft", "rft", "eval", "data"])
def test_print_config_prints_a_valid_recipe_and_runs_nothing(recipe, calls, capsys, tmp_path, verb):
    assert main([verb, recipe, "seed=3", "--print-config"]) == 0
    (tmp_path / "printed.yaml").write_text(capsys.readouterr().out)
    assert load_config(tmp_path / "printed.yaml") == load_config(recipe, ["seed=3"])
    assert not calls


@pytest.mark.parametrize("verb", ["train", "sft", "rft", "eval", "sample", "data", "sweep"])
def test_help_of_a_verb_shows_usage_an_example_and_where_all_settings_are(capsys, verb):
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: fr3e {verb}") and f"example: fr3e {verb} configs/" in text
    if verb == "train":
        assert all(f"\n  {path} " in text for path in FIRST)
        assert all(f"\n  {section} " in text for section in sections() if "." not in section)
        assert len(text.splitlines()) < len(settings()) / 2
    else:
        assert "`fr3e help all` lists all the settings" in text


def test_help_topics_are_verbs_sections_settings_and_all(capsys):
    def text(topic):
        assert main(["help", topic]) == 0
        return capsys.readouterr().out

    assert text("train").startswith("usage: fr3e train")
    assert all(f"\n  {path} " in text("all") for path in settings())
    explore = text("explore")
    assert all((f"\n  {path} " in explore) == path.startswith("explore.") for path in settings())
    assert "shaping.clip_cov" in text("shaping") and "\n  loss." not in text("loss.dual_clip").replace("loss.dual", "")
    assert main(["help", "explor"]) == 2
    assert "nearest: explore" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_example_of_a_verb_names_recipes_that_exist(capsys, verb):
    assert main([verb, "--help"]) == 0
    [example] = re.findall(r"^example: (.*)$", capsys.readouterr().out, re.MULTILINE)
    named = [word for word in shlex.split(example) if re.match("configs/|warm_starts/", word)]  # recipes and models
    assert named or not load_verb(verb).recipe
    assert all((REPOSITORY / name).exists() for name in named), example


def test_overview_lists_the_verbs(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {verb} " in text for verb in ("train", "sft", "rft", "eval", "sample", "data", "export", "sweep"))


def test_version_option_prints_the_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fr3e_jax {__version__}\n"


def test_help_and_checks_do_not_import_jax(recipe):
    script = (
        "import sys; from fr3e_jax.cli import main\n"
        f"assert main(['train', '--help']) == 0 and main(['train', {recipe!r}, '--print-config']) == 0\n"
        "sys.exit(sum(name in sys.modules for name in ('jax', 'flax', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL).returncode == 0


@pytest.mark.parametrize("arguments", ["--help", "help loss", "train --help", "methods", "train RECIPE --print-config"])
def test_output_that_cannot_be_written_is_one_line(recipe, monkeypatch, capsys, arguments):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([recipe if argument == "RECIPE" else argument for argument in arguments.split()]) == 1
        assert capsys.readouterr().err == (
            "fr3e: error: the output cannot be written: No space left on device; make room, or send it elsewhere\n"
        )


def test_a_checkout_without_packages_says_what_to_install():
    command = [sys.executable, "-S", "-m", "fr3e_jax", "train", "demo"]
    tried = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env={})
    assert tried.returncode == 1 and tried.stderr.count("\n") == 1
    assert tried.stderr.startswith("fr3e: error: the package rich is missing; install what fr3e_jax needs: `pip ")


def test_package_runs_as_a_module():
    command = [sys.executable, "-m", "fr3e_jax", "trian"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2 and ended.stderr.startswith("fr3e: error: expected a verb")


def test_ctrl_c_while_the_process_ends_shows_no_traceback():
    program = (
        "import atexit, os, signal, sys\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "from fr3e_jax.cli import main\n"
        "sys.argv = ['fr3e', '--version']\n"
        "sys.exit(main())"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, f"fr3e_jax {__version__}\n", "")
