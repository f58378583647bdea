"""A judge against a stand-in: scores, faults, retries, the cache, keys, and a verifier beside it."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import Future

import pytest
from judge_stand_in import completion, error, judge_stand_in, late
from object_store import free_port

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.judge_section import JudgeConfig
from fr3e_jax.configuration.schema import Config, DataConfig, RewardsConfig
from fr3e_jax.data.python_task import PythonTask
from fr3e_jax.data.task import load_task
from fr3e_jax.problem import Problem
from fr3e_jax.rewards import judge_endpoint
from fr3e_jax.rewards.grader import Grader
from fr3e_jax.rewards.judge import Judge, check_by_asking
from fr3e_jax.rewards.judge_texts import check_columns, filled, prompt_text, response_format, reward_of
from fr3e_jax.rewards.verifier import exact_match
from fr3e_jax.session.session import open_grader
from fr3e_jax.verdict import Verdict

PROBLEM = Problem("train/0", "What is 1+2?", "3", {"rubric": "Be exact."})
NUMBER = r"score: (-?\d*\.?\d+)"
TEN = completion('{"reason": "exact", "score": 10}')


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(judge_endpoint, "FIRST_PAUSE", 0.01)


@pytest.fixture
def judged(tmp_path):
    """Make a judge's grader; all end with the test."""
    made = []

    def make(url: str, verifier=None, **settings) -> Grader:
        inner = None if verifier is None else Grader(verifier, RewardsConfig(workers=1))
        config = JudgeConfig(model="m", base_url=url, **{"cache": str(tmp_path / "cache"), **settings})
        made.append(Grader(Judge(config, inner), judge="judge"))
        return made[-1]

    yield make
    for grader in made:
        grader.close()


def verdict_of(grader: Grader, response: str = "3", problem: Problem = PROBLEM) -> Verdict:
    return grader.submit(problem, response, True).result()


@pytest.mark.parametrize(
    ("settings", "answer", "reward"),
    [
        ({}, '{"reason": "r", "score": 5}', 0.5),
        ({}, 'Sure!\n```json\n{"reason": "a {brace}", "score": 7.5}\n```', 0.75),
        ({}, '{"score": "10"}', 1.0),
        ({}, '<think>{"score": 1}? no</think>{"score": 3}', 0.3),
        ({"words": ["CORRECT=10", "INCORRECT=0"]}, '{"score": "Correct"}', 1.0),
        ({"words": ["true=10", "false=0"]}, '{"score": true}', 1.0),
        ({"score_range": [1.0, 5.0]}, '{"score": 2}', 0.25),
        ({"score_range": [-1.0, 1.0]}, '{"score": -1}', 0.0),
        ({}, '{"reason": "two\nlines", "details": {"score": 9}, "score": 2}', 0.2),
        ({}, 'In {1, 2} and {"a": {"score": 9},} it is {"score": 2}', 0.2),
        ({"pattern": NUMBER}, "It says score: 10, but is wrong.\nScore: 2", 0.2),
        ({"pattern": NUMBER, "score_range": [-1.0, 1.0]}, "Score: -1", 0.0),
        ({"pattern": NUMBER}, "Score: .5.", 0.05),
        ({"pattern": r'"overall":\s*(\d+)'}, '{"style": 3, "overall": 8}', 0.8),
        ({"pattern": r"\[\[(\d+)\]\]"}, "Rating: [[9]]", 0.9),
        ({"pattern": r"\b([ABC])\b", "words": ["A=10", "B=0", "C=0"]}, "The grade is A", 1.0),
        ({"pattern": r"\b(CORRECT|INCORRECT)\b", "words": ["CORRECT=10", "INCORRECT=0"]}, "INCORRECT", 0.0),
        ({}, '{"score": 11}', "whose score is 11; expected a number from 0 to 10"),
        ({}, '{"score": NaN}', "whose score is nan"),
        ({}, '{"score": [7]}', "whose score is"),
        ({}, '{"score": null}', "whose score is None"),
        ({}, '{"grade": 7}', "there is no JSON object with 'score'"),
        ({}, "7", "there is no JSON object"),
        ({}, "", "answered '', in which"),
        ({}, '{"score": 7', "there is no JSON object"),
        ({}, '{"details": {"score": 9}, "score": 2,}', "there is no JSON object"),
        ({}, '{"details": {"score": 9}, "reason": "cut', "there is no JSON object"),
        ({}, "{" * 5000, "there is no JSON object"),
        ({}, '{"score": true}', "whose score is True; expected a number from 0 to 10"),
        ({"pattern": NUMBER}, "I would say ten.", "there is no match of judge.pattern"),
        ({"words": ["yes=10", "no=0"]}, '{"score": "maybe"}', "or a word of judge.words"),
    ],
)
def test_answers_are_read_to_rewards_or_refused_with_what_they_say(settings, answer, reward):
    config = JudgeConfig(model="m", **settings)
    if isinstance(reward, float):
        assert reward_of(answer, config) == pytest.approx(reward)
    else:
        with pytest.raises(ValueError, match="answered") as caught:
            reward_of(answer, config)
        assert reward in str(caught.value) and len(str(caught.value)) < 500


