"""What NumPy does in fewer steps is the same: all hops of a transfer at once, ramps for several transfers at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from measure import measured, own
from runs import new_block

from meshrt.mesh.collectives.allreduce import allreduce, ktree
from meshrt.mesh.collectives.rings import interleaved_rings
from meshrt.mesh.collectives.shifts import rotate, start_shift
from meshrt.mesh.wires import lane, ramps, replay, together
from meshrt.mesh.wires.receiving import receive

SIDE = 6
NEVER = 10**9


@pytest.fixture(autouse=True)
def numpy_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled core takes one step after the other."""
    monkeypatch.setenv("MESHRT_CORE", "numpy")


def busy_rounds(comm: Any, rounds: int, sizes: tuple[int, int]) -> tuple[Any, ...]:
    """Shifts along both axes, rotations and sums by cores that are late at random: all that clocks hold then."""
    block, random = new_block(comm, (SIDE, SIDE), "wse2"), np.random.default_rng(7)
    with interleaved_rings(block) as rings, ktree(block, "x") as tree:
        x, y = (block.tiles(name, (1, 1, size), np.float32) for name, size in zip("xy", sizes, strict=True))
        x[...] = y[...] = 1
        x_next, y_next = x.copy(), y.copy()
        for number in range(rounds):
            late = random.integers(0, 40 if number % 3 else 2, (SIDE, SIDE))
            block.work(own(block, late) * (number % 2))
            receive(block, start_shift(block, rings.x, x, x_next), start_shift(block, rings.y, y, y_next))
            allreduce(block, tree, x[:, :, 0, 0].copy())
            if number % 4 == 0:
                rotate(block, rings.y, rings.back_y, y, random.integers(-2, 3, SIDE).tolist())
    ramps.settle(block)
    clock = block.clock
    counted = {name: value for name, value in measured(block).items() if name != "host"}
    return (*(state.tobytes() for state in (clock.cells, clock.asked_at, clock.idle)), counted)


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_all_hops_at_once_are_those_of_one_tick_after_the_other(monkeypatch: pytest.MonkeyPatch, comm: Any) -> None:
    done = Counter[bool]()

    def counted(*arguments: Any) -> bool:
        done[glided := real(*arguments)] += 1
        return glided

    real = replay.glide
    monkeypatch.setattr(replay, "glide", counted)
    monkeypatch.setattr(lane, "SELDOM", NEVER)
    by_ticks = busy_rounds(comm, 12, (3, 3))
    assert not done
    monkeypatch.setattr(lane, "SELDOM", 0)
    assert busy_rounds(comm, 12, (3, 3)) == by_ticks
    assert comm.size > 1 or (done[True] and done[False])  # some have to wait, and some do not


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("sizes", [(3, 3), (5, 2)])
def test_ramps_for_several_transfers_at_once_are_those_of_one_after_the_other(
    sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch, comm: Any
) -> None:
    done = Counter[tuple[bool, int]]()

    def counted(block: Any, coming: Any) -> bool:
        served = real(block, coming)
        done[served, len(coming)] += 1
        return served

    real = together.serve
    monkeypatch.setattr(together, "serve", lambda block, coming: False)
    one_by_one = busy_rounds(comm, 12, sizes)
    monkeypatch.setattr(together, "serve", counted)
    assert busy_rounds(comm, 12, sizes) == one_by_one
    assert done[True, 2] >= 12
