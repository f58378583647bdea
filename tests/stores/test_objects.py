"""Addresses, and whole objects at them."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from object_store import BUCKET, refusal, unclosed

from fr3e_jax.stores import objects
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


SILENT = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut"
FAULTS = {  # the answer of the wire, and the reason in the message
    "throttled": (refusal(503, "SlowDown"), "SlowDown", True),
    "unavailable": (refusal(503, "ServiceUnavailable"), "ServiceUnavailable", True),
    "broken": (refusal(500, "InternalError"), "InternalError", True),
    "no xml": ("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 4\r\nConnection: close\r\n\r\noops", "502", True),
    "forbidden": (refusal(403, "AccessDenied"), "PermissionError", False),
    "wrong key": (refusal(403, "InvalidAccessKeyId"), "PermissionError", False),
    "expired": (refusal(400, "ExpiredToken"), "ExpiredToken", None),
    "no bucket": (refusal(404, "NoSuchBucket", "The specified bucket does not exist"), "bucket does not exist", False),
    "silent": ("silence", "no answer in", True),
    "dropped": ("", "", True),
    "cut": (SILENT, "", True),
}


@unclosed
@pytest.mark.parametrize(
    ("method", "name"),
    [
        *itertools.product(["GET"], FAULTS),
        *itertools.product(["PUT"], ["throttled", "silent", "forbidden", "no bucket"]),
    ],
)
def test_a_fault_is_a_line_after_a_limited_wait(bucket, capsys, monkeypatch, method, name):
    answer, reason, is_repeated = FAULTS[name]
    monkeypatch.setattr(objects, "TRIES", 2)
    monkeypatch.setattr(objects, "SECONDS", 0.5 if answer in ("silence", SILENT) else 20.0)
    bucket.fault = lambda line: answer if line.startswith(method) else None
    store = Store(BUCKET)
    with pytest.raises(StoreFailed) as failure:
        store.read("a") if method == "GET" else store.write("a", b"1")
    text = str(failure.value)
    assert f"cannot {'read' if method == 'GET' else 'write'} {BUCKET}/a (" in text and reason in text
    assert "check the address, the credentials and the network" in text
    if is_repeated is not None:
        assert ("trying again" in capsys.readouterr().err) == is_repeated
