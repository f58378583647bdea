"""Dataset cards, found by name or path. A card is a short YAML file that says where a dataset's files are.

It also says how a row becomes a problem. The cards of the known datasets are in ``configs/data``.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from pathlib import Path

from fr3e_jax.configuration import ConfigError
from fr3e_jax.data.card_file import Card, SplitCard, nearest, read_card
from fr3e_jax.data.fields import FieldRule
from fr3e_jax.data.formats import NO_ROWS, find_files, read_file
from fr3e_jax.data.formats import SUFFIXES as ROW_SUFFIXES
from fr3e_jax.data.jsonl import local_file
from fr3e_jax.hub import SCHEME
from fr3e_jax.shipped_files import root

FOLDER = Path("configs") / "data"
SUFFIXES = (".yaml", ".yml")
_SEEN_ROWS = 20  # of a file without a card, to find its columns
COLUMNS = (("question", "prompt", "problem", "messages"), ("answer", "gold"))  # of a file of rows without a card


def load_named(name: str, default_split: str, root: str = "") -> tuple[Card, str]:
    """The card and split of an entry of ``data.train`` or ``data.eval``: ``CARD``, ``CARD/SPLIT`` or a file of rows.

    ``root`` is the folder of a file of rows (``data.root``), which needs no card.

    The dataset's id on the Hugging Face hub (``openai/gsm8k``) stands for the card whose files are there. An entry
    without a split means ``default_split`` and no other, so a forgotten word never trains on a test set.

    Raises:
      ConfigError: there is no such card or split, or the card has a mistake.
    """
    if name.removesuffix(".gz").endswith(tuple(ROW_SUFFIXES)):
        return _of_rows(name, root), default_split
    base, split = _separate(name)
    path = Path(name).expanduser()
    if (path.is_file() and not name.endswith(SUFFIXES)) or (path.is_dir() and base not in card_names()):
        what = "is a folder" if path.is_dir() else "has a suffix that no reader knows"
        raise ConfigError(f"{name} {what}; expected a file of rows ({', '.join(ROW_SUFFIXES)}) or a dataset card")
    base, split = _of_the_hub(name) or (base, split)
    card, split = read_card(card_path(base)), split or default_split
    if split not in card.splits:
        choices = ", ".join(f"{base}/{name}" for name in card.splits)
        raise ConfigError(f"{name}: {card.path} has no split {split!r}; expected {choices}")
    return card, split


def _of_rows(name: str, root: str) -> Card:
    """A card for a file of rows with usual columns, graded as mathematics; both splits are the file.

    Answers may be lists of alternatives, end after ``####`` as those of GSM8K, or be boxed.

    Raises:
      ConfigError: the file does not exist, is empty, or has other columns.
    """
    dropped: Counter[str] = Counter()
    try:
        (path, *_) = find_files([name], root, f"the entry {name}")
        rows = list(itertools.islice(read_file(path, "auto", dropped), _SEEN_ROWS))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(str(error)) from error
    if not rows:
        raise ConfigError(f"{path} {NO_ROWS if dropped else 'is empty; expected rows'}")
    columns = {str(column).lower(): str(column) for row in rows for column in row}
    question, answer = (next((columns[name] for name in names if name in columns), "") for names in COLUMNS)
    if not question or not answer:
        raise ConfigError(
            f"{path} has the columns {', '.join(columns.values())}; expected question, prompt, problem or messages and "
            "answer or gold, or a dataset card that names others (docs/users/own_data.md)"
        )
    gold = next((row[answer] for row in rows if row.get(answer)), "")
    hashes, boxed = "#### " in str(gold), "\\boxed" in str(gold)
    golds = FieldRule(
        answer, unwrap_list=isinstance(gold, list), after_last="#### " * hashes, last_boxed=boxed and not hashes
    )
    rules = {"question": FieldRule(question), "answer": golds}
    if "solution" in columns:
        rules["solution"] = FieldRule(columns["solution"])
    elif hashes or boxed:
        rules["solution"] = FieldRule(answer, remove="<<.*?>>")
    split = SplitCard(files=(str(path.resolve()),), fields=rules)
    stem = re.sub(r"[^\w.-]", "_", path.name.removesuffix(".gz").rpartition(".")[0])
    return Card(path=path, name=stem, verifier="math", splits={"train": split, "test": split})


def _of_the_hub(name: str) -> tuple[str, str] | None:
    """The card and split of ``OWNER/NAME`` or ``OWNER/NAME/SPLIT``, an id on the hub of a card's files; else None."""
    owner, _, rest = name.partition("/")
    repository, _, split = rest.partition("/")
    if not repository or owner in card_names():
        return None
    files = {f"{SCHEME}{owner}/{repository}{end}" for end in "/@"}
    for card in card_names():
        splits = read_card(card_path(card)).splits.values()
        if any(pattern.startswith(tuple(files)) for each in splits for pattern in each.files):
            return card, split
    return None


def _separate(name: str) -> tuple[str, str]:
    file = re.match(r"(.*?\.ya?ml)(?:/([^/]*))?$", name)
    base, _, split = (file[1], "", file[2] or "") if file else name.partition("/")
    return base, split


def folders() -> list[Path]:
    """The folders that are searched for a card's name: configs/data of the working directory, then the package's."""
    shipped = root()
    return [FOLDER, shipped / FOLDER] if shipped else [FOLDER]


def card_names() -> list[str]:
    """The names of all cards that are found without a path."""
    return sorted({path.stem for folder in folders() for path in folder.glob("*.y*ml")})


def card_path(name: str) -> Path:
    """The file of a card, given by name or by path; raises ConfigError if there is none."""
    if name.endswith(SUFFIXES):
        path = local_file(name)
        if not path.is_file():
            raise ConfigError(f"no dataset card {name}; give the path of a YAML file, or the name of a card")
        return path
    for folder in folders():
        for suffix in SUFFIXES:
            if (folder / f"{name}{suffix}").is_file():
                return folder / f"{name}{suffix}"
    names = card_names()
    places = " or ".join(map(str, folders()))
    raise ConfigError(f"no dataset card {name!r} in {places}; {nearest(name, names)}, or give a path to a YAML file")
