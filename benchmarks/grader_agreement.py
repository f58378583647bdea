"""Agreement of the grader with a file of graded pairs, and of Math-Verify with the same file.

    .venv/bin/python benchmarks/grader_agreement.py FILE.jsonl [FILE.jsonl ...] [--math-verify]

Each line is JSON with ``gold``, ``pred``, ``expected`` and the forms of the two texts: "bare" (the answer itself),
"delimited" (in dollars or a box, perhaps with a few words) or "response" (a whole text that the answer stands in).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

from fr3e_jax.answers import judge
from fr3e_jax.rewards.extraction import closed_boxes, first_turn
from fr3e_jax.verdict import Verdict

_FORMULA = re.compile(r"\$\$(?P<a>.+?)\$\$|\$(?P<b>(?:[^$\\]|\\.)+)\$|\\\((?P<c>.+?)\\\)|\\\[(?P<d>.+?)\\\]", re.DOTALL)
_ANNOUNCED = re.compile(
    r"(?:answer|result|solution|area)(?:\s+is|:|\s+equals)(?:\s+is)?:?\s*(.+?)(?:\.(?=\s|$)|\n|$|I hope)", re.IGNORECASE
)
_LAST_NUMBER = re.compile(
    r"(?<![\w.])-?\$?\d[\d,]*(?:\.\d+)?(?:/\d+)?\s*(?:\\?%|percent)?(?!\w)"
    r"|(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?=[a-z]{1,2}[²³]?(?!\w))"
)
_PROSE = re.compile(r"(?:\b[a-zA-Z']{2,}\b\s+(?:\d+\s+)?){4}")
_BETWEEN_BOXES = re.compile(r"\b(?:and|or)\b|,|;")


def loose_answer(text: str, form: str) -> str:
    """The answer in a text of a given form: its boxes, else what "the answer is" announces, else the last formula.

    For comparing with other graders only: training rewards read what the prompt asked for (``extract``).
    """
    text = first_turn(text)
    if "\\boxed" in text or "\\fbox" in text:
        boxed = _near_boxes(text)
        if boxed is not None:
            return boxed + ("%" if re.search(r"\}\$?\s*(?:percent|pct|\\?%)", text) and form == "delimited" else "")
    announced = _ANNOUNCED.findall(text)
    if announced:
        return _in_formula(announced[-1]) or _last_number(announced[-1])
    if form == "bare" and not _PROSE.search(text):
        return text
    return _in_formula(text) or _last_number(text)


def _near_boxes(text: str) -> str | None:
    """The last box and those shortly before it, which Math-Verify's cases take together."""
    boxes, found, start = closed_boxes(text), [], None
    for box in reversed(boxes):
        between = text[box[2] + 1 : start] if found else ""
        if len(between) >= 10 and not (len(between) < 30 and _BETWEEN_BOXES.search(between)):
            break
        found.append(text[box[1] : box[2]].strip())
        start = box[0]
    return ", ".join(dict.fromkeys(reversed(found))) if found else None


def _in_formula(text: str) -> str | None:
    """The last formula; all of the text where its formulas are joined by conjunctions, or followed by a unit."""
    formulas = list(_FORMULA.finditer(text))
    if not formulas:
        return None
    if _FORMULA.sub("", text).strip(" .").replace("and", "").replace("or", "").strip(" ,") == "":
        return text
    last = formulas[-1]
    rest = text[last.end() :]
    after = re.match(r"\s*(?:percent|pct|\\?%)", rest)
    if not after and _LAST_NUMBER.search(rest):
        return None  # a number outside of formulas comes later
    return (last["a"] or last["b"] or last["c"] or last["d"]) + (after[0] if after else "")


def _last_number(text: str) -> str:
    numbers = _LAST_NUMBER.findall(text)
    return numbers[-1] if numbers and re.search("[a-zA-Z]{3}", text) else text


def answers(case: dict) -> tuple[str, str]:
    """Gold answer and answer of a case of such a file."""
    gold, answer = (loose_answer(case[side], case.get(f"{side}_form", "bare")) for side in ("gold", "pred"))
    return (case["gold"] if case.get("gold_form", "bare") == "bare" else gold), answer


def graded(case: dict) -> Verdict:
    """Our verdict on a case."""
    return judge(*answers(case))


def math_verify(case: dict) -> Verdict:
    """Math-Verify's verdict on a case, with the same extraction."""
    import math_verify as peer

    configuration = (peer.LatexExtractionConfig(boxed_match_priority=0),)
    gold, answer = (
        peer.parse(rf"\boxed{{{text}}}", configuration, fallback_mode="no_fallback") for text in answers(case)
    )
    return Verdict(1.0, "right") if gold and answer and peer.verify(gold, answer) else Verdict(0.0, "wrong")


def report(name: str, grade: Callable[[dict], Verdict], cases: list[dict]) -> int:
    """Prints each disagreement of a grader and its share of agreement; returns the number of disagreements."""
    wrong = [(case, verdict) for case in cases if (verdict := grade(case)).right != case["expected"]]
    for case, verdict in wrong:
        print(
            f"{case.get('id', '')}: expected {case['expected']}, {verdict.outcome}: {case['gold']!r} / {case['pred']!r}"
        )
    share = 100 * (1 - len(wrong) / len(cases))
    print(f"{name}: {len(cases) - len(wrong)} of {len(cases)} agree ({share:.2f} %)")
    return len(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="JSON lines of graded pairs")
    parser.add_argument("--math-verify", action="store_true", help="grade the cases by Math-Verify, too")
    arguments = parser.parse_args()
    if arguments.math_verify and importlib.util.find_spec("math_verify") is None:
        parser.error("Math-Verify is not installed; install it: pip install 'math-verify[antlr4_13_2]==0.9.0'")
    cases = [json.loads(line) for file in arguments.files for line in file.read_text().splitlines() if line.strip()]
    disagreements = report("fr3e_jax", graded, cases)
    if arguments.math_verify:
        report("Math-Verify", math_verify, cases)
    sys.exit(bool(disagreements))


if __name__ == "__main__":
    main()
