"""T10's way of multiplying and adding, on a mesh that it takes for a crossbar (waferllm, section 7; T10, SOSP 2024).

T10 plans for cores that all reach each other equally fast. An operator is cut into sub-operators, one a core, laid over
the cores by number; the tensors that several of them share are cut along the loop, and go round the ring of the cores
that share them: first all compute, then all shift. Here:

    C = A B     A goes round the rows of the grid of sub-operators and B round its columns, from each number to the one
                before; before that, one exchange brings row r's tiles of A, and column c's of B, to where they begin
    C = A B^T   A stays, B goes round the columns, and the sums round the rows; one exchange brings them home
    sums        recursive doubling: at step s, core i and the core whose number differs in bit s swap and add

The grid of sub-operators is the mesh of cores itself. To T10 any other of as many cores costs the same, and none is
better off on a mesh: with row-major numbers these rings lie along its lines. What T10 does not see is that they do not
close there: at every shift, one core of a line gets its tile from the other end, core by core. The recursive doubling,
best on a crossbar, sends packets 1, 2, 4 .. N / 2 cores far, past each other.

Compute and shift are supersteps on T10's own machine, which has a barrier in hardware. Here a core fetches the next
tile when it has used the last one (waferllm: "T10 maps data to core IDs and fetches data .. as required"), and goes on
when it has it. That orders the steps without a barrier, whose messages would come on top. With `asks` False owners send
unasked instead, as soon as they can: then the long packets of successive steps follow one another along the line, and
its length is hidden. That is no compute-shift any more, and a bound from below: with tiles of 9 x 9 on wse2, 64 x 64
cores take 498,646 cycles, 144,199 unasked, and 110,080 by MeshGEMM. Sums need no order, and are sent unasked.

`sample` is that of `repeat.sampled`: without payloads, so many steps are run and the last counted for the rest.
`groups` are columns that multiply and add among themselves, as for groups of heads.
"""

from collections.abc import Callable
from functools import partial
from math import prod

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.exchange.exchange import Crossbar, exchange
from meshrt.mesh.exchange.legs import Transfer
from meshrt.mesh.repeat import sampled
from meshrt.mesh.wires import software
from meshrt.programs.mesh.baselines.groups import Groups, whole_line
from meshrt.programs.mesh.meshgemm import Multiply, add_product, begin_product, zeros

Move = Callable[[Block, Crossbar, Groups, list[tuple[str, np.ndarray]]], None]


def gemm(
    block: Block, bar: Crossbar, a: np.ndarray, b: np.ndarray, groups: Groups | None = None,
    sample: int | None = None, move: Move | None = None,
) -> np.ndarray:  # fmt: skip
    """C = A B.

    a: M x K, b: K x N, cut into P x P tiles: [bh, bw, rows, columns, .., Mt, Kt] and [.., Kt, Nt]; float32 C as well.
    In groups, P x w tiles of B and C, of w columns, and P x P of A, P / w a core. Both operands stay at home. `move`
    may stand in for `shift`.
    """
    groups = groups or whole_line(block)
    move = move or shift
    begin_product(block, block.mesh.height * b.shape[2])
    active = b.shape[3]  # of the tiles of A at a core, the first so many meet one of B at a step
    turns = [("x", a, row_numbers(block, a)), ("y", b, first_places(block, groups, a.shape[3], b))]
    a_now, b_now = align(block, bar, groups, turns)
    c = zeros(block, "C", (a.shape[2], active, *a.shape[4:-1], b.shape[-1]))
    block.matmul(a_now[:, :, :, :active], b_now, c)
    for _ in sampled(block, block.mesh.height * b.shape[2] - 1, sample):
        block.step()
        move(block, bar, groups, [("x", a_now), ("y", b_now)])
        block.matmul(a_now[:, :, :, :active], b_now, c)
    return c


