"""Cycles of reduce and allreduce at every core of a line, from those of a hop, a packet, a stage and an addition."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import pytest
from measure import whole
from runs import new_block

from meshrt.mesh.block import Block
from meshrt.mesh.clock import TIME
from meshrt.mesh.collectives.allreduce import allreduce, pattern
from meshrt.mesh.collectives.trees import Tree, reduce
from meshrt.mesh.device import Device
from meshrt.mesh.wires import routes

N, WORDS = 7, 9
ALPHA, BETA, CALL = 1.5, 20.0, 3.0


@dataclass(frozen=True)
class Costs:
    """Cycles for so many words: `packet` passes a link, `added` is what a core takes after its tail came in, or its
    head where it streams; `rest` is then what it has to wait for at the end.
    """

    device: Device
    words: int

    @property
    def stream(self) -> bool:
        return self.device.stream_adds

    @property
    def packet(self) -> float:
        return 0.0 if self.stream else self.words

    @property
    def added(self) -> float:
        return BETA + (0.0 if self.stream else CALL + ceil(self.words / (self.device.macs_per_cycle or 1.0)))

    @property
    def rest(self) -> float:
        return max(self.words, self.words / (self.device.macs_per_cycle or 1.0)) if self.stream else 0.0


DEVICES = [
    Device(
        name="line",
        alpha=ALPHA,
        beta=BETA,
        link_bytes_per_cycle=4.0,
        macs_per_cycle=rate,
        call_cycles=CALL,
        stream_adds=on,
    )
    for on in (False, True)
    for rate in (0.5, 2.0)
]


def times(block: Block) -> list[float]:
    times_of_row: list[float] = whole(block, block.clock.state[TIME])[0].tolist()
    return times_of_row


def run(comm: Any, kind: Any, device: Device, only_reduce: bool = False) -> list[float]:
    block = new_block(comm, (N, 1), device)
    with pattern(block, kind, "x") as way:
        tiles = np.ones((*block.shape, WORDS), np.float32)
        if only_reduce:
            assert isinstance(way, Tree)
            sums = reduce(block, way, tiles)
        else:
            sums = allreduce(block, way, tiles)
    assert only_reduce or (sums == N).all()
    return times(block)


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("device", DEVICES)
def test_a_pipeline_takes_a_hop_a_packet_and_an_addition_a_core(device: Device, comm):
    """From core N - 1 down to core 0; then the result goes back to all at once."""
    cost = Costs(device, WORDS)
    each = ALPHA + cost.packet + cost.added
    assert run(comm, "pipeline", device, True) == [each * (N - 1 - core) + cost.rest for core in range(N - 1)] + [0.0]
    end = each * (N - 1)
    back = [end] + [end + core * ALPHA + cost.packet for core in range(1, N)]
    assert run(comm, "pipeline", device) == [time + cost.rest for time in back]


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("device", DEVICES)
def test_a_ring_adds_a_chunk_at_every_step_and_then_passes_on_what_is_whole(device: Device, comm):
    """N - 1 steps of each kind; in the second half what came in a step before is passed on, which is a stage too."""
    cost = Costs(device, -(-WORDS // N))
    ring = [(route.source, route.stops[0], abs(route.stops[0] - route.source)) for route in routes.interleaved_ring(N)]

    def passed_on(time: list[float]) -> list[float]:
        after = list(time)
        for source, stop, hops in ring:
            after[stop] = max(time[stop], time[source] + ALPHA * hops + cost.packet)
        return after

    time = [0.0] * N
    for _ in range(N - 1):
        time = [cycles + cost.added for cycles in passed_on(time)]
    for step in range(N - 1):
        time = passed_on([cycles + BETA * (step > 0) for cycles in time])
    assert run(comm, "ring", device) == [cycles + cost.rest for cycles in time]
