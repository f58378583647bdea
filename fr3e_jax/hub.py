"""Models and datasets by their id on the Hugging Face hub: ``owner/name``, or ``owner/name@revision``.

They are fetched into the hub's own cache (``HF_HOME``); what the cache has is used where the hub cannot be reached. A
folder wins over an id, and an address in an object store is fetched. It lies beside the rooms and imports none but
`stores`; `huggingface_hub` is imported when an id is met.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fr3e_jax.model_folder import correction
from fr3e_jax.shipped_files import existing
from fr3e_jax.stores.copies import fetched_folder
from fr3e_jax.stores.objects import is_remote

SCHEME = "hf://datasets/"
"""Begins the address of a dataset's files: ``hf://datasets/openai/gsm8k/main/*.parquet``."""
MODEL_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "merges.txt", "vocab.txt"),
    *("*.model", "*.tiktoken"),
)
"""What is fetched of a model: configuration, tokenizer, chat template and weights."""
_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_NO_OWNERS = ("runs", "configs", "warm_starts", "checkpoints")  # folders of ours, there or not
_INDEX = "model.safetensors.index.json"


def is_id(text: str) -> bool:
    """Return whether a text names a repository of the hub: no such folder exists, nor one that it would lie in."""
    owner = text.split("/")[0]
    free = not existing(text).exists() and not Path(owner).exists() and owner not in _NO_OWNERS
    return free and _ID.fullmatch(text) is not None


def model_directory(name: str, setting: str = "model.path") -> Path:
    """The directory of a model or tokenizer that a setting names, fetched if it is an id.

    Raises:
      FileNotFoundError: it is neither a directory nor an id of the hub, or the hub and its cache do not give it.
    """
    if is_remote(name):
        return _from_store(name, setting)
    directory = existing(name)
    if directory.is_dir():
        return directory
    if is_id(name):
        return _fetched("model", name, MODEL_FILES, setting)
    meant = correction(name, setting)
    raise FileNotFoundError(
        f"{setting}={name} is no directory; expected a Hugging Face directory (config.json, safetensors, tokenizer), "
        "such as `fr3e sft` writes, an id of its hub (Qwen/Qwen2.5-0.5B), or nothing for "
        + ("random weights" if setting == "model.path" else "the model's own")
        + f"; {meant}" * bool(meant)
    )


def _from_store(address: str, setting: str) -> Path:
    try:
        return fetched_folder(address)
    except OSError as error:
        raise FileNotFoundError(f"{setting}: {error}") from error


def pinned(name: str, setting: str = "model.path") -> str:
    """An id with the commit that it stands for, ``owner/name@commit``, so that a run says what it began from.

    Any other text comes back as it is.

    Raises:
      FileNotFoundError: see `model_directory`.
    """
    if not name or not is_id(name):
        return name
    return f"{name.partition('@')[0]}@{model_directory(name, setting).name}"


def dataset_files(url: str, owner: str) -> list[Path]:
    """The files of a dataset on the hub, in the order of their names; none if no file of it matches.

    Args:
      url: ``hf://datasets/OWNER/NAME[@REVISION]/PATTERN``.
      owner: who asks, for messages.

    Raises:
      FileNotFoundError: the hub and its cache do not give them, or the address has another form.
    """
    match = re.fullmatch(rf"{SCHEME}({_ID.pattern})/(?P<pattern>.+)", url)
    if match is None:
        raise FileNotFoundError(f"{owner}: {url} is no address of the hub; expected {SCHEME}OWNER/NAME/PATTERN")
    folder = _fetched("dataset", match[1], (match["pattern"],), owner)
    return sorted(path for path in folder.glob(match["pattern"]) if path.is_file())


