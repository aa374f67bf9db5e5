"""T10 as the paper's own tables suggest that it ran on a WSE-2 (waferllm, Tables 3 and 4): inferred, not predicted.

How T10 was ported is not published. In its tables a layer of W weights on P x P cores takes 1.96 W + 1,300 P^2 cycles
in prefill, and 180 to 196 P in decode, whatever the model is. That is what comes out of

    products    those of t10.py, but a shift begins for all cores at once, as on T10's own machine, without requests;
                and the tile that has to get from one end of a line to the other goes core by core: all of it is taken
                in, a number a cycle, then a task sends it on. Each number is a wavelet of its own
    sums        a chain of additions to the first core of a line, and software that hands the result back along it: a
                core takes a word in and sends it on, two stages

This form was read off the answers, so that it agrees with them proves nothing; what a task costs is from elsewhere.
"""

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.trees import streams
from meshrt.mesh.exchange.exchange import Crossbar
from meshrt.mesh.wires import fabric, software
from meshrt.mesh.wires.receiving import Flight, receive
from meshrt.mesh.wires.tables import Channel
from meshrt.programs.mesh.baselines import t10
from meshrt.programs.mesh.baselines.groups import Groups, whole_line
from meshrt.records import dataclass

# Cycles of a step of MeshGEMM that exchanges and computes nothing, in the WSE-3 simulator: a public fork of WaferLLM
# with simulator runs.
TASK = 119.0


@dataclass(frozen=True, eq=False)
class InferredRing:
    """The tiles of all lines along an axis, on their way to the place before: one hop, but for the first of a line."""

    tiles: np.ndarray  # [bh, bw, places at a core, across, *tile]
    places: np.ndarray  # of the cores of a line, -1 where they take no part
    last: int
    ahead: Channel
    carried: np.ndarray  # the first tile of a line, where it has come to
    others: Flight
    numbers: int  # of a tile, and cycles to take them in


def shift(block: Block, bar: Crossbar, groups: Groups, moving: list[tuple[str, np.ndarray]]) -> None:
    """Every tile goes to the place before its own on its ring, the first to the last; all rings at once, in place."""
    block.meet()
    rings = [_start(block, bar, groups, axis, tiles) for axis, tiles in moving]
    flights: dict[int, Flight] = {}
    for _, lands, number, place in _moments(block, rings):
        ring = rings[number]
        if lands:
            receive(block, flights[number])
            _relay(block, ring, place + 1)
        else:
            marks = ring.places == place
            flights[number] = fabric.send(block, ring.ahead, ring.carried, ring.carried, positions=marks)
    for ring in rings:
        arrived = receive(block, ring.others)
        ring.tiles[:, :, :-1] = ring.tiles[:, :, 1:]
        last = t10.here(block, str(ring.ahead.axis), ring.places == ring.last, arrived)
        ring.tiles[:, :, -1] = np.where(last, ring.carried, arrived)


def _start(block: Block, bar: Crossbar, groups: Groups, axis: str, tiles: np.ndarray) -> InferredRing:
    line = groups if axis == "x" else whole_line(block, axis)
    places, (ahead, back) = places_of(block, line, axis), hops_along(bar, axis)
    tiles = tiles.swapaxes(2, 3) if axis == "x" else tiles
    words = tiles[:, :, 0].astype(tiles.dtype if tiles.itemsize == 4 else np.float32)  # a number is a wavelet
    carried = block.memory.keep("tile handed on", words)
    others = fabric.send(block, back, carried, positions=places > 0)
    return InferredRing(tiles, places, line.width - 1, ahead, carried, others, prod(carried.shape[2:]))


def _moments(block: Block, rings: list[InferredRing]) -> list[tuple[float, bool, int, int]]:
    """(when, does a tile land, ring, place that it comes from) of all hops, in the order of a time without meetings.

    Of two rings a core sees first to the tile that is there first.
    """
    moments = []
    for number, ring in enumerate(rings):
        flight = block.device.alpha + block.device.busy_cycles(4 * ring.numbers)
        for place in range(ring.last):
            leaves = place * (flight + TASK + ring.numbers)
            moments += [(leaves, False, number, place), (leaves + flight, True, number, place)]
    return sorted(moments)


def _relay(block: Block, ring: InferredRing, place: int) -> None:
    """A task takes the tile in at a place, and sends it on, unless it is home."""
    if place < ring.last:
        relays = ring.places == place
        software.stage(block, ring.ahead, 0, relays)
        software.run(block, ring.ahead, TASK - block.device.beta + ring.numbers, relays)


def places_of(block: Block, line: Groups, axis: str) -> np.ndarray:
    """The place of every core of a line on it, or on its group; -1 beyond the groups."""
    at = np.arange(block.mesh.length(axis))
    return np.where(at < line.width * line.count, line.local(at), -1)


def hops_along(bar: Crossbar, axis: str) -> tuple[Channel, Channel]:
    """The channels of single hops ahead and back along an axis."""
    ahead, back = bar.channels[:2] if axis == "x" else bar.channels[2:]
    return ahead, back


def allreduce(
    block: Block, bar: Crossbar, axis: str, tiles: np.ndarray, combine: Callable[..., np.ndarray] = np.add,
    groups: Groups | None = None,
) -> np.ndarray:  # fmt: skip
    """All cores of a line, or of a group, get the combination of their tiles [bh, bw, *tile], the same to the bit."""
    groups = groups or whole_line(block, axis)
    places, (ahead, back) = places_of(block, groups, axis), hops_along(bar, axis)
    total = block.memory.keep("sum", tiles.copy())
    stream, numbers, last = streams(block, combine), prod(tiles.shape[2:]), groups.width - 1
    if last:
        software.run(block, ahead, block.device.collective_cycles, places >= 0)
    with block.memory.hold("incoming partial sum", 0 if stream else total[0, 0].nbytes):
        for place in range(last, 0, -1):
            fabric.transfer(block, back, total, total, positions=places == place, combine=combine, stream=stream)
            software.stage(block, back, numbers, places == place - 1, stream=stream, itemsize=total.itemsize)
    for place in range(last):
        fabric.transfer(block, ahead, total, total, positions=places == place, stream=stream)
        if place + 1 < last:
            for _ in ("taken in", "sent on"):
                software.stage(block, ahead, 0, places == place + 1)
    if last and stream:
        software.tail(block, ahead, total, places >= 0)
    return total


# C = A B and A B^T, as in t10.py, but for how tiles move.
gemm, gemm_t = partial(t10.gemm, move=shift), partial(t10.gemm_t, move=shift)
