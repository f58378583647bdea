"""Settings of a judge: a language model behind an OpenAI-compatible endpoint that scores responses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fr3e_jax.configuration.options import option

JUDGE = "judge"
"""The name of a judge in messages, metrics and threads."""


@dataclass
class JudgeConfig:
    """A model behind an OpenAI-compatible endpoint that scores responses."""

    model: str = option("", "name of the judge's model at the endpoint; empty: no judge")
    base_url: str = option(
        "", "address of the endpoint, up to /v1: https://api.openai.com/v1, http://127.0.0.1:8000/v1"
    )
    key_variable: str = option(
        "", "NAME of the environment variable that holds the key, such as OPENAI_API_KEY; empty: no key is sent"
    )
    prompt: str = option(
        "",
        "text file of the judge's prompt, with {response} in it, and {question}, {gold} or columns of the data; empty: "
        "a grading prompt that asks for a score",
    )
    pattern: str = option(
        "",
        r"regular expression whose last match in the answer has the score as its group, such as 'score: (-?[\d.]+)'; "
        "empty: the answer is JSON, {reason, score} by a schema",
    )
    words: list[str] = option([], "WORD=SCORE: scores of answers that are words, such as CORRECT=10 and INCORRECT=0")
    least_score: float = option(0.0, "the score that gives reward 0")
    most_score: float = option(10.0, "the score that gives reward 1; scores beyond the two are unparseable")
    right_from: float = option(1.0, "least reward, after judge.weight, of a right response", gt=0, le=1)
    weight: float = option(1.0, "share of the judge in the reward; the verifier has the rest", gt=0, le=1)
    asks: Literal["all", "unread"] = option(
        "all", "responses that are judged: all, or those in which the verifier can read no answer"
    )
    request: list[str] = option(
        ["max_tokens=512", "temperature=0"],
        "NAME=VALUE: fields of a request beside its model, messages and schema, such as reasoning_effort=low; a list "
        "of your own takes the place of both",
    )
    max_concurrency: int = option(32, "requests under way at once, of each process", ge=1)
    seconds: float = option(60.0, "time of one try by the clock", gt=0)
    max_retries: int = option(
        5, "tries after the first one: on time-outs, lost connections, 429 and 5xx, with growing pauses", ge=0
    )
    cache: str = option("~/.cache/fr3e_jax/judge", "folder of answers by the hash of their request; none is paid twice")
    prompt_price: float = option(0.0, "dollars for a million tokens of prompts", ge=0)
    completion_price: float = option(0.0, "dollars for a million tokens of answers", ge=0)
    max_dollars: float = option(0.0, "dollars after which the run stops; 0: no cap", ge=0)

    @property
    def enabled(self) -> bool:
        """true if there is a judge."""
        return bool(self.model)

    @property
    def alone(self) -> bool:
        """true if no verifier is called beside the judge."""
        return self.weight == 1 and self.asks == "all"
