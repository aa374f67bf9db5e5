"""Packets at places that no few slices pick out: the fabric moves those by other lines of code than all others."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from measure import measured, whole
from runs import new_block

from meshrt.mesh.block import Block
from meshrt.mesh.clock import HOPS, TIME
from meshrt.mesh.device import Device
from meshrt.mesh.wires import fabric, receiving
from meshrt.mesh.wires.lines import Positions, View, pieces
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import Channel, installed

ALPHA, BUSY = 2.0, 8.0  # cycles: of a hop, and for which a tile of 8 numbers keeps what it crosses
SLOW = Device(name="slow links", alpha=ALPHA, link_bytes_per_cycle=4.0)
AT = np.cumsum(np.random.default_rng(1).integers(4, 9, 24))  # positions on a line, 4 cores or more from each other
N = int(AT[-1]) + 3


def line(axis: str, comm: Any) -> Block:
    """Two lines of N cores along the axis."""
    assert isinstance(pieces(np.arange(len(AT)), AT)[0][1], np.ndarray)
    return new_block(comm, (N, 2) if axis == "x" else (2, N), SLOW)


def all_of(stack: ExitStack, block: Block, axis: str, start: int, stop: int) -> Channel:
    """A route for each of the positions: between the cores that are so far from it."""
    routes = [Route(int(at) + start, (int(at) + stop,)) for at in AT]
    return stack.enter_context(installed(block, axis, routes))


def sent(block: Block, channel: Channel, numbers: int) -> receiving.Flight:
    return fabric.send(block, channel, np.zeros((*block.shape, numbers), np.float32))


def work(block: Block, axis: str, cycles: float) -> None:
    """The cores at the positions are busy for so long."""
    low, time = block.mesh.offset(axis), block.clock.state[TIME] if axis == "x" else block.clock.state[TIME].T
    mine = AT - low
    time[:, mine[(mine >= 0) & (mine < time.shape[1])]] += cycles


def state_at(block: Block, axis: str, part: int, places: np.ndarray) -> set[float]:
    """Of the cores at these positions of all lines."""
    state = whole(block, block.clock.state[part])
    return set((state if axis == "x" else state.T)[:, places].flat)


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_two_packets_out_of_a_core_share_its_ramp(axis: str, comm):
    """One each way, over links that nobody else uses."""
    block = line(axis, comm)
    with ExitStack() as stack:
        flights = [sent(block, all_of(stack, block, axis, 0, way), 8) for way in (1, -1)]
        for flight in flights:
            receiving.receive(block, flight)
    assert state_at(block, axis, TIME, AT + 1) == {ALPHA + BUSY}
    assert state_at(block, axis, TIME, AT - 1) == {BUSY + ALPHA + BUSY}


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_link_is_kept_for_those_that_wait_at_it(axis: str, comm):
    """A long packet from the core before takes the link at ALPHA; then come three short ones and one with another end.

    Those leave their core one a cycle from cycle 3 on, wait for the tail of the long one, and go on one a cycle.
    """
    block = line(axis, comm)
    with ExitStack() as stack:
        long, short, last = (all_of(stack, block, axis, *ends) for ends in ((-1, 1), (0, 2), (0, 1)))
        first = sent(block, long, 8)
        work(block, axis, 3.0)
        flights = [sent(block, short, 1) for _ in range(3)]
        work(block, axis, BUSY + ALPHA - 1)
        end = sent(block, last, 1)
        free = ALPHA + BUSY  # the link
        for turn, flight in enumerate(flights):
            receiving.receive(block, flight)
            assert state_at(block, axis, TIME, AT + 2) == {free + turn + 2 * ALPHA + 1}
        receiving.receive(block, first)
        assert state_at(block, axis, TIME, AT + 1) == {2 * ALPHA + BUSY}
        receiving.receive(block, end)
        assert state_at(block, axis, TIME, AT + 1) == {free + 3 + ALPHA + 1}
    assert measured(block)["out_of_order"] == {"packets": 0, "longest_wait": 0.0}


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_path_has_the_hops_of_the_packet(axis: str, comm):
    """One hop or two, in no order."""
    block = line(axis, comm)
    far = np.random.default_rng(2).integers(1, 3, len(AT))
    routes = [Route(int(at), (int(at + hops),)) for at, hops in zip(AT, far, strict=True)]
    with installed(block, axis, routes) as channel:
        receiving.receive(block, sent(block, channel, 8))
    for hops in (1, 2):
        ends = (AT + far)[far == hops]
        assert state_at(block, axis, HOPS, ends) == {hops}
        assert state_at(block, axis, TIME, ends) == {hops * ALPHA + BUSY}


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize("lines, length", [(3, 7), (70, 90)])
def test_positions_of_many_lines_are_read_and_written_and_take_little_memory(
    axis: str, lines: int, length: int
) -> None:
    """A large mesh has thousands of them: were each core's place kept, they would take most of the host's memory."""
    shape = (length, lines) if axis == "y" else (lines, length)
    memory = np.arange(3.0 * lines * length).reshape(3, *shape)
    view = View(axis, slice(0, lines), lines, length)
    at = np.array([0, 1, length - 3, length - 1])
    expected = view.of(memory, 1).copy()
    odd = Positions(view.of(memory, 1), np.repeat(at, length // 4)[: length - 1])
    kept = [part for part in (odd.index if isinstance(odd.index, tuple) else (odd.index,)) if hasattr(part, "nbytes")]
    assert sum(part.nbytes for part in kept) <= max(32 * 1024, 8 * length)
    assert np.array_equal(odd.get(), expected[..., np.repeat(at, length // 4)[: length - 1]])
    places = Positions(view.of(memory, 1), at)
    places.put(-places.get())
    expected[..., at] *= -1
    assert np.array_equal(view.of(memory, 1), expected)
