"""Settings of a judge: a language model behind an OpenAI-compatible endpoint that scores responses."""

from __future__ import annotations

from dataclasses import dataclass

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
    score_range: list[float] = option(
        [0.0, 10.0], "the scores that give reward 0 and reward 1; scores beyond the two are unparseable"
    )
    right_from: float = option(1.0, "least reward, after judge.weight, of a right response", gt=0, le=1)
    weight: float = option(
        1.0,
        "share of the judge in the reward; the verifier has the rest; 0: the judge alone decides where the verifier "
        "can read no answer, and is not asked elsewhere",
        ge=0,
        le=1,
    )
    request: list[str] = option(
        ["max_tokens=512", "temperature=0"],
        "NAME=VALUE: fields of a request beside its model, messages and schema, such as reasoning_effort=low; a list "
        "of your own takes the place of both",
    )
    max_concurrency: int = option(32, "requests under way at once, of each process", ge=1)
    seconds: float = option(60.0, "time by the clock of one try, of up to six with growing pauses", gt=0)
    cache: str = option("~/.cache/fr3e_jax/judge", "folder of answers by the hash of their request; none is paid twice")

    @property
    def enabled(self) -> bool:
        """true if there is a judge."""
        return bool(self.model)

    @property
    def alone(self) -> bool:
        """true if no verifier is called beside the judge."""
        return self.weight == 1