def test_prompts_are_filled_in_one_pass_and_name_only_columns_that_exist(tmp_path):
    template = tmp_path / "prompt.txt"
    template.write_text('\ufeff{rubric} Q: {question} G: {gold} R: {response} Reply {"score": 1} or { x }', "utf-8")
    text = prompt_text(JudgeConfig(prompt=str(template)))
    filled_in = filled(text, PROBLEM, "the answer is {gold}{rubric}")
    assert filled_in == ('Be exact. Q: What is 1+2? G: 3 R: the answer is {gold}{rubric} Reply {"score": 1} or { x }')
    check_columns(text, PROBLEM, "judge.prompt")
    with pytest.raises(ValueError, match=r"has \{essay\}, .* response, rubric \(extra of a dataset card"):
        check_columns("{essay} {response}", PROBLEM, "judge.prompt")
    template.write_text("no place")
    for config, complaint in (
        (JudgeConfig(prompt=str(template)), r"has no \{response\}"),
        (JudgeConfig(prompt=str(tmp_path / "none.txt")), "cannot be read"),
    ):
        with pytest.raises(ValueError, match=complaint):
            prompt_text(config)
    assert "from 0 (useless or wrong) to 10" in prompt_text(JudgeConfig())
    assert prompt_text(JudgeConfig()).endswith('Answer with JSON: {"reason": "one sentence", "score": number}')
    assert prompt_text(JudgeConfig(pattern=NUMBER)).endswith("Score: number")
    words = prompt_text(JudgeConfig(words=["CORRECT=10", "INCORRECT=0"]))
    assert "fits the response: CORRECT, INCORRECT? " in words and words.endswith('"score": word}')