def split_files(repository: str, configuration: str, split: str, suffixes: tuple[str, ...], owner: str) -> list[Path]:
    """The files of a split of a dataset on the hub: their names begin with it, or they lie in a folder of its name.

    Args:
      repository: ``OWNER/NAME[@REVISION]``.
      configuration: the folder that has the split; "": any.
      split: its name.
      suffixes: of files of rows; the first of which there are files is taken.
      owner: who asks, for messages.

    Raises:
      FileNotFoundError: the hub and its cache do not give them, or it has none.
    """
    places = [f"{configuration}/"] if configuration else ["", "*/"]
    starts = [f"{place}{split}{rest}" for place in places for rest in ("*", "/*")]
    folder = _fetched("dataset", repository, tuple(f"{start}{end}*" for start in starts for end in suffixes), owner)
    files = sorted(path for start in starts for path in folder.glob(start) if path.is_file())
    for end in suffixes:
        if matching := [path for path in files if path.name.removesuffix(".gz").endswith(end)]:
            return matching
    raise FileNotFoundError(
        f"{owner}: the dataset has no files of rows named after the split {split}; name them, "
        f"{SCHEME}{repository}/PATTERN"
    )


@functools.lru_cache(maxsize=64)
def _fetched(kind: str, name: str, patterns: Sequence[str], asker: str) -> Path:
    """The folder of a snapshot in the cache, with the files of these patterns."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    parts = _ID.fullmatch(name)
    assert parts is not None  # callers have looked
    repository, revision = parts["repo"], parts["revision"]
    download = {"repo_type": kind, "revision": revision, "allow_patterns": list(patterns)}
    where = f"{asker}: {name}" if kind == "dataset" else f"{asker}={name}"
    if revision and _COMMIT.fullmatch(revision) and (cached := _cached(repository, download, kind)):
        return cached  # a commit does not change
    if not constants.HF_HUB_OFFLINE:
        notice = f"fr3e: {where} is no folder here; asking the Hugging Face hub for the {kind}"
        print(notice, file=sys.stderr, flush=True)
    command = f"hf download {repository}" + (" --repo-type dataset" if kind == "dataset" else "")
    command += f" --revision {revision}" if revision else ""
    login = "log in with `hf auth login`, or set HF_TOKEN"
    try:
        folder = Path(snapshot_download(repository, **download))
    except GatedRepoError:
        raise FileNotFoundError(
            f"{where}: the hub gives it only to those who have accepted its terms; accept them on its page and {login}"
        ) from None
    except RevisionNotFoundError:
        raise FileNotFoundError(f"{where}: the hub has no revision {revision} of it; leave out @{revision}") from None
    except RepositoryNotFoundError:
        raise FileNotFoundError(
            f"{where} is no folder here, and the hub has no such {kind}, or not for you; check the spelling"
            f"{_nearest(kind, repository)}; if it is private, {login}"
        ) from None
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        if cached := _cached(repository, download, kind):
            return cached
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"{where} is no folder here, the hub cannot be reached ({reason}) and its cache lacks it"
            f"{_nearest(kind, repository)}; where there is a network, run `{command}` (into the cache, HF_HOME) or "
            f"`{command} --local-dir DIR` and name DIR"
        ) from None
    if kind == "model" and (missing := _missing(folder)):
        raise FileNotFoundError(
            f"{where}: the cache ({folder}) lacks {missing}, and the hub did not give it; run `{command}` again"
        )
    return folder


def _nearest(kind: str, repository: str) -> str:
    """The most similar id in the cache, for a message; "" without one."""
    from huggingface_hub import constants

    names = (
        path.name.partition("--")[2].replace("--", "/", 1) for path in Path(constants.HF_HUB_CACHE).glob(f"{kind}s--*")
    )
    nearest = difflib.get_close_matches(repository, names, n=1, cutoff=0.7)
    return f" (it has {nearest[0]})" if nearest else ""


def _cached(repository: str, download: dict, kind: str) -> Path | None:
    """The snapshot in the cache if it is whole."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(repository, **download, local_files_only=True))
    except OSError:
        return None
    return folder if kind == "dataset" or not _missing(folder) else None


def _missing(folder: Path) -> str:
    """The first file that a model's snapshot lacks, or ""."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if not (folder / _INDEX).is_file():
        return "" if any(folder.glob("*.safetensors")) else "its weights as safetensors"
    try:
        shards = set(json.loads((folder / _INDEX).read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"a readable {_INDEX}"
    return next((name for name in sorted(shards) if not (folder / name).is_file()), "")
