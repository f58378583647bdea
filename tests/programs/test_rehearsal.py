"""Programs that are rehearsed: traced, not called, and the executables that they prepare."""

from __future__ import annotations

import threading
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from fr3e_jax.programs.host_arrays import on_mesh
from fr3e_jax.programs.mesh import make_mesh
from fr3e_jax.programs.program import Program, before_compiling, keep_executables
from fr3e_jax.programs.rehearsal import Pretended, current_rehearsal, rehearsing

on_one_device = pytest.mark.skipif(jax.device_count() > 1, reason="executables are kept on one device: make test")


class Kept:
    """A store that compiles, and counts."""

    def __init__(self):
        self.compiled, self.hold, self.fail = 0, threading.Event(), False
        self.hold.set()

    def fetch(self, program):
        return None

    def compile(self, program, interface, lowered):
        self.hold.wait(60)
        self.compiled += 1
        if self.fail:
            raise ValueError("no room")
        return lowered.compile()


@pytest.fixture
def kept():
    keep_executables(store := Kept())
    yield store
    keep_executables(None)


def _whole() -> NamedSharding:
    return NamedSharding(make_mesh(1, jax.device_count(), 1), P())


def _never(x):
    jax.debug.callback(lambda: pytest.fail("the program ran"))
    return {"sum": x.sum(0), "kept": x}


def test_a_rehearsed_program_gives_shapes_types_and_shardings_and_reads_as_zeros():
    whole = _whole()
    program = Program(_never, out_shardings={"sum": whole, "kept": None})
    with rehearsing() as rehearsal:
        placed = on_mesh(np.ones((3, 2)), whole)
        found = program(placed)
        program(placed)
        assert current_rehearsal() is rehearsal
    assert current_rehearsal() is None
    assert isinstance(placed, Pretended) and placed.dtype == np.float32, "as jax would have placed it"
    assert (found["sum"].shape, found["sum"].dtype, found["sum"].sharding) == ((2,), np.float32, whole)
    np.testing.assert_array_equal(jax.device_get(found["kept"]), np.zeros((3, 2)))
    (call,) = rehearsal.calls.values()
    assert call.program is program and call.count == 2


def test_a_program_of_host_arrays_whose_results_stay_there_is_called():
    with rehearsing() as rehearsal:
        assert float(Program(jnp.sum)(np.arange(4.0))) == 6.0
        assert isinstance(Program(jnp.zeros, static_argnums=0, out_shardings=_whole())((2, 2)), Pretended)
    assert len(rehearsal.calls) == 1


def test_other_threads_go_on_as_ever():
    program, found = Program(jnp.sum, out_shardings=_whole()), []
    with rehearsing() as rehearsal:
        thread = threading.Thread(target=lambda: found.append(float(program(np.arange(3.0)))))
        thread.start()
        thread.join()
    assert found == [3.0] and not rehearsal.calls


@on_one_device
def test_a_prepared_program_is_not_compiled_again(kept):
    """Also where an argument is the result of another program, of which only the shape was known."""
    whole = _whole()
    first = Program(jnp.cumsum, static_argnames="axis", out_shardings=whole)
    second = Program(jnp.sum, static_argnames="axis", out_shardings=whole)

    def run(x):
        return second(first(on_mesh(x, whole), axis=1), axis=0)

    with rehearsing() as rehearsal:
        run(np.ones((2, 3), np.float32))
    for call in rehearsal.calls.values():
        call.program.prepare(call.key, call.args, call.keywords)
    assert kept.compiled == 2
    np.testing.assert_array_equal(run(np.ones((2, 3), np.float32)), [2.0, 4.0, 6.0])
    assert kept.compiled == 2
    run(np.ones((4, 3), np.float32))
    assert kept.compiled == 4


@on_one_device
def test_of_several_threads_that_need_a_program_one_compiles(kept):
    program, found = Program(jnp.cumsum), []
    kept.hold.clear()
    call = lambda: found.append(jax.device_get(program(np.arange(3.0))))
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    kept.hold.set()
    for thread in threads:
        thread.join(60)
    assert kept.compiled == 1 and len(found) == 4
    kept.fail = True
    with pytest.raises(ValueError, match="no room"):
        program(np.arange(4.0))
    kept.fail = False
    np.testing.assert_array_equal(program(np.arange(4.0)), [0, 1, 3, 6])


@on_one_device
def test_the_first_compilation_is_announced_once(kept):
    told = []
    before_compiling(lambda: told.append(kept.compiled))
    program = Program(jnp.cumsum)
    program(np.arange(3.0)), program(np.arange(3.0)), program(np.arange(4.0))
    assert told == [0]
    before_compiling(lambda: pytest.fail("nobody waits any more"))
    before_compiling(None)
    program(np.arange(5.0))


@pytest.mark.parametrize(
    ("declare", "name"),
    [
        (lambda: Program(jnp.cumsum), "cumsum"),
        (lambda: Program(partial(_never)), "never"),
        (lambda: Program(partial(jax.tree.map, jnp.zeros_like)), "zeros_like"),
    ],
)
def test_programs_have_the_names_of_their_functions(declare, name):
    assert declare().name == name