def gemm_t(
    block: Block, bar: Crossbar, a: np.ndarray, b: np.ndarray, multiply: Multiply | None = None,
    groups: Groups | None = None, sample: int | None = None, move: Move | None = None,
) -> np.ndarray:  # fmt: skip
    """C = A B^T; a: M x K, b: N x K, as in `gemm`. `multiply(a, b, total)` may stand in for adding a product.

    In groups, P x w tiles of A and B, and P x P of C, P / w a core: a core adds to the first of them.
    """
    groups = groups or whole_line(block)
    active, slots = b.shape[3], block.mesh.height * b.shape[2] // groups.width
    multiply = multiply or partial(add_product, block)
    move = move or shift
    begin_product(block, block.mesh.height * b.shape[2])
    (b_now,) = align(block, bar, groups, [("y", b, first_places(block, groups, slots, b))])
    c = zeros(block, "C in flight", (a.shape[2], slots, *a.shape[4:-1], b.shape[-2]))
    multiply(a, b_now, c[:, :, :, :active])
    for _ in sampled(block, block.mesh.height * b.shape[2] - 1, sample):
        block.step()
        move(block, bar, groups, [("y", b_now), ("x", c)])
        multiply(a, b_now, c[:, :, :, :active])
    del b_now
    (home,) = align(block, bar, groups, [("x", c, 1 - row_numbers(block, c))])
    return home


# ------------------------------------------------------------------------------------------------- tiles that move


def row_numbers(block: Block, tiles: np.ndarray) -> np.ndarray:
    """The numbers of all rows of tiles on the mesh."""
    return np.arange(block.mesh.height * tiles.shape[2])


def first_places(block: Block, groups: Groups, slots: int, tiles: np.ndarray) -> np.ndarray:
    """For every column of tiles on the mesh: its place on its group's ring, of so many places a core."""
    columns = np.arange(block.mesh.width)
    return np.asarray(np.add.outer(groups.local(columns) * slots, np.arange(tiles.shape[3])).reshape(-1))


def shift(block: Block, bar: Crossbar, groups: Groups, moving: list[tuple[str, np.ndarray]], asks: bool = True) -> None:
    """Every tile goes to the place before its own on its ring, the first to the last; all rings at once, in place."""
    transfers = []
    for axis, tiles in moving:
        at, line = np.arange(block.mesh.length(axis)), groups if axis == "x" else whole_line(block, axis)
        owners = line.owners(at, (line.local(at) + 1) % line.width)
        transfers.append(Transfer(axis, owners, tiles[:, :, :, 0] if axis == "x" else tiles[:, :, 0], asks))
    for (axis, tiles), arrived in zip(moving, exchange(block, bar, *transfers), strict=True):
        ring = tiles.swapaxes(2, 3) if axis == "x" else tiles
        ring[:, :, :-1] = ring[:, :, 1:]
        ring[:, :, -1] = arrived


def align(
    block: Block, bar: Crossbar, groups: Groups, moving: list[tuple[str, np.ndarray, np.ndarray]]
) -> list[np.ndarray]:
    """Turn the tiles of every line back by a number of places of its own: (axis, tiles, turns of all lines of tiles).

    A core number's tile can come from any other's, so that is one exchange for every tile at a core.
    """
    turned = [block.empty("tiles in flight", tiles.shape[2:], tiles.dtype) for _, tiles, _ in moving]
    for strip in range(max(tiles.shape[2] for _, tiles, _ in moving)):
        for slot in range(max(tiles.shape[3] for _, tiles, _ in moving)):
            moved = [n for n, (_, tiles, _) in enumerate(moving) if strip < tiles.shape[2] and slot < tiles.shape[3]]
            transfers = [_turn(block, groups, *moving[n], strip, slot) for n in moved]
            for n, arrived in zip(moved, exchange(block, bar, *transfers), strict=True):
                turned[n][:, :, strip, slot] = arrived
            del transfers, arrived
    return turned


