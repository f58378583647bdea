"""A display in the output of a notebook's cell, which is replaced in place."""

from __future__ import annotations

import io
import sys
from typing import Any

import rich.console
from rich.console import RenderableType

WIDTH = 110  # characters


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this program."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


class NotebookCell:
    """Shows one text in the output of the cell that runs; each later text takes the place of the one before."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, content: RenderableType) -> None:
        """Show ``content`` as plain text."""
        from IPython.display import display

        page = rich.console.Console(file=io.StringIO(), width=WIDTH, color_system=None, force_jupyter=False)
        with page.capture() as captured:
            page.print(content)
        bundle = {"text/plain": captured.get().rstrip()}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)
