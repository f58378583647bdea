"""The prompts of a run: a stream whose position and counts a checkpoint holds."""

from __future__ import annotations

from collections.abc import Sequence

from fr3e_jax.configuration import ConfigError
from fr3e_jax.configuration.schema import DataConfig
from fr3e_jax.conversation import Conversation
from fr3e_jax.data.stream import Prompt, PromptStream
from fr3e_jax.problem import Problem
from fr3e_jax.session.texts import Texts

MOST_LOOKED_AT = 200_000  # problems looked through at the start of a run
TRIED = 20  # conversations of which one must be renderable
MOST_SHOWN = 5  # dropped prompts that are named at once
SAVED = ("position", "dropped_too_long", "dropped_unspeakable")


class PromptFeed(PromptStream):
    """A `PromptStream` of templated prompts, taken in rounds.

    Args:
      problems: the train split.
      texts: the template and the tokenizer.
      data: the seed of the order, and the longest prompt allowed.

    Raises:
      ConfigError: the template renders none of the first conversations.
    """

    def __init__(self, problems: Sequence[Problem], texts: Texts, data: DataConfig):
        super().__init__(problems, data.seed, texts.prompt_ids, data.max_prompt_tokens)
        self._texts = texts
        self._check_conversations()

    def _check_conversations(self) -> None:
        """Raise the first error if the template renders none of the first problems, all of them conversations."""
        errors = []
        for index in range(min(TRIED, len(self._problems))):
            problem = self._problems[index]
            if not isinstance(problem.prompt, Conversation):
                return
            try:
                self._texts.prompt_text(problem.prompt)
            except ValueError as error:
                errors.append(f"problem {problem.id!r}: {error}")
            else:
                return
        if errors:
            raise ConfigError(errors[0])

    def take(self, count: int) -> list[Prompt]:
        """The next ``count`` prompts; ``complaints`` are then those of this round.

        Raises:
          ValueError: see `PromptStream.next`.
        """
        self.complaints = []
        return self.next(count)

    def state_dict(self) -> dict[str, int]:
        """Position and counts after the prompts handed out, for a checkpoint."""
        return {name: getattr(self, name) for name in SAVED}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue after the prompts that were handed out when the state was taken."""
        vars(self).update({name: state[name] for name in SAVED})

    def metrics(self) -> dict[str, float]:
        """The numbers of prompts dropped since the start of the run."""
        return {f"data/{name}": getattr(self, name) for name in SAVED[1:]}

    def unspeakable(self) -> list[str]:
        """A line for each problem with a character that no token spells, or messages that the template refuses.

        Sets of more than 200,000 problems are not looked through: their problems may be computed on access.
        """
        lines = []
        for problem in self._problems if len(self._problems) <= MOST_LOOKED_AT else ():
            try:
                text = problem.prompt
                if isinstance(text, Conversation):
                    self._texts.prompt_text(text)  # its template may refuse the roles
                    text = "".join(message["content"] for message in text.messages)
                self._texts.codec.check_characters(text)
            except ValueError as error:
                lines.append(f"problem {problem.id!r}: {error}")
        return lines


def summary_of(complaints: Sequence[str], what: str) -> list[str]:
    """Lines for the console: how many prompts of ``what`` are dropped, and the first few."""
    if not complaints:
        return []
    more = [f"  and {len(complaints) - MOST_SHOWN} more"] if len(complaints) > MOST_SHOWN else []
    head = f"{len(complaints)} prompts of the {what} cannot be encoded and are dropped:"
    return [head, *(f"  {line}" for line in complaints[:MOST_SHOWN]), *more]
