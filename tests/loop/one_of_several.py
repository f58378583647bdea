"""``fr3e`` as one of several processes of a test, with a compilation cache that all of them write to.

Jax lets process 0 alone write, and on CPU the programs of the others go by other names: they would compile each time.
"""

from __future__ import annotations

import sys

from jax._src import compiler, distributed

from fr3e_jax.cli import main

_write = compiler._cache_write


def _write_in_every_process(*arguments) -> None:
    state = distributed.global_state
    own, state.process_id = state.process_id, 0
    try:
        _write(*arguments)
    finally:
        state.process_id = own


compiler._cache_write = _write_in_every_process

if __name__ == "__main__":
    sys.exit(main())
