"""``fr3e train``: reinforcement learning, by the loop of `loop/train.py`."""

from __future__ import annotations

from functools import partial

from fr3e_jax.cli.arguments import declare_training
from fr3e_jax.cli.parser import Verb
from fr3e_jax.cli.run_selection import start_or_resume
from fr3e_jax.configuration import Config
from fr3e_jax.stores.reading import Place


def _train(config: Config, run_dir: Place | None, resume: bool) -> int:
    from fr3e_jax.loop.train import train
    from fr3e_jax.studies.reports.run_page import PageAtTheEnd

    page = [PageAtTheEnd(config.runtime.console)] if config.runtime.report else []
    return train(config, run_dir, resume, callbacks=page)


VERB = Verb(
    "fr3e train configs/demo_fr3e.yaml explore.num_anchors=2 optimizer.learning_rate=3e-4",
    declare_training,
    partial(start_or_resume, "train", _train),
)
