from __future__ import annotations

import json
import os
from datetime import datetime

import numpy as np
import pytest

from fr3e_jax.runs.run_directory import RunDirectory, atomic_file, write_json_atomic


def test_default_directory_is_named_after_run_and_time_and_never_shared(tmp_path):
    now = datetime(2025, 3, 4, 5, 6, 7)
    names = [RunDirectory.create_unused(tmp_path / "runs", "demo", now=now).path.name for _ in range(3)]
    assert names == ["demo-20250304-050607", "demo-20250304-050607-2", "demo-20250304-050607-3"]


def test_chosen_directory_may_exist_but_not_hold_a_run(tmp_path):
    run_dir = RunDirectory.create(tmp_path / "mine")
    (run_dir.path / "notes.md").write_text("my own file")
    assert RunDirectory.create(tmp_path / "mine") == run_dir
    run_dir.metrics.write_text('{"step": 1, "kind": "train"}\n')
    with pytest.raises(
        FileExistsError, match=r"already holds a run \(metrics.jsonl\).*--resume.*another runtime.run_dir"
    ):
        RunDirectory.create(tmp_path / "mine")


METRICS = '{"step": 0, "kind": "eval"}\n'


@pytest.mark.parametrize(
    ("files", "finished"),
    [
        ({"config.yaml": "", "status.json": "", "trackers.json": "{}"}, False),  # the next start is another run there
        ({"config.yaml": "", "metrics.jsonl": ""}, False),
        ({"metrics.jsonl": METRICS, "rollouts/eval_000000.jsonl.gz": "", "rollouts/step_000001.jsonl.gz": ""}, False),
        ({"metrics.jsonl": METRICS + '{"step": 1, "kind": "train"}\n'}, True),
        ({"metrics.jsonl": METRICS + '{"step": 1, "ki'}, True),
        ({"metrics.jsonl": METRICS + "5\n"}, True),
        ({"metrics.jsonl": METRICS, "checkpoints/10/weights": ""}, True),
        ({"metrics.jsonl": METRICS, "summary.json": "{}"}, True),
        ({"config.yaml": "", "rollouts/step_000001.jsonl.gz": ""}, True),  # the metrics were deleted
    ],
)
def test_a_start_without_a_finished_step_is_set_aside_whole(tmp_path, capsys, files, finished):
    run = RunDirectory(tmp_path)
    for name, content in files.items() | {("mine.txt", "mine"), (".lock", "{}")}:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert run.holds_steps() == finished
    if finished:
        return
    run.set_aside_start()
    [aside] = tmp_path.glob("failed_start-*")
    assert {name: (aside / name).read_text() for name in files} == files
    assert sorted(os.listdir(tmp_path)) == [".lock", aside.name, "mine.txt"]
    assert f"failed before its first step; its files are now in {aside}" in capsys.readouterr().err
    run.set_aside_start()
    assert not capsys.readouterr().err


def test_existing_wants_a_run(tmp_path):
    with pytest.raises(FileNotFoundError, match="holds no run: found no such directory"):
        RunDirectory.existing(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="without config.yaml.*`fr3e runs` lists them"):
        RunDirectory.existing(tmp_path)
    (tmp_path / "config.yaml").write_text("name: run")
    assert RunDirectory.existing(tmp_path).path == tmp_path


def test_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "summary.json"
    write_json_atomic(path, {"steps": 1})
    with pytest.raises(KeyboardInterrupt):
        with atomic_file(path) as stream:
            stream.write(b'{"steps": ')
            stream.flush()
            raise KeyboardInterrupt
    assert json.loads(path.read_text()) == {"steps": 1}
    assert os.listdir(tmp_path) == ["summary.json"]


def test_reader_sees_old_content_until_the_block_ends(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with open(path, "rb") as early_reader:
        with atomic_file(path) as stream:
            stream.write(b"new")
            stream.flush()
            assert path.read_bytes() == b"old"
        assert path.read_bytes() == b"new"
        assert early_reader.read() == b"old", "the file was overwritten in place, not replaced"


def test_json_is_valid_whatever_the_numbers(tmp_path):
    path = tmp_path / "summary.json"
    write_json_atomic(path, {"a": [float("nan"), 1.5], "b": np.float32(0.25), "c": (np.int64(3), float("inf"))})

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    assert json.loads(path.read_text(), parse_constant=refuse) == {"a": [None, 1.5], "b": 0.25, "c": [3, None]}


def test_unwritable_content_names_the_file_and_keeps_the_old(tmp_path):
    path = tmp_path / "summary.json"
    write_json_atomic(path, {"steps": 1})
    with pytest.raises(TypeError, match="summary.json: Object of type set"):
        write_json_atomic(path, {"steps": {1, 2}})
    assert json.loads(path.read_text()) == {"steps": 1}
