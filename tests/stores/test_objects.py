"""Addresses, and whole objects at them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fr3e_jax.stores.objects import Store, StoreFailed, is_remote, why_unusable


@pytest.mark.parametrize("place", ["gs://bucket/run", "s3://b/r", "memory://x", "file:///tmp/x", "abfs://c@a/x"])
def test_addresses_are_recognised(place):
    assert is_remote(place)


@pytest.mark.parametrize("place", ["runs/x", "/mnt/b", "gs:/b", "hf://datasets/a/b/*.json", "", Path("a/b"), "x.py:F"])
def test_paths_are_no_addresses(place):
    assert not is_remote(place)


def test_a_missing_package_is_named(monkeypatch):
    import fsspec

    monkeypatch.setattr(fsspec, "get_filesystem_class", lambda scheme: (_ for _ in ()).throw(ImportError(scheme)))
    assert "pip install gcsfs" in why_unusable("gs://bucket/run")


@pytest.fixture(params=["file", "memory"])
def store(request, tmp_path) -> Store:
    return Store(f"file://{tmp_path}/bucket/run" if request.param == "file" else f"memory://{tmp_path}/run")


def test_objects_come_back(store, tmp_path):
    large = tmp_path / "large"
    large.write_bytes(b"12345")
    store.write("a", b"1")
    store.upload("folder/b", large)
    assert store.read("folder/b") == b"12345"
    assert {name: state[0] for name, state in store.below().items()} == {"a": 1, "folder/b": 5}
    assert store.below("folder").keys() == store.below("folder/b").keys() == {"folder/b"}
    assert store.folders() == ["folder"]
    assert store.matching("*/b") == ["folder/b"]
    store.download("folder/b", tmp_path / "here" / "b")
    assert (tmp_path / "here" / "b").read_bytes() == b"12345"
    store.delete(["a", "never there"])
    assert store.read("a") is None and store.below("a") == {}


def test_an_empty_address_lists_nothing(store):
    assert store.below() == {} and store.folders() == [] and store.read("a") is None


def test_a_refusal_names_address_and_reason(store, monkeypatch):
    monkeypatch.setattr(store._files, "pipe_file", lambda *_: (_ for _ in ()).throw(PermissionError("no key")))
    with pytest.raises(StoreFailed, match=f"cannot write {store.address}/a .PermissionError: no key.*credentials"):
        store.write("a", b"1")
