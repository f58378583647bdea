"""Dataset cards, found by name or path. A card is a short YAML file that says where a dataset's files are.

It also says how a row becomes a problem. The cards of the known datasets are in ``configs/data``.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fr3e_jax.configuration import ConfigError
from fr3e_jax.conversation import LISTS
from fr3e_jax.data.card_file import Card, SplitCard, nearest, read_card
from fr3e_jax.data.fields import FieldRule, Unusable, lookup, parse_path, unwrapped
from fr3e_jax.data.formats import NO_ROWS, Row, find_files, read_file
from fr3e_jax.data.formats import SUFFIXES as ROW_SUFFIXES
from fr3e_jax.data.jsonl import local_file
from fr3e_jax.hub import SCHEME, is_id, split_files
from fr3e_jax.shipped_files import root

FOLDER = Path("configs") / "data"
SUFFIXES = (".yaml", ".yml")
_SEEN_ROWS = 20  # of a file without a card, to find its columns
COLUMNS = {  # of a file of rows without a card; the first that it has is taken
    "question": ("question", "prompt", "problem", "query", *LISTS),
    "answer": ("answer", "gold", "ground_truth", "final_answer", "expected_answer", "answers", "target", "label")
    + ("reward_model.ground_truth", "extra_info.answer", "solution"),
    "solution": ("solution",),
    "system": ("system", "system_prompt"),
    "tools": ("tools",),
    "level": (),
    "subject": (),
}
CHOICES = ("choices", "choices.text", "options")  # lists of the answers that a question offers


def load_named(name: str, default_split: str, root: str = "", columns: Sequence[str] = ()) -> tuple[Card, str]:
    """The card and split of an entry of ``data.train`` or ``data.eval``: ``CARD``, ``CARD/SPLIT`` or a file of rows.

    The dataset's id on the Hugging Face hub (``openai/gsm8k``) stands for the card whose files are there, or for the
    files themselves: ``OWNER/NAME[@REVISION][/CONFIGURATION][/SPLIT]``. An entry without a split means
    ``default_split`` and no other, so a forgotten word never trains on a test set.

    Args:
      name: the entry.
      default_split: its split, if it names none.
      root: the folder of a file of rows (``data.root``), which needs no card.
      columns: ``NAME=PATH`` of rows without a card (``data.columns``).

    Raises:
      ConfigError: there is no such card or split, or the card has a mistake.
    """
    if name.removesuffix(".gz").endswith(tuple(ROW_SUFFIXES)):
        return _of_rows(name, root, columns), default_split
    base, split = _separate(name)
    path = Path(name).expanduser()
    if (path.is_file() and not name.endswith(SUFFIXES)) or (path.is_dir() and base not in card_names()):
        what = "is a folder" if path.is_dir() else "has a suffix that no reader knows"
        raise ConfigError(f"{name} {what}; expected a file of rows ({', '.join(ROW_SUFFIXES)}) or a dataset card")
    base, split = _of_the_hub(name) or (base, split)
    if is_id("/".join(name.split("/")[:2])) and not base.endswith(SUFFIXES) and not _is_card(base):
        return _of_repository(name, default_split, columns)
    card, split = read_card(card_path(base)), split or default_split
    if split not in card.splits:
        choices = ", ".join(f"{base}/{name}" for name in card.splits)
        raise ConfigError(f"{name}: {card.path} has no split {split!r}; expected {choices}")
    return card, split


def _is_card(name: str) -> bool:
    """Whether a name is that of a card, or nearly."""
    return bool(difflib.get_close_matches(name, card_names(), n=1, cutoff=0.75))


def _of_repository(name: str, default_split: str, columns: Sequence[str]) -> tuple[Card, str]:
    """A card for the rows of a dataset on the hub, whose files or their folders are named after splits.

    Raises:
      ConfigError: it has no such split, or the split of several configurations.
    """
    owner, repository, *rest = name.split("/")
    split, configuration = rest[-1] if rest else default_split, "/".join(rest[:-1])
    try:
        files = split_files(f"{owner}/{repository}", configuration, split, tuple(ROW_SUFFIXES), f"the entry {name}")
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from error
    folders = sorted({file.parent for file in files})
    if len(folders) > 1:
        among = ", ".join((folder.parent if folder.name == split else folder).name for folder in folders)
        raise ConfigError(f"{name} has the split {split} in {among}; name one: {owner}/{repository}/FOLDER/{split}")
    start = "" if folders[0].name == split else split
    pattern = f"{folders[0].absolute()}/{start}*{files[0].suffix}"
    card = _of_rows(pattern, "", columns, repository.partition("@")[0])
    return replace(card, path=Path(owner, repository), splits={split: card.splits["train"]}), split


def _columns(entries: Sequence[str]) -> dict[str, str]:
    """Paths by field, of ``data.columns``; raises ConfigError for an entry that is none."""
    paths = {}
    for entry in entries:
        field, _, path = entry.partition("=")
        try:
            parse_path(path)
        except ValueError as error:
            raise ConfigError(f"data.columns has {entry!r}: {error}") from error
        if field not in COLUMNS:
            raise ConfigError(f"data.columns has {entry!r}; {nearest(field, COLUMNS)}")
        paths[field] = path
    return paths


def _of_rows(pattern: str, root: str, columns: Sequence[str], name: str = "") -> Card:
    """A card for files of rows, graded as mathematics or multiple choice; all splits are the files.

    Answers may be lists of alternatives, end after ``####`` as those of GSM8K, or be boxed. Lists of
    `CHOICES` follow the questions.

    Args:
      pattern: the files.
      root: their folder.
      columns: see `load_named`.
      name: of the card; "": that of the file.

    Raises:
      ConfigError: no file exists, the first is empty, or has neither the columns of `COLUMNS` nor those of ``columns``.
    """
    dropped: Counter[str] = Counter()
    try:
        path, *others = find_files([pattern], root, f"the entry {pattern}")
        rows = list(itertools.islice(read_file(path, "auto", dropped), _SEEN_ROWS))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError(str(error)) from error
    if not rows:
        raise ConfigError(f"{path} {NO_ROWS if dropped else 'is empty; expected rows'}")
    chosen = _columns(columns)
    paths = {field: _found(names, rows) for field, names in COLUMNS.items()} | chosen
    for field in ("question", "answer"):
        if paths[field] and any(lookup(row, paths[field]) is not None for row in rows):
            continue
        have = ", ".join(dict.fromkeys(str(column) for row in rows for column in row))
        if field in chosen:
            raise ConfigError(f"{path} has the columns {have}, and no value at data.columns=[{field}={chosen[field]}]")
        raise ConfigError(
            f"{path} has the columns {have}; expected the {field} in one of {', '.join(COLUMNS[field])}, or name its "
            f"column: data.columns=[{field}=NAME]"
        )
    answer = paths["answer"]
    golds = [value for row in rows if (value := lookup(row, answer))]
    gold, are_lists = next(iter(golds), ""), any(isinstance(value, list) for value in golds)
    hashes, boxed = "####" in str(gold).strip().rpartition("\n")[2], "\\boxed" in str(gold)  # no headings
    rules = {field: FieldRule(path) for field, path in paths.items() if path}
    rules["answer"] = FieldRule(
        answer, unwrap_list=are_lists, after_last="####" * hashes, last_boxed=boxed and not hashes
    )
    if "solution" not in rules and (hashes or boxed):
        rules["solution"] = FieldRule(answer, remove="<<.*?>>")
    offers = {path: sum(_offers(lookup(row, path)) for row in rows) for path in CHOICES}
    choices = max(CHOICES, key=offers.__getitem__)
    extra = {"choices": choices} if offers[choices] else {}
    verifier = "multiple_choice" if offers[choices] == len(rows) else "math"
    split = SplitCard(files=(str(pattern if others else path.absolute()),), fields=rules, extra=extra)
    stem = name or re.sub(r"[^\w.-]", "_", path.name.removesuffix(".gz").rpartition(".")[0])
    return Card(path=path, name=stem, verifier=verifier, splits={"train": split, "test": split})


def _offers(value: Any) -> bool:
    try:
        return len(unwrapped(value)) > 1
    except Unusable:
        return False


def _found(names: Sequence[str], rows: Sequence[Row]) -> str:
    """The path of the first of these columns, in any case of letters, that has a value in some row; else ""."""
    columns = {str(column).lower(): str(column) for row in rows for column in row}
    for name in names:
        column, dot, inner = name.partition(".")
        path = columns.get(name) or columns.get(column, "") + dot + inner
        if {name, column} & columns.keys() and any(lookup(row, path) is not None for row in rows):
            return path
    return ""


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
