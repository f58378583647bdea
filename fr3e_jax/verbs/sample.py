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

if TYPE_CHECKING:
    from fr3e_jax.api.policy import Completion, Policy


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
    from fr3e_jax.api.policy import Policy

    policy = Policy(config, run_dir)
    try:
        completions = policy.sample(prompt, num, seed=0, keep_caches=False)
    except ConfigError as error:
        raise ConfigError(str(error).replace("prompt 0", "--prompt", 1)) from error
    if as_json:
        described = [_described(policy, completion) for completion in completions]
        print(json.dumps({"prompt": prompt, "step": policy.step, "completions": described}, indent=2))
        return 0
    if run_dir is not None:
        print(f"{run_dir}, step {policy.step}:")
    for n, completion in enumerate(completions):
        print(f"[{n}] {completion.text!r}")
        cap, entropies = config.rollout.max_response_tokens, completion.entropies
        ending = "stop token" if completion.finished else f"cut at rollout.max_response_tokens={cap}"
        print(
            f"    {len(completion)} tokens, {ending}, log-prob {completion.logprobs.sum():.3f}, "
            f"mean entropy {entropies.mean():.3f} nats, largest {entropies.max():.3f} at token {entropies.argmax()}"
        )
    return 0


def _described(policy: Policy, completion: Completion) -> dict[str, Any]:
    token_ids = completion.token_ids.tolist()
    return {
        "text": completion.text,
        "finished": completion.finished,
        "token_ids": token_ids,
        "tokens": [policy.texts.codec.decode([token], special_tokens=True) for token in token_ids],
        "logprobs": completion.logprobs.tolist(),
        "entropies": completion.entropies.tolist(),
    }


VERB = Verb("fr3e sample configs/demo.yaml --prompt '3+4*2-5*6>' --num 4 --run runs/demo-20250101-120000", declare, run)
