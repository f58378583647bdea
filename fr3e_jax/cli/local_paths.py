"""Arguments that name a file or folder of this machine, which refuse an address in an object store."""

from __future__ import annotations

import argparse

from fr3e_jax.stores.objects import is_remote


def on_this_machine(text: str) -> str:
    """Parse a path that a command reads or writes itself, for argparse."""
    if is_remote(text):
        raise argparse.ArgumentTypeError(
            f"{text} is in an object store; expected a file or folder of this machine: name one, and copy it "
            "(gsutil cp -r, aws s3 cp --recursive)"
        )
    return text
