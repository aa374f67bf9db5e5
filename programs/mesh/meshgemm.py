"""MeshGEMM: C = A B, or A B^T, by tiles that go round rings (waferllm, section 5).

    with lcm(W, H) = P tiles along either axis, one a core where the mesh is square:
      align         row r of A moves back round its ring by r's place on the ring, column c of B by c's
      repeat P      C_sub += A_sub B_sub;  A moves on one place along x, B along y, while the product runs
    The rings are interleaved: no tile ever moves more than two hops, however long the line is. On plain rings, with a
    wrap-around of N - 1 hops, the same loop is Cannon's.

A core holds A, B and C at home, and A and B in flight twice: the pair being multiplied, and the pair coming in.
Routes per core: three colours for each direction of a ring, four directions while aligning, two in the loop.
"""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from math import prod
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import allreduce
from meshrt.mesh.collectives.rings import Rings
from meshrt.mesh.collectives.shifts import align, rotate, start_shift
from meshrt.mesh.collectives.trees import Tree
from meshrt.mesh.repeat import sampled
from meshrt.mesh.wires.receiving import receive, receive_all
from meshrt.mesh.wires.routes import ring_order, ring_place
from meshrt.programs.mesh.codes.packed import Packed, Tiles


def meshgemm(
    block: Block, rings: Rings, a: np.ndarray, b: Tiles, lockstep: bool = False, consume: bool = False,
    sample: int | None = None, once: bool = False,
) -> np.ndarray:  # fmt: skip
    """C = A B.

    a: M x K, b: K x N, cut `square`: [bh, bw, rows, columns, Mt, Kt] and [.., Kt, Nt], any leading tile dimensions
    before the last two alike in both (heads, say). Where b has fewer columns of tiles than a, a core multiplies what is
    in its first places. Returns C in float32, or of whole numbers in int32, cut as b is. In `lockstep` all cores begin
    each step together; else a core goes on as soon as it has its own next tiles. LimitError.

    Both stay at home; `consume`: A does not. It is in memory once then, beside what comes in, and is not what it was.
    Of B in codes the packed bytes go round. With a `sample`, by shape, only so many steps of the loop are run, and the
    last of them is counted for the others.

    Cores have two rooms for what goes round. The host has one: it moves tiles when a step's products are made.
    Plans of what aligns them it keeps for the next product on these rings; not where they are used `once`.
    """
    b_home, multiply = (b.data, partial(b.multiply_tiles, block)) if isinstance(b, Packed) else (b, block.matmul)
    steps = len(rings.y.places)
    begin_product(block, steps)
    a_now, b_now = a if consume else in_flight(block, "A", a), in_flight(block, "B", b_home)
    align(block, rings, a_now, b_now, once)
    with ExitStack() as rooms:
        for name, tiles in (("A", a), ("B", b_home)):
            rooms.enter_context(block.memory.hold(f"{name} coming in", tile_bytes(tiles)))
        dtype = b.sum_dtype if isinstance(b, Packed) else np.float32
        c = zeros(block, "C", (a.shape[2], b.shape[3], *a.shape[4:-1], b.shape[-1]), dtype)
        for _ in sampled(block, steps - 1, sample):
            block.step()
            flights = [start_shift(block, rings.x, a_now, a_now, later=True)]
            flights.append(start_shift(block, rings.y, b_now, b_now, later=True))
            multiply(a_now[:, :, :, : b.shape[3]], b_now, c)
            receive(block, *flights)
            if lockstep:
                block.meet()
        multiply(a_now[:, :, :, : b.shape[3]], b_now, c)
        if lockstep:
            block.meet()
    return c


Multiply = Callable[[np.ndarray, np.ndarray, np.ndarray], object]  # (a, b, total): adds a b^T to the total


