"""The objects below one address of an object store, through fsspec: whole objects are read, written and deleted."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.+)")
_NOT_OURS = ("hf", "http", "https")  # the hub has its own way in; the web cannot be listed
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "s3a": "s3fs", "abfs": "adlfs", "az": "adlfs"}
_SMALL = 2**25  # bytes
_OPTIONS: dict[str, dict[str, Any]] = {"file": {"auto_mkdir": True}}


class StoreFailed(OSError):
    """An object store refused a request or could not be reached."""


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

    Raises (all methods):
      StoreFailed: the store refused the request or cannot be reached; the message names the address and the reason.
    """

    def __init__(self, address: str) -> None:
        import fsspec

        self.address = address.rstrip("/")
        with self._explained("open", ""):
            scheme = self.address.partition("://")[0]
            options = {"use_listings_cache": False} | _OPTIONS.get(scheme, {})
            self._files, self._root = fsspec.core.url_to_fs(self.address, **options)

    def read(self, name: str) -> bytes | None:
        """The content of an object; None if there is none of that name."""
        with self._explained("read", name):
            try:
                return self._files.cat_file(self._path(name))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Put an object in one piece: readers find the old one or the new one."""
        with self._explained("write", name):
            self._files.pipe_file(self._path(name), content)

    def upload(self, name: str, path: Path) -> None:
        """Put a file; a large one goes in parts, and the object appears after the last of them."""
        if path.stat().st_size <= _SMALL:  # may grow meanwhile, which some services refuse
            self.write(name, path.read_bytes())
            return
        with self._explained("write", name):
            self._files.put_file(str(path), self._path(name))

    def download(self, name: str, path: Path) -> None:
        """Get an object into a file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with self._explained("read", name):
                self._files.get_file(self._path(name), str(temporary))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; one that is gone already is no error."""
        for name in names:
            with self._explained("delete", name), contextlib.suppress(FileNotFoundError):
                self._files.rm_file(self._path(name))

    def below(self, folder: str = "") -> dict[str, FileState]:
        """The states of all objects in a folder, or of the object of that name; "": all."""
        with self._explained("list", folder):
            objects = self._files.find(self._path(folder), detail=True)
        return {
            path[len(self._root) :].lstrip("/"): [int(state.get("size") or 0), _tag(state)]
            for path, state in objects.items()
        }

    def matching(self, pattern: str) -> list[str]:
        """The names of the objects that a glob matches, in order."""
        with self._explained("list", pattern):
            objects = self._files.glob(self._path(pattern), detail=True)
        return sorted(path[len(self._root) :].lstrip("/") for path, state in objects.items() if state["type"] == "file")

    def folders(self) -> list[str]:
        """The names of the folders right below the address."""
        with self._explained("list", ""):
            try:
                items = self._files.ls(self._root, detail=True)
            except FileNotFoundError:
                return []
        return sorted(item["name"].rstrip("/").rpartition("/")[2] for item in items if item["type"] == "directory")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextlib.contextmanager
    def _explained(self, action: str, name: str) -> Iterator[None]:
        try:
            yield
        except (StoreFailed, FileNotFoundError):
            raise
        except Exception as error:  # each service raises its own
            reason = " ".join(str(error).split())[:200]
            raise StoreFailed(
                f"cannot {action} {join(self.address, name) if name else self.address} ({type(error).__name__}: "
                f"{reason}); check the address, the credentials and the network"
            ) from error


def _tag(state: dict[str, Any]) -> str:
    """Whatever of these a service gives: they change with the content, where it gives them."""
    tags = (state.get(key) for key in ("ETag", "etag", "generation", "md5Hash", "LastModified", "mtime", "created"))
    return next((str(tag) for tag in tags if tag), "")
