"""Contradictions between settings of a judge."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from fr3e_jax.configuration.contradictions import Rules, is_range
from fr3e_jax.configuration.judge_section import JudgeConfig

EXAMPLE = "https://api.openai.com/v1, http://127.0.0.1:8000/v1"


def word_scores(words: list[str]) -> dict[str, float]:
    """The score of each word, as it is written.

    Raises:
      ValueError: an entry is not WORD=SCORE.
    """
    scores = {}
    for entry in words:
        word, _, score = entry.rpartition("=")
        try:
            scores[word.strip()] = float(score)
        except ValueError:
            raise ValueError(entry) from None
        if not word.strip():
            raise ValueError(entry)
    return scores


def _unreadable_word(judge: JudgeConfig) -> str:
    try:
        scores = word_scores(judge.words)
    except ValueError as error:
        return f"{str(error)!r}; set WORD=SCORE, such as CORRECT=10"
    least, most = judge.score_range
    beyond = [word for word, score in scores.items() if not least <= score <= most]
    return f"a score beyond judge.score_range for {beyond[0]!r}; set that" if beyond else ""


def _faulty_address(judge: JudgeConfig) -> str:
    try:
        parts = urlsplit(judge.base_url)
        hidden = parts.username or parts.password or parts.query
        if hidden or parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            return "has a name, a key or a query in it" if hidden else f"is {judge.base_url!r}"
    except ValueError:
        return "is no address"
    return ""


def _faulty_pattern(judge: JudgeConfig) -> str:
    try:
        groups = re.compile(judge.pattern).groups
    except re.error as error:
        return f"is no regular expression ({error}); set one with a group, such as 'score: (\\d+)'"
    if not judge.pattern or groups == 1:
        return ""
    return f"has {groups} groups; expected one, which holds the score; set 'score: (\\d+)'"


RULES: Rules = {
    "a_judge_has_an_address": (
        lambda c: c.judge.enabled and _faulty_address(c.judge),
        f"judge.base_url {{}}; set it to the address of the endpoint alone, up to /v1: {EXAMPLE}",
    ),
    "keys_are_named": (
        # The value may be a key, so no message shows it.
        lambda c: c.judge.key_variable and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", c.judge.key_variable),
        "judge.key_variable is no name of an environment variable; set the variable to the key and this to its name, "
        "such as judge.key_variable=OPENAI_API_KEY",
    ),
    "scores_have_a_range": (
        lambda c: not is_range(c.judge.score_range),
        "{judge.score_range} is no range; set the scores of reward 0 and of reward 1, as judge.score_range=[1,5]",
    ),
    "words_have_scores": (lambda c: _unreadable_word(c.judge), "judge.words has {}"),
    "the_score_is_a_group": (lambda c: _faulty_pattern(c.judge), "judge.pattern {}"),
    "a_judge_alone_calls_no_verifier": (
        lambda c: c.judge.enabled and c.judge.alone and c.data.verifier,
        "{data.verifier} is not called with {judge.weight}; set judge.weight=0.5 (or another share; 0: the judge has "
        "what the verifier cannot read), or data.verifier empty",
    ),
    "the_environment_is_the_judge": (
        lambda c: c.environment.enabled and c.judge.enabled,
        "{judge.model} is not asked with {environment.kind}, whose steps give the rewards; set judge.model empty and "
        "ask it in step()",
    ),
}