def meshgemm_t(
    block: Block, rings: Rings, a: np.ndarray, b: np.ndarray, multiply: Multiply | None = None,
    sample: int | None = None,
) -> np.ndarray:  # fmt: skip
    """C = A B^T without a transpose: A stays, B moves along y and the sums of C along x.

    a: M x K, b: N x K, as in `meshgemm`; `multiply(a, b, total)` may stand in for adding the product of two tiles.
    Where rings along x have more places at a core than b has columns of tiles, a core adds to the sums in the first.
    `sample` as in `meshgemm`.

    Where the paper reduces every step's products along x (section 5.4), here each sum travels round the x ring and
    every core on its way adds its product: the longest packet is two hops again, and there is no reduction tree to
    wait for. B is aligned before, C after. Measured with `--reduce ring` against `--reduce ktree` on wse2, 128^3:
    61,208 against 65,812 cycles on 8 x 8 cores, 22,772 against 25,386 on 16 x 16, 14,684 against 17,325 on 32 x 32.
    """
    steps = block.mesh.height * a.shape[2]
    begin_product(block, steps)
    multiply = multiply or partial(add_product, block)
    b_now = in_flight(block, "B", b)
    rotate(block, rings.y, rings.back_y, b_now, [-place for place in rings.columns])
    b_next = coming_in(block, "B", b)
    c = zeros(block, "C", (a.shape[2], rings.x.slots, *a.shape[4:-1], b.shape[-2]))
    c_next = coming_in(block, "C", c)
    for _ in sampled(block, steps - 1, sample):
        block.step()
        flights = [start_shift(block, rings.y, b_now, b_next)]
        multiply(a, b_now, c[:, :, :, : b.shape[3]])
        flights.append(start_shift(block, rings.x, c, c_next))
        c, c_next = c_next, c
        receive(block, *flights)
        b_now, b_next = b_next, b_now
    multiply(a, b_now, c[:, :, :, : b.shape[3]])
    flights = []
    del flights, b_now, b_next, c_next
    rotate(block, rings.x, rings.back_x, c, [place + 1 for place in rings.y.places])
    return c


def meshgemm_t_by_tree(block: Block, rings: Rings, tree: Tree, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """C = A B^T as section 5.4 of waferllm has it: B moves along y, and every step's products are reduced along x.

    Each row of cores holds another tile of B at a step, and its sum belongs to the core of that number. The K-tree
    sends it to all cores of the row, of which that one keeps it: constant route entries, and nothing is aligned.
    """
    mesh, (rows, columns) = block.mesh, a.shape[2:4]
    steps = mesh.height * rows
    begin_product(block, steps)
    places, order = np.array(ring_place(steps)), np.array(ring_order(steps))
    y = np.arange(mesh.y0 * rows, (mesh.y0 + block.lead[0]) * rows).reshape(-1, 1, rows, 1)
    x = np.arange(mesh.x0 * columns, (mesh.x0 + block.lead[1]) * columns).reshape(1, -1, 1, columns)
    b_now, b_next = in_flight(block, "B", b), coming_in(block, "B", b)
    c = block.tiles("C", (*a.shape[2:-1], b.shape[-2]), np.float32)
    for step in range(steps):
        flights = []
        if step < steps - 1:
            block.step()
            flights.append(start_shift(block, rings.y, b_now, b_next))
        total = block.matmul(a, b_now.swapaxes(-1, -2), over=3)
        allreduce(block, tree, total, out=total)
        keeps = x == order[(places[y] - step) % steps]
        np.copyto(c, total[:, :, :, None], where=keeps[..., *(None,) * (c.ndim - 4)])
        del total
        receive_all(block, flights)
        b_now, b_next = b_next, b_now
    return c


def begin_product(block: Block, steps: int) -> None:
    """The software that a product of so many steps begins with, where it is one of several cores."""
    if steps > 1:
        block.clock.software(block.device.product_cycles)


def in_flight(block: Block, name: str, tiles: np.ndarray) -> np.ndarray:
    """A copy of tiles that stay at home, to go round the rings."""
    return block.memory.keep(f"{name} in flight", tiles.copy())


def coming_in(block: Block, name: str, tiles: np.ndarray) -> np.ndarray:
    """Room for the tiles that come while these are in use."""
    return block.empty(f"{name} coming in", tiles.shape[2:], tiles.dtype)


def zeros(block: Block, name: str, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Fresh core memory, to add to."""
    total = block.empty(name, shape, dtype)
    total[...] = 0
    return total


def add_product(block: Block, a: np.ndarray, b: np.ndarray, total: np.ndarray) -> None:
    """Add a b^T to the total."""
    block.matmul(a, b.swapaxes(-1, -2), total)


def tile_bytes(tiles: np.ndarray) -> int:
    """Bytes of one core's tiles."""
    return prod(tiles.shape[2:]) * tiles.dtype.itemsize
