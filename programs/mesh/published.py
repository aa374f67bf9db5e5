"""MeshGEMM and MeshGEMV as WaferLLM's published kernels have them, where the programs here do otherwise.

    gemm  floor(N / 2) steps  A moves on, and cores wait for it; aligned rows keep what they had;  B comes aligned
          N steps             C_sub += A_sub B_sub, by instructions along its columns, while A and B move on
    gemv  y_sub = x_sub B_sub; groups of cores add up to their middle one; their roots add up to the middle one of them,
          which sends the result to all. Each of the three begins with whole tiles

Ours leaves out the last of N shifts, aligns both matrices, and takes instructions along the longer side; and it passes
on the words of a sum as they come, from the first phase to all.

The kernels were timed many times one after the other, without a barrier, and so they are here: `steady`.
"""

from collections.abc import Callable
from math import fsum

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.clock import TIME
from meshrt.mesh.collectives.allreduce import allreduce
from meshrt.mesh.collectives.rings import Rings
from meshrt.mesh.collectives.shifts import finish_shift, start_shift
from meshrt.mesh.collectives.trees import Tree
from meshrt.mesh.repeat import sampled
from meshrt.mesh.wires import ramps
from meshrt.programs.mesh.meshgemm import begin_product, coming_in, in_flight, zeros


def published_meshgemm(
    block: Block, rings: Rings, a: np.ndarray, b: np.ndarray, sample: int | None = None
) -> np.ndarray:
    """C = A B on N x N cores. a: [bh, bw, 1, 1, Mt, Kt]; b: [.., Kt, Nt], as `aligned` makes it: a core has the tile
    that stands as far on along y as its column is along x, by places on the rings. C: float32, as b. LimitError.

    With a `sample`, by shape, so many steps of either loop are run, and the last of them is counted for the others.
    """
    n = block.mesh.height
    begin_product(block, n)
    a_now, b_now = in_flight(block, "A", a), in_flight(block, "B", b)
    a_next, b_next = coming_in(block, "A", a), coming_in(block, "B", b)
    turns = -np.array(rings.rows) % n
    onward = turns <= n // 2
    turns = np.where(onward, turns, n - turns)[block.mesh.y0 : block.mesh.y0 + block.lead[0]]
    for step in sampled(block, n // 2, sample):
        block.clock.software(block.device.shift_cycles)
        flights = start_shift(block, rings.x, a_now, a_next, onward)
        flights += start_shift(block, rings.back_x, a_now, a_next, ~onward)
        finish_shift(block, flights)
        a_now[turns > step] = a_next[turns > step]
    c = zeros(block, "C", (1, 1, a.shape[-2], b.shape[-1]))
    for _ in sampled(block, n, sample):
        block.step()
        flights = start_shift(block, rings.x, a_now, a_next) + start_shift(block, rings.y, b_now, b_next)
        block.matmul(a_now, b_now, c, down=True)
        finish_shift(block, flights)
        a_now, a_next, b_now, b_next = a_next, a_now, b_next, b_now
    return c


def aligned(matrix: np.ndarray, places: tuple[int, ...]) -> np.ndarray:
    """A matrix of N x N tiles as `published_meshgemm` takes B: each column of tiles turned back by its place."""
    n = len(places)
    order, turned = np.argsort(places), matrix.copy()
    rows, columns = (size // n for size in matrix.shape)
    tiles, own = (whole.reshape(n, rows, n, columns) for whole in (turned, matrix))
    for column, place in enumerate(places):
        tiles[:, :, column] = own[order[(np.array(places) + place) % n], :, column]
    return turned


def published_meshgemv(block: Block, tree: Tree, x: np.ndarray, b: np.ndarray) -> np.ndarray:
    """y = x B, summed along the axis of the tree, whose phases are `stored`. x: [bh, bw, Kt], b: [bh, bw, Kt, Nt] -> y:
    [bh, bw, Nt], in the type of b as on the machine. LimitError.
    """
    product = block.matmul(x[:, :, None], b)[:, :, 0]
    y = block.memory.keep("y", product.astype(b.dtype, copy=False))
    return allreduce(block, tree, y, out=y)


def steady(block: Block, once: Callable[[], object], times: int) -> float:
    """Mean cycles of a core, of one of so many runs in a row, after one that is not counted. On every rank."""
    once()
    ramps.settle(block)
    began = block.clock.state[TIME].copy()
    for _ in range(times):
        once()
    ramps.settle(block)
    spent: list[float] = (block.clock.state[TIME] - began).ravel().tolist()
    cores = block.mesh.width * block.mesh.height
    return (
        float(block.control.allreduce(spent, lambda parts: fsum(one for part in parts for one in part))) / cores / times
    )
