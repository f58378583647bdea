"""A policy in the hand: sample from it, branch from any token of an answer, score answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fr3e_jax.cluster.processes import own_processes
from fr3e_jax.configuration import Config, ConfigError, load_config
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.configuration.load import Overrides, default_config, listed
from fr3e_jax.configuration.provenance import CONFIG_FILE
from fr3e_jax.conversation import messages_of, question_of
from fr3e_jax.hub import is_id
from fr3e_jax.objectives.anchors import AnchorRules
from fr3e_jax.programs.explore_programs import find_anchors
from fr3e_jax.rollouts.noise import SAMPLE, STATE
from fr3e_jax.rollouts.requests import Branch, CachedTrunk, Rollout, Sampling, TrunkRequest
from fr3e_jax.session.run_weights import read_run_params, refused_weights
from fr3e_jax.session.session import open_sampler, open_texts, start_runtime
from fr3e_jax.shipped_files import existing
from fr3e_jax.stores.copies import fetched_folder
from fr3e_jax.stores.objects import is_remote
from fr3e_jax.stores.reading import holds_run, run_folder

CHECKPOINTS = "checkpoints"  # folder of a run
Messages = Sequence[Mapping[str, Any]]
Prompts = str | Messages | Sequence[str | Messages]
AT = ("entropy", "logprob", "gradient", "uniform", "random")


@dataclass(repr=False)
class Completion:
    """An answer to a prompt, and the sampler's figures for each of its tokens; arrays ``[T]``.

    Of a branch, the figures are those of the whole answer: of the tokens before ``fork`` as the base has them.

    Attributes:
      prompt: the question.
      text: the answer without its stop token or text.
      token_ids: int32, with the stop token.
      logprobs: under the distribution that each token was sampled from.
      entropies: nats, of the full vocabulary.
      finished: whether a stop token or text ended it; else it reached ``max_tokens``.
      fork: tokens of the base before the branch; 0 for an answer that was sampled from the prompt.
    """

    prompt: str
    text: str
    token_ids: np.ndarray
    logprobs: np.ndarray
    entropies: np.ndarray
    finished: bool
    fork: int = 0
    _magnitudes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32), repr=False)
    _prompt_ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32), repr=False)
    _trunk: CachedTrunk | None = field(default=None, repr=False)
    _tool_written: np.ndarray | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.token_ids)

    def __repr__(self) -> str:
        branched = f", branched at token {self.fork}" if self.fork else ""
        ending = "" if self.finished else ", cut at max_tokens"
        return f"Completion({self.prompt!r}: {self.text!r}, {_counted(len(self), 'token')}{branched}{ending})"

    def _rollout(self) -> Rollout:
        columns = (self.token_ids, self.logprobs, self.entropies, self._magnitudes)
        return Rollout(*columns, self.finished, tool_written=self._tool_written)


@dataclass(frozen=True, repr=False)
class State:
    """A place in an answer from which it was continued: the answer's first ``fork`` tokens.

    Attributes:
      fork: tokens of the answer before it.
      token: text of the answer's own next token, which continuations draw anew.
      entropy: of that token, in nats.
      completions: whole answers that begin with the same ``fork`` tokens.
    """

    fork: int
    token: str
    entropy: float
    completions: list[Completion]

    def __iter__(self) -> Iterator[Completion]:
        return iter(self.completions)

    def __len__(self) -> int:
        return len(self.completions)

    def __repr__(self) -> str:
        held = f"token {self.fork} {self.token!r}, entropy {self.entropy:.3g} nats"
        return f"State({held}, {_counted(len(self), 'completion')})"


@dataclass(frozen=True, repr=False)
class ScoredResponse:
    """Log-probs and entropies (nats) of a given answer's tokens, arrays ``[T]``."""

    token_ids: np.ndarray
    logprobs: np.ndarray
    entropies: np.ndarray

    def __repr__(self) -> str:
        total, mean = self.logprobs.sum(), self.entropies.mean()
        tokens = _counted(len(self.token_ids), "token")
        return f"ScoredResponse({tokens}, log-prob {total:.3g}, mean entropy {mean:.3g} nats)"


