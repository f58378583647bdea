"""Environments of ``verifiers`` as environments of this package, played by their own loop and scored by their rubric.

``data.task=verifiers data.environment=ID environment.kind=task`` plays what ``load_environment`` of the module ``ID``
returns; ``data.environment_options`` are its arguments. From Python::

    from fr3e_jax.tools.verifiers_environment import VerifiersTask

    def task(config):  # data.task=mine.py:task
        return VerifiersTask(verifiers.ReasoningGymEnv(gym="chain_sum"))

An environment there drives a whole rollout through a client of a model. Here that client is the policy: it waits for
the text of a turn. So setup, tools, stop conditions and cleanup are the environment's own, unchanged.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import ctypes
import functools
import importlib
import inspect
import json
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.conversation import question_of
from fr3e_jax.problem import Problem
from fr3e_jax.tools.environment import Step, shown
from fr3e_jax.tools.environment_task import EnvironmentTask, arguments_of
from fr3e_jax.trusted_code import users_code

FIRST_VERSION, END_OF_VERSIONS = (0, 1, 14), (0, 4)
"""The versions of ``verifiers`` with `load_environment` and a client that can be replaced."""

UNPLAYABLE = {
    "SandboxEnv": "runs code in a remote sandbox",
    "CliAgentEnv": "lets a program talk to the model over HTTP",
    "MCPEnv": "starts tool servers of its own",
    "BrowserEnv": "drives a remote browser",
}
"""Classes of environments that cannot be played here, and why."""

_INSTALL = "pip install 'fr3e-jax[verifiers]'"
_SECONDS_TO_CLOSE = 5.0
_POLL_SECONDS = 0.2  # a late call is interrupted between two polls
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_faults: contextvars.ContextVar[list[Exception]] = contextvars.ContextVar("_faults")  # of an episode's rewards

Message = tuple[str, str]
"""The role and the text of a message."""


class _Turn(NamedTuple):
    """A question of an environment to the policy: the messages so far, and the future of the policy's text."""

    messages: list[Message]
    reply: asyncio.Future


class VerifiersEnvironment:
    """An episode in an environment of ``verifiers``; see `fr3e_jax.tools.environment.Environment`.

    The last turn earns the rubric's reward, the weighted sum of its functions; turns before it earn 0. A function with
    a weight that raises is a fault of the episode, where the package itself logs it and counts 0; so is an error that
    the package leaves in the state. The seed of the episode is in ``state["sampling_args"]["seed"]``.

    Args:
      environment: of the package.
    """

    def __init__(self, environment: Any):
        self._environment, self._turns = environment, queue.SimpleQueue[Any]()
        self._turn: _Turn | None = None
        self._episode: concurrent.futures.Future | None = None
        self._task: asyncio.Task | None = None

    def reset(self, problem: Problem, seed: int) -> str:
        """Begin the episode; "": the problem's prompt is what the environment asks."""
        row = problem.extra["row"]
        self._episode = asyncio.run_coroutine_threadsafe(self._play(row, seed), _loop())
        self._episode.add_done_callback(self._turns.put)
        asked, expected = self._asked(), _read(row["prompt"])
        if asked is None or asked == expected:
            return ""
        if len(asked) > 1 or _tools(self._environment, row):
            raise ValueError(
                f"the environment begins with {shown(asked)} where its row's prompt is {shown(expected)}; expected the "
                "prompt of the row, or a single message of the user"
            )
        return asked[0][1]

    def step(self, text: str) -> Step:
        """Play a turn."""
        if self._turn is None:
            return self._scored()
        messages = self._turn.messages
        _loop().call_soon_threadsafe(self._turn.reply.set_result, text)
        asked = self._asked()
        if asked is None:
            return self._scored()
        said, more = asked[: len(messages)], asked[len(messages) :]
        if said != messages or not more or more[0][0] != "assistant":
            raise ValueError(
                "the environment asks the policy with other messages than those so far and a continuation (a second "
                "conversation, a simulated user or a rewritten history); expected one conversation that grows"
            )
        return Step("\n".join(_as_the_user_says(message) for message in more[1:]))

    def close(self) -> None:
        """Cancel the environment's loop if it still runs, so that it cleans up."""
        if self._episode is not None and self._task is not None and not self._episode.done():
            _loop().call_soon_threadsafe(self._task.cancel)
            concurrent.futures.wait([self._episode], _SECONDS_TO_CLOSE)

    async def answer(self, prompt: Sequence[Any], tools: Any) -> Any:
        """The policy's answer to a prompt, as the package's client gives it."""
        reply = asyncio.get_running_loop().create_future()
        self._turns.put(_Turn(_read(prompt), reply))
        return _response(await reply, bool(tools))

    async def _play(self, row: Mapping[str, Any], seed: int) -> float:
        """The reward of an episode that the environment drives."""
        self._task = asyncio.current_task()
        faults: list[Exception] = []
        _faults.set(faults)
        environment = self._environment
        state = await environment.rollout(dict(row), _client(self), "policy", {"seed": seed})
        if (error := state.get("error")) is not None:
            raise error if isinstance(error, Exception) else RuntimeError(str(error))
        await environment.rubric.score_rollout(state)
        await environment.rubric.cleanup(state)
        if faults:
            raise faults[0]
        return state["reward"]

    def _asked(self) -> list[Message] | None:
        """The messages of the next turn; None once the episode has ended."""
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    event = self._turns.get(timeout=_POLL_SECONDS)
                    break
        except BaseException:  # late: the environment may hold the loop that all episodes share
            _interrupt()
            raise
        self._turn = event if isinstance(event, _Turn) else None
        return self._turn and self._turn.messages

    def _scored(self) -> Step:
        assert self._episode is not None
        return Step("", self._episode.result(), done=True)


