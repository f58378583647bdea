"""Random damage to the files of a stopped run: it continues equal, or a line names the file. Nothing is silent."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from campaign_cases import generator, log, seeded
from run_comparison import assert_same_run

from fr3e_jax.cli import main
from fr3e_jax.configuration import to_yaml
from fr3e_jax.loop.train import train

pytestmark = pytest.mark.campaign


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory, tiny_run) -> Path:
    """Two of four steps, with a checkpoint of each; a resumed run reads the settings that are saved there."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    assert train(tiny_run.config(training__max_steps=2, checkpoint__keep_last=2), path) == 0
    (path / "summary.json").unlink()
    return path


def flip_a_bit(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def cut(file: Path, rng: random.Random) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(len(content))])


def end_in_zeros(file: Path, rng: random.Random) -> None:
    """The end of a file after a crash of the machine."""
    content, kept = file.read_bytes(), rng.randrange(file.stat().st_size)
    file.write_bytes(content[:kept] + bytes(len(content) - kept))


def remove(file: Path, rng: random.Random) -> None:
    file.unlink()


DAMAGES = (flip_a_bit, cut, end_in_zeros, remove)


def outcome_of_resuming(folder: Path, tiny_run, capfd) -> tuple[int, str, Path]:
    """Exit code and output of ``fr3e train --resume`` on the run in ``folder``, and its directory."""
    run_dir, recipe = folder / "run", folder / "recipe.yaml"
    recipe.write_text(to_yaml(tiny_run.config(runtime__run_dir=str(run_dir))))
    capfd.readouterr()
    code = main(["train", str(recipe), "--resume", "training.max_steps=4"])
    return code, "".join(capfd.readouterr()), run_dir


def assert_named(output: str, file: Path, run_dir: Path) -> None:
    """The output names the file, its folder or, for a checkpoint, its step, in a few lines and without a traceback."""
    assert "Traceback" not in output, output
    inside = file.relative_to(run_dir).parts
    step = f"step {inside[1]}" if inside[0] == "checkpoints" and len(inside) > 1 else None
    assert file.name in output or inside[0] in output or (step and step in output), f"{file} is not named in:\n{output}"


PARTS = {
    "array data": "arrays/**/d/*",
    "host state": "host/metadata",
    "any file": "**/*",
}


@seeded()
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_checkpoint_is_named_and_the_run_ends_equal(
    tmp_path, tiny_run, finished_run, session, stopped_run, capfd, seed, damage, part
):
    """A file of the newest checkpoint; the one before it is whole."""
    rng = generator(f"{part} {damage.__name__}", seed)
    shutil.copytree(stopped_run, tmp_path / "run")
    found = (tmp_path / "run/checkpoints/2").glob(PARTS[part])
    file = rng.choice(sorted(path for path in found if path.is_file() and path.stat().st_size))
    damage(file, rng)
    code, output, run_dir = outcome_of_resuming(tmp_path, tiny_run, capfd)
    assert code == 0, output
    assert_same_run(run_dir, finished_run, session)
    noticed = "damaged" in output or "step 2" in output
    outcome = "named, and equal from the checkpoint before" if noticed else "harmless and equal"
    log(f"{damage.__name__} in a checkpoint, {part}", outcome)


@seeded()
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", ["config.yaml", "provenance.json", "metrics.jsonl", "rollouts"])
def test_a_damaged_file_of_a_run_is_named_and_loses_nothing(
    tmp_path, tiny_run, finished_run, session, stopped_run, capfd, seed, damage, name
):
    rng = generator(f"{name} {damage.__name__}", seed)
    shutil.copytree(stopped_run, tmp_path / "run")
    file = tmp_path / "run" / name
    if file.is_dir():
        file = rng.choice(sorted(file.iterdir()))
    damage(file, rng)
    code, output, run_dir = outcome_of_resuming(tmp_path, tiny_run, capfd)
    kind = f"{damage.__name__} in {name}"
    try:
        assert code == 0
        assert_same_run(run_dir, finished_run, session)
    except (AssertionError, ValueError, EOFError, OSError):
        if damage is flip_a_bit and name == "metrics.jsonl" and "metrics" not in output:
            log(kind, "a digit of a recorded figure has changed; nothing tells")
            return
        assert_named(output, file, run_dir)
        log(kind, "named" if code == 0 else "refused, named")
    else:
        log(kind, "equal to the last bit")
