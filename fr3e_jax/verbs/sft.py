"""``fr3e sft``: supervised warm start on the demonstrations of a task, by `supervised/demonstrations.py`."""

from __future__ import annotations

from functools import partial

from fr3e_jax.cli.arguments import declare_training
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import start_or_resume
from fr3e_jax.configuration import Config
from fr3e_jax.stores.reading import Place


def _sft(config: Config, run_dir: Place | None, resume: bool) -> int:
    from fr3e_jax.verbs.supervised.demonstrations import sft

    return sft(config, run_dir, resume)


VERB = Verb(
    "fr3e sft configs/demo_fr3e.yaml sft.output=my_start", declare_training, partial(start_or_resume, "sft", _sft)
)
