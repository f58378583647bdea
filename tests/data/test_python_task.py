"""Problems and rewards from a Python program."""

import json
import os
from decimal import Decimal

import numpy as np
import pytest

from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.python_task import AdaptedTask, PythonTask, PythonVerifier, read_problems
from fr3e_jax.data.task import load_task
from fr3e_jax.problem import Problem
from fr3e_jax.rewards.verifier import UserCodeError, exact_match

ROWS = [{"prompt": f"{n}+1=", "gold": n + 1, "hard": n > 5} for n in range(40)]


USER, SYSTEM = {"role": "user", "content": "1+1="}, {"role": "system", "content": "Add."}


class Indexed:
    """Rows that only have a length and take indices, as Grain's sources."""

    __iter__ = None

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, number):
        return ROWS[number]


def test_rows_of_every_kind_give_the_same_problems(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    expected = read_problems(ROWS, "problems")
    assert expected[3] == Problem("problems/3", "3+1=", "4", ROWS[3])
    assert read_problems(path, "problems") == read_problems(str(path), "problems") == expected
    assert read_problems(iter(ROWS), "problems") == expected
    source = type("Source", (), {"__len__": lambda s: len(ROWS), "__getitem__": lambda s, n: ROWS[n]})()
    assert read_problems(source, "problems") == expected


@pytest.mark.parametrize(
    "rows, message",
    [
        ([], "problems holds no row"),
        (["1+1="], r"problems\[0\] is a str; expected a mapping"),
        ([{"text": "1"}], r"problems\[0\] has no prompt \(its columns: text\)"),
        (
            [{"prompt": [{"role": "user"}]}],
            r"problems\[0\]: its prompt has in message 0 the keys role; expected role and",
        ),
        ([{"prompt": "1", "gold": 10**5000}], "dropped: 1 unreadable_gold"),
        ([{"prompt": []}], r"problems\[0\]: its prompt has no message"),
        ([{"prompt": None}], r"problems\[0\]: its prompt is None; expected a text, or a list of messages"),
        ([{"prompt": [SYSTEM, {**USER, "content": " "}], "gold": "2"}], "dropped: 1 empty_question"),
        (3, "problems are a int"),
    ],
)
def test_rows_that_are_no_problems_are_named(rows, message):
    with pytest.raises(ValueError, match=message):
        read_problems(rows, "problems")


def test_rewards_get_messages_as_a_text_and_each_by_itself():
    task = PythonTask(
        [{"prompt": [SYSTEM, USER], "gold": 2}], [ROWS[0]], lambda prompt, response: len(prompt.messages) / 4
    )
    (problem,) = task.problems("train")
    assert problem.prompt == "system: Add.\n\nuser: 1+1=" and task.verifier()(problem, "2", True) == 0.5


def test_a_tenth_is_held_out_and_equal_prompts_stay_together():
    task = PythonTask(ROWS + ROWS)
    train, test = ({problem.prompt for problem in task.problems(split)} for split in ("train", "test"))
    assert len(test) == 4 and not train & test
    assert len(task.problems("test")) == 8
    assert PythonTask(ROWS + ROWS).problems("test") == task.problems("test")
    with pytest.raises(KeyError):
        task.problems("development")
    assert len(PythonTask(ROWS, held_out=ROWS[:3]).problems("train")) == 40


EMPTY = [None, "", "  ", float("nan"), np.float64("nan"), [], ["4"], {"a": 4}, True, np.array([4, 5]), object()]


@pytest.mark.parametrize("gold", EMPTY, ids=range(len(EMPTY)))
@pytest.mark.parametrize("column", ["gold", "answer"])
def test_a_row_without_a_gold_answer_is_dropped_and_pays_nothing(gold, column):
    task = PythonTask([*ROWS, {"prompt": "?", column: gold}, {"prompt": "!"}], held_out=ROWS[:2])
    assert len(task.problems("train")) == 40 and all(problem.gold for problem in task.problems("train"))
    assert sum(task.dropped.values()) == 2 and task.dropped["train/empty_gold"] >= 1
    with_reward = PythonTask([*ROWS, {"prompt": "?", column: gold}], held_out=ROWS[:2], rewards=lambda p, r: 0.0)
    assert len(with_reward.problems("train")) == 41 and not with_reward.dropped
    assert exact_match(with_reward.problems("train")[40], "", True) == 0.0


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        (10, "10"), (10.0, "10"), (0, "0"), (-2.5, "-2.5"), (np.int64(7), "7"), (np.float32(3.0), "3"),
        ("10.0", "10.0"), (Decimal("10.00"), "10"), (Decimal("0.250"), "0.25"), (np.str_("x"), "x"),
        (np.array(4), "4"),
        (2**70, str(2**70)),
    ],
)  # fmt: skip
def test_a_gold_number_is_written_as_people_write_it(gold, text):
    assert read_problems([{"prompt": "?", "gold": gold}], "problems")[0].gold == text
    assert read_problems([{"prompt": "?", "gold": "", "answer": gold}], "problems")[0].gold == text


