"""The task of dataset cards: mixture, evaluation sets, demonstrations and the dispatch of verifiers."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import yaml

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.data.datasets import DatasetsTask, DatasetVerifier, finished_solution
from fr3e_jax.data.stream import PromptStream
from fr3e_jax.data.task import held_out_split, load_task


@pytest.fixture
def card(tmp_path, monkeypatch):
    """A function that writes a card and its file into folders where cards are found by name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs" / "data").mkdir(parents=True)

    def written(name, rows, splits=("train", "test"), file="", **extra):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        fields = {"question": "q", "answer": {"path": "a", "after_last": "#### "}} | extra
        content = {"name": name, "verifier": "math", "fields": fields}
        content["splits"] = dict.fromkeys(splits, f"{name}.jsonl")
        (tmp_path / "configs" / "data" / f"{file or name}.yaml").write_text(yaml.safe_dump(content))

    return written


def rows(name, count):
    return [{"q": f"{name} {i}?", "a": f"as one sees\n#### {i}"} for i in range(count)]


def make(tmp_path, **settings):
    return load_task(DataConfig(task="datasets", root=str(tmp_path), **settings))


@pytest.fixture
def task(card, tmp_path):
    card("big", [*rows("big", 9), {"q": "none?", "a": ""}], solution="a")
    card("small", rows("small", 3), solution="a")
    card("held", rows("held", 4), splits=["test"])
    return make(tmp_path, train=["big", "small"], weights=[1, 3], eval=["held", "small"])


def test_a_named_verifier_grades_files_and_cards(card, tmp_path):
    (tmp_path / "mine.jsonl").write_text(json.dumps({"question": "Close what is open: {", "answer": "}"}))
    card("held", rows("held", 2), splits=["test"])
    task = make(tmp_path, train=["mine.jsonl"], eval=["held"], verifier="exact")
    verify = task.verifier()
    for split, gold in (("train", "}"), ("test", "0")):
        problem = task.problems(split)[0]
        assert problem.gold == gold and verify(problem, gold, True) == 1 and verify(problem, f"{gold}.", True) == 0
    with pytest.raises(ConfigError, match="data.verifier=exat: nearest: exact, or FILE.py:NAME of your own"):
        make(tmp_path, train=["mine.jsonl"], eval=["held"], verifier="exat")


def test_columns_that_no_set_reads_are_refused(card, tmp_path):
    card("held", rows("held", 2), splits=["test"])
    (tmp_path / "mine.jsonl").write_text(json.dumps({"text": "1+1?", "answer": "2"}))
    columns = ["question=text"]
    assert make(tmp_path, train=["mine.jsonl"], eval=["held"], columns=columns).problems("train")[0].prompt == "1+1?"
    with pytest.raises(ConfigError, match=r"data.columns=\['question=text'\] is read for files without a card"):
        make(tmp_path, eval=["held"], columns=columns)


def test_a_card_without_answers_is_not_graded_by_a_name_that_compares_them(card, tmp_path):
    card("held", rows("held", 2), splits=["test"])
    card("judged", rows("judged", 2))
    path = tmp_path / "configs/data/judged.yaml"
    content = yaml.safe_load(path.read_text()) | {"verifier": "judge", "fields": {"question": "q"}}
    path.write_text(yaml.safe_dump(content))
    assert make(tmp_path, train=["judged"], eval=["held"]).problems("train")
    with pytest.raises(ConfigError, match="empty_gold"):
        make(tmp_path, train=["judged"], eval=["held"], verifier="exact")


def test_a_share_of_the_training_cards_is_kept_for_development(card, tmp_path):
    card("big", rows("big", 60), solution="a")
    card("held", rows("held", 4), splits=["test"])
    task = make(tmp_path, train=["big"], eval=["held"], development_share=0.25)
    train, development, test = (task.problems(split) for split in ("train", "development", "test"))
    apart = {problem.id for problem in development}
    assert len(train) + len(development) == 60 and 5 < len(development) < 26 and len(test) == 4
    assert not apart & {train[i].id for i in range(len(train))}
    shown = {task.demonstration(i, 1.0).prompt for i in range(200)}
    assert len(shown) == len(train) and not shown & {problem.prompt for problem in development}
    again = make(tmp_path, train=["big"], eval=["held"], development_share=0.25, seed=1)
    assert [problem.id for problem in again.problems("development")] == [problem.id for problem in development]


@pytest.mark.parametrize(
    ("share", "message"),
    [(0.0, "data.development_share=0 keeps none"), (1e-9, "keeps 0 of the 9 problems of big/train from training")],
)
def test_no_development_problems_is_an_error_with_the_remedy(card, tmp_path, share, message):
    card("big", rows("big", 9))
    with pytest.raises(ConfigError, match=message):
        held_out_split(make(tmp_path, train=["big"], eval=["big"], development_share=share), "development")