class VerifiersTask(EnvironmentTask):
    """The dataset of an environment of ``verifiers`` with the environment. A prompt names the tools, if there are any.

    Args:
      environment: of the package.
      judge: address of an OpenAI-compatible endpoint for rubrics that ask a judge; "": the environment's own client.

    Raises:
      ConfigError: the package's version is another, or the environment cannot be played; it says why.
    """

    def __init__(self, environment: Any, judge: str = ""):
        check_version()
        name = getattr(environment, "env_id", "") or type(environment).__name__
        if reason := _reason_against(environment):
            raise ConfigError(f"the verifiers environment {name} {reason}")
        for rubric in _rubrics(environment.rubric):
            if hasattr(rubric, "judge_client"):
                _choose_judge(rubric, judge, name)
            rubric.funcs[:] = [
                _noting_faults(function) if weight and not hasattr(function, "_notes_faults") else function
                for function, weight in zip(rubric.funcs, rubric.weights, strict=True)
            ]
        environment.build_dataset()
        environment.build_eval_dataset()
        sets = {"train": environment.dataset, "test": environment.eval_dataset}
        if sets["train"] is None:
            sets = {"train": sets["test"], "test": None}
        problems = {
            split: [_problem(environment, row, split) for row in rows]
            for split, rows in sets.items()
            if rows is not None
        }
        super().__init__("verifiers", _Episodes(environment), problems)


class _Episodes:
    """Makes the episodes of an environment."""

    def __init__(self, environment: Any):
        self._environment = environment

    def __call__(self) -> VerifiersEnvironment:
        return VerifiersEnvironment(self._environment)

    def limit_turns(self, most: int) -> None:
        """Let the environment end, and score, its episodes after ``most`` turns at the latest."""
        for environment in [self._environment, *getattr(self._environment, "envs", [])]:
            turns = getattr(environment, "max_turns", most)
            environment.max_turns = min(turns, most) if turns > 0 else most


def task(data: DataConfig) -> VerifiersTask:
    """The task of ``data.task=verifiers``.

    Raises:
      ConfigError: the package or the environment is missing, or cannot be played.
    """
    options = arguments_of(data, "a module that has load_environment()")
    judge = options.pop("judge", "")
    check_version()
    module = importlib.import_module("verifiers")
    try:
        environment = module.load_environment(data.environment, **options)
    except Exception as error:
        cause = error.__cause__
        raise ConfigError(f"data.environment={data.environment}: {error}" + (f" ({cause})" if cause else "")) from error
    return VerifiersTask(environment, judge)


