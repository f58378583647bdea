"""The one loader of code that a setting names: ``FILE.py:NAME`` or ``package.module:NAME``.

Tasks, tools and verifiers come through here. It imports the standard library only, and lies beside the rooms: a worker
of the grader loads it at its start, without the half second that the settings take.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class CodeReference:
    """A name in a file or module, as ``setting`` gives it.

    Attributes:
      setting: the setting that names the code, for messages: ``data.task``.
      source: absolute path of a Python file, or the dotted name of a module.
      name: the function or class in it.
    """

    setting: str
    source: str
    name: str

    def __str__(self) -> str:
        return f"{self.source}:{self.name}"

    def load(self, expected: str) -> Callable[..., Any]:
        """Import the source and return the function or class. Errors raised inside of the source pass through.

        Args:
          expected: completes the message of an error: "a class or function".

        Raises:
          ValueError: there is no such module, it lacks the name, or the name is nothing that can be called.
        """
        try:
            module = import_source(self.source)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self.source}.".startswith(f"{error.name}."):
                raise  # the module exists, but one of its own imports does not
            raise ValueError(
                f"{self.setting} names the module {self.source}, but there is no module {error.name}; install it, put "
                "its folder on PYTHONPATH, or name a file instead: FILE.py:NAME"
            ) from None
        function = getattr(module, self.name, None)
        if not callable(function):
            problem = "has no such name" if function is None else f"has {function!r} there, which cannot be called"
            raise ValueError(f"{self.setting} is {str(self)!r}, but {self.source} {problem}; expected {expected}")
        return function


def parse_reference(text: str, setting: str, built_in: Iterable[str] = ()) -> CodeReference:
    """Read ``FILE.py:NAME`` (relative to the working directory) or ``package.module:NAME``; import nothing yet.

    Args:
      text: the value of the setting.
      setting: its name, for messages.
      built_in: the other values that the setting takes, for messages.

    Raises:
      ValueError: ``text`` has neither form.
      FileNotFoundError: there is no such file.
    """
    source, colon, name = text.rpartition(":")
    if not (source and colon and name.isidentifier()):
        close = difflib.get_close_matches(text, list(built_in), n=1)
        forms = ", ".join([*built_in, "FILE.py:NAME"]) + " or package.module:NAME"
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{setting} is {text!r}; expected {forms}{hint}")
    if not source.endswith(".py"):
        return CodeReference(setting, source, name)
    path = Path(source).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"{setting} names the file {source}, but {path} does not exist; give its path")
    return CodeReference(setting, str(path), name)


def import_source(source: str) -> ModuleType:
    """Import a Python file, given by its path, or a module. A file runs once per process and may import its neighbours.

    A file keeps its module when a process is forked, so what is pickled by name is found again on the other side.
    """
    if not source.endswith(".py"):
        return importlib.import_module(source)
    path = Path(source)
    name = f"fr3e_jax_user_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader  # a path that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
