"""Allreduce round a ring (waferllm, section 6.1): tiles go round in N chunks, combined first and handed out then."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from math import prod
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.trees import Combine, streams
from meshrt.mesh.wires import fabric, routes, software
from meshrt.mesh.wires.tables import Channel, installed
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class ScatterRing:
    """An interleaved ring along every line on which tiles go round in N chunks."""

    axis: str
    channel: Channel
    place: np.ndarray  # int [N], of every core on the ring
    buffers: dict[Any, np.ndarray] = field(default_factory=dict)  # chunks of the last allreduce; its shape and type


@contextmanager
def ring(block: Block, axis: str) -> Iterator[ScatterRing]:
    """Install an interleaved ring along every line of the axis: three colours (waferllm, section 6.1).

    On an open line a ring comes back, by two hops at every step or by N - 1 at one: either way a chunk that goes round
    takes 2 N hops, and each link carries one chunk a step in both directions, so that a second ring would gain nothing.
    """
    n = block.mesh.length(axis)
    with installed(block.tables, axis, routes.interleaved_ring(n)) as channel:
        yield ScatterRing(axis, channel, np.array(routes.ring_place(n)))


def around(block: Block, way: ScatterRing, tiles: np.ndarray, combine: Combine, out: np.ndarray) -> np.ndarray:
    """Reduce-scatter, then allgather: 2 (N - 1) steps, in which every core sends one chunk to the next on the ring.

    At step s core p passes on chunk p - s, to which those before it have added; after N - 1 steps it has all of chunk
    p + 1, and in as many steps more all cores have all chunks. A tile that N does not divide is padded.

    In a core, chunks are in their places in `out`, but for the padding, and beside them is the one that comes in, if it
    has to be whole before it is added. The host keeps them apart, in an order that lets all cores send from one place.
    """
    if not isinstance(combine, np.ufunc):
        raise UsageError(
            f"a ring allreduce cuts tiles into chunks, which {getattr(combine, '__name__', combine)} may not allow:"
            " use a K-tree or a pipeline, or a NumPy function of two operands"
        )
    n = way.channel.length
    if n == 1:
        np.copyto(out, tiles)
        return out
    stream, numbers = streams(block, combine), prod(tiles.shape[2:])
    size = -(-numbers // n)
    lead = tiles.shape[:2]
    whole = tiles.reshape(*lead, numbers)
    if n * size != numbers:
        whole = np.concatenate([whole, np.zeros((*lead, n * size - numbers), tiles.dtype)], axis=2)
    whole = whole.reshape(*lead, n, size)
    rows, columns = np.arange(lead[0])[:, None], np.arange(lead[1])
    low = block.mesh.offset(way.axis)
    place = way.place[low : low + lead[1 if way.axis == "x" else 0]]
    place = place if way.axis == "x" else place[:, None]
    kind = (n, *lead, size), tiles.dtype
    if kind not in way.buffers:  # fresh memory can cost the host more than all the rest
        way.buffers.clear()
        way.buffers[kind] = np.empty(*kind)
    chunks = way.buffers[kind]  # at s, chunk p - s of core p: all send from one place
    for back in range(n):
        chunks[back] = whole[rows, columns, (place - back) % n]
    everyone = np.ones(n, bool)
    with block.memory.hold("ring chunks", (n * size - numbers + (0 if stream else size)) * tiles.itemsize):
        for step in range(n - 1):
            fabric.transfer(block, way.channel, chunks[step], chunks[step + 1], combine=combine, stream=stream)
            software.stage(block, way.channel, size, everyone, stream=stream)
        for step in range(n - 1):
            if step:  # what came in the step before is passed on
                software.stage(block, way.channel, 0, everyone)
            fabric.transfer(block, way.channel, chunks[step - 1], chunks[step], stream=stream)
        if stream:
            software.tail(block, way.channel, chunks[0], everyone)
    direct = n * size == numbers and out.flags.c_contiguous
    result = out.reshape(*lead, n, size) if direct else np.empty((*lead, n, size), tiles.dtype)
    for back in range(n):
        result[rows, columns, (place - back) % n] = chunks[back]
    if not direct:
        out[...] = result.reshape(*lead, n * size)[:, :, :numbers].reshape(tiles.shape)
    return out
