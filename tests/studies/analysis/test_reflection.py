"""Pivotal tokens, reflective sentences and token clouds on a vocabulary of words."""

import numpy as np
import pytest
from analysed_runs import made_up_run, rollout

from fr3e_jax.configuration import ConfigError
from fr3e_jax.studies.analysis.behaviours import Behaviours
from fr3e_jax.studies.analysis.catalogue import analyse, findings
from fr3e_jax.studies.analysis.reflection import sentences_of

WORDS = ["", "", "First", ", we", " add", " because", " it", " is", ".", " Let", " us", " verify", " <b>", "\n", " so"]
FIRST, ADD, BECAUSE, DOT, VERIFY, SO = (
    WORDS.index(word) for word in ("First", " add", " because", ".", " verify", " so")
)


class WordCodec:
    """Decodes the words above."""

    def decode(self, ids, *, special_tokens=False):
        return "".join(WORDS[i] for i in ids)


class StrippingCodec(WordCodec):
    """Drops a leading space, as the decoders of SentencePiece do."""

    def decode(self, ids, *, special_tokens=False):
        return super().decode(ids).removeprefix(" ")


@pytest.fixture(params=[WordCodec, StrippingCodec])
def run(tmp_path, request):
    """Two steps: the second one verifies and says "so"; entropies are the token ids."""
    plain, verified = [FIRST, 3, ADD, DOT, 6, 7, BECAUSE, DOT, 1], [FIRST, ADD, DOT, 9, 10, VERIFY, 6, DOT, SO, 1]
    rollouts = [
        rollout(step, 0, base, True, tokens, entropies=[float(t) for t in tokens])
        for step, tokens in ((1, plain), (2, verified))
        for base in range(5)
    ]
    run = made_up_run(tmp_path / "run", rollouts=rollouts)
    run.__dict__["codec"] = request.param()
    return run


def test_a_token_belongs_to_the_sentence_in_which_it_ends():
    texts = ["One", ".", " Two", " three", "?", "", ""]
    found = sentences_of(0, slice(10, 17), texts, Behaviours.load())
    assert [(one.start, one.stop, one.text) for one in found] == [(10, 12, "One."), (12, 15, "Two three?")]
    joined = sentences_of(0, slice(0, 3), ["a.", " b. c", " d"], Behaviours.load())
    assert [(one.start, one.stop) for one in joined] == [(0, 1), (1, 3)]


def test_pivotal_tokens_are_counted_by_kind_and_third(run):
    (table,) = findings(run, only=["pivotal_tokens"])
    rows = {(row["steps"], row["kind"]): row for row in table.rows()}
    assert rows["step 1", "causal"]["tokens"] == 5 and rows["step 1", "causal"]["mean entropy (nats)"] == BECAUSE
    assert rows["step 2", "causal"]["mean entropy (nats)"] == SO and rows["step 2", "sequential"]["tokens"] == 5
    others = [3, ADD, DOT, 6, 7, DOT, 1]
    assert rows["step 1", "other"]["mean entropy (nats)"] == pytest.approx(np.mean(others))
    assert rows["step 1", "other"]["tokens a response"] == len(others)


def test_reflective_sentences_have_the_mean_entropy_of_their_tokens(run):
    (figure,) = findings(run, only=["reflective_actions"])
    reflective, others = figure.series
    assert list(reflective.x) == ["step 1", "step 2"] and reflective.y[0] is None
    assert reflective.y[1] == pytest.approx(np.mean([9, 10, VERIFY, 6, DOT]))
    assert others.y[1] == pytest.approx(np.mean([np.mean([FIRST, ADD, DOT]), SO]))
    assert "step 2: 1 a response" in figure.note


def test_a_file_replaces_the_words_and_a_wrong_one_costs_one_line(run, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("pivotal: {mine: [add]}\nreflective: ['because']\nsentence_end: '[.]'\n")
    (table, figure), _ = analyse([run], only=["pivotal_tokens", "reflective_actions"], behaviours_file=mine)
    assert {row["kind"] for row in table.rows()} == {"other", "mine"}
    assert figure.series[0].y[0] == pytest.approx(np.mean([6, 7, BECAUSE, DOT]))
    for wrong in ("pivotal: 3", "pivotal: {}\nreflective: ['(']\nsentence_end: x", "- a"):
        mine.write_text(wrong)
        with pytest.raises(ConfigError, match=r"mine.yaml cannot be read as behaviours .*expected pivotal"):
            Behaviours.load(mine)


def test_token_clouds_compare_frequencies_and_entropies(run):
    (table,) = findings(run, only=["token_clouds"])
    rows = {(row["change"], row["token"]): row for row in table.rows()}
    so, because = (run.codec.decode([token]) for token in (SO, BECAUSE))
    assert rows["rose", so]["late (of 1,000)"] == pytest.approx(1000 / 10)
    assert rows["fell", because]["early (of 1,000)"] == pytest.approx(1000 / 9)
    assert rows["fell", because]["late entropy (nats)"] is None
    assert not [change for change, _ in rows if change == "entropy fell"]  # a token's entropy is its id at both steps
