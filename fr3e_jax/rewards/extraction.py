r"""The answer in a response, in time linear in its length; and the gold answer in a row of a dataset.

Only the form that the prompt asked for counts: a model that was asked for ``\boxed`` and does not write it has not
answered, however many numbers its text contains.
"""

from __future__ import annotations

import ast
import re
from typing import Literal, get_args

Extraction = Literal["boxed", "answer_line", "boxed_or_hashes"]
EXTRACTIONS: tuple[str, ...] = get_args(Extraction)

# The marks by which released models end a turn or begin another one.
_END_OF_TURN = re.compile(
    r"<\|(?:im_(?:end|start|sep)|end[a-z_]*|eo[smt][a-z_]*|start_(?:header_id|of_role)|return|user|assistant|system)\|>"
    r"|</s>|<(?:end|start)_of_turn>|<eos>|<｜(?:end▁of▁sentence|User|Assistant)｜>"
)
_BRACES = re.compile(r"\\{1,2}(?:boxed|fbox)\s*(?:(?P<open>\{)|(?P<bare>-?\d+|[a-zA-Z](?![a-zA-Z])))|\\[{}\\]|[{}]")
_ANSWER_LINE = re.compile(
    r"^[ \t]*(?:[-+*>#]+[ \t]+)*[*_]{0,3}(?:final[ \t]+)?answer[*_]{0,3}[ \t]*[:：]+(.*)$", re.MULTILINE | re.IGNORECASE
)
_NOTHING = re.compile(r"(?:\\[,;:! ]|\\q?quad|[\s~${}])*")
# Boxes joined by nothing but a conjunction are one answer: \boxed{3} and \boxed{4}.
_JOINT = re.compile(
    r"[\s$]*(?:\\[()\[\]])?[\s$]*(?:\\q?quad\s*)?(?:,|;|(?:,\s*)?(?:\\text\{)?\s*(?:and|or)\b\s*\}?)[\s$]*(?:\\q?quad\s*)?(?:\\[()\[\]])?[\s$]*"
)
_JOINTS = 20
_LOOKBACK = 60
_WRAPPINGS = (("$$", "$$"), ("$", "$"), ("\\[", "\\]"), ("\\(", "\\)"))


def extract(response: str, extraction: Extraction = "boxed") -> str | None:
    r"""The answer in ``response``, stripped; None if there is none, or an empty one.

    Args:
      extraction: "boxed": the last closed ``\boxed{...}`` or ``\fbox{...}``; "answer_line": the text after ``Answer:``
        in the last line that starts so (a box there is opened); "boxed_or_hashes": boxed, else the text after the
        last ``####``.

    Raises:
      ValueError: ``extraction`` is none of these.
    """
    finder = _FINDERS.get(extraction)
    if finder is None:
        raise ValueError(f"extraction is {extraction!r}; expected one of {sorted(_FINDERS)}")
    answer = finder(first_turn(response))
    return answer.strip() or None if answer is not None else None


def first_turn(response: str) -> str:
    """The text before the first end-of-turn marker; the text after it is another turn."""
    if "<" not in response:
        return response
    end = _END_OF_TURN.search(response)
    return response[: end.start()] if end else response


def last_boxed(text: str) -> str | None:
    r"""The content of the last closed ``\boxed{...}`` or ``\fbox{...}``, the innermost if boxed twice, or None.

    ``\boxed 4`` holds the number or letter that follows. Boxes with only a comma, "and" or "or" between them are one
    answer of several parts, joined by commas: ``\boxed{3} or \boxed{4}`` is not the answer 4. Empty boxes do not count.
    """
    boxes = [box for box in closed_boxes(text) if not _NOTHING.fullmatch(text, box[1], box[2])]
    if not boxes:
        return None
    if len(boxes) == 1:
        return _content(text, boxes[0])
    start, content = boxes[-1][0], [_content(text, boxes[-1])]
    for box in reversed(boxes[-_JOINTS:-1]):
        if box[2] > start or not _joint(text, box[2] + 1, start):
            break
        start, inner = box[0], _content(text, box)
        if inner != content[-1]:
            content.append(inner)
    return ", ".join(reversed(content))


def closed_boxes(text: str) -> list[tuple[int, int, int]]:
    """(start, start of the content, end of the content) of every closed box that holds no other, in order."""
    boxes: list[tuple[int, int, int]] = []
    open_braces: list[tuple[int, int] | None] = []
    starts = [start for command in ("\\boxed", "\\fbox") if (start := text.find(command)) >= 0]
    if not starts:
        return boxes
    for match in _BRACES.finditer(text, max(min(starts) - 1, 0)):  # text before the first box changes nothing
        piece = match[0]
        if piece == "{":
            open_braces.append(None)
        elif piece == "}":
            box = open_braces.pop() if open_braces else None
            if box is not None and not (boxes and boxes[-1][0] > box[0]):
                boxes.append((*box, match.start()))
        elif match["open"]:
            open_braces.append((match.start(), match.end()))
        elif match["bare"]:
            boxes.append((match.start(), match.start("bare"), match.end()))
    return boxes


def _content(text: str, box: tuple[int, int, int]) -> str:
    return text[box[1] : box[2]].strip()


def _joint(text: str, after: int, before: int) -> bool:
    between = text[after:before]
    return not between or (len(between) <= _LOOKBACK and _JOINT.fullmatch(between) is not None)


def _answer_line(text: str) -> str | None:
    lines = [line for line in (line.strip(" \t\r*_") for line in _ANSWER_LINE.findall(text)) if line]
    if not lines:
        return None
    line = lines[-1]
    boxed = last_boxed(line)
    return boxed if boxed is not None else line


def _boxed_or_hashes(text: str) -> str | None:
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    _, hashes, rest = text.rpartition("####")
    return rest.partition("\n")[0] if hashes else None


_FINDERS = {"boxed": last_boxed, "answer_line": _answer_line, "boxed_or_hashes": _boxed_or_hashes}


def readable_gold(text: str) -> str | None:
    r"""The gold answer without its wrapping; None if there is none.

    Opens a stringified list of one (``['9.6\n']``), ``\boxed{...}``, and dollars that surround the whole. A list of
    several becomes ``a, b``.
    """
    text = _unlisted(text.strip()).strip()
    boxed = last_boxed(text)
    if boxed is not None:
        text = boxed
    for opening, closing in _WRAPPINGS:
        inner = text[len(opening) : -len(closing)]
        wrapped = text.startswith(opening) and text.endswith(closing) and len(text) > 2 * len(opening)
        if wrapped and "$" not in inner and not inner.endswith("\\"):
            text = inner.strip()
    return text if text.strip("$ ") else None


def can_be_boxed(gold: str) -> bool:
    """Return whether a response can give this gold answer in a box: it is not empty, and its braces close."""
    readable = readable_gold(gold)
    return readable is not None and last_boxed(f"\\boxed{{{readable}}}") is not None


def _unlisted(text: str) -> str:
    if not (text.startswith(("['", '["')) and text.endswith(("']", '"]'))):
        return text
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return ", ".join(str(value).strip() for value in values)
