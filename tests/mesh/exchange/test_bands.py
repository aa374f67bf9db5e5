"""Rounds of an exchange that are gone through some at once, by rows: they leave what NumPy's leave, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled import compiled
from measure import own

from meshrt.mesh.device import Device
from meshrt.mesh.exchange.exchange import crossbar, exchange
from meshrt.mesh.exchange.legs import Transfer
from meshrt.mesh.machine import open_machine
from meshrt.mesh.wires import tally
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console

SLOW = Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=4.0, macs_per_cycle=2.0, call_cycles=11.0)
WIDTH, HEIGHT = 9, 17  # four of a row go one way where all cores of it ask their mirror images


def one_of_each_column(width: int, height: int) -> np.ndarray:
    """All cores of a column ask one: in strips of three, another for each column; behind them, in the column itself."""
    x = np.arange(width * height) % width
    return np.where(x < 6, (5 * (x % 3) + 2) * width + x // 3 * 3 + 1, (height // 2) * width + x)


def drawn_in_strips(width: int, height: int) -> np.ndarray:
    """Any of the strip of two columns; the last columns take no part."""
    y, x = np.divmod(np.arange(width * height), width)
    of_strip = np.random.default_rng(2).integers(0, 2 * height, 2 * height)[(y * 2 + x % 2)]
    return np.where(x < 6, of_strip // 2 * width + x // 2 * 2 + of_strip % 2, y * width + x)


@compiled
@pytest.mark.mpi(ranks=[1, 2, 3])
@pytest.mark.parametrize("device", [SLOW, "ideal"])
@pytest.mark.parametrize("asks", [False, True])
def test_rounds_by_rows_leave_the_machine_as_numpy_does(
    device: Device | str, asks: bool, comm: Any, monkeypatch: pytest.MonkeyPatch
):
    """Strips by themselves, and lines along both axes at once: on one rank, and where columns are cut between ranks."""
    drawn = {axis: np.random.default_rng(n).integers(0, n, n) for axis, n in (("x", WIDTH), ("y", HEIGHT))}
    single = {axis: np.full(n, n // 3) for axis, n in (("x", WIDTH), ("y", HEIGHT))}
    mirrored = {axis: np.arange(n)[::-1] for axis, n in (("x", WIDTH), ("y", HEIGHT))}  # packets lie as cores do not
    states = []
    for name in ("numpy", "compiled"):
        monkeypatch.setenv("MESHRT_CORE", name)
        block = open_machine(comm, Board.alone(), (1, 1), False, Console(), mesh=f"{WIDTH}x{HEIGHT}", device=device)
        skew = own(block, np.random.default_rng(5).integers(0, 60, (HEIGHT, WIDTH, 9)).astype(float))
        block.clock.cells[:, :-1].reshape(9, *block.shape)[...] = np.moveaxis(skew, -1, 0)
        small, large = (np.empty((1, 1, 2, size), np.float32) for size in (1, 5))
        lines = [[Transfer(axis, owners[axis], small, asks) for axis in "xy"] for owners in (single, drawn, mirrored)]
        with crossbar(block) as bar:
            for together in (
                *(
                    [Transfer(None, owners(WIDTH, HEIGHT), large, asks)]
                    for owners in (one_of_each_column, drawn_in_strips)
                ),
                *lines,
                [lines[0][1], lines[1][0]],
                [Transfer("y", drawn["y"], large, asks)],
                [Transfer("x", single["x"], large, asks), Transfer("x", drawn["x"], small, asks), lines[0][1]],
            ):
                exchange(block, bar, *together)
        tally.settle(block)
        kept = block.clock.cells[:, :-1], block.link_bytes, block.ramp_bytes
        counts = vars(block.counters) | {"links": None, "ramps": None}
        sent = block.host.messages, block.host.packets, block.host.bytes, block.host.sent_to
        states.append(([array.tobytes() for array in kept], str(counts), sent, block.memory.peak))
    assert states[0] == states[1]
