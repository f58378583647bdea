"""Models and datasets in a store: fetched once, and again when they change."""

from __future__ import annotations

import pytest

from fr3e_jax.configuration import ConfigError, load_config
from fr3e_jax.data.formats import find_files
from fr3e_jax.data.jsonl import existing_file
from fr3e_jax.hub import model_directory
from fr3e_jax.stores.copies import fetched_folder
from fr3e_jax.stores.objects import Store


@pytest.fixture
def store(tmp_path, monkeypatch) -> Store:
    monkeypatch.setenv("FR3E_STORE_CACHE", str(tmp_path / "cache"))
    return Store(f"file://{tmp_path}/bucket/things")


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """The names of the objects that are fetched."""
    names, download = [], Store.download
    monkeypatch.setattr(Store, "download", lambda self, *a: (names.append(a[0]), download(self, *a))[1])
    return names


def test_a_model_is_fetched_once_and_again_where_it_changes(store, asked):
    store.write("model/config.json", b"{}")
    store.write("model/shards/a.safetensors", b"one")
    address = f"{store.address}/model"
    folder = model_directory(address)
    assert (folder / "shards" / "a.safetensors").read_bytes() == b"one"
    assert sorted(asked) == ["config.json", "shards/a.safetensors"]
    assert model_directory(address) == folder and len(asked) == 2
    store.write("model/shards/a.safetensors", b"two")
    assert (model_directory(address) / "shards" / "a.safetensors").read_bytes() == b"two"
    assert asked[2:] == ["shards/a.safetensors"]
    store.delete(["model/config.json"])
    assert not (fetched_folder(address) / "config.json").exists()


def test_a_folder_whose_files_have_gone_goes_too(store):
    """An empty folder in ``checkpoints`` would count as one."""
    store.write("run/checkpoints/100/a", b"1")
    store.write("run/config.yaml", b"")
    folder = fetched_folder(f"{store.address}/run")
    store.delete(["run/checkpoints/100/a"])
    assert fetched_folder(f"{store.address}/run") == folder and not (folder / "checkpoints").exists()


def test_a_model_that_is_not_there_names_setting_and_address(store):
    with pytest.raises(FileNotFoundError, match=f"model.path: {store.address}/none holds nothing"):
        model_directory(f"{store.address}/none")


def test_an_object_that_comes_short_is_not_kept(store, monkeypatch):
    store.write("model/config.json", b"{}")
    download = Store.download
    monkeypatch.setattr(Store, "download", lambda *a: (download(*a), a[2].write_bytes(b"{"))[0])
    with pytest.raises(OSError, match="not as it was written: 2 bytes, and 1 came"):
        fetched_folder(f"{store.address}/model")
    monkeypatch.undo()


def test_files_of_cards_are_found_below_an_address(store, asked):
    store.write("gsm8k/train-1.jsonl", b"1")
    store.write("gsm8k/train-2.jsonl", b"2")
    store.write("gsm8k/test.jsonl", b"3")
    found = find_files(["none.jsonl", "gsm8k/train-*.jsonl"], store.address, "gsm8k")
    assert [path.read_bytes() for path in found] == [b"1", b"2"]
    assert sorted(asked) == ["train-1.jsonl", "train-2.jsonl"]
    with pytest.raises(FileNotFoundError, match=f"under data.root={store.address}; looked for none"):
        find_files(["none"], store.address, "gsm8k")


def test_a_training_file_and_a_recipe_may_be_at_an_address(store):
    store.write("train.jsonl", b"{}")
    store.write("recipe.yaml", b"name: remote\n")
    assert existing_file(f"{store.address}/train.jsonl", "data.train").read_bytes() == b"{}"
    with pytest.raises(FileNotFoundError, match="data.train is .* which does not exist"):
        existing_file(f"{store.address}/none.jsonl", "data.train")
    assert load_config(f"{store.address}/recipe.yaml", training=False).name == "remote"
    with pytest.raises(ConfigError, match="none.yaml cannot be read"):
        load_config(f"{store.address}/none.yaml", training=False)
