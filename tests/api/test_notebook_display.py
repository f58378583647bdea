"""What a notebook shows: well-formed HTML with the figures of each token, in which hostile texts do nothing."""

import math
from xml.etree import ElementTree

import numpy as np
import pytest
from reported_runs import HOSTILE, byte_tokenizer

from fr3e_jax.api.notebook_display import answer_html, answers_html, run_html, tokens_html, tree_html
from fr3e_jax.api.policy import Completion, Completions, ScoredResponse, State, States
from fr3e_jax.api.trainer import TrainingResult


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    codec = byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))

    def make(prompt, text, fork=0, **fields):
        ids = np.array(codec.encode(text), np.int32)
        logprobs, entropies = -np.arange(len(ids)) / 8, np.arange(len(ids)) / 4
        return Completion(prompt, text, ids, logprobs, entropies, True, fork, _codec=codec, **fields)

    return make


def parsed(content):
    """The elements of the HTML, which is also XML."""
    return ElementTree.fromstring(f"<div>{content.replace('<br>', '')}</div>")


def text_of(content):
    return "".join(parsed(content).itertext())


def test_each_token_has_its_figures_and_characters_of_several_tokens_are_whole(answer):
    shown = parsed(answer("1+1=", "2é😀!", fork=1)._repr_html_())
    spans = {span.text: span.get("title") for span in shown.iter("span")}
    assert list(spans) == ["2", "é", "😀", "!"]
    assert spans["é"] == "token 1: log-prob -0.125, entropy 0.25 nats"
    assert spans["!"] == "token 7: log-prob -0.875, entropy 1.75 nats"
    (pale,) = [span.text for span in shown.iter("span") if "opacity" in span.get("style")]
    assert pale == "2"
    assert "8 tokens, branched at token 1" in "".join(shown.itertext())


@pytest.mark.parametrize("text", [*HOSTILE, "\ud800", "<b", "a & b", '" onmouseover="alert(1)'])
def test_hostile_texts_do_nothing(text):
    shown = (
        answer_html(text, tokens_html([text, text], [0.0, 0.0], [math.nan, math.inf])),
        answers_html([(text, [])]),
        tree_html("", [(0.5, text, [])]),
        run_html([(text, text)], {text: {text: [(0, 1.0), (1, None), (2, math.nan)]}}),
    )
    for content in shown:
        tags = {node.tag for node in parsed(content).iter()}
        assert tags <= {"div", "span", "b", "table", "tr", "td", "svg", "polyline"}
        assert "\x1b" not in content and "\u202e" not in content


def test_answers_stand_under_their_questions_and_states_make_a_tree(answer):
    answers = Completions([answer("1+1", "2"), answer("1+1", "3"), answer("2+2", "4")])
    content = answers._repr_html_()
    assert content.count("<b ") == 2 and text_of(content).index("3") < text_of(content).index("2+2")
    base = answer("1+1", "2+0")
    states = States(base, [State(1, "+", 0.5, [answer("1+1", "2-0", fork=1)]), State(2, "0", 0.1, [])])
    tree = text_of(states._repr_html_())
    assert tree.index("2+0") < tree.index("token 1 '+', entropy 0.5 nats") < tree.index("token 2 '0'")
    assert len(states) == 2 and states[0].fork == 1
    assert repr(states[0]) == "State(token 1 '+', entropy 0.5 nats, 1 completion)"
    assert repr(base) == "Completion('1+1': '2+0', 3 tokens)"
    assert repr(ScoredResponse(*[np.ones(2)] * 3)) == "ScoredResponse(2 tokens, log-prob 2, mean entropy 1 nats)"
    many = Completions([answer("1+1", "2")] * 70)
    assert "… 6 more answers" in text_of(many._repr_html_())
    assert "… 500 more tokens" in tokens_html(["a"] * 2500, [0.0] * 2500, [0.0] * 2500)


def test_a_run_shows_its_lines_and_curves(tmp_path):
    history = [{"step": n, "reward/mean": reward} for n, reward in enumerate((0.25, None, 0.5), 1)]
    evaluations = [{"step": 0, "greedy": 0.0, "prompts": 8}, {"step": 3, "greedy": 0.75, "prompts": 8}]
    result = TrainingResult(tmp_path, "finished", history, evaluations, None)
    shown = text_of(result._repr_html_())
    assert "finished after 3 steps" in shown and "reward/mean 0.25 → 0.5" in shown and "greedy 0 → 0.75" in shown
    assert "report.html" not in shown and "prompts" not in shown
    (tmp_path / "report.html").touch()
    assert "report.html" in text_of(result._repr_html_())
    empty = TrainingResult(tmp_path, "stopped", [], [], None)
    assert "svg" not in empty._repr_html_() and "stopped after 0 steps" in empty._repr_html_()
