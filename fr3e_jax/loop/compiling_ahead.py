"""Programs compiled while the run already samples: a thread rehearses the run and compiles what it is about to need.

It begins when the run has to compile its first program; a run whose programs are all stored never starts it. Results do
not change: the run calls the same executables, only some of them are ready before they are asked for.
"""

from __future__ import annotations

import sys
import threading

from fr3e_jax.loop.rehearsal import Programs, expected, rehearse
from fr3e_jax.policy.rows import Rows
from fr3e_jax.programs.program import before_compiling, keeps_executables
from fr3e_jax.programs.rehearsal import Call
from fr3e_jax.programs.train_programs import TrainRows
from fr3e_jax.session.session import Session


class CompilingAhead:
    """The thread of a run, as a context manager; with ``runtime.compile_ahead=false`` there is none.

    Args:
      session: of the run.
      programs: its training programs.
    """

    def __init__(self, session: Session, programs: Programs):
        self._session, self._programs, self._ended = session, programs, False
        self._thread = threading.Thread(target=self._compile, name="compiling ahead", daemon=True)

    def __enter__(self) -> CompilingAhead:
        runtime = self._session.config.runtime
        # A profile would show the thread's work as the run's.
        if runtime.compile_ahead and not runtime.profile_steps and keeps_executables():
            before_compiling(self._thread.start)
        return self

    def __exit__(self, *error: object) -> None:
        before_compiling(None)
        self._ended = True
        if self._thread.ident is not None:
            self._thread.join()

    def _compile(self) -> None:
        try:
            rehearsal = rehearse(self._session, expected(self._session.config), self._programs)
            for call in list(rehearsal.calls.values()):
                if self._ended:
                    return
                if self._wanted(call):
                    call.program.prepare(call.key, call.args, call.keywords)
        except Exception as error:  # whatever it is, the run will say it better, or does not need this program
            print(f"fr3e: programs are not compiled ahead: {type(error).__name__}: {error}", file=sys.stderr)

    def _wanted(self, call: Call) -> bool:
        """Whether the run will call it for sure; shapes of rows that follow the batches cannot be foretold."""
        return bool(self._session.config.training.row_shapes) or not any(
            isinstance(x, Rows | TrainRows) for x in call.args
        )
