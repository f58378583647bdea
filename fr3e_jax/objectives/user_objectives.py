"""Policy losses and advantage estimators of the user's own, by ``FILE.py:NAME`` or ``package.module:NAME``.

Such a function reads the fields that its parameters name, and nothing else is computed for it:

- a loss (``loss.function``) gets arrays of tokens in one shape, and returns the losses of these tokens, or these and a
  dictionary of statistics per token, whose means become metrics. It is traced by jax;
- an estimator (``advantage.base_estimator``) gets NumPy arrays of one prompt's rollouts and returns their advantages.
  NaN leaves a rollout out of training.

`fr3e_jax.objectives.example_objectives` has examples of both.
"""

from __future__ import annotations

import difflib
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fr3e_jax.user_code import parse_reference

LOSS_FIELDS = {
    "logprobs": "log-probs under the policy that is trained; gradients flow through them",
    "old_logprobs": "log-probs under the policy at the start of the step",
    "sampler_logprobs": "log-probs as the sampler reported them",
    "advantages": "advantages, after all shaping",
    "entropies": "entropies of the policy in nats; gradients flow through them",
    "sequence_log_ratios": "mean of logprobs − old_logprobs over the token's response, before this update (GSPO)",
    "sequence_sampler_gaps": "mean of old_logprobs − sampler_logprobs over the token's response",
}
"""Fields of a loss. All are float32 in one shape; 0 where a token does not train."""

ESTIMATOR_FIELDS = {
    "rewards": "float [R], the rewards of the prompt's rollouts, less penalties on their lengths",
    "right": "bool [R], the verifier accepted the response",
    "lengths": "int [R], tokens of the responses",
    "outcomes": "R outcomes as metrics name them: right, wrong, no_answer, timeout, ...",
}
"""Fields of an estimator."""

BASE_ESTIMATORS = ("grpo", "rloo", "mean", "maxrl", "gae", "pass_at_k", "reward")


@dataclass(frozen=True)
class UserObjective:
    """A user's function, the setting that names it, and the fields that it reads."""

    setting: str
    function: Callable[..., Any]
    fields: tuple[str, ...]

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Call the function with the fields that it reads.

        Raises:
          ValueError: it raised.
        """
        try:
            return self.function(**{name: values[name] for name in self.fields})
        except Exception as error:
            raise ValueError(f"{self.setting}: {self._name} failed: {_one_line(error)}") from error

    @property
    def _name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)  # a partial function has no name

    def _fault(self, result: str, expected: str) -> ValueError:
        return ValueError(f"{self.setting}: {self._name} returned {result}; expected {expected}")

    def token_losses(self, values: Mapping[str, Any]) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Losses and statistics of tokens; ``values``: arrays of `LOSS_FIELDS` in one shape.

        Raises:
          ValueError: the function returned anything else, or in another shape.
        """
        result = self(values)
        losses, statistics = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        shape = np.shape(values["logprobs"])
        expected = f"losses {list(shape)}, one for each token, or these and a dictionary of such arrays"
        if not isinstance(statistics, dict):
            raise self._fault(f"a {type(statistics).__name__} beside the losses", expected)
        if taken := sorted({"policy", "balance"} & statistics.keys()):
            raise self._fault(f"a statistic {taken[0]}", f"another name: loss/{taken[0]} is a metric of the package")
        for name, array in {"losses": losses, **statistics}.items():
            if not isinstance(array, jax.Array | np.ndarray):
                raise self._fault(f"{name} of type {type(array).__name__}", expected)
            if array.shape != shape:
                raise self._fault(f"{name} {list(array.shape)}", expected)
        if not jnp.issubdtype(losses.dtype, jnp.floating):
            raise self._fault(f"losses of type {losses.dtype}, which have no gradient", "float32")
        return losses, statistics

    def group_advantages(self, values: Mapping[str, Any]) -> np.ndarray:
        """Advantages ``[R]`` of one prompt's rollouts; NaN: does not train. ``values``: those of `ESTIMATOR_FIELDS`.

        Raises:
          ValueError: the function returned something else, or an infinite advantage.
        """
        count = len(values["rewards"])
        result = self(values)
        try:
            advantages = np.asarray(result, np.float32)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.setting}: {self._name} failed: {_one_line(error)}") from error
        if advantages.shape != (count,) or np.isinf(advantages).any():
            result = f"shape {list(advantages.shape)}" if advantages.shape != (count,) else f"{advantages}"
            raise self._fault(result, f"{count} finite advantages, one a rollout, or NaN for one that does not train")
        return advantages


