"""Ladder's way of multiplying and adding: the memory of all cores as one (waferllm, section 7; Ladder, OSDI 2024).

A compiler for shared memory cuts the work into tiles of the output, one a core, and lets every core load what it needs
when it needs it, wherever that lies, in the order of the loop. So here: nothing moves but what is asked for.

    C = A B     at step k every core loads tile k of its row of A and tile k of its column of B from the cores that own
                them, multiplies them, and adds to the sum in its own memory
    C = A B^T   the same, with tile k of a row of B that belongs to its column of C: that lies anywhere
    sums        in log2 N rounds: half of the cores load the partial sum of another and add it to their own, then half
                of those; at last all load the total. Or every core loads all partial sums, one after the other: as
                fast where all memory is equally far, with nobody waiting for a total, but not here

The cores of a line load the same tile at the same step, each for itself: to the owner that makes N - 1 requests and as
many answers, through the links of its neighbours. A load in advance would hide the product, not the way. Measured for
a sum of 16 numbers on lines of 64 wse2 cores: 248 cycles by a K-tree, 4,878 in rounds, 95,941 with every core loading
all.

`sample` is that of `meshrt.mesh.repeat.spread`: without payloads, so many steps of the loop are run for all.
`groups` are columns that multiply and add among themselves, as for groups of heads.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.exchange.exchange import Crossbar, exchange
from meshrt.mesh.exchange.legs import Transfer
from meshrt.mesh.repeat import spread
from meshrt.mesh.wires import software
from meshrt.programs.mesh.baselines.groups import Groups, whole_line
from meshrt.programs.mesh.meshgemm import Multiply, add_product, begin_product, zeros


def gemm(
    block: Block, bar: Crossbar, a: np.ndarray, b: np.ndarray, groups: Groups | None = None, sample: int | None = None
) -> np.ndarray:
    """C = A B.

    a: M x K, b: K x N, cut into P x P tiles: [bh, bw, rows, columns, .., Mt, Kt] and [.., Kt, Nt]; float32 C as well.
    In groups, P x w tiles of B and C, of w columns, and P x P of A, P / w a core. Both operands stay at home.
    """
    groups = groups or whole_line(block)
    x, rows, slots = np.arange(block.mesh.width), b.shape[2], a.shape[3]
    c = zeros(block, "C", (a.shape[2], b.shape[3], *a.shape[4:-1], b.shape[-1]))
    begin_product(block, block.mesh.height * rows)
    for step in spread(block, block.mesh.height * rows, sample):
        block.step()
        column, row = groups.owners(x, step // slots), np.full(block.mesh.height, step // rows)
        of_a, of_b = exchange(
            block,
            bar,
            Transfer("x", column, a[:, :, :, step % slots], asks=True),
            Transfer("y", row, b[:, :, step % rows], asks=True),
        )
        block.matmul(of_a[:, :, :, None], of_b[:, :, None], c)
        del of_a, of_b
    return c


def gemm_t(
    block: Block, bar: Crossbar, a: np.ndarray, b: np.ndarray,
    multiply: Multiply | None = None, groups: Groups | None = None, sample: int | None = None,
) -> np.ndarray:  # fmt: skip
    """C = A B^T; a: M x K, b: N x K, as in `gemm`; in groups, P x w tiles of A and B, and P x P of C, P / w a core.

    `multiply(a, b, total)` may stand in for adding a product of two tiles, a b^T. It gets tiles of other cores: what it
    does may depend on the tiles, not on the core.
    """
    groups = groups or whole_line(block)
    mesh, slots = block.mesh, a.shape[3]
    places = mesh.height * b.shape[2] // groups.width  # tiles of a row of C at a core
    x = np.arange(mesh.width)
    multiply = multiply or partial(add_product, block)
    c = zeros(block, "C", (a.shape[2], places, *a.shape[4:-1], b.shape[-2]))
    begin_product(block, groups.width * slots * places)
    for step in spread(block, groups.width * slots, sample):
        row = Transfer("x", groups.owners(x, step // slots), a[:, :, :, step % slots], asks=True)
        for place in range(places):
            block.step()
            rows_of_b = _row_of_b(block, groups, b, step, groups.local(x) * places + place)
            if place == 0:
                a_tile, *loaded = exchange(block, bar, row, *(transfer for _, transfer in rows_of_b))
            else:
                loaded = exchange(block, bar, *(transfer for _, transfer in rows_of_b))
            tile = loaded[0]
            for (marks, _), candidate in zip(rows_of_b[1:], loaded[1:], strict=True):
                np.copyto(tile, candidate, where=marks.reshape(1, -1, *(1,) * (tile.ndim - 2)))
                del candidate
            multiply(a_tile[:, :, :, None], tile[:, :, None, None], c[:, :, :, place : place + 1])
            del loaded, tile
        del a_tile
    return c


def _row_of_b(
    block: Block, groups: Groups, b: np.ndarray, step: int, numbers: np.ndarray
) -> list[tuple[np.ndarray, Transfer]]:
    """What brings tile `step` of the row of B with each column's number to all cores of the column.

    An owner can have several such rows, of which a transfer takes one: (columns that it serves here, transfer) each.
    """
    mesh, (rows, columns) = block.mesh, b.shape[2:4]
    x, transfers = np.arange(mesh.width), []
    owner = numbers // rows * mesh.width + groups.owners(x, step // columns)
    for slot in range(rows):
        serves = numbers % rows == slot
        if serves.any():
            owners = np.where(serves, owner, np.arange(mesh.height)[:, None] * mesh.width + x).reshape(-1)
            marks = serves[mesh.x0 : mesh.x0 + block.lead[1]] if block.payload else np.ones(1, bool)
            transfers.append((marks, Transfer(None, owners, b[:, :, slot, step % columns], asks=True)))
    return transfers


def allreduce(
    block: Block, bar: Crossbar, axis: str, tiles: np.ndarray, combine: Callable[..., np.ndarray] = np.add,
    groups: Groups | None = None,
) -> np.ndarray:  # fmt: skip
    """All cores of a line, or of a group, get the combination of their tiles [bh, bw, *tile], the same to the bit.

    Core i loads the partial sum of core i + 1, 2, 4 .., and adds it; then all load the total of the first.
    """
    groups = groups or whole_line(block, axis)
    columns = np.arange(block.mesh.length(axis))
    inside, at = columns < groups.width * groups.count, groups.local(columns)
    numbers, channel = prod(tiles.shape[2:]), bar.channels[0 if axis == "x" else 2]
    low, count = block.mesh.offset(axis), block.lead[1 if axis == "x" else 0]
    total, far = tiles, 1
    if groups.width > 1:
        block.clock.software(block.device.collective_cycles)
    while far < groups.width:
        adds = inside & (at % (2 * far) == 0) & (at + far < groups.width)
        (loaded,) = exchange(block, bar, Transfer(axis, np.where(adds, columns + far, columns), total, asks=True))
        software.stage(block, channel, numbers, adds, itemsize=tiles.itemsize)
        marks = adds[low : low + count] if block.payload else np.ones(1, bool)
        marks = marks.reshape(*((1, -1) if axis == "x" else (-1, 1)), *(1,) * (tiles.ndim - 2))
        np.copyto(loaded, np.where(marks, combine(total, loaded), total))
        total = loaded
        del loaded
        far *= 2
    (total,) = exchange(block, bar, Transfer(axis, groups.owners(columns, 0), total, asks=True))
    return total


def allreduce_by_all(
    block: Block, bar: Crossbar, axis: str, tiles: np.ndarray, combine: Callable[..., np.ndarray] = np.add,
    groups: Groups | None = None, sample: int | None = None,
) -> np.ndarray:  # fmt: skip
    """The same, every core loading the partial sums of its line one after the other: see above what that costs."""
    groups = groups or whole_line(block, axis)
    columns = np.arange(block.mesh.length(axis))
    inside = columns < groups.width * groups.count
    numbers, channel = prod(tiles.shape[2:]), bar.channels[0 if axis == "x" else 2]
    total: Any = None
    if groups.width > 1:
        block.clock.software(block.device.collective_cycles)
    for place in spread(block, groups.width, sample):
        (loaded,) = exchange(block, bar, Transfer(axis, groups.owners(columns, place), tiles, asks=True))
        software.stage(block, channel, numbers, inside, itemsize=tiles.itemsize)
        total = loaded if total is None else block.memory.keep("total", combine(total, loaded))
        del loaded
    return np.asarray(total)
