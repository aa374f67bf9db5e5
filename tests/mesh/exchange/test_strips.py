"""An exchange in which strips of columns all do the same: gone through once, it leaves what it leaves core by core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import compiled
from measure import numbered, own

from meshrt.mesh.device import Device
from meshrt.mesh.exchange.exchange import crossbar, exchange
from meshrt.mesh.exchange.legs import Transfer
from meshrt.mesh.exchange.strips import ColumnGroup, parts
from meshrt.mesh.machine import open_machine
from meshrt.mesh.wires import tally
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console

SLOW = Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=4.0, macs_per_cycle=2.0, call_cycles=11.0)
MESH = 11, 7


def owners_in_strips(columns: int, count: int, first: int = 0) -> np.ndarray:
    """Everybody's owner, drawn at random within a strip and the same in all; other columns keep their own."""
    width, height = MESH
    y, x = np.divmod(np.arange(width * height), width)
    of_strip = np.random.default_rng(columns).integers(0, columns * height, columns * height)
    inside = (x >= first) & (x < first + columns * count)
    strip, place = np.divmod(x - first, columns)
    owner_y, owner_x = np.divmod(of_strip[(y * columns + place) * inside], columns)
    return np.where(inside, owner_y * width + first + strip * columns + owner_x, y * width + x)


def with_more_behind() -> np.ndarray:
    """Two strips of three columns; the five behind them ask others of their own."""
    width, height = MESH
    x = np.arange(width * height) % width
    drawn = np.random.default_rng(8).integers(0, (5, height), (width * height, 2))
    return np.where(x < 6, owners_in_strips(3, 2), drawn[:, 1] * width + 6 + drawn[:, 0])


def with_columns_behind() -> np.ndarray:
    """The same two strips, a column that keeps its own, and four that do the same, each by itself."""
    width, height = MESH
    y, x = np.divmod(np.arange(width * height), width)
    return np.where(x < 6, owners_in_strips(3, 2), np.where(x > 6, 2 * width + x, y * width + x))


def strips_of(owners: np.ndarray) -> list[tuple[int, int, int]]:
    return [(part.first, part.columns, part.count) for part in parts(owners, *MESH)]


def test_strips_are_found_where_they_are():
    width, height = MESH
    for columns, count in ((1, 11), (2, 5), (3, 3), (5, 2)):
        assert strips_of(owners_in_strips(columns, count)) == [(0, columns, count)]
    assert strips_of(owners_in_strips(3, 3, first=2)) == [(2, 3, 3)]
    assert strips_of(with_more_behind()) == [(0, 3, 2), (6, 5, 1)]
    assert strips_of(with_columns_behind()) == [(0, 3, 2), (7, 1, 4)]
    at = np.arange(width * height)
    broken = owners_in_strips(3, 3)
    broken[at % width == 4] += 1  # one column of the second strip
    over_the_edge = np.where(at % width < 10, at + 1, at)  # one column as all others, not by itself
    asks_strips = np.where(at == 10, 0, owners_in_strips(3, 3))  # a core behind them
    for owners in (at, broken, over_the_edge, owners_in_strips(7, 1), asks_strips):
        assert not parts(owners, *MESH)
    asks_behind = np.where(at == 6, 9, owners_in_strips(3, 2))  # a core of a column that takes no other part
    assert strips_of(asks_behind) == [(0, 3, 2), (6, 4, 1)]
    assert parts(with_columns_behind(), *MESH)[1] == ColumnGroup(7, 1, 4)


@compiled
@pytest.mark.mpi(ranks=[1, 6])
@pytest.mark.parametrize(("payload", "maps"), [(True, True), (False, True), (False, False)])
@pytest.mark.parametrize("device", [SLOW, "ideal"])
def test_strips_leave_the_machine_as_numpy_does(
    payload: bool, maps: bool, device: Device | str, comm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Alone and beside other transfers, on cores whose clocks differ: all that is kept of the machine, to the byte."""
    width, height = MESH
    states, path = [], comm.bcast(str(tmp_path / "maps.npz")) if maps else None
    for name in ("numpy", "compiled"):
        monkeypatch.setenv("MESHRT_CORE", name)
        block = open_machine(comm, Board.alone(), (1, 1), payload, Console(), mesh="11x7", device=device, maps=path)
        skew = own(block, np.random.default_rng(5).integers(0, 60, (height, width, 9)).astype(float))
        block.clock.cells[:, :-1].reshape(9, *block.shape)[...] = np.moveaxis(skew, -1, 0)
        tiles, outs = own(block, numbered(*MESH, 2, 3)) if payload else np.empty((1, 1, 2, 3), np.float32), []
        by_strip = [
            Transfer(None, owners_in_strips(*shape), tiles, asks)
            for shape, asks in (((1, 11), True), ((2, 5), True), ((3, 3), False), ((5, 2), True), ((5, 1), True))
        ]
        line = Transfer("x", np.arange(width)[::-1].copy(), tiles, True)
        of_one = [Transfer(axis, np.full(n, 4), tiles, True) for axis, n in (("x", width), ("y", height))]
        drawn = Transfer("x", np.random.default_rng(3).integers(0, width, width), tiles, True)
        by_strip += [Transfer(None, owners, tiles, True) for owners in (with_more_behind(), with_columns_behind())]
        with crossbar(block) as bar:
            for together in (
                *([transfer] for transfer in by_strip),
                [drawn],
                of_one,
                [by_strip[1], line],
                [line, by_strip[2], by_strip[3]],
                [line, by_strip[-2]],
                [by_strip[-1], line],
            ):
                outs += exchange(block, bar, *together)
        tally.settle(block)
        of_maps = [array for array in vars(block.maps).values() if isinstance(array, np.ndarray)] if maps else []
        kept = (block.clock.cells[:, :-1], block.link_bytes, block.ramp_bytes, *of_maps, *outs)
        counts = vars(block.counters) | {"links": None, "ramps": None}
        sent = block.host.messages, block.host.packets, block.host.bytes, block.host.sent_to
        states.append(([array.tobytes() for array in kept], str(counts), sent, block.memory.peak))
    assert states[0] == states[1]