class Policy:
    """A network with its weights and its tokenizer; `load_policy` makes one.

    Attributes:
      config: the settings behind it; ``config.rollout`` holds the defaults of sampling.
      texts: its tokenizer and template.
      sampler, weights: its decoder, and the weights in the layout of rollouts.
      positions: the longest sequence.
      step: training steps of the weights; 0 for a model directory.
    """

    def __init__(self, config: Config, run_dir: Path | None = None, step: int | None = None):
        start_runtime(config.runtime.compilation_cache)
        self.config, self._run_dir = config, run_dir
        self.texts = open_texts(config)
        model, self.sampler = open_sampler(config, self.texts, own_processes())
        self.positions = model.architecture.max_position_embeddings
        with as_config_error():
            params, self.step = (
                (model.fresh_params(config), 0) if run_dir is None else read_run_params(run_dir, model, step)
            )
        with refused_weights(config.model, run_dir, self.step):
            self.weights = self.sampler.weights.of(params)
        self._calls = 0

    def __repr__(self) -> str:
        return f"Policy({str(self._run_dir or self.config.model.path)!r}, step {self.step})"

    def sample(
        self,
        prompts: Prompts,
        n: int = 1,
        *,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int = 0,
        max_tokens: int | None = None,
        seed: int | None = None,
        keep_caches: bool = True,
    ) -> list[Completion]:
        """Sample ``n`` answers to each prompt; a flat list, prompt by prompt.

        Args:
          prompts: questions; the template of ``config.data.template`` is put around them. Each is a text or a list of
            messages with ``role`` and ``content``; a single one needs no list around it.
          n: answers to each.
          temperature: 0 is greedy; None for this, ``top_p`` and ``max_tokens``: as ``config.rollout`` has it.
          top_p: nucleus of this mass; 1 filters nothing.
          top_k: the most probable tokens; 0 filters nothing.
          max_tokens: the longest answer.
          seed: equal seeds give equal answers; None: a new one for each call, so that a program is reproducible.
          keep_caches: keep each answer's keys and values on the device, until it is dropped, so that `branch` computes
            nothing twice; false saves that memory, and `branch` computes them once.

        Raises:
          ConfigError: a prompt is empty or cannot be encoded, or an argument is out of its range.
        """
        prompts = _questions(prompts)
        sampling, cap = self._sampling(temperature, top_p, top_k), self._cap(max_tokens)
        self._check_count("n", n)
        with as_config_error():
            ids = [self.texts.prompt_ids(prompt) for prompt in prompts]
        for i, prompt in enumerate(ids):
            if not len(prompt):
                raise ConfigError(f"prompt {i} is empty; expected at least one token to continue from")
            self._check_room(len(prompt) + cap)
        call = self._number(seed)
        requests = [
            TrunkRequest(prompt, [Branch(len(prompt), (SAMPLE, call, i, m), cap, sampling) for m in range(n)])
            for i, prompt in enumerate(ids)
        ]
        rollouts, trunks = self._run(requests, keep_caches)
        return [
            self._completion(prompts[i], ids[i], rollout, 0, trunks.get((i, m)))
            for i, row in enumerate(rollouts)
            for m, rollout in enumerate(row)
        ]

    def branch(
        self,
        completion: Completion,
        at: Literal["entropy", "logprob", "gradient", "uniform", "random"] | Sequence[int] = "entropy",
        *,
        anchors: int = 4,
        n: int = 1,
        temperature: float | None = None,
        top_p: float | None = None,
        top_k: int = 0,
        max_tokens: int | None = None,
        seed: int | None = None,
        keep_caches: bool = True,
    ) -> list[State]:
        """Return to states of an answer and continue ``n`` times from each, out of the answer's cached prefix.

        Args:
          completion: an answer that this policy sampled.
          at: where to return: before the tokens of highest entropy (FR3E, eq. 7), of lowest log-prob, of largest
            update, evenly spaced, at random; or the numbers of the tokens themselves, from 0 on.
          anchors: the most states, if ``at`` is a rule.
          n: continuations of each state.
          temperature: this and what follows: see `sample`. ``max_tokens`` counts the whole answer.

        Returns:
          The states in the order of their places, each with ``n`` whole answers. An answer of one token has none,
          unless ``at`` names it.

        Raises:
          ConfigError: ``at`` is no rule and no list of places in the answer, or an argument is out of its range.
        """
        self._check_count("n", n)
        sampling, cap, call = self._sampling(temperature, top_p, top_k), self._cap(max_tokens), self._number(seed)
        places = self._places(completion, at, anchors, call)
        start, ids = len(completion._prompt_ids), completion._prompt_ids
        if late := [fork for fork in places if fork >= cap]:
            raise ConfigError(f"token {late[0]} is beyond max_tokens={cap}; raise it, or return to earlier tokens")
        self._check_room(start + cap)
        if not places:
            return []
        if completion._trunk is None or completion._trunk.batch is None:
            token_ids = np.concatenate([ids, completion.token_ids]).astype(np.int32)
            completion._trunk = self.sampler.engine.prefill(self.weights, [token_ids])[0]
        base, states = completion._rollout(), []
        branches = [
            Branch(start + fork, (STATE, call, 0, 0, j, m), cap - fork, sampling, base.head(fork))
            for j, fork in enumerate(places)
            for m in range(n)
        ]
        rollouts, trunks = self._run([TrunkRequest(dataclasses.replace(completion._trunk), branches)], keep_caches)
        for j, fork in enumerate(places):
            members = range(j * n, (j + 1) * n)
            whole_answers = [(base.head(fork).then(rollouts[0][m]), trunks.get((0, m))) for m in members]
            answers = [self._completion(completion.prompt, ids, answer, fork, trunk) for answer, trunk in whole_answers]
            token = self.texts.codec.decode([int(completion.token_ids[fork])], special_tokens=True)
            states.append(State(fork, token, float(completion.entropies[fork]), answers))
        return states

    def score(self, prompts: Prompts, responses: str | Sequence[str]) -> list[ScoredResponse]:
        """Log-probs (temperature 1) and entropies of given answers; a stop token ends each of them.

        Args:
          prompts: questions as for `sample`, one for each answer; or one for all.
          responses: the answers' texts.

        Raises:
          ConfigError: the numbers differ, a prompt is empty, or a text cannot be encoded.
        """
        responses = [responses] if isinstance(responses, str) else list(responses)
        questions = _questions(prompts)
        prompts = questions * len(responses) if _is_single(prompts) else questions
        if len(prompts) != len(responses):
            raise ConfigError(f"{len(prompts)} prompts and {len(responses)} responses; expected one prompt for each")
        codec, engine = self.texts.codec, self.sampler.engine
        with as_config_error():
            starts = [self.texts.prompt_ids(prompt) for prompt in prompts]
            ends = [np.append(self.texts.encode(text), codec.stop_ids[0]).astype(np.int32) for text in responses]
        scored: list[ScoredResponse] = []
        for first in range(0, len(ends), engine.slots):
            some = range(first, min(first + engine.slots, len(ends)))
            for i in some:
                if not len(starts[i]):
                    raise ConfigError(f"prompt {i} is empty; expected at least one token before the response")
                self._check_room(len(starts[i]) + len(ends[i]))
            trunks = engine.prefill(self.weights, [np.concatenate([starts[i], ends[i]]) for i in some])
            rows = np.concatenate([np.full(len(ends[i]), row) for row, i in enumerate(some)])
            positions = np.concatenate([len(starts[i]) + np.arange(len(ends[i])) for i in some])
            batch = trunks[0].batch
            assert batch is not None  # nothing has consumed it
            ids = np.concatenate([ends[i] for i in some])
            scores = engine.programs.alternatives(self.weights, batch, rows, positions, ids)
            for row, i in enumerate(some):
                of_row = rows == row
                scored.append(
                    ScoredResponse(
                        ends[i], np.asarray(scores.own_logprobs)[of_row], np.asarray(scores.entropies)[of_row]
                    )
                )
        return scored

    # -- parts -------------------------------------------------------------------------------------------------------

    def _run(
        self, requests: Sequence[TrunkRequest], keep_caches: bool
    ) -> tuple[list[list[Rollout]], dict[Any, CachedTrunk]]:
        keep = (lambda i, rollouts, wait: range(len(rollouts))) if keep_caches else None
        with refused_weights(self.config.model, self._run_dir, self.step):
            return self.sampler.sample(self.weights, requests, keep)

    def _completion(
        self, prompt: str, prompt_ids: np.ndarray, rollout: Rollout, fork: int, trunk: CachedTrunk | None
    ) -> Completion:
        return Completion(
            prompt=prompt,
            text=self.texts.response_text(rollout.token_ids, rollout.finished),
            token_ids=rollout.token_ids.copy(),  # arrays of one's own: those of a rollout are read when they are needed
            logprobs=rollout.logprobs.copy(),
            entropies=rollout.entropies.copy(),
            finished=rollout.finished,
            fork=fork,
            _magnitudes=rollout.magnitudes.copy(),
            _prompt_ids=prompt_ids,
            _trunk=trunk,
            _tool_written=rollout.tool_written,
        )

    def _places(self, completion: Completion, at: Any, anchors: int, call: int) -> list[int]:
        length = len(completion)
        if not isinstance(at, str):
            places = [int(fork) for fork in at]
            if bad := [fork for fork in places if not 0 <= fork < length]:
                raise ConfigError(f"at names token {bad[0]}; the answer has the tokens 0 to {length - 1}")
            return places
        if at not in AT:
            raise ConfigError(f"at is {at!r}; expected one of {', '.join(AT)}, or a list of token numbers")
        self._check_count("anchors", anchors)
        sources = {
            "entropy": completion.entropies,
            "logprob": completion.logprobs,
            "gradient": completion._magnitudes,
            "uniform": completion.entropies,  # reads the length alone
            "random": np.random.default_rng([self.config.seed, call]).random(length),
        }
        sampled = [completion._rollout().sampled]
        return find_anchors([sources[at]], AnchorRules(anchors), selection=at, sampled=sampled)[0].tolist()

    def _sampling(self, temperature: float | None, top_p: float | None, top_k: int) -> Sampling:
        r = self.config.rollout
        chosen = (
            r.temperature if temperature is None else temperature,
            r.top_p if top_p is None else top_p,
            top_k,
        )
        ranges = ("at least 0", "above 0 and at most 1", "at least 0")
        fits = (chosen[0] >= 0, 0 < chosen[1] <= 1, chosen[2] >= 0)
        for name, value, expected, fine in zip(("temperature", "top_p", "top_k"), chosen, ranges, fits, strict=True):
            if not fine:
                raise ConfigError(f"{name} is {value}; expected a number {expected}")
        return Sampling(*chosen, stop_ids=self.texts.codec.stop_ids)

    def _cap(self, max_tokens: int | None) -> int:
        cap = self.config.rollout.max_response_tokens if max_tokens is None else max_tokens
        self._check_count("max_tokens", cap)
        return cap

    def _check_count(self, name: str, value: int) -> None:
        if value < 1:
            raise ConfigError(f"{name} is {value}; expected at least 1")

    def _check_room(self, needed: int) -> None:
        if needed > self.positions:
            raise ConfigError(
                f"a sequence could have {needed} tokens, and the network has {self.positions} positions; lower "
                "max_tokens, or load the policy with overrides={'model.max_position_embeddings': ...}"
            )

    def _number(self, seed: int | None) -> int:
        if seed is None:
            self._calls += 1
            return 2**31 + self._calls  # apart from the seeds that a caller is likely to give
        if not 0 <= seed < 2**31:
            raise ConfigError(f"seed is {seed}; expected a whole number from 0 to {2**31 - 1}")
        return seed