def _one_line(error: Exception) -> str:
    """An error of the user's code in one line, with the last place outside of installed packages."""
    frames = traceback.extract_tb(error.__traceback__)
    place = ([frame for frame in frames if "site-packages" not in frame.filename] or frames)[-1]
    what = traceback.format_exception_only(error)[-1].partition("\n")[0]
    return f"{what} ({place.filename}, line {place.lineno})"


@lru_cache
def _objective(text: str, setting: str, fields: tuple[str, ...], built_in: tuple[str, ...]) -> UserObjective:
    reference = parse_reference(text, setting, built_in)
    try:
        function = reference.load(f"a function of {', '.join(fields)}")
    except ValueError:
        raise
    except Exception as error:
        raise ValueError(f"{setting}: {text} cannot be imported: {str(error).partition(chr(10))[0]}") from error
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ValueError(
                f"{setting}: {text} takes {name} by its place, and fields are passed by name; write parameters that "
                "are names of fields (a decorator needs functools.wraps)"
            )
        if name in fields:
            names.append(name)
        elif parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
            close = difflib.get_close_matches(name, fields, n=1)
            hint = f"; did you mean {close[0]}?" if close else "; give it a default, or leave it out"
            raise ValueError(f"{setting}: {text} has a parameter {name}, expected some of {', '.join(fields)}{hint}")
    return UserObjective(setting, function, tuple(names))


@lru_cache
def user_loss(text: str) -> UserObjective | None:
    """The policy loss that ``loss.function`` names; None for the empty text. It has been traced once.

    Raises:
      ValueError: ``text`` names no function of `LOSS_FIELDS`, or its result is not one loss for each token.
      FileNotFoundError: there is no such file.
    """
    if not text:
        return None
    objective = _objective(text, "loss.function", tuple(LOSS_FIELDS), ())
    if not {"logprobs", "entropies"} & set(objective.fields):
        raise ValueError(
            f"loss.function: {text} reads {', '.join(objective.fields) or 'no field'}, through which no gradient flows"
            "; expected logprobs or entropies among its parameters"
        )
    jax.eval_shape(objective.token_losses, {name: jax.ShapeDtypeStruct((2, 3), np.float32) for name in LOSS_FIELDS})
    return objective


def user_estimator(text: str) -> UserObjective | None:
    """The estimator of the user's own that ``advantage.base_estimator`` names; None for a built-in one.

    Raises:
      ValueError: ``text`` names neither, or the function does not read `ESTIMATOR_FIELDS`.
      FileNotFoundError: there is no such file.
    """
    if text in BASE_ESTIMATORS:
        return None
    return _objective(text, "advantage.base_estimator", tuple(ESTIMATOR_FIELDS), BASE_ESTIMATORS)


def check_estimator(text: str, rollouts: int) -> None:
    """Call an estimator of the user's own once, on a made-up group of which every second rollout is right.

    Raises:
      ValueError: see `user_estimator` and `UserObjective.group_advantages`.
      FileNotFoundError: there is no such file.
    """
    if objective := user_estimator(text):
        right = np.arange(rollouts) % 2 == 1
        outcomes = ["right" if accepted else "wrong" for accepted in right]
        lengths = np.arange(1, rollouts + 1)
        values = {"rewards": right.astype(np.float32), "right": right, "lengths": lengths, "outcomes": outcomes}
        objective.group_advantages(values)
