"""Ids of the Hugging Face hub: fetched from a stand-in, taken from the cache, pinned to a commit, or refused in a line.

`huggingface_hub` reads its environment when it is imported, so each test asks in a process of its own.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hub_stand_in import hub_stand_in

from fr3e_jax.hub import is_id

ROOT = Path(__file__).resolve().parents[1]
COMMON = """
import json, sys
from fr3e_jax import hub
def tried(function, *arguments):
    hub._fetched.cache_clear()
    try:
        return str(function(*arguments))
    except FileNotFoundError as error:
        return f"refused: {error}"
"""


@pytest.fixture
def hub(tmp_path):
    with hub_stand_in() as found:
        shutil.copytree(ROOT / "warm_starts" / "order", tmp_path / "tiny")
        found.repositories["models", "me/tiny"] = tmp_path / "tiny"
        yield found


def environment(tmp_path, url, **more):
    own = {
        "HF_ENDPOINT": url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    return os.environ | own | more


def ask(tmp_path, url, code, **more):
    """Run the code in a process whose working directory is empty; its last line is JSON."""
    (tmp_path / "empty").mkdir(exist_ok=True)
    command = [sys.executable, "-c", COMMON + code]
    place = {"cwd": tmp_path / "empty", "env": environment(tmp_path, url, **more)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **place)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_what_looks_like_an_id_is_one_only_where_no_folder_is_meant(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    assert is_id("Qwen/Qwen2.5-0.5B") and is_id("Qwen/Qwen2.5-0.5B@main")
    assert not any(map(is_id, ("models/foo", "runs/demo", "Qwen2.5", "/a/b", "./a/b", "~/a", "a/b/c", "warm_starts/x")))


def test_a_model_is_fetched_once_pinned_to_its_commit_and_taken_from_the_cache_without_a_network(hub, tmp_path):
    (tmp_path / "tiny" / "pytorch_model.bin").write_bytes(b"not for us")
    commit = hub.commit("models", "me/tiny")
    code = "print(json.dumps([tried(hub.model_directory, 'me/tiny'), tried(hub.pinned, 'me/tiny')]))"
    (folder, pinned), said = ask(tmp_path, hub.url, code)
    assert Path(folder).name == commit and pinned == f"me/tiny@{commit}"
    assert (Path(folder) / "model.safetensors").is_file() and not (Path(folder) / "pytorch_model.bin").exists()
    assert "model.path=me/tiny is no folder here; asking the Hugging Face hub for the model" in said
    code = f"print(json.dumps([tried(hub.model_directory, name) for name in ('me/tiny', 'me/tiny@{commit}')]))"
    for more in ({}, {"HF_HUB_OFFLINE": "1"}):
        (newest, same), _ = ask(tmp_path, "http://127.0.0.1:9", code, **more)
        assert newest == same == folder
    before = len(hub.requests)
    (same,), said = ask(tmp_path, hub.url, f"print(json.dumps([tried(hub.model_directory, 'me/tiny@{commit}')]))")
    assert same == folder and len(hub.requests) == before and "asking" not in said, "a commit is never asked for twice"


def test_what_the_hub_does_not_give_costs_a_line_that_says_what_to_do(hub, tmp_path):
    hub.refused |= {"me/gated": (403, "GatedRepo"), "me/broken": (503, "Down")}
    names = ("me/typo", "me/tiny@v9", "me/gated", "me/broken", "nothing")
    code = f"print(json.dumps([tried(hub.model_directory, name) for name in {names}]))"
    (typo, revision, gated, broken, nothing), _ = ask(tmp_path, hub.url, code)
    assert "the hub has no such model, or not for you; check the spelling" in typo and "HF_TOKEN" in typo
    assert "the hub has no revision v9 of it; leave out @v9" in revision
    assert "accepted its terms" in gated and "`hf auth login`" in gated
    assert "cannot be reached" in broken and "503" in broken and "run `hf download me/broken`" in broken
    assert "expected a Hugging Face directory" in nothing and "an id of its hub" in nothing
    (unreachable,), _ = ask(
        tmp_path, "http://127.0.0.1:9", "print(json.dumps([tried(hub.model_directory, 'me/tiny')]))"
    )
    assert "cannot be reached" in unreachable and "`hf download me/tiny --local-dir DIR` and name DIR" in unreachable
    assert all("\n" not in text for text in (typo, revision, gated, broken, nothing, unreachable))


def test_a_half_fetched_model_is_completed_or_refused(hub, tmp_path):
    code = "print(json.dumps([tried(hub.model_directory, 'me/tiny')]))"
    (folder,), _ = ask(tmp_path, hub.url, code)
    (Path(folder) / "model.safetensors").unlink()
    (refused,), _ = ask(tmp_path, "http://127.0.0.1:9", code)
    assert refused.startswith("refused: ") and "hf download me/tiny" in refused
    (again,), _ = ask(tmp_path, hub.url, code)
    assert again == folder and (Path(folder) / "model.safetensors").is_file()


def test_a_run_says_which_commit_it_began_from(hub, tmp_path):
    code = """