def test_train_is_a_mixture_by_weights_and_test_a_list(task):
    train, test = task.problems("train"), task.problems("test")
    assert isinstance(task, DatasetsTask) and len(train) == 12
    assert [problem.id for problem in test] == [f"held/test/{i}" for i in range(4)] + [
        f"small/test/{i}" for i in range(3)
    ]
    assert (test[1].prompt, test[1].gold, test[1].extra["dataset"]) == ("held 1?", "1", "held")
    drawn = PromptStream(train, 0, list, 100).take(40)
    assert Counter(prompt.problem.extra["dataset"] for prompt in drawn) == {"big": 10, "small": 30}
    assert task.shares() == {"big/train": 0.25, "small/train": 0.75}


def test_ids_are_unique_and_dropped_rows_are_counted_by_card_split_and_reason(task):
    ids = [problem.id for split in ("train", "test") for problem in task.problems(split)]
    assert len(set(ids)) == len(ids)
    assert task.dropped == {"big/train/empty_gold": 1}


def test_shares_without_weights_follow_the_numbers_of_problems(card, tmp_path):
    card("big", rows("big", 9))
    card("small", rows("small", 3))
    task = make(tmp_path, train=["big", "small"], eval=["small"])
    assert task.shares() == {"big/train": 0.75, "small/train": 0.25}
    drawn = PromptStream(task.problems("train"), 0, list, 100).take(12)
    assert len({prompt.problem.id for prompt in drawn}) == 12


def test_demonstrations_are_solutions_that_end_as_the_template_asks(task, tmp_path):
    shown = [task.demonstration(i, 0.0) for i in range(40)]
    assert shown[0].response.startswith("as one sees\n#### ") and shown == [
        task.demonstration(i, 1.0) for i in range(40)
    ]
    assert Counter(demonstration.prompt.split()[0] for demonstration in shown) == {"big": 10, "small": 30}
    boxed = make(tmp_path, train=["big"], template="qwen_boxed").demonstration(0, 0.0)
    answer = boxed.prompt.split()[1].rstrip("?")
    assert boxed.response == f"as one sees\nThe final answer is $\\boxed{{{answer}}}$."


@pytest.mark.parametrize(
    ("solution", "extraction", "response"),
    [
        ("so\n#### 7", "boxed_or_hashes", "so\n#### 7"),
        ("so", "boxed_or_hashes", "so\nThe final answer is $\\boxed{7}$."),
        ("so $\\boxed{7}$", "boxed", "so $\\boxed{7}$"),
        ("so\n#### 7", "answer_line", "so\nAnswer: 7"),
    ],
)
def test_finished_solution_ends_in_the_form_of_the_extraction(solution, extraction, response):
    assert finished_solution(solution, "7", extraction) == response


def test_demonstration_of_a_card_without_solutions_is_an_error(card, tmp_path):
    card("bare", rows("bare", 3))
    with pytest.raises(
        ConfigError, match="no demonstrations in bare/train: fine-tuning needs cards with fields.solution"
    ):
        make(tmp_path, train=["bare"]).demonstration(0, 0.0)


def test_problem_is_graded_by_the_verifier_of_its_card(task):
    problems = task.problems("test")
    verifier = DatasetVerifier({"held": lambda *given: given, "small": lambda *given: 0.5})
    assert verifier(problems[0], "text", True) == (problems[0], "text", True)
    assert verifier(problems[-1], "text", True) == 0.5


def test_gold_answer_is_right_and_another_wrong_by_the_named_verifier(task):
    verifier = task.verifier()
    problem = task.problems("test")[2]
    right, wrong = (verifier(problem, f"\\boxed{{{answer}}}", True) for answer in (problem.gold, "17"))
    assert (right.reward, wrong.reward) == (1.0, 0.0)


def test_job_functions_list_each_function_of_all_cards_once(task):
    assert task.verifier().job_functions == ("fr3e_jax.answers:judge",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": ["bg"]}, "data.train: no dataset card 'bg' in .*; nearest: big"),
        ({"eval": ["big", "big/test"]}, "data.eval names big/test twice; to weight it, use data.weights"),
        ({"train": ["held"]}, "data.train: held: .*held.yaml has no split 'train'; expected held/test"),
        ({"train": ["big"], "eval": ["same"]}, "big.yaml and .*same.yaml are both named big; rename one of them"),
        ({"train": ["big"], "template": "plan"}, "data.template=plan is not a prompt template; nearest: .*plain"),
    ],
)
def test_mistake_is_reported_with_its_setting(task, card, tmp_path, settings, message):
    card("big", rows("big", 9), file="same")
    with pytest.raises(ConfigError, match=message):
        make(tmp_path, **settings)


def test_missing_file_and_empty_list_are_reported_with_their_setting(task, tmp_path):
    with pytest.raises(FileNotFoundError, match="no file of dataset card held, split test under data.root=nowhere"):
        load_task(DataConfig(task="datasets", root="nowhere", eval=["held"]))
    with pytest.raises(
        ConfigError, match=r"data.train is empty; name at least one dataset card, .* data.train=\[gsm8k\]"
    ):
        make(tmp_path, eval=["held"]).problems("train")
