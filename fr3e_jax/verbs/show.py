"""``fr3e show``: what the policy said, prompt by prompt, from a run's stored rollouts."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import groupby
from typing import Literal

from fr3e_jax.cli.arguments import positive
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import run_to_read
from fr3e_jax.configuration import ConfigError
from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.studies.analysis.stored_run import StoredRun
from fr3e_jax.studies.analysis.verdicts import AnswerReader, answer_of, answer_reader, gold_of, reason
from fr3e_jax.visible_text import visible

LONGEST = 400  # characters of a text; --full shows all


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("run", metavar="RUN", help="directory of a run")
    parser.add_argument("--step", type=int, metavar="N", help="training step (default: the newest that is stored)")
    parser.add_argument("--problem", metavar="ID", help="only this problem, by the task's id")
    parser.add_argument("--prompts", type=positive, default=4, metavar="N", help="the first N prompts (default 4)")
    parser.add_argument("--eval", action="store_true", help="the responses of the evaluation after the step")
    parser.add_argument("--full", action="store_true", help=f"texts of more than {LONGEST} characters, too")


def run(arguments: argparse.Namespace) -> int:
    """Print the prompts with their responses; return the exit code.

    Raises:
      ConfigError: there is no run, no such step, or no such problem in it.
    """
    stored_run = StoredRun.open(run_to_read(arguments.run))
    stem: Literal["step", "eval"] = "eval" if arguments.eval else "step"
    stored = stored_run.steps(stem)
    if not stored:
        other = "step" if arguments.eval else "eval"
        nearest = f"; {'without' if arguments.eval else 'with'} --eval it has some" * bool(stored_run.steps(other))
        raise ConfigError(
            f"{stored_run.directory.path} has no stored rollouts{nearest}; expected a run that samples, with "
            "runtime.store_rollouts=true"
        )
    step = stored[-1] if arguments.step is None else arguments.step
    if step not in stored:
        raise ConfigError(f"{stored_run.directory.path} has no rollouts of step {step}; it has {_ranges(stored)}")
    records = stored_run.rollouts(step, stem)
    read, shown = answer_reader(stored_run.settings), 0
    for (_, problem), responses in groupby(records, key=lambda record: (record.prompt_position, record.problem_id)):
        if arguments.problem in (None, problem) and shown < arguments.prompts:
            shown += 1
            of_prompt = list(responses)
            for record in of_prompt if not stored_run.has_advantages else ():
                record.advantage = None
            for line in prompt_lines(of_prompt, None if arguments.full else LONGEST, read):
                print(line)
    if not shown:
        raise ConfigError(f"step {step} has no rollout of problem {arguments.problem!r}; `--prompts 1` shows an id")
    return 0


def prompt_lines(records: list[RolloutRecord], longest: int | None, read: AnswerReader) -> Iterator[str]:
    """The lines of one prompt: its text, then each response, and below a base the rollouts from its states.

    ``read`` finds the answer in a response (`fr3e_jax.studies.analysis.verdicts.answer_reader`).
    """
    first = records[0]
    gold = f", gold {_cut(gold_of(first), longest)}" if first.gold else ""
    yield f"{first.problem_id} (step {first.step}{gold}): {_cut(first.prompt, longest)}"
    state = None
    for record in records:
        if record.kind == "state":
            if record.state_id != state:
                state = record.state_id
                value = "" if record.value is None else f", V {record.value:.2f}"
                yield f"    S_{record.state} after {record.fork} tokens{value}: {_cut(record.prefix, longest)}"
            yield f"      {_figures(record, read)}  | {_cut(record.response, longest)}"
        else:
            name = "greedy" if record.kind == "eval" and record.base == 0 else f"{record.kind} {record.base}"
            yield f"  {name:<8} {_figures(record, read)}  {_cut(record.response, longest)}"
    yield ""


def _figures(record: RolloutRecord, read: AnswerReader) -> str:
    """Reward, outcome and advantage; of a response that is not right, the answer and the reason of its verdict."""
    advantage = "" if record.advantage is None else f" {record.advantage:+.2f}"
    cut = "" if record.finished else " (cut)"
    outcome = (record.outcome or "").replace("_", " ")
    answer = answer_of(record, read)
    why = reason(record, answer) if record.outcome != "right" else ""
    stated = f"{_cut(answer, 40)}: " if answer and why else ""
    return f"{record.reward:.2f} {outcome}{advantage}{cut}{f' [{stated}{why}]' if why else ''}"


def _cut(text: str, longest: int | None) -> str:
    """The text on one line, its middle left out if it is long."""
    text = visible(text.replace("\n", "\\n"))
    if longest is None or len(text) <= longest:
        return text
    return f"{text[: longest // 2]} ... {text[-longest // 2 :]}"


def _ranges(steps: list[int]) -> str:
    return f"{steps[0]} to {steps[-1]}" if steps == list(range(steps[0], steps[-1] + 1)) else ", ".join(map(str, steps))


VERB = Verb("fr3e show runs/demo-20250101-120000 --step 10 --prompts 2", declare, run, recipe=False)
