"""Exploratory reasoning: pivotal tokens and reflective actions, with their entropy.

(Cheng et al. 2025, section 2.)

Dimension key: R responses, T tokens of all of them, S sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fr3e_jax.studies.analysis.behaviours import Behaviours
from fr3e_jax.studies.analysis.figure import Figure, Number, Series, TextTable
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis
from fr3e_jax.studies.analysis.responses import Responses, thirds

MOST_RESPONSES = 4_000  # whose sentences are read


@dataclass(frozen=True)
class Sentence:
    """A sentence of a response: its tokens in the columns, and its text."""

    response: int
    start: int
    stop: int
    text: str


def pieces(material: Material, responses: Responses) -> dict[int, str]:
    """The text of each token id that occurs, as it stands within a text: some tokenizers drop a leading space."""
    codec, texts = material.codec, {}
    for token in np.unique(responses.tokens).tolist():
        alone, twice = codec.decode([token]), codec.decode([token, token])
        texts[token] = twice[len(alone) :] if twice.startswith(alone) else alone
    return texts


def sentences_of(response: int, span: slice, texts: Sequence[str], behaviours: Behaviours) -> list[Sentence]:
    """The sentences of a response. A token belongs to the sentence in which its last character stands.

    ``texts``: the text of each of its tokens; tokens without text, such as the stop token, belong to no sentence.
    """
    text = "".join(texts)
    ends = [match.end() for match in behaviours.sentence_end.finditer(text)]
    ends = [*ends, len(text)] if not ends or ends[-1] < len(text) else ends
    after = np.cumsum([len(piece) for piece in texts])
    sentences, token, begin = [], 0, 0
    for end in ends:
        last = token
        while last < len(texts) and after[last] <= end and (texts[last] or last == token):
            last += 1
        if last > token and text[begin:end].strip():
            sentences.append(Sentence(response, span.start + token, span.start + last, text[begin:end].strip()))
        token, begin = max(last, token), end
    return sentences


def _mean(values: np.ndarray) -> Number:
    return float(values.mean(dtype=np.float64)) if values.size else None


@analysis("rollouts and tokenizer", "Cheng et al. 2025, section 2, figures 2 and 8")
def pivotal_tokens(material: Material) -> TextTable:
    """Entropy and number of pivotal tokens by kind, and of all others, early and late."""
    responses = material.training
    behaviours = Behaviours.load(material.behaviours_file)
    kinds = ["other", *behaviours.pivotal]
    kind_of_id = np.zeros(int(responses.tokens.max()) + 1, np.int64)
    for token, text in pieces(material, responses).items():
        kind_of_id[token] = kinds.index(behaviours.kind_of(text) or "other")
    kind_of_token = kind_of_id[responses.tokens]
    if not kind_of_token[responses.counted].any():
        raise NothingToShow("no pivotal token occurs")
    rows: list[list[str | Number]] = []
    for name, steps in thirds(responses.step.tolist()).items():
        window = np.isin(responses.step, steps)
        mask = window[responses.owner] & responses.counted
        for i, kind in enumerate(kinds):
            entropies = responses.entropies[mask & (kind_of_token == i)]
            rows.append([name, kind, len(entropies), len(entropies) / int(window.sum()), _mean(entropies)])
    return TextTable(
        title="Pivotal tokens",
        columns=["steps", "kind", "tokens", "tokens a response", "mean entropy (nats)"],
        cells=rows,
        note=f"sampled tokens, each counted once; words of {_file(material)}; {responses.note}",
    )


@analysis("rollouts and tokenizer", "Cheng et al. 2025, section 2, figures 2 and 8")
def reflective_actions(material: Material) -> Figure:
    """Mean entropy of sentences that reflect and of the others, early and late.

    The mean of a sentence is over its tokens, that of the bars over sentences.
    """
    responses = material.training
    behaviours = Behaviours.load(material.behaviours_file)
    drawn = _draw(len(responses), MOST_RESPONSES, material.seed)
    sentences = _sentences(responses, drawn, pieces(material, responses), behaviours)
    reflects = np.array([behaviours.is_reflective(sentence.text) for sentence in sentences], bool)
    if not reflects.any():
        raise NothingToShow("no sentence matches a pattern of reflection")
    means = _entropies(responses, sentences)
    step = responses.step[[sentence.response for sentence in sentences]]
    windows = thirds(responses.step.tolist())
    of_window = [np.isin(step, steps) for steps in windows.values()]
    shares = [
        f"{name}: {(mask & reflects).sum() / max(1, np.isin(responses.step[drawn], steps).sum()):.3g} a response"
        for (name, steps), mask in zip(windows.items(), of_window, strict=True)
    ]
    return Figure(
        title="Entropy of reflective sentences",
        kind="bars",
        x_label="steps",
        y_label="mean entropy (nats)",
        series=[
            Series(name, list(windows), [_mean(means[mask & kind]) for mask in of_window])
            for name, kind in (("reflective", reflects), ("others", ~reflects))
        ],
        note=f"{'; '.join(shares)}; {len(drawn)} of {len(responses)} responses; patterns of {_file(material)}; "
        + responses.note,
    )


def _entropies(responses: Responses, sentences: Sequence[Sentence]) -> np.ndarray:
    """Mean token entropy of each sentence ``[S]``."""
    return np.array([responses.entropies[s.start : s.stop].mean(dtype=np.float64) for s in sentences])


def _sentences(
    responses: Responses, rows: Sequence[int] | np.ndarray, text_of: dict[int, str], behaviours: Behaviours
) -> list[Sentence]:
    """Sentences of these responses that begin after the shared prefix: each is counted once."""
    sentences: list[Sentence] = []
    for i in map(int, rows):
        span = responses.span(i)
        texts = [text_of[int(token)] for token in responses.tokens[span]]
        sentences += [s for s in sentences_of(i, span, texts, behaviours) if responses.counted[s.start]]
    return sentences


def _draw(count: int, most: int, seed: int) -> np.ndarray:
    """Seeded places among ``count``, at most ``most``, in order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng([seed, count]).choice(count, most, replace=False))


def _file(material: Material) -> str:
    return material.behaviours_file.name if material.behaviours_file else "the package"
