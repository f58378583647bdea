"""A run's folder and its address in a store: alike after an upload, and never half a checkpoint."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from fr3e_jax.stores import mirror as mirrors
from fr3e_jax.stores.copies import CopyRecord, copy_of
from fr3e_jax.stores.mirror import STATE, Mirror, MirroredRun, checkpoint_of, mirrored_files, working_copy
from fr3e_jax.stores.objects import Store, StoreFailed
from fr3e_jax.stores.reading import run_folder


@pytest.fixture
def address(tmp_path, monkeypatch) -> str:
    monkeypatch.setattr(mirrors, "TRIES", 1)
    monkeypatch.setattr(mirrors, "EVERY_SECONDS", 600.0)
    monkeypatch.setenv("FR3E_STORE_CACHE", str(tmp_path / "here"))
    return f"file://{tmp_path}/bucket/run"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """From the call on, this is a machine that has no copies."""
    return lambda: monkeypatch.setenv("FR3E_STORE_CACHE", str(tmp_path / "elsewhere"))


def begin(mirror: Mirror, address: str, resume: bool = False) -> Path:
    folder = working_copy(address)
    folder.mkdir(parents=True, exist_ok=True)
    mirror.open(address, folder, resume)
    return folder


def killed(mirror: Mirror) -> None:
    mirror.__exit__(KeyboardInterrupt)


def put(folder: Path, **files: str) -> None:
    """Write files; in their names ``__`` stands for a slash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def content(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("[!.]*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


STEP_1 = {"config.yaml": "settings", "metrics.jsonl": "1\n", "checkpoints/1/arrays/a": "one"}


def with_step_1(mirror: Mirror, address: str) -> Path:
    folder = begin(mirror, address)
    put(folder, **{"config.yaml": "settings", "metrics.jsonl": "1\n", "checkpoints__1__arrays__a": "one"})
    mirror.complete()
    return folder


def test_another_machine_gets_what_was_completed(address, elsewhere):
    with Mirror() as mirror:
        folder = with_step_1(mirror, address)
        put(folder, **{".metrics.jsonl.tmp": "half", "checkpoints__2.orbax-checkpoint-tmp__a": "half"})
    elsewhere()
    with Mirror() as mirror:
        assert content(begin(mirror, address, resume=True)) == STEP_1


def test_a_checkpoint_whose_upload_was_killed_is_not_there(address, elsewhere, monkeypatch):
    """The manifest is written last: without it, the objects of step 2 are remains, which the next writer deletes."""
    mirror = Mirror()
    folder = with_step_1(mirror, address)
    put(folder, **{"metrics.jsonl": "1\n2\n", "checkpoints__2__arrays__a": "two", "checkpoints__2__arrays__b": "two"})
    with monkeypatch.context() as away:
        away.setattr(MirroredRun, "write", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(StoreFailed, match="killed.*nothing is lost"):
            mirror.complete()
    store = Store(address)
    assert "checkpoints/2/arrays/a" in store.below()
    killed(mirror)
    elsewhere()
    with Mirror() as another:
        assert content(begin(another, address, resume=True)) == STEP_1 | {"metrics.jsonl": "1\n2\n"}
        assert "checkpoints/2/arrays/a" not in store.below()


def test_a_removed_checkpoint_stays_in_the_store_until_its_successor_is_there(address, elsewhere, monkeypatch):
    """The machine is lost while the checkpoint that replaced the only other one is uploaded."""
    mirror = Mirror()
    folder = with_step_1(mirror, address)
    put(folder, checkpoints__2__arrays__a="two")
    (folder / "checkpoints/1/arrays/a").unlink()
    write = Store.write

    def lost(self, name, content):
        if name.startswith("checkpoints/2"):
            raise OSError("lost")
        write(self, name, content)

    with monkeypatch.context() as machine, pytest.raises(StoreFailed, match="lost"):
        machine.setattr(Store, "write", lost)
        mirror.complete()
    killed(mirror)
    elsewhere()
    with Mirror() as another:
        assert content(begin(another, address, resume=True)) == STEP_1


def parts_of_step(number: int) -> dict[str, str]:
    return {
        f"rollouts__step_{number:06d}__step_{number:06d}.{index}-of-2.jsonl.gz": f"{number}.{index}"
        for index in range(2)
    }


def test_a_step_whose_upload_was_killed_between_its_parts_is_not_read(address, elsewhere, monkeypatch):
    """Of two processes, the rollouts of a step are two objects."""
    mirror = Mirror()
    folder = with_step_1(mirror, address)
    put(folder, **parts_of_step(1))
    mirror.complete()
    put(folder, **parts_of_step(2), checkpoints__2__arrays__a="two")
    write = Store.write

    def away(self, name, content):
        if "2.1-of-2" in name:
            raise OSError("killed")
        write(self, name, content)

    with monkeypatch.context() as kill, pytest.raises(StoreFailed, match="killed"):
        kill.setattr(Store, "write", away)
        mirror.complete()
    assert Store(address).below("rollouts/step_000002/step_000002.0-of-2.jsonl.gz"), (
        "the first part is there, and is not named"
    )
    killed(mirror)
    elsewhere()
    whole = content(run_folder(address, checkpoints=True))
    assert {name for name in whole if "rollouts" in name} == {name.replace("__", "/") for name in parts_of_step(1)}
    with Mirror() as another:
        assert content(begin(another, address, resume=True)) == whole
        put(working_copy(address), **parts_of_step(2), checkpoints__2__arrays__a="two")
    assert content(run_folder(address))["rollouts/step_000002/step_000002.1-of-2.jsonl.gz"] == "2.1"


def test_parts_that_are_written_before_a_checkpoint_are_uploaded_with_it(address, monkeypatch):
    """Another process writes its part, and the checkpoint ends, while the folder is being looked through."""
    mirror = Mirror()
    folder = with_step_1(mirror, address)
    put(folder, rollouts__here="")

    def slowly(top, walk=os.walk):
        for place, folders, files in walk(top):
            folders.sort(reverse=True)  # a file system lists them as it likes
            yield place, folders, files
            if place == str(folder / "rollouts"):
                put(folder, **parts_of_step(2), checkpoints__2__arrays__a="two")

    with monkeypatch.context() as slow:
        slow.setattr("fr3e_jax.stores.mirror.os.walk", slowly)
        mirror.upload()
    both, there = (
        {"checkpoints/2/arrays/a", "rollouts/step_000002/step_000002.1-of-2.jsonl.gz"},
        lambda: MirroredRun.read(Store(address)),
    )
    assert both & there().files.keys() != {"checkpoints/2/arrays/a"}
    with mirror:
        mirror.complete()
    assert both <= there().files.keys()


def test_a_working_copy_that_is_ahead_of_the_store_is_kept(address):
    """Of a kill on this machine nothing is lost: not even what was never uploaded."""
    with Mirror() as mirror:
        folder = with_step_1(mirror, address)
    put(folder, **{"checkpoints__2__arrays__a": "two"})
    with Mirror() as mirror:
        assert "checkpoints/2/arrays/a" in content(begin(mirror, address, resume=True))


def test_a_working_copy_gives_way_when_another_machine_went_on(address, elsewhere, tmp_path, monkeypatch):
    with Mirror() as mirror:
        folder = with_step_1(mirror, address)
    put(folder, **{"checkpoints__2__arrays__a": "never uploaded"})
    elsewhere()
    with Mirror() as mirror:
        put(begin(mirror, address, resume=True), **{"checkpoints__2__arrays__a": "two"})
    monkeypatch.setenv("FR3E_STORE_CACHE", str(tmp_path / "here"))
    with Mirror() as mirror:
        assert content(begin(mirror, address, resume=True)) == STEP_1 | {"checkpoints/2/arrays/a": "two"}


def test_a_checkpoint_that_changes_leaves_the_manifest_before_its_objects_change(address, monkeypatch):
    with Mirror() as mirror:
        folder = with_step_1(mirror, address)
        put(folder, **{"checkpoints__1__arrays__a": "another one"})
        seen, upload = [], Store.upload

        def looked_at(self, name, path):
            seen.append("checkpoints/1/arrays/a" in MirroredRun.read(Store(address)).files)
            upload(self, name, path)

        monkeypatch.setattr(Store, "upload", looked_at)
        mirror.complete()
    assert seen == [False]
    assert content(run_folder(address, checkpoints=True)) == STEP_1 | {"checkpoints/1/arrays/a": "another one"}


def test_what_the_run_deletes_is_deleted_in_the_store(address):
    with Mirror() as mirror:
        folder = with_step_1(mirror, address)
        (folder / "checkpoints/1/arrays/a").unlink()
        mirror.complete()
        assert sorted(MirroredRun.read(Store(address)).files) == ["config.yaml", "metrics.jsonl"]
        assert "checkpoints/1/arrays/a" not in Store(address).below()


def test_complete_waits_for_a_slow_upload(address, monkeypatch):
    slow, write = threading.Event(), Store.write
    with Mirror() as mirror:
        folder = with_step_1(mirror, address)
        put(folder, **{"metrics.jsonl": "1\n2\n"})
        monkeypatch.setattr(Store, "write", lambda *a: (slow.wait(), write(*a))[1])
        waiting = threading.Thread(target=mirror.complete)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        slow.set()
        waiting.join()
        assert content(run_folder(address))["metrics.jsonl"] == "1\n2\n"


def test_a_store_that_fails_for_a_while_costs_nothing(address, monkeypatch):
    with Mirror() as mirror:
        folder = with_step_1(mirror, address)
        put(folder, **{"metrics.jsonl": "1\n2\n"})
        monkeypatch.setattr(Store, "write", lambda *a: (_ for _ in ()).throw(StoreFailed("away")))
        with pytest.raises(StoreFailed, match=f"away; nothing is lost.*--resume {address}"):
            mirror.complete()
        monkeypatch.undo()
        mirror.complete()
        assert Store(address).read("metrics.jsonl") == b"1\n2\n"


def test_a_run_finds_out_that_another_one_took_its_place(address, elsewhere):
    first = Mirror()
    with_step_1(first, address)
    elsewhere()
    with Mirror() as second:
        begin(second, address, resume=True)
        assert MirroredRun.read(Store(address)).writer["pid"] == os.getpid()
    assert not MirroredRun.read(Store(address)).writer, "it has ended"
    with pytest.raises(StoreFailed, match="taken over by another run.*--resume"):
        first.complete()
    killed(first)


def test_a_run_is_not_overwritten(address, elsewhere):
    with Mirror() as mirror:
        with_step_1(mirror, address)
    for _ in ("here", "elsewhere"):
        with pytest.raises(FileExistsError, match="already holds a run.*--resume"), Mirror() as mirror:
            begin(mirror, address)
        elsewhere()


def test_a_run_that_was_deleted_from_the_store_makes_room(address):
    with Mirror() as mirror:
        folder = with_step_1(mirror, address)
    Store(address).delete(Store(address).below())
    with Mirror() as mirror:
        assert content(begin(mirror, address)) == {}
    assert [content(aside) for aside in folder.parent.glob("run.outdated-*")] == [STEP_1]


def test_resuming_an_address_without_a_run_says_so(address):
    with pytest.raises(FileNotFoundError, match=f"{address} holds no run"), Mirror() as mirror:
        begin(mirror, address, resume=True)


def test_a_damaged_checkpoint_in_the_store_is_named(address, elsewhere):
    with Mirror() as mirror:
        with_step_1(mirror, address)
    Store(address).write("checkpoints/1/arrays/a", b"damaged")
    elsewhere()
    with pytest.raises(StoreFailed, match="checkpoints/1/arrays/a is not as it was written"), Mirror() as mirror:
        begin(mirror, address, resume=True)
    assert not (working_copy(address) / "checkpoints/1/arrays/a").exists()


def test_a_fetch_that_was_killed_is_begun_again(address, elsewhere, monkeypatch):
    with Mirror() as mirror:
        with_step_1(mirror, address)
    elsewhere()
    download, asked = Store.download, []

    def killed(self, name, *arguments):
        asked.append(name)
        if len(asked) == 2:
            raise KeyboardInterrupt
        download(self, name, *arguments)

    monkeypatch.setattr(Store, "download", killed)
    with pytest.raises(KeyboardInterrupt):
        run_folder(address, checkpoints=True)
    assert content(run_folder(address, checkpoints=True)) == STEP_1


def test_half_a_fetch_is_no_run_of_this_machine(address, elsewhere, monkeypatch):
    """The fetch of a working copy was killed, and then the run was deleted from the store."""
    with Mirror() as mirror:
        with_step_1(mirror, address)
    elsewhere()
    download = Store.download

    def fetches_but_checkpoints(self, name, *arguments):
        if "checkpoints" in name:
            raise KeyboardInterrupt
        download(self, name, *arguments)

    with monkeypatch.context() as killed:
        killed.setattr(Store, "download", fetches_but_checkpoints)
        with pytest.raises(KeyboardInterrupt), Mirror() as mirror:
            begin(mirror, address, resume=True)
    assert content(working_copy(address)).keys() <= {"config.yaml", "metrics.jsonl"}
    Store(address).delete(Store(address).below())
    with pytest.raises(FileNotFoundError, match="holds no run"), Mirror() as mirror:
        begin(mirror, address, resume=True)


def test_a_reader_fetches_only_what_has_changed(address, monkeypatch):
    with Mirror() as mirror:
        folder = with_step_1(mirror, address)
        run_folder(address)
        put(folder, **{"summary.json": "{}"})
        mirror.complete()
        asked, fetch = [], Store.download
        monkeypatch.setattr(Store, "download", lambda self, *a: (asked.append(a[0]), fetch(self, *a)))
        assert content(run_folder(address)).keys() == {"config.yaml", "metrics.jsonl", "summary.json"}
        (folder / "summary.json").unlink()
        put(run_folder(address), **{"evaluations__mine": "made by a reader"})
        mirror.complete()
        assert content(run_folder(address)).keys() == {"config.yaml", "metrics.jsonl", "evaluations/mine"}
    assert asked == ["summary.json"]
    assert CopyRecord(copy_of(address, "read")).address == "", "a copy to read is no working copy"


DAMAGED = ["{", "[]", "7", "null", '{"token": 5}', '{"files": []}', '{"files": {"a": 1}}', '{"files": {"a": ["1", 2]}}',
           '{"files": {"../../a": [1, 2]}}', '{"files": {"/etc/a": [1, 2]}}', '{"writer": "me"}', '{"other": 1}',
           '{"writer": {"beat": "now"}}', '{"writer": {"beat": 1e400}}', "\xff", "[" * 100_000]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_object_of_the_run_is_one_line(address, content):
    Store(address).write(STATE, content.encode("latin-1"))
    for read in (lambda: begin(Mirror(), address, resume=True), lambda: run_folder(address)):
        with pytest.raises(StoreFailed, match=r"fr3e_mirror.json is damaged .*restore an earlier version") as failure:
            read()
        assert "\n" not in str(failure.value)


def with_checkpoints(mirror: Mirror, address: str, *steps: int):
    folder = begin(mirror, address)
    put(folder, **{"config.yaml": "settings", "metrics.jsonl": "1\n", "rollouts__step_000001.jsonl.gz": "rollouts"})
    for step in steps:
        put(folder, **{f"checkpoints__{step}__arrays__a": f"step {step}", f"checkpoints__{step}__host": "{}"})
    mirror.complete()
    return folder


@pytest.mark.parametrize(
    ("name", "content", "left"),
    [
        ("checkpoints/2/arrays/a", b"short", {"checkpoints/1/"}),
        ("checkpoints/2/host", None, {"checkpoints/1/"}),
        ("checkpoints/1/arrays/a", b"", {"checkpoints/2/"}),
        ("metrics.jsonl", None, {"checkpoints/1/", "checkpoints/2/"}),
        ("rollouts/step_000001.jsonl.gz", None, {"checkpoints/1/", "checkpoints/2/"}),
    ],
)
def test_a_damaged_file_of_the_store_is_passed_over(address, elsewhere, capsys, name, content, left):
    with Mirror() as mirror:
        with_checkpoints(mirror, address, 1, 2)
    Store(address).write(name, content) if content is not None else Store(address).delete([name])
    elsewhere()
    assert {checkpoint_of(file) for file in mirrored_files(run_folder(address, checkpoints=True))} - {""} == left
    with Mirror() as mirror:
        folder = begin(mirror, address, resume=True)
        assert {checkpoint_of(file) for file in mirrored_files(folder)} - {""} == left
    assert capsys.readouterr().err.count(f"going on without {checkpoint_of(name) or name}") == 2
    assert MirroredRun.read(Store(address)).checkpoints() == left


def test_settings_or_the_only_checkpoint_that_are_damaged_are_an_error(address, elsewhere):
    with Mirror() as mirror:
        with_checkpoints(mirror, address, 1)
    elsewhere()
    Store(address).delete(["checkpoints/1/host"])
    with pytest.raises(StoreFailed, match="checkpoints/1/host is missing: restore it; no other checkpoint is there"):
        begin(Mirror(), address, resume=True)
    Store(address).delete(["config.yaml"])
    with pytest.raises(StoreFailed, match="config.yaml is missing"):
        run_folder(address)


@pytest.fixture
def away(monkeypatch):
    """A call makes the store refuse what is written, another one ends that."""
    write, is_away = Store.write, threading.Event()

    def refuse(self, name, content):
        if is_away.is_set():
            raise StoreFailed("slow down")
        write(self, name, content)

    monkeypatch.setattr(Store, "write", refuse)
    return is_away


def test_a_run_goes_on_without_a_store_that_fails_and_uploads_all_once_it_answers(address, away, capsys):
    with Mirror() as mirror:
        folder = with_checkpoints(mirror, address, 1)
        away.set()
        put(folder, checkpoints__2__a="two")
        mirror.keep_up()
        mirror.keep_up()
        assert capsys.readouterr().err.count("slow down; the run goes on, and the upload is tried again") == 1
        away.clear()
        mirror.complete()
        assert "has all files again" in capsys.readouterr().err
        assert MirroredRun.read(Store(address)).checkpoints() == {"checkpoints/1/", "checkpoints/2/"}


def test_a_run_that_ends_while_the_store_fails_says_what_is_not_there(address, away):
    way_on = f"{address} lacks 1 file and the checkpoints 2; continue on this machine with --resume {address}"
    with (
        pytest.raises(StoreFailed, match=f"slow down; nothing is lost: the files are in .*{way_on}"),
        Mirror() as mirror,
    ):
        folder = with_checkpoints(mirror, address, 1)
        away.set()
        put(folder, checkpoints__2__a="two")


def test_a_stop_does_not_wait_for_a_store_that_hangs(address, monkeypatch, capsys):
    """A first signal ends the wait before a checkpoint; Ctrl-C ends the wait at the end."""
    hangs, write = threading.Event(), Store.write
    monkeypatch.setattr(mirrors, "NOTICE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt), Mirror() as mirror:
        folder = with_checkpoints(mirror, address, 1)
        monkeypatch.setattr(Store, "write", lambda *a: (hangs.wait(), write(*a)))
        put(folder, checkpoints__2__a="two")
        mirror.is_stopping = lambda: True
        mirror.keep_up()
        lacks = f"{address} lacks 1 file and the checkpoints 2"
        monkeypatch.setattr(mirrors, "print", lambda line, **_: stop(line), raising=False)
        lines = []

        def stop(line: str) -> None:
            lines.append(line)
            if "Ctrl-C ends the wait" in line:
                raise KeyboardInterrupt

    assert [lacks in line for line in lines] == [True, True] and "upload was not completed" in lines[1]
    hangs.set()


def test_a_store_that_cannot_be_written_is_named_before_the_run_begins(address, away):
    away.set()
    with pytest.raises(StoreFailed, match="slow down"), Mirror() as mirror:
        begin(mirror, address)
    assert Store(address).below() == {}
