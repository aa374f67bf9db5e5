"""Allreduce round a ring (waferllm, section 6.1): tiles go round in N chunks, combined first and handed out then."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from itertools import count
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
    with installed(block, axis, routes.interleaved_ring) as channel:
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
    whole = whole.reshape(-1, size)
    kind = (*lead, size), tiles.dtype
    if kind not in way.buffers:  # fresh memory can cost the host more than all the rest
        way.buffers.clear()
        way.buffers[kind] = np.empty((2, *kind[0]), tiles.dtype)
    going, coming = way.buffers[kind]
    places = _places(block, way, lead)
    _take(whole, next(places), going)
    everyone = np.ones(n, bool)
    prepared = fabric.prepare(block, way.channel, going, stream=stream) if block.timed else None
    adds = software.staging(block, way.channel, size, everyone, stream=stream, itemsize=tiles.itemsize)
    passes = software.staging(block, way.channel, 0, everyone)
    with block.memory.hold("ring chunks", (n * size - numbers + (0 if stream else size)) * tiles.itemsize):
        for _ in range(n - 1):
            _take(whole, at := next(places), coming)
            fabric.transfer_again(block, way.channel, prepared, going, combine, coming)
            if adds is not None:
                software.do(block, adds)
            going, coming = coming, going
        direct = n * size == numbers and out.flags.c_contiguous
        result = out.reshape(-1, size) if direct else np.empty_like(whole)
        result[at] = going
        for step in range(n - 1):
            if step and passes is not None:  # what came in the step before is passed on
                software.do(block, passes)
            fabric.transfer_again(block, way.channel, prepared, going, None, coming)
            result[next(places)] = coming
            going, coming = coming, going
        if stream:
            software.tail(block, way.channel, going, everyone)
    if not direct:
        out[...] = result.reshape(*lead, n * size)[:, :, :numbers].reshape(tiles.shape)
    return out


def _places(block: Block, way: ScatterRing, lead: tuple[int, int]) -> Iterator[np.ndarray]:
    """Of the chunks that all cores send at a step, one step after the other: their numbers [bh, bw] among those of the
    block, n of each core. The first come again after the n-th.
    """
    n, low = way.channel.length, block.mesh.offset(way.axis)
    place = way.place[low : low + lead[1 if way.axis == "x" else 0]]
    first = n * np.arange(lead[0] * lead[1]).reshape(lead)
    for step in count():
        chunk = (place - step) % n
        yield first + (chunk if way.axis == "x" else chunk[:, None])


def _take(chunks: np.ndarray, at: np.ndarray, out: np.ndarray) -> None:
    """Those at these places, where NumPy is not to look for places beyond the last: it would copy them twice."""
    np.take(chunks, at, axis=0, out=out, mode="clip")
