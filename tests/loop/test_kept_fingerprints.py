"""A kept fingerprint is the computed one, and is used only for the same problems of the same code."""

from __future__ import annotations

import dataclasses
import shutil

import pytest

from fr3e_jax.configuration import Config
from fr3e_jax.data.task import load_task
from fr3e_jax.loop import kept_fingerprints
from fr3e_jax.loop.kept_fingerprints import PACKAGE, kept


@pytest.fixture
def config(tmp_path) -> Config:
    config = Config()
    config.runtime.compilation_cache = str(tmp_path / "cache")
    return config


class Counting:
    """A fingerprint that says how often it was asked."""

    def __init__(self):
        self.asked = 0

    def __call__(self, problems):
        self.asked += 1
        return f"{len(problems)} problems, {self.asked:016x}"


def test_a_fingerprint_is_computed_once_for_each_split_and_setting(config):
    computed = Counting()

    def ask(config, split="train"):
        return kept(computed, config.runtime)(load_task(config.data).problems(split))

    first = ask(config)
    assert [ask(config), computed.asked] == [first, 1]
    others = [("test", {}), ("train", {"seed": 1}), ("train", {"task": "chain"})]
    order = config.data.order
    others.append(("train", {"order": dataclasses.replace(order, num_operands=order.num_operands + 1)}))
    for count, (split, changes) in enumerate(others, 2):
        other = dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))
        for _ in range(2):
            assert ask(other, split) != first
            assert computed.asked == count, (split, changes)


@pytest.mark.parametrize("changed", ["data/order_task.py", "rewards/order_verifier.py", "loop/run_identity.py"])
def test_changed_code_has_the_problems_drawn_again(config, tmp_path, changed):
    sources = tmp_path / "fr3e_jax"
    for part in ("data", "rewards", "loop"):
        shutil.copytree(PACKAGE / part, sources / part, ignore=shutil.ignore_patterns("__pycache__"))
    computed, problems = Counting(), load_task(config.data).problems("train")
    kept(computed, config.runtime, sources)(problems)
    (sources / "loop" / "explore.py").write_text("no problem follows from this file")
    kept(computed, config.runtime, sources)(problems)
    assert computed.asked == 1
    with (sources / changed).open("a") as file:
        file.write("\n")
    kept(computed, config.runtime, sources)(problems)
    assert computed.asked == 2


def test_another_numpy_has_the_problems_drawn_again(config, monkeypatch):
    computed, problems = Counting(), load_task(config.data).problems("train")
    kept(computed, config.runtime)(problems)
    monkeypatch.setattr(kept_fingerprints.np, "__version__", "0.1")
    kept(computed, config.runtime)(problems)
    assert computed.asked == 2


@pytest.mark.parametrize("content", [b"", b"2147483648 problems, 4e06", b"\xff" * 40])
def test_a_damaged_file_is_written_again(config, tmp_path, content):
    computed, problems = Counting(), load_task(config.data).problems("train")
    kept(computed, config.runtime)(problems)
    (file,) = (tmp_path / "cache" / "fingerprints").iterdir()
    file.write_bytes(content)
    for _ in range(2):
        assert kept(computed, config.runtime)(problems).startswith("2147483648 problems, ")
    assert computed.asked == 2


def test_problems_of_a_users_task_are_looked_at_every_time(config):
    """Their code is not among that which names a file."""

    class Own(type(load_task(config.data))):
        pass

    computed, own = Counting(), Own(config.data)
    for problems in (own.problems("train"), own.problems("train")[:3], []):
        before = computed.asked
        for _ in range(2):
            kept(computed, config.runtime)(problems)
        assert computed.asked == before + 2


@pytest.mark.parametrize("place", ["", "gs://bucket/xla", "/proc/no/such/folder"])
def test_without_a_folder_to_write_in_nothing_is_kept_and_nothing_fails(config, place):
    config.runtime.compilation_cache = place
    computed, problems = Counting(), load_task(config.data).problems("test")
    for asked in (1, 2):
        assert kept(computed, config.runtime)(problems) == f"4096 problems, {asked:016x}"
