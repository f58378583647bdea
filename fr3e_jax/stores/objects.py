"""The objects below one address of an object store, through fsspec: whole objects are read, written and deleted."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.+)")
_NOT_OURS = ("hf", "http", "https")  # the hub has its own way in; the web cannot be listed
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "s3a": "s3fs", "abfs": "adlfs", "az": "adlfs"}
_SMALL = 2**25  # bytes
_LACKS_BUCKET = re.compile(r"specified (bucket|container) does not exist")
_PROBE = ".fr3e_probe"
TRIES = 3  # of a request
SECONDS = 20.0  # that an answer is awaited
SLOWEST = 2**20  # bytes a second of a transfer, which is awaited for longer


class StoreFailed(OSError):
    """An object store refused a request or could not be reached."""


@contextlib.contextmanager
def store_of(setting: str) -> Iterator[None]:
    """A block whose `StoreFailed` names the setting that gave the address."""
    try:
        yield
    except StoreFailed as error:
        raise StoreFailed(f"{setting}: {error}") from error


FileState = list
"""The size of a file, and a text or number that changes with its content."""


def is_remote(path: str | os.PathLike) -> bool:
    """True if a text is an address in an object store, and no path of a folder or file."""
    match = _ADDRESS.fullmatch(path) if isinstance(path, str) else None
    return match is not None and match["scheme"] not in _NOT_OURS


def why_unusable(address: str) -> str:
    """The reason why ``address`` cannot be used here, with the way out; "" if it can. The store is not called."""
    import fsspec  # takes a fifth of a second, which only those pay who use a store

    scheme = address.partition("://")[0]
    try:
        fsspec.get_filesystem_class(scheme)
    except ValueError:
        return f"nothing here opens {scheme}://; set gs://, s3://, another address that fsspec opens, or a folder"
    except ImportError:
        package = _PACKAGES.get(scheme, f"the package of fsspec for {scheme}://")
        return f"{scheme}:// needs a package that is not installed; run pip install {package}, or set a folder"
    return ""


def join(address: str, *names: str) -> str:
    return "/".join([address.rstrip("/"), *names])


class Store:
    """The objects below one address; their names are relative to it.

    An answer is awaited for a limited time. A request that fails is repeated after a pause, with a line on stderr,
    unless the service refuses it.

    Raises (all methods):
      StoreFailed: the store refused the request or cannot be reached; the message names the address and the reason.

    Attributes:
      tries: of a request; one prints no line.
    """

    def __init__(self, address: str) -> None:
        import fsspec

        self.address, self.tries = address.rstrip("/"), TRIES
        scheme = self.address.partition("://")[0]
        options = {"use_listings_cache": False} | _options(scheme, fsspec.config.conf.get(scheme, {}))
        try:
            self._files, self._root = fsspec.core.url_to_fs(self.address, **options)
        except Exception as error:  # each service raises its own
            raise self._failure("open", "", error) from error
        if scheme in ("s3", "s3a"):
            self._files.retries = 1  # it would try five times without a word

    def read(self, name: str) -> bytes | None:
        """The content of an object; None if there is none of that name."""
        try:
            return self._ask("read", name, "cat_file", self._path(name))
        except FileNotFoundError as error:
            if _LACKS_BUCKET.search(str(error)):
                raise self._failure("read", name, error) from error
            return None

    def write(self, name: str, content: bytes) -> None:
        """Put an object in one piece: readers find the old one or the new one."""
        self._put(name, len(content), "pipe_file", self._path(name), content)

    def upload(self, name: str, path: Path) -> None:
        """Put a file; a large one goes in parts, and the object appears after the last of them."""
        size = path.stat().st_size
        if size <= _SMALL:  # may grow meanwhile, which some services refuse
            self.write(name, path.read_bytes())
        else:
            self._put(name, size, "put_file", str(path), self._path(name))

    def _put(self, name: str, size: int, method: str, *arguments: Any) -> None:
        try:
            self._ask("write", name, method, *arguments, size=size)
        except FileNotFoundError as error:  # of the bucket: a new object needs no other
            raise self._failure("write", name, error) from error

    def check_writable(self) -> None:
        """Put an object and delete it, so that a bucket that is missing or read-only is named at once."""
        self.write(_PROBE, b"")
        self.delete([_PROBE])

    def download(self, name: str, path: Path, size: int = 0) -> None:
        """Get an object of this size into a file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            self._ask("read", name, "get_file", self._path(name), str(temporary), size=size)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; one that is gone already is no error."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                self._ask("delete", name, "rm_file", self._path(name))

    def below(self, folder: str = "") -> dict[str, FileState]:
        """The states of all objects in a folder, or of the object of that name; "": all."""
        objects = self._ask("list", folder, "find", self._path(folder), detail=True)
        return {
            path[len(self._root) :].lstrip("/"): [int(state.get("size") or 0), _tag(state)]
            for path, state in objects.items()
        }

    def matching(self, pattern: str) -> list[str]:
        """The names of the objects that a glob matches, in order."""
        objects = self._ask("list", pattern, "glob", self._path(pattern), detail=True)
        return sorted(path[len(self._root) :].lstrip("/") for path, state in objects.items() if state["type"] == "file")

    def folders(self) -> list[str]:
        """The names of the folders right below the address."""
        try:
            items = self._ask("list", "", "ls", self._root, detail=True)
        except FileNotFoundError:
            return []
        return sorted(item["name"].rstrip("/").rpartition("/")[2] for item in items if item["type"] == "directory")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _ask(self, action: str, name: str, method: str, *arguments: Any, size: int = 0, **options: Any) -> Any:
        """The answer to a request, which moves ``size`` bytes.

        Raises:
          FileNotFoundError: there is no such object.
        """
        seconds = SECONDS + size / SLOWEST
        for attempt in range(1, self.tries + 1):
            try:
                if not self._files.async_impl:
                    return getattr(self._files, method)(*arguments, **options)
                from fsspec.asyn import sync

                coroutine = getattr(self._files, f"_{method}")
                return sync(self._files.loop, coroutine, *arguments, timeout=seconds, **options)
            except FileNotFoundError:
                raise
            except Exception as error:
                silent = isinstance(error, TimeoutError) and not str(error)
                failure = self._failure(
                    action, name, TimeoutError(f"no answer in {seconds:.0f} s") if silent else error
                )
                if attempt == self.tries or isinstance(error, PermissionError | TypeError | ValueError):
                    raise failure from error
                pause = 2 ** (attempt - 1)
                print(f"fr3e: {failure}; trying again in {pause} s", file=sys.stderr, flush=True)
                time.sleep(pause)
        raise AssertionError("there is a last try")

    def _failure(self, action: str, name: str, error: Exception) -> StoreFailed:
        reason = " ".join(str(error).split())[:200]
        return StoreFailed(
            f"cannot {action} {join(self.address, name) if name else self.address} ({type(error).__name__}: "
            f"{reason}); check the address, the credentials and the network"
        )


def _options(scheme: str, configured: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a service; ``configured``: the user's, from files or variables that fsspec reads."""
    if scheme in ("s3", "s3a"):
        retries = {"retries": {"total_max_attempts": 2}}
        return {"config_kwargs": retries | configured.get("config_kwargs", {})}
    return {"auto_mkdir": True} if scheme == "file" else {}


def _tag(state: dict[str, Any]) -> str:
    """Whatever of these a service gives: they change with the content, where it gives them."""
    tags = (state.get(key) for key in ("ETag", "etag", "generation", "md5Hash", "LastModified", "mtime", "created"))
    return next((str(tag) for tag in tags if tag), "")
