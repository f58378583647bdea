"""Exploratory reasoning: pivotal tokens, reflective actions and rare behaviours, with their entropy.

(Cheng et al. 2025, section 2.)

Dimension key: R responses, T tokens of all of them, S sentences, B sentences of the base policy, H hashed features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fr3e_jax.studies.analysis.behaviours import Behaviours
from fr3e_jax.studies.analysis.figure import Figure, Number, Series, TextTable
from fr3e_jax.studies.analysis.material import Material, NothingToShow, analysis
from fr3e_jax.studies.analysis.responses import Responses, thirds

RARE = 0.1  # share of the sentences with the largest distance
NEIGHBOURS = 5  # nearest sentences of the base policy
FEATURES = 2048
MOST_SENTENCES = 2_000  # of each policy
MOST_RESPONSES = 4_000  # whose sentences are read
SHOWN = 20


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


def sentence_features(sentences: Sequence[np.ndarray]) -> np.ndarray:
    """Counts of the tokens and token pairs of each sentence, hashed, of length 1 → float32 ``[S, H]``."""
    features = np.zeros((len(sentences), FEATURES), np.float32)
    for i, tokens in enumerate(sentences):
        ids = tokens.astype(np.uint64) + np.uint64(1)
        pairs = ids[:-1] * np.uint64(2_654_435_761) + ids[1:] * np.uint64(40_503)
        places = np.concatenate(
            [ids * np.uint64(11_400_714_819_323_198_485), pairs * np.uint64(11_400_714_819_323_198_485)]
        )
        np.add.at(features[i], (places >> np.uint64(53)).astype(np.int64), 1.0)
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)


def distance_to_neighbours(features: np.ndarray, base: np.ndarray, neighbours: int = NEIGHBOURS) -> np.ndarray:
    """Mean cosine distance of each row ``[S, H]`` to its nearest rows of ``base`` ``[B, H]`` → ``[S]``."""
    nearest = np.sort(features @ base.T, axis=1)[:, -min(neighbours, len(base)) :]
    return 1.0 - nearest.mean(axis=1, dtype=np.float64)


@analysis("rollouts and tokenizer", "Cheng et al. 2025, section 2, figures 2 and 3")
def rare_behaviours(material: Material) -> TextTable:
    """The sentences of the last third of training that lie farthest from those of the first step that was read.

    The paper calls the 10 % of sentences rare whose mean distance to their nearest neighbours in the base policy's
    output is largest. It embeds sentences with SBERT; here a sentence is its hashed token and pair counts, so that a
    rare sentence is rare in its words. The paper gives no number of neighbours; here it is 5.
    """
    responses = material.training
    behaviours = Behaviours.load(material.behaviours_file)
    steps = sorted(set(responses.step.tolist()))
    if len(steps) < 2:
        raise NothingToShow("needs two steps")
    text_of = pieces(material, responses)

    def sentences_at(window: list[int]) -> list[Sentence]:
        rows = np.flatnonzero(np.isin(responses.step, window))
        rows = rows[_draw(len(rows), MOST_RESPONSES, material.seed)]
        sentences = _sentences(responses, rows, text_of, behaviours)
        return [sentences[i] for i in _draw(len(sentences), MOST_SENTENCES, material.seed)]

    base, later = sentences_at(steps[:1]), sentences_at(list(thirds(steps).values())[-1])
    if not base or not later:
        raise NothingToShow("no sentences")
    features = [
        sentence_features([responses.tokens[s.start : s.stop] for s in sentences]) for sentences in (later, base)
    ]
    distance = distance_to_neighbours(*features)
    order = np.argsort(-distance, kind="stable")
    if distance[order[0]] < 1e-6:
        raise NothingToShow("every sentence occurs at the first step, too")
    size = max(1, round(RARE * len(later)))
    entropy = _entropies(responses, later)
    shown: dict[str, int] = {}
    for i in order[:size].tolist():
        shown.setdefault(later[i].text, i)
    compared = f"mean entropy of rare sentences {entropy[order[:size]].mean():.4g}"
    if size < len(later):
        compared += f", of the others {entropy[order[size:]].mean():.4g}"
    cells: list[list[str | Number]] = [
        [text, float(distance[i]), float(entropy[i]), int(responses.step[later[i].response])]
        for text, i in shown.items()
    ]
    return TextTable(
        title="Rare sentences",
        columns=["sentence", "distance", "mean entropy (nats)", "step"],
        cells=cells[:SHOWN],
        note=f"{compared}; {size} of {len(later)} sentences are rare, against {len(base)} of step {steps[0]}; "
        f"distance of token counts in place of SBERT; {responses.note}",
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