@pytest.mark.parametrize("name", [None, "", float("nan"), [], {}, object()])
def test_a_row_without_an_id_has_its_place_for_one(name):
    problems = read_problems([{"id": name, "prompt": "?", "gold": 1}, {"id": 7, "prompt": "!", "gold": 1}], "problems")
    assert [problem.id for problem in problems] == ["problems/0", "7"]


def test_a_repeated_id_or_a_blank_prompt_is_no_problem_s_name():
    rows = [{"id": "a", "prompt": "?", "gold": 1}, {"id": "a", "prompt": "!", "gold": 1}, {"prompt": " ", "gold": 1}]
    task = PythonTask(rows, held_out=rows)
    assert [problem.id for problem in task.problems("train")] == ["a", "problems/1"]
    assert task.dropped == {"train/empty_question": 1, "test/empty_question": 1}
    assert len(PythonTask(rows, held_out=rows, environment=object).problems("train")) == 3


def test_lines_that_are_no_rows_are_counted(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1=", "gold": 2}\n{"prompt": \n[1]\n')
    task = PythonTask(tmp_path / "rows.jsonl", held_out=ROWS[:2])
    assert task.dropped == {"train/malformed_row": 2}


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"problems": [{"prompt": str(n), "gold": [n]} for n in range(20)]}, "dropped: 20 unreadable_gold"),
        ({"problems": ROWS, "held_out": [{"prompt": "?"}]}, "held_out holds no row .*dropped: 1 empty_gold"),
        ({"problems": ROWS[:1]}, "give held_out"),
        ({"problems": [{"prompt": str(n)} for n in range(20)]}, r"dropped: 20 empty_gold.*Trainer\(reward=...\)"),
        ({"problems": ROWS, "rewards": 3}, "expected a function"),
        ({"problems": ROWS, "rewards": []}, "expected a function"),
        ({"problems": ROWS, "rewards": [(len, -1)]}, "the weight of the reward len is -1"),
        ({"problems": ROWS, "rewards": lambda response: 1.0}, "takes 1 positional arguments"),
        ({"problems": ROWS, "rewards": lambda p, r, answer: 1.0}, "asks for answer, but the first problem has the"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        PythonTask(**arguments)


def graded(rewards, response="4", row=3, finished=True):
    task = PythonTask(ROWS, held_out=ROWS, rewards=rewards)
    return task.verifier()(task.problems("train")[row], response, finished)


def test_without_a_reward_the_gold_answer_counts():
    assert graded(None) == 1.0 and graded(None, "5") == 0.0 and graded(None, finished=False) == 0.0


def test_a_reward_gets_the_columns_that_it_names():
    seen = []
    assert graded(lambda prompt, response, gold, hard: seen.append((prompt, response, gold, hard)) or 0.25) == 0.25
    assert graded(lambda prompt, response, **columns: seen.append(columns) or 1.0) == 1.0
    assert graded(lambda p, r, *, finished, other="x": float(finished)) == 1.0
    assert seen == [("3+1=", "4", 4, False), {"gold": 4, "id": "problems/3", "hard": False, "finished": True}]


def test_several_rewards_are_their_weighted_mean():
    one, zero = (lambda p, r: 1.0), (lambda p, r: 0.0)
    assert graded([one, zero]) == 0.5
    assert graded([(one, 3), (zero, 1)]) == 0.75


def test_an_error_of_a_reward_is_not_swallowed():
    def broken(prompt, response):
        raise KeyError("inside")

    with pytest.raises(UserCodeError, match="the reward broken raised on problem problems/3") as caught:
        graded(broken)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_built_in_task_can_have_another_reward():
    task = AdaptedTask(load_task(DataConfig()), lambda prompt, response, gold: 0.5 * (response == gold))
    problem = task.problems("train")[0]
    assert task.verifier()(problem, problem.gold, True) == 0.5
    answered = PythonTask([{"prompt": str(n), "answer": n} for n in range(20)], rewards=lambda p, r, gold: gold == r)
    first = answered.problems("train")[0]
    assert answered.verifier()(first, str(first.extra["answer"]), True) == 1.0
    assert task.name == "order" and task.demonstration(0, 1.0).prompt.endswith(">")


def test_the_command_line_cannot_name_python_problems():
    with pytest.raises(ValueError, match="a program gave the problems"):
        load_task(DataConfig(task="python"))


def test_a_verifier_compares_signatures_with_the_first_problem():
    made = PythonVerifier.of(lambda p, r, gold: 1.0, Problem("a", "b", "c", {"gold": 1}))
    assert made.columns == (frozenset({"gold"}),)


@pytest.mark.parametrize("error", [SystemExit(), SystemExit(0), GeneratorExit(), BaseException("x"), None])
def test_a_reward_that_exits_does_not_end_the_program_without_a_word(error):
    def leaving(prompt, response):
        if error is None:
            os._exit(0)
        raise error

    verifier = PythonVerifier.of(leaving, Problem("p", "1+1=", "2"))
    exception = "SystemExit" if error is None else type(error).__name__
    with pytest.raises(UserCodeError, match=f"the reward leaving raised {exception}.* on problem p") as caught:
        verifier(Problem("p", "1+1=", "2"), "2", True)
    assert caught.value.__cause__ is None  # which Trainer.train would raise in its place