def check_version() -> None:
    """Refuse versions of ``verifiers`` whose environments cannot be played.

    Raises:
      ConfigError: there is none, or another one.
    """
    try:
        version = importlib.import_module("verifiers").__version__
    except ImportError as error:
        raise ConfigError(f"data.task=verifiers needs the package verifiers: {_INSTALL} ({error})") from None
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:3])
    if not FIRST_VERSION <= numbers < END_OF_VERSIONS:
        first, end = (".".join(map(str, numbers)) for numbers in (FIRST_VERSION, END_OF_VERSIONS))
        raise ConfigError(
            f"verifiers {version} is installed; expected {first} or later and before {end}, whose tasksets and harness "
            f"programs have no environments with turns: {_INSTALL}"
        )


def _reason_against(environment: Any) -> str:
    """The reason why an environment cannot be played; "" if it can."""
    if not hasattr(environment, "rollout") or not hasattr(environment, "rubric"):
        return f"is a {type(environment).__name__} without rollout() and rubric; expected an Environment"
    for each in [environment, *getattr(environment, "envs", [])]:
        for base in type(each).__mro__:
            if reason := UNPLAYABLE.get(base.__name__):
                return f"is a {base.__name__}, which {reason}; expected one that plays in its own process"
        if not getattr(each, "score_rollouts", True):
            return "has score_rollouts=False, so its episodes earn nothing; load it with scores"
        if each.rubric.has_group_rewards or getattr(each.rubric, "has_advantages", False):
            return (
                "has rewards of whole groups of rollouts (functions of completions, states, ...), which a branch has "
                "none of; expected functions of one completion"
            )
    return ""


def _rubrics(rubric: Any) -> Iterator[Any]:
    """A rubric and those in it."""
    yield rubric
    inner = [*getattr(rubric, "rubrics", []), *(each.rubric for each in getattr(rubric, "env_map", {}).values())]
    for each in inner:
        yield from _rubrics(each)


def _choose_judge(rubric: Any, judge: str, name: str) -> None:
    client = rubric.judge_client
    if judge:
        client = client.with_options(base_url=judge)
    elif "api.openai.com" in str(client.base_url) and os.environ.get("OPENAI_API_KEY", "") in ("", "none"):
        raise ConfigError(
            f"the verifiers environment {name} asks a judge at {client.base_url}, without OPENAI_API_KEY; name an "
            "endpoint with data.environment_options=[judge=http://127.0.0.1:8000/v1]"
        )
    rubric.judge_client = client
    rubric.class_objects["judge_client"] = client


def _noting_faults(function: Callable[..., Any]) -> Callable[..., Any]:
    """A reward function that also notes what it raises."""

    @functools.wraps(function)
    async def noting(*arguments: Any, **named: Any) -> Any:
        try:
            result = function(*arguments, **named)
            return float(await result if inspect.isawaitable(result) else result)
        except Exception as error:
            _faults.get([]).append(error)
            raise

    noting._notes_faults = True  # type: ignore[attr-defined]
    return noting


def _problem(environment: Any, row: Mapping[str, Any], split: str) -> Problem:
    """The problem of a row of the dataset, which the environment gets as it is."""
    name, asked = f"{split}/{row['example_id']}", row["prompt"]
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    try:
        prompt = question_of(messages, tools=_tools(environment, row))
    except ValueError as error:
        raise ConfigError(f"the prompt of {name} {error}") from None
    answer = row.get("answer")
    return Problem(name, prompt, answer if isinstance(answer, str) else "", {"row": dict(row)})


