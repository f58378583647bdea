"""The answer in a response, and the reason of its verdict."""

import pytest

from fr3e_jax.rewards.verifier import OUTCOMES
from fr3e_jax.runs.rollout_store import RolloutRecord
from fr3e_jax.studies.analysis.verdicts import REASONS, answer_of, answer_reader, gold_of, reason


@pytest.mark.parametrize(
    ("settings", "text", "answer"),
    [
        ({"data.task": "order"}, "3+8-5>1-5>6", "6"),
        ({"data.task": "order"}, "3+8-5>", None),
        ({"data.task": "datasets"}, r"so \boxed{\frac12} it is", r"\frac12"),
        ({"data.task": "datasets"}, "it is 5", None),
        ({"data.task": "datasets"}, "Answer: 5", "5"),
        ({"data.task": "datasets", "data.template": "qwen_boxed"}, "Answer: 5", None),
        ({"data.task": "datasets", "data.template": "dapo"}, "\\boxed{4}\nAnswer: 5", "5"),
        ({"data.task": "datasets", "data.template": "gone"}, "Answer: 5", "5"),
        ({"data.task": "datasets"}, "2+2=4\n#### 4", "4"),
        ({"data.task": "char_count", "data.template": "chat"}, "a = a\n\\boxed{1}", "1"),
        ({"data.task": "mine.py:Task"}, "first\nlast \n", "last"),
        ({"data.task": "mine.py:Task", "environment.kind": "task"}, "first\nlast \n", None),
        ({"data.task": "mine.py:Task", "environment.kind": "none"}, "", None),
    ],
)
def test_final_answer_is_read_where_the_task_asks_for_it(settings, text, answer):
    assert answer_reader(settings)(text) == answer


def record(outcome, *, response="5+1>7", gold="6", finished=True, **more):
    fields = more | {
        "reward": 0.0,
        "finished": finished,
        "base": 0,
        "outcome": outcome,
        "gold": gold,
        "response": response,
    }
    numbers = {"prompt_ids": [1], "token_ids": [1], "logprobs": [0.0], "entropies": [0.0]}
    return RolloutRecord(id="a", step=1, kind="base", prompt_position=0, problem_id="p", **numbers, **fields)


@pytest.mark.parametrize(
    ("stored", "answer", "phrase"),
    [
        (record("wrong"), "7", "not the gold answer"),
        (record("wrong", response="5>6"), "6", "the answer is the gold one, but the verifier asks for more"),
        (record("wrong", response="5>6", finished=False), "6", "; the length cap ended it"),
        (record("wrong", response="x>"), None, "the verifier rejects it"),
        (record("no_answer"), None, "no answer in the place that the prompt asks for"),
        (record("no_answer", finished=False), None, "the length cap ended it before an answer"),
        (record("timeout"), "7", "not done at its deadline"),
        (record(None, response=""), None, ""),
        (record("wrong", gold="6 + 1 =\n#### 7"), "7", "the answer is the gold one"),
        (record("wrong", gold=r"$\boxed{7}$"), "7", "the answer is the gold one"),
        (record("wrong", turns=[[1.0, 0.0]]), "7", "the environment gave it reward 0"),
    ],
)
def test_reason_says_why_a_response_has_its_verdict(stored, answer, phrase):
    read = answer_reader({"data.task": "order"})
    assert answer_of(stored, read) == answer and phrase in reason(stored, answer)


def test_every_outcome_has_a_reason_and_a_problem_without_gold_has_none():
    assert set(REASONS) == set(OUTCOMES) and gold_of(record("wrong", gold="")) == ""
