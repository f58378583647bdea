"""A tool whose calls the tiny untrained policy happens to make, and requests that show it."""

from __future__ import annotations

from fr3e_jax.configuration.schema import ToolsConfig
from fr3e_jax.loop.processes import Processes
from fr3e_jax.loop.requests import Branch, Sampling, TrunkRequest
from fr3e_jax.loop.tool_calls import Toolbox
from fr3e_jax.tools.answer import Answer
from fr3e_jax.tools.tool import Tool

BEGIN, END, AFTER = "5", "5", "3="  # what the tiny policy writes often, and what makes it write more of that
CAP, MOST_CALLS, MOST_TOKENS = 16, 2, 3  # one size of rings
QUESTIONS = ["1+2=", "33=", "4*5=", "9/3=", "17%=", "9/9/3="]
ALONE = Processes()


def reply(call: str) -> Answer:
    """Of another length for each call; beyond three tokens it is cut."""
    return Answer("+-*/.%"[: len(call) % 6], "answered" if len(call) % 6 else "error")


def toolbox_of(session, processes=ALONE, max_calls=MOST_CALLS, **changes) -> Toolbox:
    tool = Tool(**{"run": reply, "begin": BEGIN, "end": END, "before": "(", "after": AFTER, "at_once": True} | changes)
    config = ToolsConfig(max_calls=max_calls, max_output_tokens=MOST_TOKENS, seconds=1.0)
    return Toolbox(tool, config, session.codec, session.architecture.vocab_size, session.engine.programs, processes)


def requests_of(session, cap: int = CAP) -> list[TrunkRequest]:
    """A greedy answer and three samples of each question."""
    ids = [session.prompt_ids(question) for question in QUESTIONS]
    how = lambda m: Sampling(float(m > 0), stop_ids=session.codec.stop_ids)
    return [
        TrunkRequest(prompt, [Branch(len(prompt), (0, 1, i, m), cap - i % 3, how(m)) for m in range(4)])
        for i, prompt in enumerate(ids)
    ]
