"""Core memory: every allocation has a name, the peak is recorded, the limit holds, and fresh memory is no number."""

from __future__ import annotations

import re

import numpy as np
import pytest
from measure import end, measured, run_report
from runs import new_block

from meshrt.device import find_device
from meshrt.errors import LimitError
from meshrt.memory import Memory
from meshrt.mesh import Mesh


def new_memory(limit: int | None = None, mesh: Mesh | None = None) -> Memory:
    return Memory(mesh or Mesh(4, 3), find_device("ideal", core_memory=limit))


def refusal(core: tuple[int, int], name: str, asked: int, used: int, limit: int) -> str:
    """What the error says, as a pattern."""
    return re.escape(
        f"core {core}: {name!r} asks for {asked} bytes, {used} are in use, the limit is {limit} (device ideal)"
    )


def test_the_peak_is_the_most_that_was_held_at_once():
    memory = new_memory()
    memory.take("weights", 100)
    memory.take("buffer", 50)
    memory.free("buffer")
    memory.take("cache", 30)
    assert (memory.common, memory.peak) == (130, 150)
    with memory.hold("buffer", 21):
        assert memory.peak == 151
    assert memory.common == 130


def test_hold_gives_back_when_it_fails():
    memory = new_memory()
    with pytest.raises(ZeroDivisionError), memory.hold("buffer", 10):
        raise ZeroDivisionError
    assert memory.common == 0 and not memory.names


def test_a_name_is_taken_once_and_freed_once():
    memory = new_memory()
    memory.take("A", 1)
    with pytest.raises(ValueError, match="'A'"):
        memory.take("A", 1)
    memory.free("A")
    memory.take("A", 2)
    with pytest.raises(KeyError):
        memory.free("B")
    assert memory.common == 2


def test_over_the_budget_names_core_allocation_and_numbers():
    memory = new_memory(limit=100)
    memory.take("weights", 80)
    with pytest.raises(LimitError, match=refusal((0, 0), "activations", 21, 80, 100)):
        memory.take("activations", 21)
    # What was refused is not held and is no peak; what fits to the byte fits.
    assert (memory.common, memory.peak, list(memory.names)) == (80, 80, ["weights"])
    memory.take("activations", 20)
    assert memory.peak == 100


def test_cores_with_numbers_of_their_own_are_counted_core_by_core():
    memory = new_memory(limit=100)
    memory.take("weights", 40)
    cache = np.zeros((3, 4), np.int64)
    cache[2, 1] = 30
    memory.take("cache", cache)
    other = np.zeros((3, 4), np.int64)
    other[0, 3] = 50
    memory.take("scratch", other)
    assert memory.peak == 40 + 50  # different cores: their numbers do not add up
    more = np.zeros((3, 4), np.int64)
    more[2, 1] = 31
    with pytest.raises(LimitError, match=refusal((1, 2), "more", 31, 70, 100)):
        memory.take("more", more)
    memory.free("scratch")
    memory.take("all", 30)
    with pytest.raises(LimitError, match=refusal((1, 2), "last", 1, 100, 100)):
        memory.take("last", 1)
    memory.free("cache")
    memory.take("last", 1)
    assert memory.peak == 100


def test_a_core_is_named_by_its_place_on_the_mesh():
    memory = new_memory(limit=10, mesh=Mesh(4, 6, columns=2, rows=2, rank=3))
    cache = np.zeros((3, 2), np.int64)
    cache[1, 1] = 11
    with pytest.raises(LimitError, match=refusal((3, 4), "cache", 11, 0, 10)):
        memory.take("cache", cache)


@pytest.mark.mpi(ranks=[1])
def test_fresh_tiles_are_counted_and_full_of_nan(comm):
    block = new_block(comm, (3, 2))
    tiles = block.tiles("A", (4, 5), "float16")
    numbers = block.tiles("ids", (7,), "int32")
    assert tiles.shape == (2, 3, 4, 5) and np.isnan(tiles).all()
    assert numbers.shape == (2, 3, 7) and (numbers == np.iinfo("int32").max).all()
    assert measured(block)["memory_bytes"] == {"max": 4 * 5 * 2 + 7 * 4, "limit": None}


@pytest.mark.mpi(ranks=[1, 4])
def test_each_phase_has_a_peak_of_its_own(comm):
    block = new_block(comm, (4, 4))
    block.memory.take("weights", 10)
    with block.phase("first"), block.memory.hold("buffer", 5):
        pass
    with block.phase("second"):
        pass
    with block.phase("third"):
        # Only the last rank's cores hold that; the report has the largest of all ranks.
        own = np.full(block.shape, 3 if comm.rank == comm.size - 1 else 0)
        block.memory.take("cache", own)
    assert [phase["memory_bytes"]["max"] for phase in end(block)["phases"]] == [15, 10, 13]


PROGRAMS = [
    ("gemm", (4, 4), {"m": 13, "k": 10, "n": 9}),
    ("gemm", (3, 2), {"m": 13, "k": 10, "n": 9, "transpose_b": True}),
    ("gemv", (4, 4), {"k": 30, "n": 17}),
    ("kvcache", (4, 4), {"tokens": 9}),
]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(("name", "mesh", "options"), PROGRAMS, ids=lambda value: str(value))
def test_a_program_runs_in_its_peak_and_not_in_a_byte_less(name: str, mesh: tuple[int, int], options: dict, comm):
    peak = run_report(comm, name, mesh, **options)["measured"]["memory_bytes"]["max"]
    enough, less = (find_device("ideal", core_memory=limit) for limit in (peak, peak - 1))
    again = run_report(comm, name, mesh, enough, **options)["measured"]["memory_bytes"]
    assert again == {"max": peak, "limit": peak}
    with pytest.raises(LimitError, match=f"the limit is {peak - 1} "):
        run_report(comm, name, mesh, less, **options)
