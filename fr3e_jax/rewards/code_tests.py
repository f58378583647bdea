"""The forms in which data sets give the tests of a program, read into one: code to run, or pairs of input and output.

docs/users/code_execution.md lists the forms. Tests that cannot be read are an error, never a reward.
"""

from __future__ import annotations

import ast
import base64
import builtins
import functools
import json
import pickletools
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PREFIXES = ("test", "check")  # of functions that are called; pytest's convention, and HumanEval's
_FORMS = (
    "code (asserts, check(candidate), pytest functions, unittest classes), a list of asserts, or pairs of "
    '"input" and "output" ("inputs" and "outputs")'
)
MOST_UNPACKED = 2**28  # bytes
_PACKED = re.compile(r"eJ|eN|eA|eF")  # base64 of the beginning of zlib's data
_TEXTS = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_OF_A_TEXT = _TEXTS | {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "STOP"}
_SAME = """
def _listed(value):
    return [_listed(item) for item in value] if isinstance(value, (list, tuple)) else value

def check(candidate):
"""


class UnusableTests(ValueError):
    """The tests of a problem have no form that is read, or test nothing."""


@dataclass(frozen=True)
class Tests:
    """The tests of a program.

    Attributes:
      source: code that makes the checks, or defines functions and classes that do; "" for ``pairs``.
      functions: top-level functions of ``source`` to call: nobody calls them there.
      classes: top-level classes of ``source``, in which tests may be.
      names: that ``source`` uses and nothing in it defines: the program's.
      pairs: input and expected output of the program, run by itself.
      entry_point: the function that the tests ask for; "" if they call functions by their names.
    """

    source: str = ""
    functions: Sequence[str] = ()
    classes: Sequence[str] = ()
    names: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = field(default=())
    entry_point: str = ""


def tests_text(tests: Any, setup: Any = "") -> str:
    """The tests of a data row as one text; ``setup`` is code before them.

    Raises:
      UnusableTests: they are no text, list or mapping.
    """
    if isinstance(tests, Mapping) or (isinstance(tests, list | tuple) and any(not isinstance(t, str) for t in tests)):
        try:
            return json.dumps(tests)
        except (TypeError, ValueError) as error:
            raise UnusableTests(f"the tests cannot be read ({error}); expected {_FORMS}") from error
    if not isinstance(tests, str | list | tuple):
        raise UnusableTests(f"the tests are {tests!r}; expected {_FORMS}")
    if isinstance(tests, str) and _PACKED.match(tests):
        tests = _unpacked(tests)
    before = _joined(setup or "")
    if isinstance(tests, str) and (content := _json(tests)) is not None:
        if not before or not _is_texts(content):
            return tests
        tests = content
    return f"{before}\n{_joined(tests)}" if before else _joined(tests)


@functools.lru_cache(maxsize=64)
def _unpacked(text: str) -> str:
    """The JSON that LiveCodeBench packs into a row: base64 of zlib of a pickled text.

    The pickle is parsed and never run: it may hold one text and nothing else.

    Raises:
      UnusableTests: it is something else, or larger than `MOST_UNPACKED`.
    """
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b64decode(text), MOST_UNPACKED)
        if not unpacking.eof:
            raise ValueError(f"they are cut off, or longer than {MOST_UNPACKED:,} bytes")
        if content[:1] != b"\x80":  # no pickle: the JSON itself
            return content.decode()
        operations = [(opcode.name, value) for opcode, value, _ in pickletools.genops(content)]
        if unknown := {name for name, _ in operations} - _OF_A_TEXT:
            raise ValueError(f"their pickle holds more than a text ({', '.join(sorted(unknown))})")
        (unpacked,) = [value for name, value in operations if name in _TEXTS]
        return unpacked
    except (ValueError, zlib.error) as error:
        raise UnusableTests(f"the packed tests cannot be read ({error}); expected {_FORMS}") from error


def read_tests(text: str, entry_point: str = "") -> Tests:
    """The tests in a text of `tests_text`.

    Raises:
      UnusableTests: they are no Python and no JSON of a known form, or there are none.
    """
    content = _json(text)
    if content is None:
        return _of_code(text, entry_point)
    if _is_texts(content):
        return _of_code(_joined(content), entry_point)
    cases, name, is_wrapped = _cases(content)
    if not cases:
        raise UnusableTests(f"the tests are the JSON {text[:80]}; expected {_FORMS}")
    if name is not None:
        return _of_calls(cases, name or entry_point, is_wrapped)
    pairs = [(_joined(source), _joined(expected)) for source, expected in cases]
    if not any(expected.strip() for _, expected in pairs):
        raise UnusableTests("no test expects an output, so that an empty program would pass; expected some")
    return Tests(pairs=pairs)


