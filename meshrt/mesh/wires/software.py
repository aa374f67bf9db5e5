"""Software at cores touches packets: it relays them, adds them up, and takes its time."""

from math import prod
from numbers import Integral

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.cores import Cores
from meshrt.mesh.device import VECTOR_OPERANDS
from meshrt.mesh.wires import tally
from meshrt.mesh.wires.planning import ChosenCores, check_chosen, chosen_cores
from meshrt.mesh.wires.tables import Channel
from meshrt.options import in_short
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class Work:
    """What software at some cores does, each time: made once."""

    chosen: ChosenCores
    cycles: float
    operations: int = 0  # additions of numbers to a packet's, at each of them
    operand_bytes: int = 0  # of an addition, in memory
    stages: int = 0  # times that it touches a packet


def stage(
    block: Cores, channel: Channel, operations: int, positions: np.ndarray, lines: np.ndarray | None = None,
    stream: bool = False, itemsize: int = 4,
) -> None:  # fmt: skip
    """Software at these positions of the channel's lines touches a packet: relays it, or adds so many numbers
    of `itemsize` bytes.

    With `stream` they are added as they come (`tail` has the time), to numbers of the core's own; else in memory.
    UsageError for fewer than 0, and in one's own program where `positions` or `lines` do not fit.
    """
    work = staging(block, channel, operations, positions, lines, stream, itemsize)
    if work is not None:
        do(block, work)


def staging(
    block: Cores, channel: Channel, operations: int, positions: np.ndarray, lines: np.ndarray | None = None,
    stream: bool = False, itemsize: int = 4,
) -> Work | None:  # fmt: skip
    """What `stage` does, each time; None where no core of the block is at these positions."""
    if block.audit is not None and not isinstance(operations, Integral):
        raise UsageError(f"a stage of {in_short(operations)} additions: give their number, a whole one")
    if operations < 0:
        raise UsageError(f"a stage of {operations} additions: what a core does is no less than 0")
    cycles = block.device.beta + (0.0 if stream else block.device.compute_cycles(operations, itemsize))
    chosen = _chosen(block, channel, positions, lines)
    moved = itemsize * (1 if stream else VECTOR_OPERANDS)
    return None if chosen is None else Work(chosen, cycles, operations, moved, 1)


def _chosen(
    block: Cores, channel: Channel, positions: np.ndarray, lines: np.ndarray | None
) -> ChosenCores | None:  # fmt: skip
    """The cores of the block at these positions; None where none is, or nothing is timed."""
    check_chosen(block, channel, positions, lines, "positions")
    chosen = chosen_cores(block, channel, positions, lines) if block.timed else None
    return chosen if chosen is not None and chosen.count else None


def do(block: Cores, work: Work) -> None:
    """Cores do that."""
    chosen, clock = work.chosen, block.clock
    if work.stages:
        counters, touched = block.ledger.counters, work.operations * chosen.count
        counters.stages += chosen.count
        counters.adds += touched
        counters.operand_bytes += touched * work.operand_bytes
        clock.path_changes()
    chosen.spend(block, work.cycles, work.stages)
    if block.mapped:
        tally.touched(block, chosen, work.stages, work.cycles)
    if clock.seen is not None:
        clock.seen("relays or adds a packet" if work.stages else "runs software on packets")


def tail(
    block: Cores, channel: Channel, tiles: np.ndarray, positions: np.ndarray, lines: np.ndarray | None = None
) -> None:
    """The cores at these positions of the channel's lines wait for the rest of a streamed packet: one of `tiles`.

    Words come, and are added, as fast as the slower of link and core can: max(bytes / link width, numbers / rate).
    """
    run(block, channel, streaming_cycles(block, tiles), positions, lines)


def run(block: Cores, channel: Channel, cycles: float, positions: np.ndarray, lines: np.ndarray | None = None) -> None:
    """The cores at these positions of the channel's lines are busy for so long. UsageError for less than 0."""
    work = running(block, channel, cycles, positions, lines)
    if work is not None:
        do(block, work)


def running(
    block: Cores, channel: Channel, cycles: float, positions: np.ndarray, lines: np.ndarray | None = None
) -> Work | None:  # fmt: skip
    """What `run` does, each time; None where that is nothing."""
    if not cycles >= 0:  # nor what is no number
        raise UsageError(f"software of {cycles:g} cycles: what a core does takes no less than 0")
    chosen = _chosen(block, channel, positions, lines)
    return Work(chosen, cycles) if chosen is not None and cycles else None


def streaming_cycles(block: Cores, tiles: np.ndarray) -> float:
    """How long a tile takes to pass a ramp while every number of it is added to another."""
    numbers, rate = prod(tiles.shape[2:]), block.device.adds_rate(tiles.dtype.itemsize)
    busy = block.device.busy_cycles(numbers * tiles.itemsize)
    return busy if rate is None else max(busy, numbers / rate)
