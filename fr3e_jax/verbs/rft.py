"""``fr3e rft``: rejection-sampling fine-tuning on the policy's own responses, by `supervised/rejection_sampling.py`."""

from __future__ import annotations

from functools import partial

from fr3e_jax.cli.arguments import declare_training
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import start_or_resume
from fr3e_jax.configuration import Config
from fr3e_jax.stores.reading import Place


def _rft(config: Config, run_dir: Place | None, resume: bool) -> int:
    from fr3e_jax.verbs.supervised.rejection_sampling import rft

    return rft(config, run_dir, resume)


VERB = Verb(
    "fr3e rft configs/methods/rft_branching_factor.yaml rft.iterations=2",
    declare_training,
    partial(start_or_resume, "rft", _rft),
)
