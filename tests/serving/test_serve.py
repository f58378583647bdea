"""`fr3e serve`: answers equal samples and branches whatever else runs, clients come and go, bad requests get a line."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx2
import jax
import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fr3e_jax.api.policy import Policy
from fr3e_jax.configuration import ConfigError
from fr3e_jax.rollouts.requests import Branch, Sampling
from fr3e_jax.session.model import Model

uvicorn = pytest.importorskip("uvicorn")

from fr3e_jax.serving.answers import Limits  # noqa: E402
from fr3e_jax.serving.decoder import Continuation, ServingDecoder  # noqa: E402
from fr3e_jax.verbs.serve import open_server  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
TOKENS = ["<eos>", "a", "b", "Ġ", *"çŃĶ", "ab", "Ġa", "çŃ", "ŃĶ", "ĶĠ"]  # the bytes of 答 are spelled çŃĶ
SEED = 7
TEMPLATE = (
    "{% for m in messages %}{{ {'system': 'b', 'user': 'a', 'assistant': ' '}[m.role] }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %} {% endif %}"
)


@pytest.fixture(scope="module")
def config(tiny_run, tmp_path_factory):
    """Random weights of a tokenizer whose tokens are parts of characters."""
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    directory = tmp_path_factory.mktemp("tokenizer")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", chat_template=TEMPLATE)
    tokenizer.save_pretrained(directory)
    return tiny_run.config(model__tokenizer=str(directory), seed=SEED, rollout__max_response_tokens=200)


@pytest.fixture(scope="module")
def policy(config):
    return Policy(dataclasses.replace(config))


@contextlib.contextmanager
def serving(server):
    """The address of a server in a thread of this process."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    running = uvicorn.Server(uvicorn.Config(server.application(), log_level="warning", ws="none"))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def server(config):
    """What a few chunks did not need is given back, so that layouts often change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fr3e_jax.serving.decoder._QUIET", 2)
        yield open_server(config, None, ["tiny", "runs/tiny"], Limits(400, 200, 300, 20_000), lanes=16)


@pytest.fixture(scope="module")
def url(server):
    with serving(server) as address:
        yield address


def ask(url, route="/v1/completions", status=200, **body):
    response = httpx2.post(f"{url}{route}", json=body, timeout=300)
    assert response.status_code == status, response.text
    return response.json()


def events(url, route="/v1/completions", **body):
    with httpx2.stream("POST", f"{url}{route}", json={**body, "stream": True}, timeout=300) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def idle(url):
    health = httpx2.get(f"{url}/health").json()
    return health["active"] == health["waiting"] == 0


def test_lanes_become_slots_again_after_many_answers_to_one_prompt(policy):
    programs, pad = policy.sampler.engine.programs, policy.texts.codec.pad_id
    decoder = ServingDecoder(programs, policy.weights, lanes=16, chunk=8, pad_id=pad, stops=1, post=lambda pieces: None)
    decoder.warm_up()

    def ask(prompt: list[int], answer: int) -> None:
        ids = np.array(prompt, np.int32)
        branch = Branch(len(ids), (0, 0, 0, answer), 40, Sampling(1.0, stop_ids=(-1,)))
        decoder._waiting.append(Continuation(ids, branch, 3, 40))

    for answer in range(16):
        ask([1, 2], answer)
    decoder._round()
    for i in range(16):
        ask([1 + i % 4, 1 + i // 4, 3], 0)
    for _ in range(8):
        decoder._round()
    assert len(decoder._running()) == 16


def test_answers_and_branches_are_those_of_the_policy_whatever_else_runs(url, policy):
    """Beside them run other prompts, some longer, so that slots, lanes and caches grow while they decode."""
    asked = dict(seed=SEED, max_tokens=60, return_token_ids=True)
    others = [("ab" * n, n) for n in (1, 3, 40, 2, 60)]
    crowd = [
        threading.Thread(target=ask, args=(url,), kwargs=dict(prompt=text, n=4, max_tokens=90 + n))
        for text, n in others
    ]
    for thread in crowd:
        thread.start()
    answer = ask(url, prompt=["a", "b a"], n=3, **asked)
    one = policy.sample(["a", "b a"], n=3, max_tokens=60, seed=0)
    assert [choice["token_ids"] for choice in answer["choices"]] == [other.token_ids.tolist() for other in one]
    assert [choice["text"] for choice in answer["choices"]] == [other.text for other in one]
    assert [choice["finish_reason"] == "stop" for choice in answer["choices"]] == [other.finished for other in one]
    base = max(range(6), key=lambda i: len(one[i]))
    assert len(one[base]) > 8
    for token in (0, 3, len(one[base]) - 1):
        (state,) = policy.branch(one[base], [token], n=4, max_tokens=token + 30, seed=0)
        body = dict(id=answer["id"], choice=base, token=token, n=4, seed=SEED, max_tokens=30, return_token_ids=True)
        branched = ask(url, "/v1/branches", **body)
        kept = one[base].token_ids[:token].tolist()
        assert [kept + choice["token_ids"] for choice in branched["choices"]] == [
            other.token_ids.tolist() for other in state
        ]
        assert [branched["kept"] + choice["text"] for choice in branched["choices"]] == [other.text for other in state]
    again = ask(url, "/v1/branches", id=branched["id"], choice=2, token=len(kept), seed=SEED, n=4, max_tokens=30)
    assert [c["text"] for c in again["choices"]] == [c["text"] for c in branched["choices"]]  # of a branch, at its fork
    for thread in crowd:
        thread.join()


def test_a_prompt_is_prefilled_once_for_all_its_answers_and_branches(url):
    until(lambda: idle(url))
    before = httpx2.get(f"{url}/health").json()["prefilled_tokens"]
    first = ask(url, prompt="ba" * 20, n=5, max_tokens=4, temperature=0)
    ask(url, prompt="ba" * 20, n=2, max_tokens=4)
    ask(url, prompt="ba" * 15, n=2, max_tokens=4)  # begins as the trunk that is there
    assert httpx2.get(f"{url}/health").json()["prefilled_tokens"] == before + 40
    assert len({choice["text"] for choice in first["choices"]}) == 1  # greedy
    for token in (1, 2):
        ask(url, "/v1/branches", id=first["id"], token=token, max_tokens=3)
    assert httpx2.get(f"{url}/health").json()["prefilled_tokens"] <= before + 40 + 44


def test_logprobs_are_those_of_the_network_and_echo_scores_the_prompt(url, policy):
    text = "ab b a a"
    (scored,) = policy.score("ab", " b a a")
    answer = ask(url, prompt=text, max_tokens=1, echo=True, logprobs=3, temperature=0.5)
    logprobs = answer["choices"][0]["logprobs"]
    ids = policy.texts.codec.encode(text)
    start = len(policy.texts.codec.encode("ab"))
    assert len(logprobs["tokens"]) == len(ids) + 1 and logprobs["token_logprobs"][0] is None
    np.testing.assert_allclose(logprobs["token_logprobs"][start : len(ids)], scored.logprobs[:-1], atol=1e-5)
    alone = ask(url, prompt=text, max_tokens=0, echo=True, logprobs=3)["choices"][0]
    assert alone["text"] == text and alone["logprobs"]["token_logprobs"][1:] == logprobs["token_logprobs"][1:-1]
    both = ask(url, prompt=[ids, ids], max_tokens=0, echo=True, logprobs=3)["choices"]
    assert [choice["logprobs"]["token_logprobs"] for choice in both] == [alone["logprobs"]["token_logprobs"]] * 2
    for token, logprob, top in zip(
        logprobs["tokens"][1:], logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True
    ):
        assert top[token] == logprob and 3 <= len(top) <= 4
    long = ask(url, prompt="a", max_tokens=40, logprobs=2, seed=SEED, return_token_ids=True)["choices"][0]
    (one,) = policy.sample("a", max_tokens=40, seed=0)
    np.testing.assert_allclose(long["logprobs"]["token_logprobs"], one.logprobs, atol=1e-5)
    np.testing.assert_allclose(long["logprobs"]["entropies"], one.entropies, atol=1e-5)
    chat = ask(
        url,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "b"}],
        logprobs=True,
        top_logprobs=2,
        max_tokens=9,
    )
    for entry in chat["choices"][0]["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == 2 and entry["top_logprobs"][0]["logprob"] >= entry["logprob"] - 1e-6


def test_a_stream_adds_up_to_the_whole_with_stop_texts_and_torn_characters(url):
    for stop in ([], ["答"], ["ab a", "b b"]):
        body = dict(prompt="a", n=5, seed=3, max_tokens=70, stop=stop, logprobs=1, return_token_ids=True)
        whole = ask(url, **body)
        parts = events(url, **body, stream_options={"include_usage": True})
        assert parts.pop()["usage"] == whole["usage"]
        for choice in whole["choices"]:
            mine = [part["choices"][0] for part in parts if part["choices"][0]["index"] == choice["index"]]
            assert "".join(part["text"] for part in mine) == choice["text"]
            assert sum((part["token_ids"] for part in mine), []) == choice["token_ids"]
            assert sum((part["logprobs"]["tokens"] for part in mine), []) == choice["logprobs"]["tokens"]
            assert sum((part["logprobs"]["text_offset"] for part in mine), []) == choice["logprobs"]["text_offset"]
            assert [part["finish_reason"] for part in mine][-1] == choice["finish_reason"]
            assert not any(text in choice["text"] for text in stop)
        if stop:
            assert any(choice["finish_reason"] == "stop" for choice in whole["choices"])
    by_token = ask(url, prompt="a", n=5, seed=3, max_tokens=70, stop_token_ids=[2], return_token_ids=True)
    for choice in by_token["choices"]:
        assert 2 not in choice["token_ids"][:-1] and "b" not in choice["text"].replace("ab", "")


def test_a_judge_can_be_served(url, tmp_path):
    from fr3e_jax.configuration.judge_section import JudgeConfig
    from fr3e_jax.problem import Problem
    from fr3e_jax.rewards.grader import Grader
    from fr3e_jax.rewards.judge import Judge

    prompt = tmp_path / "prompt.txt"
    prompt.write_text("ab {question} a {response} b")
    options = {"pattern": "([ab])", "words": ["a=10", "b=0"], "request": ["max_tokens=20", "temperature=0"]}
    judge = JudgeConfig("tiny", f"{url}/v1", prompt=str(prompt), cache=str(tmp_path / "cache"), **options)
    with Grader(Judge(judge), judge="judge") as grader:
        pending = [grader.submit(Problem("p", "a b", ""), "ab" * n, True) for n in range(6)]
        rewards = [each.result().reward for each in pending]
        assert not grader.first_failure and set(rewards) <= {0.0, 1.0}
        body = {"messages": [{"role": "user", "content": "ab a b a abab b"}], "max_tokens": 20, "temperature": 0}
        answer = ask(url, "/v1/chat/completions", **body)["choices"][0]["message"]["content"]
        assert rewards[2] == float(answer.rfind("a") > answer.rfind("b"))


def test_messages_go_through_the_chat_template(url, policy):
    messages = [{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}]
    body = dict(seed=SEED, max_completion_tokens=20)
    chat = ask(url, "/v1/chat/completions", messages=messages, **body)
    text = ask(url, prompt="baab ", seed=SEED, max_tokens=20)
    assert chat["choices"][0]["message"] == {
        "role": "assistant",
        "content": text["choices"][0]["text"],
        "refusal": None,
    }
    assert chat["usage"]["prompt_tokens"] == len(policy.texts.codec.encode("baab "))
    parts = events(url, "/v1/chat/completions", messages=messages, **body)
    assert parts[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(part["choices"][0]["delta"]["content"] for part in parts) == text["choices"][0]["text"]


USER = {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("route", "body", "status", "complaint"),
    [
        ("completions", b"{", 400, "the body is no JSON"),
        ("completions", b"[1]", 400, "the body is a list; expected an object"),
        ("completions", b"[" * 5000, 400, "the body is no JSON"),
        ("completions", {}, 400, "prompt is missing"),
        ("completions", {"prompt": 3}, 400, "prompt is not a text, a list of texts, a list of token ids"),
        ("completions", {"prompt": ["a", 1]}, 400, "prompt is not a text, a list of texts"),
        ("completions", {"prompt": ""}, 400, "prompt has no token"),
        ("completions", {"prompt": []}, 400, "prompt is empty"),
        ("completions", {"prompt": [1, 99]}, 400, "prompt has the token id 99; they are below 12"),
        ("completions", {"prompt": "a", "max_token": 3}, 400, "there is no field 'max_token'; nearest: max_tokens"),
        ("completions", {"prompt": "a", "n": 0}, 400, "n is 0: input should be greater than or equal to 1"),
        ("completions", {"prompt": "a", "n": "2"}, 400, "n is '2': input should be a valid integer"),
        ("completions", {"prompt": "a", "n": 201}, 400, "asks for 201 answers; the server gives 200"),
        ("completions", {"prompt": "a", "temperature": -1}, 400, "temperature is -1"),
        ("completions", {"prompt": "a", "top_p": 0}, 400, "top_p is 0"),
        ("completions", {"prompt": "a", "logprobs": 21}, 400, "logprobs is 21"),
        ("completions", {"prompt": "a", "stop": ""}, 400, "stop is not a text or a list of at most 16 texts"),
        ("completions", {"prompt": "a", "seed": 2**40}, 400, "seed is"),
        ("completions", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens is 0; expected 1 or more, or echo=true"),
        ("chat/completions", {"messages": [USER], "max_completion_tokens": 0}, 400, "max_tokens is 0"),
        (
            "completions",
            {"prompt": "a" * 390, "max_tokens": 11},
            400,
            "390 tokens are before the answer, which may have",
        ),
        ("completions", {"prompt": "a", "model": "gpt-9"}, 404, "there is no model 'gpt-9'; this server has 'tiny'"),
        ("completions", {"prompt": "a", "suffix": "b"}, 422, "suffix is not served; leave it out"),
        ("completions", {"prompt": "a", "logit_bias": {"1": 5}}, 422, "logit_bias is not served"),
        ("completions", {"prompt": "a" * 30_000}, 413, "the body is larger than 20000 bytes"),
        ("chat/completions", {"messages": []}, 400, "messages is []"),
        ("chat/completions", {"messages": [{"role": "usr", "content": "a"}]}, 400, "the role 'usr'; nearest: user"),
        ("chat/completions", {"messages": [{"role": "user"}]}, 400, "expected role and content"),
        ("chat/completions", {"messages": [USER], "top_logprobs": 2}, 400, "top_logprobs needs logprobs=true"),
        ("chat/completions", {"messages": [USER], "tools": [{}]}, 422, "tools is not served"),
        ("chat/completions", {"messages": [USER], "response_format": {"type": "json_object"}}, 422, "response_format"),
        ("branches", {"id": "cmpl-0", "token": 1}, 404, "there is no answer 'cmpl-0'"),
        ("branches", {"id": "cmpl-0"}, 400, "token is missing"),
        (
            "embeddings",
            {},
            404,
            "there is no route /v1/embeddings; expected one of /health, /v1/models, /v1/completions",
        ),
    ],
)
def test_a_bad_request_gets_a_line_that_says_what_to_change(url, route, body, status, complaint):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = httpx2.post(f"{url}/v1/{route}", content=content, headers={"content-type": "application/json"})
    error = response.json()["error"]
    assert (response.status_code, complaint in error["message"]) == (status, True), error
    assert set(error) == {"message", "type", "param", "code"}


def test_fields_that_change_nothing_pass(url):
    neutral = dict(user="me", frequency_penalty=0, presence_penalty=0.0, logit_bias=None, best_of=1, n=None, stop=None)
    text = ask(url, prompt="a", model="runs/tiny", max_tokens=1, top_k=-1, stream=None, **neutral)
    options = {"messages": [USER], "max_tokens": 1, "tools": None, "store": False, "tool_choice": "auto"}
    chat = ask(url, "/v1/chat/completions", **options)
    assert [answer["usage"]["completion_tokens"] for answer in (text, chat)] == [1, 1]


def test_bodies_that_are_no_json_by_their_type_and_other_methods_are_refused(url):
    assert httpx2.post(f"{url}/v1/completions", content=b'{"prompt":"a"}').status_code == 415
    assert httpx2.get(f"{url}/v1/completions").status_code == 405
    assert [model["id"] for model in httpx2.get(f"{url}/v1/models").json()["data"]] == ["tiny"]
    assert httpx2.get(f"{url}/v1/models/runs/tiny").json()["max_model_len"] == 400
    assert httpx2.get(f"{url}/v1/models/other").status_code == 404


def test_two_hundred_clients_slow_readers_and_those_that_leave(url, server):
    """Every second client leaves in mid-stream, one reads late; the others get answers, and all lanes are free."""
    port = int(url.rpartition(":")[2])

    async def client(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        stream = number % 4 < 2
        body = json.dumps(
            {"prompt": "ab" * (number % 7 + 1), "max_tokens": 20, "stream": stream, "seed": number}
        ).encode()
        head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await writer.drain()
        if number % 2:
            await reader.read(100 if stream else 0)
            writer.close()
            return b""
        if number == 4:
            await asyncio.sleep(1.0)
        content = await reader.read()
        writer.close()
        return content

    async def all_of_them():
        return await asyncio.gather(*map(client, range(200)))

    for number, content in enumerate(asyncio.run(all_of_them())):
        if number % 2 == 0:
            assert content.startswith(b"HTTP/1.1 200") and (b"[DONE]" in content or b'"finish_reason":"' in content)
    until(lambda: idle(url))
    assert not server._queues


def test_a_client_that_leaves_frees_its_lane_before_its_answer_is_complete(url):
    until(lambda: idle(url))
    before = httpx2.get(f"{url}/health").json()["sampled_tokens"]
    body = {"prompt": "a", "n": 16, "max_tokens": 390, "stream": True, "logit_bias": None}
    with httpx2.stream("POST", f"{url}/v1/completions", json=body, timeout=300) as response:
        next(response.iter_lines())
    until(lambda: idle(url))
    leaving = http.client.HTTPConnection(url.removeprefix("http://"))
    leaving.request(
        "POST", "/v1/completions", json.dumps(body | {"stream": False}), {"content-type": "application/json"}
    )
    leaving.close()
    until(lambda: idle(url))
    assert httpx2.get(f"{url}/health").json()["sampled_tokens"] - before < 2 * 16 * 390


def test_a_key_is_asked_for_and_a_full_queue_and_a_stopping_server_refuse(config):
    stopping = []
    limits = Limits(400, 2, 2, 20_000, "secret")
    guarded = open_server(config, None, ["tiny"], limits, lanes=1, stopping=lambda: bool(stopping))
    with serving(guarded) as url:
        body = {"prompt": "a", "max_tokens": 300, "temperature": 0}
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer sécret".encode()}):
            response = httpx2.post(f"{url}/v1/completions", json=body, headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
        key = {"authorization": "Bearer secret"}
        assert httpx2.get(f"{url}/v1/models", headers=key).status_code == 200
        assert httpx2.get(f"{url}/health").status_code == 200
        threads = [
            threading.Thread(
                target=httpx2.post, args=(f"{url}/v1/completions",), kwargs=dict(json=body, headers=key, timeout=300)
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        until(lambda: httpx2.get(f"{url}/health").json()["waiting"] == 2)
        full = httpx2.post(f"{url}/v1/completions", json=body, headers=key)
        assert (full.status_code, full.headers["retry-after"]) == (429, "1")
        stopping.append(True)
        refused = httpx2.post(f"{url}/v1/completions", json=body, headers=key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "stopping")
        assert httpx2.get(f"{url}/health").status_code == 503
        for thread in threads:
            thread.join()


def test_the_oldest_answers_are_dropped(url, monkeypatch):
    monkeypatch.setattr("fr3e_jax.serving.answers._STORED_REQUESTS", 3)
    answers = [ask(url, prompt="a", max_tokens=2)["id"] for _ in range(4)]
    ask(url, "/v1/branches", id=answers[1], token=0, max_tokens=2)
    error = ask(url, "/v1/branches", id=answers[1], token=0, max_tokens=2, status=404)["error"]  # that was the fourth
    assert error["code"] == "answer_not_found"
    assert ask(url, "/v1/branches", id=answers[2], token=0, max_tokens=2)["choices"]


def test_weights_that_give_nan_are_refused_at_the_start(config, monkeypatch):
    fresh = Model.fresh_params
    monkeypatch.setattr(Model, "fresh_params", lambda *args: jax.tree.map(lambda x: x * np.nan, fresh(*args)))
    with pytest.raises(ConfigError, match="NaN or infinite; use other weights"):
        open_server(config, None, ["tiny"], Limits(400))


def test_the_decoder_outlives_a_failure_of_the_device(url, server, monkeypatch):
    until(lambda: idle(url))

    def fail(*arguments, **options):
        raise RuntimeError("RESOURCE_EXHAUSTED: no memory")

    with monkeypatch.context() as patch:
        patch.setattr(server.decoder._programs, "prefill", fail)
        error = ask(url, prompt="bbb", status=500)["error"]
    assert error["type"] == "server_error" and "RESOURCE_EXHAUSTED" in error["message"]
    assert ask(url, prompt="bbb", max_tokens=3)["choices"]


def test_the_official_client_reads_all_routes(url, request):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    request.addfinalizer(client.close)  # or a later test is blamed for its open connection
    assert [model.id for model in client.models.list()] == ["tiny"]
    whole = client.completions.create(
        model="tiny", prompt=["a", "a"], n=2, max_tokens=12, seed=1, logprobs=2, stop="答"
    )
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3] and whole.usage.prompt_tokens == 2
    assert len(whole.choices[0].logprobs.tokens) == len(whole.choices[0].logprobs.token_logprobs)
    chat = client.chat.completions.create(
        model="tiny", messages=[USER], seed=1, max_completion_tokens=12, logprobs=True, top_logprobs=3
    )
    message = chat.choices[0].message.content
    assert chat.choices[0].logprobs.content[0].top_logprobs
    with client.chat.completions.create(
        model="tiny",
        messages=[USER],
        seed=1,
        max_completion_tokens=12,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content for chunk in chunks[:-1]) == message
    assert chunks[-1].usage == chat.usage
    branches = client.post(
        "/branches", cast_to=openai.types.Completion, body={"id": whole.id, "choice": 1, "token": 2, "n": 3}
    )
    assert len(branches.choices) == 3
    for raised, body in (
        (openai.NotFoundError, {"model": "gpt-9"}),
        (openai.BadRequestError, {"model": "tiny", "max_tokens": 1000}),
        (openai.UnprocessableEntityError, {"model": "tiny", "frequency_penalty": 1.0}),
    ):
        with pytest.raises(raised):
            client.completions.create(prompt="a", **body)


@pytest.mark.slow
def test_the_command_serves_what_sample_prints_and_finishes_on_sigterm(tmp_path):
    """A process of its own; the last answer is under way when the signal comes, and is finished."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "fr3e_jax"]
    source = ["warm_starts/order", "rollout.max_response_tokens=40"]
    serve = [*command, "serve", *source, "--port", "0"]
    with subprocess.Popen(serve, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().split(" at ")[1].split(";")[0].removesuffix("/v1")
        body = dict(prompt="3+4*2-5*6>", n=3, seed=5, max_tokens=40, return_token_ids=True)
        served = ask(url, **body)
        chat = ask(url, "/v1/chat/completions", messages=[{"role": "user", "content": "3+4*2-5*6>"}], seed=5, n=3)
        last = SimpleNamespace(answer=None)

        def late():
            last.answer = ask(url, prompt="3+4*2>", n=32, max_tokens=400, temperature=3.0)

        thread = threading.Thread(target=late)
        thread.start()
        until(lambda: not idle(url))
        process.send_signal(signal.SIGTERM)
        thread.join()
        assert process.wait(60) == 0 and len(last.answer["choices"]) == 32
    sample = [*command, "sample", *source, "--prompt", "3+4*2-5*6>", "--num", "3", "--json", "seed=5"]
    printed = json.loads(subprocess.run(sample, cwd=ROOT, env=environment, capture_output=True, check=True).stdout)
    assert [c["token_ids"] for c in served["choices"]] == [c["token_ids"] for c in printed["completions"]]
    assert [c["message"]["content"] for c in chat["choices"]] == [c["text"] for c in printed["completions"]]