from fr3e_jax.configuration import load_config
from fr3e_jax.session.session import open_texts
config = load_config("demo", ["model.path=me/tiny"])
texts = open_texts(config)
print(json.dumps([config.model.path, len(texts.codec)]))
"""
    (path, tokens), _ = ask(tmp_path, hub.url, code)
    assert path == f"me/tiny@{hub.commit('models', 'me/tiny')}" and tokens == 24


def test_the_command_and_load_policy_take_an_id(hub, tmp_path):
    command = [sys.executable, "-m", "fr3e_jax", "sample", "demo", "model.path=me/tiny", "--prompt", "1+2>"]
    place = {"cwd": tmp_path, "env": environment(tmp_path, hub.url)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **place)
    assert done.returncode == 0 and "stop token, log-prob" in done.stdout, done.stderr
    mistake = [word.replace("me/tiny", "me/typo") for word in command]
    done = subprocess.run(mistake, capture_output=True, text=True, timeout=300, **place)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "fr3e: error: model.path=me/typo is no folder here, and the hub has no"
    )
    code = """
import fr3e_jax
said = [fr3e_jax.load_policy(name).sample("1+2*3>", n=1, temperature=0.0)[0].text for name in ("me/tiny", FOLDER)]
print(json.dumps(said))
"""
    (by_id, by_folder), _ = ask(tmp_path, hub.url, f"FOLDER = {str(tmp_path / 'tiny')!r}\n{code}")
    assert by_id == by_folder != ""


def test_a_datasets_id_stands_for_its_card_and_reads_its_files_from_the_hub(hub, tmp_path):
    folder = tmp_path / "set" / "main"
    folder.mkdir(parents=True)
    rows = [{"question": f"{n} and 1?", "answer": f"so #### {n + 1}"} for n in range(3)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "train-0.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    hub.repositories["datasets", "us/sums"] = tmp_path / "set"
    cards = tmp_path / "empty" / "configs" / "data"
    cards.mkdir(parents=True)
    (cards / "sums.yaml").write_text(
        "name: sums\nverifier: gsm8k\nfields: {question: question, answer: {path: answer, after_last: '#### '}}\n"
        "splits: {train: [nothere.jsonl, 'hf://datasets/us/sums/main/train-*.jsonl.gz'],\n"
        "         test: ['hf://datasets/us/sums/main/test-*.jsonl.gz'], far: ['hf://datasets/us/nothing/x.jsonl']}\n"
    )
    code = """
from fr3e_jax.data.cards import load_named
from fr3e_jax.data.dataset_split import load_split
def golds(name, split):
    return [problem.gold for problem in load_split(*load_named(name, split), "").problems]
print(json.dumps([tried(golds, name, split) for name, split in NAMES]))
"""
    names = [("us/sums", "train"), ("us/sums/train", "test"), ("sums", "train"), ("sums", "test"), ("sums/far", "test")]
    (by_id, with_split, by_name, no_file, no_set), _ = ask(tmp_path, hub.url, f"NAMES = {names}\n{code}")
    assert by_id == with_split == by_name == "['1', '2', '3']"
    assert "no file of dataset card sums, split test" in no_file
    assert "the hub has no such dataset" in no_set and "us/nothing" in no_set


def test_a_datasets_id_without_a_card_stands_for_the_files_of_its_split(hub, tmp_path):
    rows = {
        "data/train-0.jsonl": [("1+1?", 2)],
        "data/train-1.jsonl": [("1+2?", 3)],
        "data/test-0.jsonl": [("2+2?", 4)],
    }
    rows |= {"easy/val/0.jsonl": [("1?", 1)], "hard/val/0.jsonl": [("9?", 9)]}
    for name, pairs in rows.items():
        (tmp_path / "set" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "set" / name).write_text("".join(json.dumps({"q": q, "answer": a}) + "\n" for q, a in pairs))
    hub.repositories["datasets", "us/sums"] = tmp_path / "set"
    code = """
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.datasets import DatasetsTask

def problems(train, test, columns=("question=q",)):
    try:
        task = DatasetsTask(DataConfig(task="datasets", train=[train], eval=[test], columns=list(columns)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return [[(p.id, p.prompt, p.gold) for p in task.problems(split)] for split in ("train", "test")]

print(json.dumps([str(problems(*each)) for each in (
    ("us/sums", "us/sums"),
    ("us/sums/hard/val", "us/sums/test"),
    ("us/sums/val", "us/sums"),
    ("us/sums/dev", "us/sums"),
    ("us/sums", "us/sums", ()),
    ("us/other", "us/sums"),
)]))
"""
    (both, hard, several, no_split, no_columns, no_set), _ = ask(tmp_path, hub.url, code)
    assert both == str([[("sums/train/0", "1+1?", "2"), ("sums/train/1", "1+2?", "3")], [("sums/test/0", "2+2?", "4")]])
    assert hard == str([[("sums/val/0", "9?", "9")], [("sums/test/0", "2+2?", "4")]])
    assert "us/sums/val has the split val in easy, hard; name one: us/sums/FOLDER/val" in several
    assert "no files of rows named after the split dev; name them, hf://datasets/us/sums/PATTERN" in no_split
    assert "has the columns q, answer; expected the question in one of" in no_columns
    assert "the hub has no such dataset" in no_set and "ConfigError" in no_set