def test_requests_have_the_schema_and_the_fields_of_the_settings(judged, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret-1")
    request = ["max_completion_tokens=99", "reasoning_effort=low", "chat_template_kwargs={enable_thinking: false}"]
    with judge_stand_in(lambda body, number: TEN) as endpoint:
        assert verdict_of(judged(f"{endpoint.url}/chat/completions/"), "3\ud800") == Verdict(1.0, "right")
        reasoning = judged(endpoint.url, pattern=r'"score": (\d+)', request=request, key_variable="MY_KEY")
        assert verdict_of(reasoning).right
    plain, own = endpoint.bodies
    assert plain["model"] == "m" and plain["temperature"] == 0 and plain["max_tokens"] == 512
    assert plain["response_format"]["json_schema"]["schema"]["required"] == ["reason", "score"]
    assert "What is 1+2?" in plain["messages"][0]["content"]
    assert set(own) == {"model", "messages", *(field.partition("=")[0] for field in request)}
    assert own["max_completion_tokens"] == 99 and own["chat_template_kwargs"] == {"enable_thinking": False}
    assert "authorization" not in endpoint.headers[0]
    assert endpoint.headers[1]["authorization"] == "Bearer sk-secret-1"
    words = response_format(JudgeConfig(words=["YES=10", "NO=0"]))
    assert words["json_schema"]["schema"]["properties"]["score"]["enum"] == ["NO", "YES"]


FAULTS = {
    "refused key": (
        lambda body, n: error(401, "bad key sk-secret-1"),
        {},
        "judge_unreachable",
        1,
        "judge.key_variable",
    ),
    "no such model": (lambda body, n: error(404, "no model m"), {}, "judge_unreachable", 1, "no model m"),
    "bad request": (lambda body, n: error(400, "no response_format"), {}, "judge_unreachable", 1, "response_format"),
    "overloaded for ever": (lambda body, n: error(429, "slow down"), {}, "judge_unreachable", 3, "(3 tries)"),
    "a day of waiting": (lambda body, n: error(429, retry_after="86400"), {}, "judge_unreachable", 1, "HTTP 429"),
    "a broken server": (lambda body, n: error(503), {}, "judge_unreachable", 3, "HTTP 503"),
    "closed connections": (lambda body, n: (0, "", {}), {}, "judge_unreachable", 3, "cannot be reached"),
    "a page of a proxy": (
        lambda body, n: (200, "<html>", {}),
        {},
        "judge_unparseable",
        3,
        "no chat completion: <html>",
    ),
    "another JSON": (lambda body, n: (200, "[1]", {}), {}, "judge_unparseable", 3, "no chat completion"),
    "no choices": (lambda body, n: (200, '{"choices": []}', {}), {}, "judge_unparseable", 3, "no chat completion"),
    "a refusal": (lambda body, n: completion(None), {}, "judge_unparseable", 1, "without a text"),
    "another address": (
        lambda body, n: error(308, location="https://x.test/v1/chat"),
        {},
        "judge_unreachable",
        1,
        "it redirects to https://x.test/v1/chat: set judge.base_url",
    ),
    "thoughts alone": (
        lambda body, n: (200, completion("")[1].replace('"stop"', '"length"'), {}),
        {},
        "judge_unparseable",
        1,
        "its thoughts took all tokens: raise max_tokens in judge.request",
    ),
    "no score": (lambda body, n: completion("I like it"), {}, "judge_unparseable", 1, "'I like it'"),
    "a slow judge": (lambda body, n: late(1.0, TEN), {"seconds": 0.1}, "judge_timeout", 3, "judge.seconds=0.1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_outcomes_with_a_reason_and_as_many_tries_as_can_help(judged, fault, caplog, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-secret-1")
    monkeypatch.setattr(judge_endpoint, "MOST_TRIES", 3)
    answer, settings, outcome, calls, reason = FAULTS[fault]
    with judge_stand_in(answer) as endpoint:
        grader = judged(endpoint.url, key_variable="MY_KEY", **settings)
        assert verdict_of(grader) == Verdict(0.0, outcome)
        assert not verdict_of(grader).graded
        assert grader.take_outcomes() == {outcome: 2}
        made = grader.verifier.take_counts()["calls"]
    assert made == (1 if fault == "no score" else 2 * calls), "an answer without a score is stored, too"
    assert reason in grader.first_failure and "train/0" in grader.first_failure
    assert "sk-secret-1" not in grader.first_failure + caplog.text


@pytest.mark.parametrize(
    "first",
    [error(429, retry_after="0.05"), error(500), error(408), (0, "", {}), (200, "nothing", {})],
    ids=["429", "500", "408", "closed", "no json"],
)
def test_a_fault_that_passes_is_tried_again(judged, first):
    with judge_stand_in(lambda body, number: TEN if number else first) as endpoint:
        grader = judged(endpoint.url)
        assert verdict_of(grader) == Verdict(1.0, "right")
        counts = grader.verifier.take_counts()
    assert len(endpoint.bodies) == 2 and counts["retries"] == 1 and counts["calls"] == 2


def test_equal_responses_are_one_call_and_stored_answers_outlive_the_process(judged):
    with judge_stand_in(lambda body, number: late(0.05, TEN)) as endpoint:
        grader = judged(endpoint.url)
        pending = [grader.submit(PROBLEM, response, True) for response in ("3", "3", "4", "3")]
        assert [each.result().reward for each in pending] == [1.0] * 4
        counts = grader.verifier.take_counts()
        assert len(endpoint.bodies) == 2 and counts["calls"] == 2 and counts["cached"] == 2
        assert (counts["prompt_tokens"], counts["completion_tokens"]) == (200, 20)
        assert grader.verifier.take_sums() == {"judge": (4.0, 4)}
        grader.close()
        assert verdict_of(grader).reward == 1.0 and len(endpoint.bodies) == 2, "a closed judge starts again"
        again = judged(endpoint.url, score_range=[5.0, 10.0])
        assert verdict_of(again).reward == 1.0 and len(endpoint.bodies) == 3, "another prompt is another request"
        assert again.verifier.take_counts()["prompt_tokens"] == 100


def test_a_damaged_store_costs_a_second_call(judged, tmp_path):
    with judge_stand_in(lambda body, number: TEN) as endpoint:
        assert verdict_of(judged(endpoint.url)).right
        (file,) = (tmp_path / "cache").rglob("*.json")
        for damage in ("", "{", '{"answer": 3}', "[]"):
            file.write_text(damage)
            assert verdict_of(judged(endpoint.url)).right
        assert len(endpoint.bodies) == 5 and json.loads(file.read_text())["answer"]
        (tmp_path / "file").write_text("")
        assert verdict_of(judged(endpoint.url, cache=str(tmp_path / "file"))).right, "no folder can be made there"


def test_no_more_requests_are_under_way_than_allowed(judged):
    with judge_stand_in(lambda body, number: late(0.02, TEN)) as endpoint:
        grader = judged(endpoint.url, max_concurrency=3)
        pending = [grader.submit(PROBLEM, f"{n}", True) for n in range(20)]
        assert all(each.result().right for each in pending)
    assert endpoint.most_under_way <= 3 and len(endpoint.bodies) == 20


def sometimes_reads(problem, response, finished):
    if response == "?":
        return Verdict(0.0, "no_answer")
    if response == "!":
        raise RuntimeError("lost")
    return exact_match(problem, response, finished)


def test_a_verifier_beside_the_judge_shares_the_reward_or_says_what_is_judged(judged):
    with judge_stand_in(lambda body, number: completion('{"score": 8}')) as endpoint:
        half = judged(endpoint.url, sometimes_reads, weight=0.5, right_from=0.9)
        assert verdict_of(half, "3") == Verdict(0.9, "right")
        assert verdict_of(half, "4") == Verdict(0.4, "wrong")
        assert verdict_of(half, "!") == Verdict(0.0, "error"), "a verifier's fault stays one"
        assert half.verifier.take_sums() == {"judge": (pytest.approx(1.6), 2), "verifier": (1.0, 2)}
        assert "lost" in half.first_failure
        unread = judged(endpoint.url, sometimes_reads, weight=0.0, right_from=0.8)
        asked = len(endpoint.bodies)
        assert [verdict_of(unread, text) for text in ("3", "4")] == [Verdict(1.0, "right"), Verdict(0.0, "wrong")]
        assert len(endpoint.bodies) == asked, "what the verifier reads costs nothing"
        assert verdict_of(unread, "?") == Verdict(0.8, "right")


def test_a_verifier_beside_the_judge_that_cannot_be_used_stops_the_run(judged):
    with judge_stand_in(lambda body, number: completion('{"score": 8}')) as endpoint:
        grader = judged(endpoint.url, lambda problem, response, finished: 2.0, weight=0.5)
        with pytest.raises(ValueError, match="the verifier returned 2.0 for problem"):
            verdict_of(grader)


def test_answers_that_wait_for_a_verifier_hold_no_request_up(judged, monkeypatch):
    """A name is looked up in one of the few threads that verdicts could wait in, too."""
    monkeypatch.setattr(asyncio, "to_thread", lambda *_: pytest.fail("a thread waits for a verdict"))
    verdicts = [Future() for _ in range(40)]
    waiting = iter(verdicts)
    with judge_stand_in(lambda body, number: completion('{"score": 8}')) as endpoint:
        grader = judged(endpoint.url, lambda problem, response, finished: next(waiting), weight=0.5)
        pending = [grader.submit(PROBLEM, f"{n}", True) for n in range(40)]
        for future in verdicts:
            future.set_result(Verdict(1.0, "right"))
        assert [each.result().reward for each in pending] == [0.9] * 40


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (None, r"cannot be reached: .*\(2 tries\)"),
        (error(401, "no key"), "answers HTTP 401: .*judge.key_variable"),
        (completion("fine"), "answered 'fine', in which there is no JSON object with 'score'"),
        (TEN, ""),
    ],
)
def test_a_bad_endpoint_is_one_line_before_training(judged, answer, complaint, monkeypatch):
    monkeypatch.setattr(judge_endpoint, "MOST_TRIES", 2)
    with judge_stand_in(lambda body, number: answer) as endpoint:
        url = endpoint.url if answer else f"http://127.0.0.1:{free_port()}/v1"
        grader = judged(url)
        config = JudgeConfig(model="m", base_url=url)
        if not complaint:
            return check_by_asking(grader, grader.verifier, config, [PROBLEM])
        with pytest.raises(
            ValueError, match=f"judge.model=m at judge.base_url={url} failed on a first call: .*{complaint}"
        ):
            check_by_asking(grader, grader.verifier, config, [PROBLEM])
        assert not grader.take_outcomes() and not grader.first_failure


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"key_variable": "FR3E_NO_SUCH_KEY"}, "names an environment variable that is not set"),
        ({"request": ["temperature"]}, "expected NAME=VALUE"),
        ({"request": ["messages=[]"]}, "expected NAME=VALUE with a field"),
        ({"request": ["seed=1", "seed=2"]}, "not there twice"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_without_a_request(settings, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        Judge(JudgeConfig(model="m", base_url="http://127.0.0.1:1/v1", **settings))
    assert "FR3E_NO_SUCH_KEY" not in str(caught.value), "it may be a key by mistake"


def test_rows_without_a_gold_answer_are_for_a_judge_alone(judged, tmp_path):
    rows = [{"prompt": "Write a haiku.", "rubric": "5-7-5"}, {"prompt": "Write a limerick.", "rubric": "aabba"}]
    with pytest.raises(ValueError, match="dropped: 2 empty_gold"):
        PythonTask(rows)
    task = PythonTask(rows, judged=True)
    assert [problem.gold for problem in task.problems("train")] == [""]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "haiku.yaml").write_text(
        "{name: haiku, verifier: judge, fields: {question: prompt}, extra: {rubric: rubric}, "
        "splits: {train: rows.jsonl, test: rows.jsonl}}"
    )
    card = str(tmp_path / "haiku.yaml")
    data = DataConfig(task="datasets", root=str(tmp_path), train=[card], eval=[card])
    datasets = load_task(data)
    problem = datasets.problems("train")[0]
    assert problem.gold == "" and filled("{rubric}{gold}", problem, "") in ("5-7-5", "aabba")
    with judge_stand_in(lambda body, number: TEN) as endpoint:
        assert verdict_of(judged(endpoint.url), "Leaves fall", problem).right
        config = Config(data=data, judge=JudgeConfig(model="m", base_url=endpoint.url, weight=0.5))
        with pytest.raises(ConfigError, match="verifier: judge, and no judge alone gives the rewards; set judge.model"):
            open_grader(config, datasets, "verifier")


def test_a_closed_judge_gives_up_what_is_under_way(judged):
    with judge_stand_in(lambda body, number: late(0.3, TEN)) as endpoint:
        grader = judged(endpoint.url)
        pending = grader.submit(PROBLEM, "3", True)
        while not endpoint.bodies:
            pass
        grader.close()
        with pytest.raises(RuntimeError, match="the judge was closed"):
            pending.result()
