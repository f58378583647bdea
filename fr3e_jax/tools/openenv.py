"""Environments of OpenEnv (package ``openenv-core``) as environments of this package.

OpenEnv's environments follow Gymnasium: ``reset(seed=..., **options)`` and ``step(action)`` return an observation with
``reward`` and ``done``. Actions and observations are objects of each environment's own classes, so two functions turn a
policy's text into an action and an observation into text. This module does not import OpenEnv: whatever has these
methods will do, the environment itself or a client of its server. ``environment.kind=mine.py:make`` names this one::

    from fr3e_jax.tools.openenv import OpenEnvironment

    def make():
        return OpenEnvironment(
            EchoEnvironment(),
            action=lambda text: EchoAction(message=text),
            text=lambda observation: observation.echoed_message,
        )
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fr3e_jax.tools.environment import Step

if TYPE_CHECKING:
    from fr3e_jax.problem import Problem


class OpenEnvironment:
    """An episode in an environment of OpenEnv; see `fr3e_jax.tools.environment.Environment`.

    An observation without a reward (``None``) earns 0. The seed of the episode goes to OpenEnv's ``reset``, and the
    problem's id and the seed name the episode there. An environment that does not keep to its seed cannot be branched:
    that is found when a branch plays the turns before it again, and named.

    Args:
      environment: has ``reset(seed=, episode_id=, **options)`` and ``step(action)``.
      action: the action that a text of the policy stands for.
      text: the text of an observation.
      options: further arguments of ``reset`` for a problem; None: none.
      poses: whether the first observation is the question; else the problem's prompt is, as for observations that
        depend on the seed.
    """

    def __init__(
        self,
        environment: Any,
        action: Callable[[str], Any],
        text: Callable[[Any], str],
        options: Callable[[Problem], Mapping[str, Any]] | None = None,
        *,
        poses: bool = True,
    ):
        self._environment, self._action, self._text = environment, action, text
        self._options, self._poses = options, poses

    def reset(self, problem: Problem, seed: int) -> str:
        """Begin the episode."""
        options = {} if self._options is None else self._options(problem)
        first = self._environment.reset(seed=seed, episode_id=f"{problem.id}/{seed}", **options)
        return self._text(_said(first)) if self._poses else ""

    def step(self, text: str) -> Step:
        """Play a turn."""
        result = self._environment.step(self._action(text))
        return Step(
            self._text(_said(result)), 0.0 if result.reward is None else float(result.reward), bool(result.done)
        )

    def close(self) -> None:
        """Free what the environment holds."""
        self._environment.close()


def _said(result: Any) -> Any:
    """The observation itself: a client of a server wraps it in a result beside ``reward`` and ``done``."""
    return getattr(result, "observation", result)