def _turn(
    block: Block, groups: Groups, axis: str, tiles: np.ndarray, turns: np.ndarray, strip: int, slot: int
) -> Transfer:
    """What brings the tiles at [strip, slot] of every core to it."""
    mesh = block.mesh
    y, x = np.divmod(np.arange(mesh.width * mesh.height), mesh.width)
    if axis == "x":
        slots, line, at, across = tiles.shape[3], groups, x, y * tiles.shape[2] + strip
        inner = slot
    else:
        slots, line, at, across = tiles.shape[2], whole_line(block, "y"), y, x * tiles.shape[3] + slot
        inner = strip
    places = (line.local(at) * slots + inner + turns[across]) % (line.width * slots)
    givers = line.owners(at, places // slots)
    owners = y * mesh.width + givers if axis == "x" else givers * mesh.width + x
    packet = block.empty("tile to give", tiles.shape[4:], tiles.dtype)
    if not block.payload:
        return Transfer(None, owners, packet)
    # Which of its tiles an owner gives depends on its line alone, and readers are on the same line.
    given = (places % slots).reshape(mesh.height, mesh.width)[mesh.y0 :, mesh.x0 :][: block.shape[0], : block.shape[1]]
    rows, columns = np.arange(block.shape[0])[:, None], np.arange(block.shape[1])
    packet[...] = tiles[rows, columns, strip, given] if axis == "x" else tiles[rows, columns, given, slot]
    return Transfer(None, owners, packet)


# ------------------------------------------------------------------------------------------------------------- sums


def allreduce(
    block: Block, bar: Crossbar, axis: str, tiles: np.ndarray, combine: Callable[..., np.ndarray] = np.add,
    groups: Groups | None = None,
) -> np.ndarray:  # fmt: skip
    """All cores of a line, or of a group, get the combination of their tiles [bh, bw, *tile], the same to the bit.

    Recursive doubling takes a power of two: the cores beyond give their tiles to the first ones, and get the result.
    """
    groups = groups or whole_line(block, axis)
    columns = np.arange(block.mesh.length(axis))
    at = np.where(columns < groups.width * groups.count, groups.local(columns), groups.width)  # beyond: no one
    power = 1 << (groups.width.bit_length() - 1)
    beyond = groups.width - power
    steps = [(at < beyond, at + power)] if beyond else []
    steps += [(at < power, at ^ (1 << bit)) for bit in range(power.bit_length() - 1)]
    numbers = prod(tiles.shape[2:])
    total = tiles
    channel = bar.channels[0 if axis == "x" else 2]
    if steps:
        block.clock.software(block.device.collective_cycles)
    for takers, partners in steps:
        owners = np.where(takers, groups.base(columns) + partners, columns)
        (arrived,) = exchange(block, bar, Transfer(axis, owners, total))
        software.stage(block, channel, numbers, takers, itemsize=tiles.itemsize)
        is_first = here(block, axis, at < partners, total)  # both partners combine in the same order
        joined = combine(np.where(is_first, total, arrived), np.where(is_first, arrived, total))
        np.copyto(arrived, np.where(here(block, axis, takers, total), joined, total))
        total = arrived
        del arrived, joined
    if beyond:
        getters = (at >= power) & (at < groups.width)
        owners = np.where(getters, columns - power, columns)
        (total,) = exchange(block, bar, Transfer(axis, owners, total))
    return total


def here(block: Block, axis: str, marks: np.ndarray, tiles: np.ndarray) -> np.ndarray:
    """Marks of the positions on a line as a mask for this block's tiles; without payloads, one tile stands for all."""
    if not block.payload:
        return np.ones((1,) * tiles.ndim, bool)
    low = block.mesh.offset(axis)
    part = marks[low : low + block.mesh.block_length(axis)]
    return part.reshape(*((1, -1) if axis == "x" else (-1, 1)), *(1,) * (tiles.ndim - 2))
