"""Last words of a process that ends without a chance to speak, and the process that is alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fr3e_jax.cluster import membership
from fr3e_jax.cluster.membership import LastWords, across_processes, farewell
from fr3e_jax.configuration import Config


def end_like_a_killed_process(words: LastWords) -> None:
    """The kernel closes its pipes."""
    words._companion.stdin.close()
    words._companion.wait(timeout=20)


def test_the_last_text_is_printed_when_the_process_is_gone(capfd):
    words = LastWords()
    words.start()
    words.set("not yet started")
    words.set(farewell("process 1 of 2", "continue with fr3e train --resume runs/a"))
    end_like_a_killed_process(words)
    said = capfd.readouterr().err
    assert said.startswith("fr3e: process 1 of 2 was ended: ") and said.count("\n") == 1
    assert said.endswith("continue with fr3e train --resume runs/a\n")


def test_an_orderly_end_is_silent(capfd):
    words = LastWords()
    words.set("not printed before the start")
    words.start()
    words.set("continue with --resume")
    words.withdraw()
    words.withdraw()
    assert capfd.readouterr().err == ""


def test_a_process_on_its_own_joins_nobody(monkeypatch):
    monkeypatch.setattr(membership, "own_cluster", lambda: None)
    monkeypatch.setattr(membership, "_join", lambda *_: pytest.fail("joined"))
    verb = across_processes(lambda config, run_dir, resume=False: (run_dir, resume))
    assert verb(Config(), "runs/a", resume=True) == ("runs/a", True)


def test_a_known_cluster_is_passed_to_jax(monkeypatch):
    told = {}
    monkeypatch.setattr(membership.jax.distributed, "initialize", lambda **options: told.update(options))
    monkeypatch.setattr(membership, "last_words", SimpleNamespace(start=lambda: None, set=lambda text: None))
    config = Config()
    config.runtime.heartbeat_seconds = 30
    membership._join(config, membership.Cluster("", "10.0.0.2:8476", 4, 3))
    assert told == {
        "coordinator_address": "10.0.0.2:8476",
        "num_processes": 4,
        "process_id": 3,
        "cluster_detection_method": "deactivate",
        "initialization_timeout": 90,
        "heartbeat_timeout_seconds": 30,
        "shutdown_timeout_seconds": 30,
    }