def _counted(count: int, noun: str) -> str:
    """``1 token``, ``2 tokens``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def _is_single(prompts: Any) -> bool:
    """Whether the prompts are a single one: a text, or the messages of one conversation."""
    return isinstance(prompts, str) or bool(messages_of(prompts))


def _questions(prompts: Any) -> list[str]:
    """The questions of texts or messages.

    Raises:
      ConfigError: one is neither.
    """
    questions = []
    for i, prompt in enumerate([prompts] if _is_single(prompts) else prompts):
        try:
            questions.append(question_of(prompt))
        except ValueError as error:
            raise ConfigError(f"prompt {i} {error}") from error
    return questions


def _fetched(address: str) -> Path:
    """The folder of a run or of a model in an object store."""
    run, _, step = address.partition(f"/{CHECKPOINTS}/")
    if holds_run(run):
        folder = run_folder(run, checkpoints=True)
        return folder / CHECKPOINTS / step if step else folder
    return fetched_folder(address)


def load_policy(source: str | Path, *, step: int | None = None, overrides: Overrides = ()) -> Policy:
    """The policy in a directory: a Hugging Face model, a run of `fr3e train` or `fr3e sft`, or one of its checkpoints.

    Args:
      source: ``Qwen2.5-0.5B``, ``runs/demo-...``, ``runs/demo-.../checkpoints/40``, or an id of the Hugging Face hub:
        ``Qwen/Qwen2.5-0.5B``. Each may be at an address in an object store.
      step: the checkpoint of a run; None: the newest.
      overrides: settings, ``{"model.compute_dtype": "bfloat16", "data.template": "chat"}``, or a list of texts as on
        the command line.

    Raises:
      ConfigError: there is no such directory, or it holds neither a model nor a run.
    """
    with as_config_error():
        path = _fetched(str(source)) if is_remote(source) else existing(source)
    if path.parent.name == CHECKPOINTS and path.name.isdecimal():
        path, step = path.parent.parent, int(path.name) if step is None else step
    from_hub = is_id(str(source))
    if not path.is_dir() and not from_hub:
        raise ConfigError(
            f"{path} is no directory; expected a Hugging Face model or its id on the hub, a run, or a run's checkpoint"
        )
    if (path / CONFIG_FILE).is_file():
        return Policy(load_config(path / CONFIG_FILE, overrides, training=False), path, step)
    if not (path / "config.json").is_file() and not from_hub:
        raise ConfigError(f"{path} has neither config.json (a model) nor {CONFIG_FILE} (a run)")
    if step is not None:
        raise ConfigError(f"step={step} names a checkpoint, but {path} is a model; leave step out")
    return Policy(default_config([f"model.path={source if from_hub else path}", *listed(overrides)]))
