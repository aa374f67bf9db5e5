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
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.clock import TIME
from meshrt.mesh.collectives.allreduce import allreduce
from meshrt.mesh.collectives.rings import Rings
from meshrt.mesh.collectives.shifts import start_shift
from meshrt.mesh.collectives.trees import Tree
from meshrt.mesh.repeat import sampled
from meshrt.mesh.wires import ramps
from meshrt.mesh.wires.receiving import receive
from meshrt.programs.mesh.meshgemm import begin_product, coming_in, in_flight, zeros


def published_meshgemm(
    block: Block, rings: Rings, a: np.ndarray, b: np.ndarray, sample: int | None = None
) -> np.ndarray:
    """C = A B on N x N cores. a: [bh, bw, 1, 1, Mt, Kt]; b: [.., Kt, Nt], as `aligned` makes it: a core has the tile
    that stands as far on along y as its column is along x, by places on the rings. C: float32, as b. LimitError.

    With a `sample`, by shape, so many steps of either loop are run, and the last of them is counted for the others.
    """
    return round_rings(block, rings, turned(block, rings, a, sample=sample), b, np.float32, sample)[0]


Moving = tuple[np.ndarray, np.ndarray]  # tiles that are in use, and room for those that come in


def turned(block: Block, rings: Rings, a: np.ndarray, b: np.ndarray | None = None, sample: int | None = None) -> Moving:
    """A copy of A in flight, each row gone back round its ring by its place. So does each column of B, in place, in
    the same steps, if it is given."""
    mesh = block.mesh
    moves = [(rings.x, rings.back_x, in_flight(block, "A", a), coming_in(block, "A", a), *_ways(rings.rows))]
    if b is not None:
        moves.append((rings.y, rings.back_y, b, coming_in(block, "B", b), *_ways(rings.columns)))
    for step in sampled(block, mesh.height // 2, sample):
        block.clock.software(block.device.shift_cycles)
        flights = []
        for ring, back, now, coming, onward, _ in moves:
            flights.append(start_shift(block, ring, now, coming, onward))
            flights.append(start_shift(block, back, now, coming, ~onward))
        receive(block, *flights)
        for ring, _, now, coming, _, turns in moves:
            low, across = (mesh.y0, 0) if ring.axis == "x" else (mesh.x0, 1)
            further = turns[low : low + block.lead[across]] > step
            shape = [-1 if at == across else 1 for at in range(now.ndim)]
            np.copyto(now, coming, where=further.reshape(shape))
    return moves[0][2], moves[0][3]


def _ways(places: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """For each line, does it go back by going on, and by how many places, the short way: bool [N], int [N]."""
    n = len(places)
    turns = -np.array(places) % n
    onward = turns <= n // 2
    return onward, np.where(onward, turns, n - turns)


def round_rings(
    block: Block, rings: Rings, a: Moving, b: np.ndarray, dtype: Any, sample: int | None = None
) -> tuple[np.ndarray, Moving]:
    """A B of an A that is `turned`, in this type, and A where it was: it comes home in N steps."""
    n = block.mesh.height
    begin_product(block, n)
    (a_now, a_next), b_now, b_next = a, in_flight(block, "B", b), coming_in(block, "B", b)
    c = zeros(block, "C", (1, 1, *a_now.shape[4:-1], b.shape[-1]), dtype)
    for _ in sampled(block, n, sample):
        block.step()
        flights = start_shift(block, rings.x, a_now, a_next), start_shift(block, rings.y, b_now, b_next)
        block.matmul(a_now, b_now, c, down=True)
        receive(block, *flights)
        a_now, a_next, b_now, b_next = a_next, a_now, b_next, b_now
    return c, (a_now, a_next)


def aligned(matrix: np.ndarray, places: tuple[int, ...]) -> np.ndarray:
    """A matrix of N x N tiles as `published_meshgemm` takes B: each column of tiles turned back by its place."""
    n = len(places)
    turned_back, chosen = matrix.copy(), aligned_rows(places)
    rows, columns = (size // n for size in matrix.shape)
    tiles, own = (whole.reshape(n, rows, n, columns) for whole in (turned_back, matrix))
    for column in range(n):
        tiles[:, :, column] = own[chosen[:, column], :, column]
    return turned_back


def aligned_rows(places: tuple[int, ...]) -> np.ndarray:
    """[N, N]: of which row of tiles a core (y, x) has one, of a matrix that is aligned."""
    at = np.array(places)
    chosen: np.ndarray = np.argsort(at)[(at[:, None] + at) % len(at)]
    return chosen


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
    return float(block.control.allreduce(spent, lambda parts: fsum(n for part in parts for n in part))) / cores / times
