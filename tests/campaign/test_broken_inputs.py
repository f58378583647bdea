"""Random damage to what a run reads, model directories and data files: it loads, or one line names the file.

FR3E_CAMPAIGN_EXAMPLES is the number of damages of each test (default 60). A damage that changes only values, such as
a flipped bit of a weight, loads.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import shutil
from collections import Counter
from pathlib import Path

import jax
import pytest
from campaign_cases import FIRST_SEED, generator, log

from fr3e_jax.configuration import load_config
from fr3e_jax.data.card_file import read_card
from fr3e_jax.data.dataset_split import load_split
from fr3e_jax.data.tokenizer import TextCodec
from fr3e_jax.policy.huggingface import load_params
from fr3e_jax.policy.network import build_network
from fr3e_jax.session.model import configured_architecture

pytestmark = pytest.mark.campaign
EXAMPLES = int(os.environ.get("FR3E_CAMPAIGN_EXAMPLES", "60"))
MODEL = Path(__file__).parents[2] / "warm_starts" / "order"
MOST_KIB = 6 * 2**20
ABSURD = [
    None,
    True,
    "x",
    "",
    -1,
    0,
    1,
    3,
    10**3,
    10**9,
    10**30,
    10**400,
    1e12,
    1e308,
    0.5,
    [],
    [[]],
    [{}],
    {},
    {"a": []},
]
ROWS = [{"question": f"What is {n} + {n}?", "answer": f"{2 * n}", "level": n, "more": {"a": [n]}} for n in range(40)]
CARD = """
name: numbers
verifier: math
fields: {question: question, answer: answer, level: level}
"""


def flipped(content: bytes, rng: random.Random) -> bytes:
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 3, 20])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(content)


def cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def zeroed(content: bytes, rng: random.Random) -> bytes:
    return (kept := cut(content, rng)) + bytes(len(content) - len(kept))


def header_changed(content: bytes, rng: random.Random) -> bytes:
    """Other bytes at the start, where formats keep lengths and magic numbers."""
    return rng.choice(
        [b"\xef\xbb\xbf", b"\xff\xfe", b"\x00" * 8, b"\xff" * 8, b"\x1f\x8b", b"PAR1", b"[" * 100_000]
    ) + (content if rng.random() < 0.5 else content[8:])


def spliced(content: bytes, rng: random.Random) -> bytes:
    """A part of the file once more, in another place."""
    start, end = sorted(rng.randrange(len(content)) for _ in range(2))
    place = rng.randrange(len(content))
    return content[:place] + content[start:end][:10_000] + content[place:]


def with_deep_line(content: bytes, rng: random.Random) -> bytes:
    deep = b'{"question": ' * 50_000
    return deep + b"\n" + content if rng.random() < 0.5 else content + b"\n" + deep


DAMAGES = (flipped, flipped, cut, zeroed, header_changed, spliced, with_deep_line)


def swapped(content: bytes, rng: random.Random) -> bytes:
    """JSON with one value of absurd kind or size."""
    tree = json.loads(content)
    place = tree
    while True:
        key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.7:
            place = place[key]
            continue
        place[key] = rng.choice(ABSURD)
        return json.dumps(tree).encode()


def damage(file: Path, rng: random.Random) -> str:
    """Damage a file; returns the kind."""
    content = file.read_bytes()
    kinds = [*DAMAGES, *[swapped] * (6 * (file.suffix == ".json"))]
    if rng.random() < 0.04:
        file.unlink()
        if rng.random() < 0.5:
            file.mkdir()
            return "a directory in its place"
        return "removed"
    if rng.random() < 0.02:
        file.write_bytes(b"")
        return "emptied"
    kind = rng.choice(kinds)
    file.write_bytes(kind(content, rng))
    return kind.__name__


def load_model(directory: Path) -> None:
    config = load_config("configs/demo_fr3e.yaml", [f"model.path={directory}"], training=False)
    codec = TextCodec.load(str(directory), model=str(directory))
    architecture = configured_architecture(config, len(codec))
    abstract = build_network(architecture)[1]
    loaded = load_params(directory, architecture, abstract)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), loaded) == jax.tree.map(lambda x: (x.shape, x.dtype), abstract)
    assert isinstance(codec.decode([2, 3]), str)


def outcome(load, place: Path) -> str:
    """ "loaded", or "named" if one line names the place; any other end fails the test."""
    try:
        load()
    except (OSError, ValueError) as error:
        message = str(error)
        assert place.name in message and "\n" not in message.strip(), message
        assert len(message) < 3000, message
        return "named"
    return "loaded"


def test_a_damaged_model_directory_loads_or_is_named(tmp_path):
    ends: Counter[str] = Counter()
    for number in range(EXAMPLES):
        rng = generator("model", FIRST_SEED * 1_000_003 + number)
        place = tmp_path / f"model{number}"
        shutil.copytree(MODEL, place)
        file = place / rng.choice(["config.json"] * 3 + sorted(path.name for path in MODEL.iterdir()))
        kind = damage(file, rng)
        try:
            ends[end := outcome(lambda: load_model(place), place)] += 1  # noqa: B023
        except Exception as error:
            error.add_note(f"damage {number}: {kind} of {file.name}")
            raise
        log(f"model directory, {kind}", end)
        shutil.rmtree(place)
    print(dict(ends))
    assert ends.total() == EXAMPLES and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < MOST_KIB


def write_rows(place: Path, suffix: str) -> Path:
    """The rows in the format of the suffix."""
    file = place / f"train{suffix}"
    if suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), file)
        return file
    rows = [json.dumps(row) for row in ROWS]
    text = ("[" + ",\n".join(rows) + "]" if ".json" in suffix and "jsonl" not in suffix else "\n".join(rows)).encode()
    file.write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
    return file


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet"])
def test_a_damaged_data_file_gives_good_rows_or_is_named(tmp_path, suffix):
    ends: Counter[str] = Counter()
    for number in range(EXAMPLES):
        rng = generator(f"data{suffix}", FIRST_SEED * 1_000_003 + number)
        place = tmp_path / f"data{number}"
        place.mkdir()
        file = write_rows(place, suffix)
        (place / "card.yaml").write_text(CARD + f"splits: {{train: train{suffix}}}\n")
        if suffix == ".json.gz":
            file.write_bytes(gzip.compress(swapped(gzip.decompress(file.read_bytes()), rng)))
            kind = "swapped"
        else:
            kind = damage(file, rng)

        def load():
            split = load_split(read_card(place / "card.yaml"), "train", str(place))  # noqa: B023
            assert split.problems
            for problem in split.problems:
                assert isinstance(problem.prompt, str) and isinstance(problem.gold, str)

        try:
            ends[end := outcome(load, place)] += 1
        except Exception as error:
            error.add_note(f"damage {number}: {kind} of {file.name}")
            raise
        log(f"data file {suffix}, {kind}", end)
        shutil.rmtree(place)
    print(suffix, dict(ends))
    assert ends.total() == EXAMPLES and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < MOST_KIB
