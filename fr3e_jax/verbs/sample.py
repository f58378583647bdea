"""``fr3e sample``: completions of one prompt with log-probs and entropies."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fr3e_jax.cli.arguments import declare_print_config, declare_run_to_read, positive
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import locate_policy, print_config
from fr3e_jax.configuration import Config, ConfigError
from fr3e_jax.configuration.error_conversion import as_config_error
from fr3e_jax.conversation import question_of

if TYPE_CHECKING:
    from fr3e_jax.rollouts.requests import Rollout
    from fr3e_jax.session.session import Session


def declare(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument(
        "--prompt",
        required=True,
        metavar="TEXT",
        help="the question to answer, a text or messages in JSON; data.template is applied to it",
    )
    parser.add_argument("--num", type=positive, default=1, metavar="N", help="number of completions (default 1)")
    parser.add_argument("--json", action="store_true", help="print JSON with log-probs and entropies of all tokens")
    declare_run_to_read(parser, "sample from")
    declare_print_config(parser)


def run(arguments: argparse.Namespace) -> int:
    """Sample from the weights that the arguments name; return the exit code."""
    config, run_dir = locate_policy(arguments)
    if print_config(arguments, config):
        return 0
    return sample(config, arguments.prompt, arguments.num, arguments.json, run_dir)


def sample(config: Config, prompt: str, num: int, as_json: bool, run_dir: Path | None) -> int:
    """Print ``num`` completions of ``prompt``; return the exit code.

    The configured model samples them, or a run's newest checkpoint, at the temperature, top-p and top-k of ``rollout``.

    Raises:
      ConfigError: the prompt is empty, or holds a character that the tokenizer lacks; the run has no checkpoint, or one
        of another model; its weights give NaN.
    """
    from fr3e_jax.rollouts.noise import SAMPLE
    from fr3e_jax.rollouts.requests import Branch, TrunkRequest
    from fr3e_jax.session.run_weights import load_run_params, refused_weights
    from fr3e_jax.session.session import open_session

    config.judge.model = ""  # nothing is graded
    if config.environment.kind == "none":  # then no problem is needed, so no data
        config.data.task, config.data.train, config.data.eval, config.data.verifier = "order", [], [], ""
    session = open_session(config)
    with as_config_error():
        ids = session.texts.prompt_ids(_question(prompt))
        if not len(ids):
            raise ConfigError("--prompt is empty; expected at least one token to continue from")
        weights, step = load_run_params(session, run_dir)
    cap = config.rollout.max_response_tokens
    branches = [Branch(len(ids), (SAMPLE, 0, 0, n), cap, session.sampling()) for n in range(num)]
    with refused_weights(config.model, run_dir, step):
        rollouts, _ = session.sampler.sample(session.sampler.weights.of(weights), [TrunkRequest(ids, branches)])
    if as_json:
        completions = [_described(session, r) for r in rollouts[0]]
        print(json.dumps({"prompt": prompt, "step": step, "completions": completions}, indent=2))
        return 0
    if run_dir is not None:
        print(f"{run_dir}, step {step}:")
    for n, rollout in enumerate(rollouts[0]):
        print(f"[{n}] {session.texts.response_text(rollout.token_ids, rollout.finished)!r}")
        ending = "stop token" if rollout.finished else f"cut at rollout.max_response_tokens={cap}"
        print(
            f"    {len(rollout.token_ids)} tokens, {ending}, log-prob {rollout.logprobs.sum():.3f}, "
            f"mean entropy {rollout.entropies.mean():.3f} nats, largest {rollout.entropies.max():.3f} "
            f"at token {rollout.entropies.argmax()}"
        )
    return 0


def _question(prompt: str) -> str:
    try:
        return question_of(prompt)
    except ValueError as error:
        raise ConfigError(f"--prompt {error}") from error


def _described(session: Session, rollout: Rollout) -> dict[str, Any]:
    tokens = [session.texts.codec.decode([token], special_tokens=True) for token in rollout.token_ids.tolist()]
    return {
        "text": session.texts.response_text(rollout.token_ids, rollout.finished),
        "finished": rollout.finished,
        "token_ids": rollout.token_ids.tolist(),
        "tokens": tokens,
        "logprobs": rollout.logprobs.tolist(),
        "entropies": rollout.entropies.tolist(),
    }


VERB = Verb("fr3e sample configs/demo.yaml --prompt '3+4*2-5*6>' --num 4 --run runs/demo-20250101-120000", declare, run)
