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
from fr3e_jax.studies.analysis.material import Material, NothingToShow
from fr3e_jax.studies.analysis.responses import Responses
from fr3e_jax.studies.analysis.success import thirds

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
    codec, found = material.codec, {}
    for token in np.unique(responses.tokens).tolist():
        alone, twice = codec.decode([token]), codec.decode([token, token])
        found[token] = twice[len(alone) :] if twice.startswith(alone) else alone
    return found


def sentences_of(response: int, span: slice, texts: Sequence[str], behaviours: Behaviours) -> list[Sentence]:
    """The sentences of a response. A token belongs to the sentence in which its last character stands.

    ``texts``: the text of each of its tokens; tokens without text, such as the stop token, belong to no sentence.
    """
    text = "".join(texts)
    ends = [match.end() for match in behaviours.sentence_end.finditer(text)]
    ends = [*ends, len(text)] if not ends or ends[-1] < len(text) else ends
    after = np.cumsum([len(one) for one in texts])
    found, token, begin = [], 0, 0
    for end in ends:
        last = token
        while last < len(texts) and after[last] <= end and (texts[last] or last == token):
            last += 1
        if last > token and text[begin:end].strip():
            found.append(Sentence(response, span.start + token, span.start + last, text[begin:end].strip()))
        token, begin = max(last, token), end
    return found


def _mean(values: np.ndarray) -> Number:
    return float(values.mean(dtype=np.float64)) if values.size else None


def pivotal_tokens(material: Material) -> TextTable:
    """Entropy and number of pivotal tokens by kind, and of all others, early and late.

    (Cheng et al. 2025, figures 2 and 8.)
    """
    responses = material.training
    behaviours = Behaviours.load(material.behaviours_file)
    kinds = ["other", *behaviours.pivotal]
    number_of = {
        token: kinds.index(behaviours.kind_of(text) or "other") for token, text in pieces(material, responses).items()
    }
    table = np.zeros(int(responses.tokens.max()) + 1, np.int64)
    table[list(number_of)] = list(number_of.values())
    of_token = table[responses.tokens]
    if not (of_token[responses.counted] > 0).any():
        raise NothingToShow("no pivotal token occurs")
    rows: list[list[str | Number]] = []
    for name, steps in thirds(responses.step.tolist()).items():
        window = np.isin(responses.step, steps)
        mask = window[responses.owner] & responses.counted
        for i, kind in enumerate(kinds):
            own = responses.entropies[mask & (of_token == i)]
            rows.append([name, kind, len(own), len(own) / int(window.sum()), _mean(own)])
    return TextTable(
        name="pivotal_tokens",
        title="Pivotal tokens",
        columns=["steps", "kind", "tokens", "tokens a response", "mean entropy (nats)"],
        cells=rows,
        source="Cheng et al. 2025, section 2, figures 2 and 8",
        note=f"sampled tokens, each counted once; words of {_file(material)}; {responses.note}",
    )