def _json(text: str) -> Any:
    """The list or object of a JSON text; None for any other text, which is code."""
    if text.lstrip()[:1] not in ("[", "{"):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_texts(content: Any) -> bool:
    return isinstance(content, list | tuple) and all(isinstance(line, str) for line in content)


def _joined(lines: Any) -> str:
    if not isinstance(lines, str) and not _is_texts(lines):
        raise UnusableTests(f"the tests hold {lines!r:.80}; expected a text or a list of texts there")
    return lines if isinstance(lines, str) else "\n".join(lines)


def _cases(content: Any) -> tuple[list[tuple[Any, Any]], str | None, bool]:
    """Pairs of input and output, the function to call ("": the entry point; None: a program that reads and prints).

    The last value says whether an expected result may be in a list of its own, as in APPS.
    """
    if isinstance(content, dict) and {"inputs", "outputs"} <= content.keys():
        inputs, outputs = content["inputs"], content["outputs"]
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise UnusableTests("the tests have inputs and outputs of different number; expected one output an input")
        return list(zip(inputs, outputs, strict=True)), content.get("fn_name") or None, True
    rows = [content] if isinstance(content, dict) else content
    if not all(isinstance(row, dict) and {"input", "output"} <= row.keys() for row in rows):
        return [], None, False
    kinds = {row.get("testtype", "stdin") for row in rows}
    if kinds == {"functional"}:
        return [(_values(row["input"]), _values(row["output"])[0]) for row in rows], "", False
    return [(row["input"], row["output"]) for row in rows], None, False


def _values(text: Any) -> list[Any]:
    """The values of LiveCodeBench's texts, one JSON value a line."""
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()] or [None]
    except (AttributeError, ValueError) as error:
        raise UnusableTests(f"a functional test holds {text!r:.80}; expected one JSON value a line") from error


def _of_calls(cases: list[tuple[Any, Any]], name: str, is_wrapped: bool) -> Tests:
    if not name:
        raise UnusableTests("functional tests name no function; expected fn_name in them, or extra.entry_point")
    lines = []
    for arguments, expected in cases:
        values = list(arguments.values()) if isinstance(arguments, dict) else arguments
        if not isinstance(values, list):
            raise UnusableTests(f"a functional test has the input {values!r:.80}; expected a list of arguments")
        accepted = f"({expected!r}, {expected[0]!r})" if is_wrapped and _is_single(expected) else f"({expected!r},)"
        lines.append(f"    assert _listed(candidate(*{values!r})) in {accepted}")
    return Tests(_SAME + "\n".join(lines), functions=("check",), entry_point=name)


def _is_single(expected: Any) -> bool:
    return isinstance(expected, list) and len(expected) == 1


def _of_code(source: str, entry_point: str) -> Tests:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnusableTests(f"the tests are no Python ({error}); expected {_FORMS}") from error
    if not any(isinstance(node, ast.Assert | ast.Call | ast.Raise) for node in ast.walk(tree)):
        raise UnusableTests(f"the tests check nothing; expected {_FORMS}")
    called = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return Tests(
        source,
        functions=[name for name in functions if name.startswith(PREFIXES) and name not in called],
        classes=[node.name for node in tree.body if isinstance(node, ast.ClassDef)],
        names=sorted(_missing_names(tree)),
        entry_point=entry_point,
    )


def _missing_names(tree: ast.Module) -> set[str]:
    """The names that the tests use and do not define; a star import of the program defines none."""
    used: set[str] = set()
    made = {"__file__", "__name__"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.ExceptHandler):
            made.add(node.name or "")
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            made.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
    return used - made - set(vars(builtins))


def last_function(code: str, *, unfinished: bool) -> str:
    """The last top-level function of a program, or the last one without a body; "" if there is none."""
    try:
        nodes = [node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    names = [node.name for node in nodes if not unfinished or all(map(_is_filler, node.body))]
    return names[-1] if names else ""


def _is_filler(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
