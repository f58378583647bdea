"""A run's folder and its address in a store: alike after an upload, and never half a checkpoint."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from fr3e_jax.stores import mirror as mirrors
from fr3e_jax.stores.copies import CopyRecord, copy_of
from fr3e_jax.stores.mirror import Mirror, MirroredRun, working_copy
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


def parts_of_step(number: int) -> dict[str, str]:
    return {f"rollouts__step_{number:06d}.{index}-of-2.jsonl.gz": f"{number}.{index}" for index in range(2)}


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
    assert Store(address).below("rollouts/step_000002.0-of-2.jsonl.gz"), "the first part is there, and is not named"
    killed(mirror)
    elsewhere()
    whole = content(run_folder(address, checkpoints=True))
    assert {name for name in whole if "rollouts" in name} == {name.replace("__", "/") for name in parts_of_step(1)}
    with Mirror() as another:
        assert content(begin(another, address, resume=True)) == whole
        put(working_copy(address), **parts_of_step(2), checkpoints__2__arrays__a="two")
    assert content(run_folder(address))["rollouts/step_000002.1-of-2.jsonl.gz"] == "2.1"


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
        {"checkpoints/2/arrays/a", "rollouts/step_000002.1-of-2.jsonl.gz"},
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

    def killed(self, name, path):
        asked.append(name)
        if len(asked) == 2:
            raise KeyboardInterrupt
        download(self, name, path)

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

    def fetches_but_checkpoints(self, name, path):
        if "checkpoints" in name:
            raise KeyboardInterrupt
        download(self, name, path)

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
        monkeypatch.setattr(Store, "download", lambda self, name, path: (asked.append(name), fetch(self, name, path)))
        assert content(run_folder(address)).keys() == {"config.yaml", "metrics.jsonl", "summary.json"}
        (folder / "summary.json").unlink()
        put(run_folder(address), **{"evaluations__mine": "made by a reader"})
        mirror.complete()
        assert content(run_folder(address)).keys() == {"config.yaml", "metrics.jsonl", "evaluations/mine"}
    assert asked == ["summary.json"]
    assert CopyRecord(copy_of(address, "read")).address == "", "a copy to read is no working copy"