def _tools(environment: Any, row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools of an episode, as chat templates get them."""
    information = row.get("info")
    information = json.loads(information) if isinstance(information, str) and information else information
    defined = (information or {}).get("tool_defs") or getattr(environment, "tool_defs", None) or []
    values = [tool if isinstance(tool, Mapping) else tool.model_dump() for tool in defined]
    return [
        {"type": "function", "function": {name: value[name] for name in ("name", "description", "parameters")}}
        for value in values
    ]


def _read(messages: Any) -> list[Message]:
    """Role and text of messages; a text alone is the user's.

    Raises:
      ValueError: a message has a part that is no text.
    """
    if isinstance(messages, str):
        return [("user", messages)]
    read = []
    for message in messages:
        get = message.get if isinstance(message, Mapping) else functools.partial(getattr, message)
        role, content = get("role", None), get("content", None)
        parts = [content or ""] if isinstance(content, str | None) else content
        texts = []
        for part in parts:
            part = part if isinstance(part, str | Mapping) else part.model_dump()
            text = part if isinstance(part, str) else part.get("text")
            if not isinstance(text, str):
                raise ValueError(f"a message of the environment has the part {shown(part)}; expected texts alone")
            texts.append(text)
        read.append(("user" if role == "text" else role, "\n".join(texts)))
    return read


def _as_the_user_says(message: Message) -> str:
    role, text = message
    return f"<tool_response>\n{text}\n</tool_response>" if role == "tool" else text


def _response(text: str, calls_tools: bool) -> Any:
    """The policy's text as a response of the package's client, with the calls of tools that it has."""
    types = importlib.import_module("verifiers.types")
    calls = []
    for number, written in enumerate(_CALL.findall(text) if calls_tools else ()):
        name, arguments = _call(written)
        calls.append(types.ToolCall(id=f"call_{number}", name=name, arguments=arguments))
    content = _CALL.sub("", text).strip() if calls else text
    message = types.ResponseMessage(
        content=content,
        tool_calls=calls or None,
        finish_reason="tool_calls" if calls else "stop",
        is_truncated=False,
    )
    return types.Response(id="policy", created=0, model="policy", message=message)


def _call(written: str) -> tuple[str, str]:
    """Name and arguments of a call; what is no call keeps its text, and the environment answers with the error."""
    try:
        call = json.loads(written)
        arguments = call["arguments"]
        return str(call["name"]), arguments if isinstance(arguments, str) else json.dumps(arguments)
    except (ValueError, KeyError, TypeError):
        return "", written


def _client(episode: VerifiersEnvironment) -> Any:
    """The client of a model whose answers are the policy's turns."""
    return _client_class()(episode)


@functools.cache
def _client_class() -> type:
    base = importlib.import_module("verifiers.clients").Client

    async def get_response(self: Any, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Any:
        return await self._client.answer(prompt, tools)

    def no_endpoint(self: Any, *arguments: Any, **named: Any) -> Any:
        raise AttributeError(
            "the policy has no endpoint; expected an environment that asks it by client.get_response(prompt, model, "
            "sampling_args, tools)"
        )

    methods = dict.fromkeys(base.__abstractmethods__, no_endpoint)
    return type("PolicyClient", (base,), methods | {"get_response": get_response, "client": property(no_endpoint)})


@functools.cache
def _loop_and_thread() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    """The one event loop of all episodes, as the package itself plays them, in a thread that ends with the process."""
    loop = asyncio.new_event_loop()

    def run() -> None:
        with users_code():
            while not loop.is_closed():  # sys.exit() of an environment leaves run_forever, and is its episode's fault
                with contextlib.suppress(BaseException):
                    loop.run_forever()

    thread = threading.Thread(target=run, name="verifiers", daemon=True)
    thread.start()
    return loop, thread


def _loop() -> asyncio.AbstractEventLoop:
    return _loop_and_thread()[0]


class _Late(BaseException):
    """Raised in an environment that holds the loop past its deadline; not an ``Exception``, which it may catch."""


def _interrupt() -> None:
    """Interrupt what runs in the loop, if it does not come back at once."""
    loop, thread = _loop_and_thread()
    is_free = threading.Event()
    loop.call_soon_threadsafe(is_free.set)
    if not is_free.wait(1.0) and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Late))