def reflective_actions(material: Material) -> Figure:
    """Mean entropy of sentences that reflect and of the others, early and late. (Cheng et al. 2025, figures 2 and 8.)

    The mean of a sentence is over its tokens, that of the bars over sentences.
    """
    responses = material.training
    behaviours = Behaviours.load(material.behaviours_file)
    text_of = pieces(material, responses)
    drawn = _draw(len(responses), MOST_RESPONSES, material.seed)
    sentences = _sentences(responses, drawn, text_of, behaviours)
    if not any(behaviours.is_reflective(one.text) for one in sentences):
        raise NothingToShow("no sentence matches a pattern of reflection")
    names, reflective, others, described = [], [], [], []
    for name, steps in thirds(responses.step.tolist()).items():
        own = [one for one in sentences if responses.step[one.response] in steps]
        means = np.array([responses.entropies[one.start : one.stop].mean(dtype=np.float64) for one in own])
        mask = np.array([behaviours.is_reflective(one.text) for one in own], bool)
        names.append(name)
        reflective.append(_mean(means[mask]))
        others.append(_mean(means[~mask]))
        count = sum(int(responses.step[i]) in steps for i in drawn)
        described.append(f"{name}: {mask.sum() / max(1, count):.3g} a response")
    return Figure(
        name="reflective_actions",
        title="Entropy of reflective sentences",
        kind="bars",
        x_label="steps",
        y_label="mean entropy (nats)",
        series=[Series("reflective", names, reflective), Series("others", names, others)],
        source="Cheng et al. 2025, section 2, figures 2 and 8",
        note=f"{'; '.join(described)}; {len(drawn)} of {len(responses)} responses; patterns of {_file(material)}; "
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


def rare_behaviours(material: Material) -> TextTable:
    """The sentences of the last third of training that lie farthest from those of the first step that was read.

    Cheng et al. 2025 call the 10 % of sentences rare whose mean distance to their nearest neighbours in the base
    policy's output is largest. They embed sentences with SBERT; here a sentence is its hashed token and pair counts, so
    that a rare sentence is rare in its words. The paper gives no number of neighbours; here it is 5.
    """
    responses = material.training
    behaviours = Behaviours.load(material.behaviours_file)
    steps = sorted(set(responses.step.tolist()))
    if len(steps) < 2:
        raise NothingToShow("needs two steps")
    last = list(thirds(steps).values())[-1]
    text_of = pieces(material, responses)
    parts = []
    for own in (steps[:1], last):
        rows = np.flatnonzero(np.isin(responses.step, own))
        rows = rows[_draw(len(rows), MOST_RESPONSES, material.seed)]
        found = _sentences(responses, rows, text_of, behaviours)
        parts.append([found[i] for i in _draw(len(found), MOST_SENTENCES, material.seed)])
    base, later = parts
    if not base or not later:
        raise NothingToShow("no sentences")
    features = [sentence_features([responses.tokens[one.start : one.stop] for one in part]) for part in parts]
    distance = distance_to_neighbours(features[1], features[0])
    order = np.argsort(-distance, kind="stable")
    size = max(1, round(RARE * len(later)))
    entropy = np.array([responses.entropies[one.start : one.stop].mean(dtype=np.float64) for one in later])
    rare, others = entropy[order[:size]], entropy[order[size:]]
    shown: dict[str, int] = {}
    for i in order[:size]:
        shown.setdefault(later[i].text, int(i))
    if distance[order[0]] < 1e-6:
        raise NothingToShow("every sentence occurs at the first step, too")
    cells: list[list[str | Number]] = [
        [text, float(distance[i]), float(entropy[i]), int(responses.step[later[i].response])]
        for text, i in shown.items()
    ]
    compared = f"mean entropy of rare sentences {rare.mean():.4g}" + (
        f", of the others {others.mean():.4g}" if others.size else ""
    )
    return TextTable(
        name="rare_behaviours",
        title="Rare sentences",
        columns=["sentence", "distance", "mean entropy (nats)", "step"],
        cells=cells[:SHOWN],
        source="Cheng et al. 2025, section 2, figures 2 and 3",
        note=f"{compared}; {size} of {len(later)} sentences are rare, against {len(base)} of step {steps[0]}; "
        f"distance of token counts in place of SBERT; {responses.note}",
    )


def _sentences(
    responses: Responses, rows: Sequence[int] | np.ndarray, text_of: dict[int, str], behaviours: Behaviours
) -> list[Sentence]:
    """Sentences of these responses that begin after the shared prefix: each is counted once."""
    found = []
    for i in (int(row) for row in rows):
        span = responses.span(i)
        texts = [text_of[int(token)] for token in responses.tokens[span]]
        found += [one for one in sentences_of(i, span, texts, behaviours) if responses.counted[one.start]]
    return found


def _draw(count: int, most: int, seed: int) -> np.ndarray:
    """Seeded places among ``count``, at most ``most``, in order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng([seed, count]).choice(count, most, replace=False))


def _file(material: Material) -> str:
    return material.behaviours_file.name if material.behaviours_file else "the package"
