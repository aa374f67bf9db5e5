"""Software at cores touches packets: it relays them, adds them up, and takes its time."""

from math import prod

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.cores import Cores
from meshrt.mesh.device import VECTOR_OPERANDS
from meshrt.mesh.wires import tally
from meshrt.mesh.wires.planning import check_chosen, chosen_cores
from meshrt.mesh.wires.tables import Channel


def stage(
    block: Cores, channel: Channel, operations: int, positions: np.ndarray, lines: np.ndarray | None = None,
    stream: bool = False,
) -> None:  # fmt: skip
    """Software at these positions of the channel's lines touches a packet: relays it, or adds so many numbers.

    With `stream` they are added as they come (`tail` has the time), to numbers of the core's own; else in memory.
    UsageError for fewer than 0, and in one's own program where `positions` or `lines` do not fit.
    """
    if operations < 0:
        raise UsageError(f"a stage of {operations} additions: what a core does is no less than 0")
    check_chosen(block, channel, positions, lines, "positions")
    if not block.timed:
        return
    chosen = chosen_cores(block, channel, positions, lines)
    if chosen.count:
        counters = block.counters
        counters.stages += chosen.count
        counters.adds += operations * chosen.count
        counters.operand_bytes += 4 * operations * chosen.count * (1 if stream else VECTOR_OPERANDS)
        block.clock.path_changes()
        cycles = block.device.beta + (0.0 if stream else block.device.compute_cycles(operations))
        chosen.spend(block, cycles, 1)
        if block.mapped:
            tally.touched(block, chosen, 1, cycles)
        if block.clock.seen is not None:
            block.clock.seen("relays or adds a packet")


def tail(
    block: Cores, channel: Channel, tiles: np.ndarray, positions: np.ndarray, lines: np.ndarray | None = None
) -> None:
    """The cores at these positions of the channel's lines wait for the rest of a streamed packet: one of `tiles`.

    Words come, and are added, as fast as the slower of link and core can: max(bytes / link width, numbers / rate).
    """
    run(block, channel, streaming_cycles(block, tiles), positions, lines)


def run(block: Cores, channel: Channel, cycles: float, positions: np.ndarray, lines: np.ndarray | None = None) -> None:
    """The cores at these positions of the channel's lines are busy for so long. UsageError for less than 0."""
    if not cycles >= 0:  # nor what is no number
        raise UsageError(f"software of {cycles:g} cycles: what a core does takes no less than 0")
    check_chosen(block, channel, positions, lines, "positions")
    if cycles and block.timed:
        chosen = chosen_cores(block, channel, positions, lines)
        chosen.spend(block, cycles, 0)
        if block.mapped:
            tally.touched(block, chosen, 0, cycles)
        if block.clock.seen is not None:
            block.clock.seen("runs software on packets")


def streaming_cycles(block: Cores, tiles: np.ndarray) -> float:
    """How long a tile takes to pass a ramp while every number of it is added to another."""
    numbers, rate = prod(tiles.shape[2:]), block.device.adds_rate(tiles.dtype.itemsize)
    busy = block.device.busy_cycles(numbers * tiles.itemsize)
    return busy if rate is None else max(busy, numbers / rate)
