"""A transfer as one table for the compiled core, at a rank of one core (rows.py): of fabric._send what is not counted.

It comes to all that replay.py does, the delivery, and the waiting for messages. What the transfer does to the links
before (order.py), and the ramps where cores wait for it later, are Python's.
"""

from collections.abc import Iterable

import numpy as np

from meshrt.mesh.cores import Cores
from meshrt.mesh.wires.going import go, line_of
from meshrt.mesh.wires.heads import Passage
from meshrt.mesh.wires.lane import HEADER, KEPT, Lane, new_landing
from meshrt.mesh.wires.replay import Arrival, put_back
from meshrt.mesh.wires.rows import COPY_TILE, OWN_TO, Making, Rows, go_along, numbers_of, packets_of, tile_of, wait_for
from meshrt.mesh.wires.strides import Stretch, strides_of


def rows_of(
    block: Cores, lane: Lane, passage: Passage, tiles: np.ndarray, out: np.ndarray, at_once: bool
) -> Rows | None:  # fmt: skip
    """Those of a transfer on a lane: made at its second use. None where the core does not make it as a whole."""
    if not lane.sends:
        lane.sends[None] = None  # used once
        return None
    key = passage.watch, passage.stream, at_once
    if key not in lane.sends:
        lane.sends[key] = _rows(block, lane, passage, tiles.nbytes, at_once)
    rows: Rows | None = lane.sends[key]
    if rows is None or tiles.dtype != out.dtype or tiles.shape != out.shape:
        return None
    return rows if tiles.flags.c_contiguous and out.flags.c_contiguous else None


def _rows(block: Cores, lane: Lane, passage: Passage, tile: int, at_once: bool) -> Rows | None:
    schedule = lane.schedule
    if line_of(block) is None or not any(batch.messages for batch in schedule.batches):
        return None
    if HEADER * schedule.count > KEPT or any(part.message < 0 for part in schedule.parts):
        return None
    making, strides = Making(block, tile), strides_of(block, lane)
    stretches: Iterable[Stretch] = strides.at_once
    if not at_once:  # what a message brings is overwritten in the next replay
        *before, (steps, tick) = strides.stretches
        stretches = [*before, (steps + strides.paths, tick)]
    sent = go_along(making, lane, stretches, 0, passage)
    for part in schedule.parts:
        packets = lane.received[part.message]
        for number in numbers_of(part.source, packets_of(packets)):
            making.row(COPY_TILE, 0, tile_of(making, packets, number), tile, 0, OWN_TO)
    wait_for(making, sent)
    return making.done()


def send(
    block: Cores, lane: Lane, rows: Rows, passage: Passage, tiles: np.ndarray, out: np.ndarray, at_once: bool
) -> Arrival | None:  # fmt: skip
    """As replay.replay, delivery.deliver, and waiting for what is sent."""
    line, address = line_of(block), block.core.address
    assert line is not None
    landing = lane.spare.pop() if lane.spare else new_landing(block, lane)
    own = address(tiles)
    go(block, line, rows, own if out is tiles else address(out), own, landing.address)
    if at_once or not lane.schedule.count:
        put_back(block, lane, landing)
        return None
    arrival = Arrival(block, lane, landing, passage)
    arrival.has_path = True
    if not arrival.is_served:
        block.clock.coming.append(arrival)
    return arrival
