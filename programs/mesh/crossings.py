"""From one region of the wafer to the next: what a layer hands to one in another region is a real transfer.

decode     E_y goes from the cores at the border along every row of the next region, or, where that lies to the
           south or north, down the columns, row y in column y, and is spread by a sum along x
prefill    L_y E_x goes core by core, as on a conveyor, each tile as far as a region is wide
"""

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.repeat import sampled
from meshrt.mesh.tiles import gather_parts
from meshrt.mesh.wires import fabric, routes, software
from meshrt.mesh.wires.tables import Channel, installed
from meshrt.programs.mesh.meshgemm import zeros
from meshrt.programs.mesh.systems import Sums
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class Crossing:
    """A border between two regions as a mesh of its own, and the routes over it."""

    border: Block
    step: tuple[int, int]  # (dx, dy) from the region before
    channel: Channel


def way_back(stack: ExitStack, block: Block, cells: Sequence[tuple[int, int]]) -> Crossing:
    """The way of a token from the north-west core of the last region to that of the first, west and then north."""
    (x, y), width, height = cells[-1], block.mesh.width, block.mesh.height
    x, y = x * width, y * height
    wafer = block.another("way back", x + width, y + height)  # whole regions, which the ranks tile
    path = [(at, y) for at in range(x, -1, -1)] + [(0, at) for at in range(y - 1, -1, -1)]
    return Crossing(wafer, (-x, -y), stack.enter_context(installed(wafer, None, [path])))


def hand_back(last: Block, block: Block, back: Crossing | None) -> None:
    """The token that the last region has found goes to the first, along its first row and down all columns."""
    if back is None:
        return
    wafer = back.border
    wafer.follow(last)
    fabric.transfer(wafer, back.channel, zeros(wafer, "token", (1,), np.int32))
    block.follow(wafer)
    row = np.arange(block.mesh.height) == 0
    for axis, lines in (("x", row), ("y", None)):
        with installed(block, axis, routes.multicast, 0, lines=lines) as channel:
            fabric.transfer(block, channel, zeros(block, "token", (1,), np.int32))


def vector_crossing(stack: ExitStack, block: Block, number: int, step: tuple[int, int]) -> Crossing:
    """The border that activations of decode, E_y, cross to get to region `number`, which lies at `step`."""
    width, height = block.mesh.width, block.mesh.height
    if step[0]:
        border = block.another(f"border {number}", width + 1, height)
        way = installed(border, "x", routes.multicast, 0 if step[0] > 0 else width)
        return Crossing(border, step, stack.enter_context(way))
    border = block.another(f"border {number}", width, 2 * height)
    ways = []
    for y in range(height):
        rows = range(y, y + height + 1) if step[1] > 0 else range(height + y, y - 1, -1)
        ways.append([(y % width, row) for row in rows])
    return Crossing(border, step, stack.enter_context(installed(border, None, ways)))


def cross_vector(
    before: Block, after: Block, crossing: Crossing | None, sums: Sums, x: np.ndarray
) -> np.ndarray:  # fmt: skip
    """E_y, [bh, bw, rows, Et] the same in every column, from one region to the next, which has these sums."""
    assert crossing is not None
    border, (dx, dy), channel = crossing.border, crossing.step, crossing.channel
    width, height = after.mesh.width, after.mesh.height
    all_tiles = every_core(before, x)
    border.follow(before)
    tiles = border.tiles("activations", x.shape[2:], x.dtype)
    if dx:
        lay(border, tiles, all_tiles, 0 if dx > 0 else width, 0, columns=1)
    else:
        lay(border, tiles, all_tiles, 0, 0 if dy > 0 else height)
    del all_tiles
    arrived = every_core(border, fabric.transfer(border, channel, tiles))
    after.follow(border)
    if dx:
        return take(after, x, arrived, 1 if dx > 0 else 0, 0)
    landed = take(after, x, arrived, 0, height if dy > 0 else 0)
    if after.payload:
        landed[after.y[:, None] % width != after.x] = 0
    return sums.x(landed)


def matrix_crossing(stack: ExitStack, block: Block, number: int, step: tuple[int, int]) -> Crossing:
    """The border that activations of prefill, L_y E_x, cross to get to region `number`, which lies at `step`."""
    width, height = block.mesh.width, block.mesh.height
    axis = "x" if step[0] else "y"
    border = block.another(f"border {number}", width * (2 if step[0] else 1), height * (2 if step[1] else 1))
    return Crossing(border, step, stack.enter_context(installed(border, axis, routes.chain, sum(step))))


def cross_matrix(
    before: Block, after: Block, crossing: Crossing | None, x: np.ndarray, sample: int | None = None
) -> np.ndarray:
    """Tiles [bh, bw, ..] from every core of one region to the same core of the next, as on a conveyor.

    Software at every core on the way takes a tile and sends it on: one hop and one region a step, all tiles at once.
    """
    assert crossing is not None
    border, step, channel = crossing.border, crossing.step, crossing.channel
    axis = "x" if step[0] else "y"
    n, onward = after.mesh.length(axis), sum(step)
    start = 0 if onward > 0 else n  # where the region before begins on the border's line
    all_tiles = every_core(before, x)
    border.follow(before)
    tiles = border.tiles("activations", x.shape[2:], x.dtype)
    lay(border, tiles, all_tiles, start if axis == "x" else 0, start if axis == "y" else 0)
    del all_tiles
    at = np.arange(2 * n)
    steps_run = None if sample is None else max(2, sample)
    for moved in sampled(border, n, steps_run):
        if not border.payload and moved + 1 == steps_run:  # the far end stands for what is left out: all cores are used
            moved = n - 1
        low = start + onward * moved
        senders = (at >= low) & (at < low + n)
        tiles = fabric.transfer(border, channel, tiles, positions=senders)
        software.stage(border, channel, 0, np.roll(senders, onward))
        fabric.forget(border, channel)
    arrived = every_core(border, tiles)
    after.follow(border)
    return take(after, x, arrived, n - start if axis == "x" else 0, n - start if axis == "y" else 0)


# ------------------------------------------------------------------- cores that change the rank that hosts them


def every_core(block: Block, tiles: np.ndarray) -> np.ndarray | None:
    """The tiles of all cores, [H, W, *tile], on every rank; None without payloads. Not a matter of the machine."""
    if not block.payload:
        return None
    all_tiles: np.ndarray = block.control.bcast(gather_parts(block, tiles, (block.mesh.height, block.mesh.width)))
    return all_tiles


def lay(block: Block, tiles: np.ndarray, source: np.ndarray | None, x: int, y: int, columns: int | None = None) -> None:
    """Put those tiles, or the first columns of them, at the cores from (x, y) on; in place."""
    if source is None:
        return
    source = source[:, :columns]
    mesh = block.mesh
    low_x, high_x = max(x, mesh.x0), min(x + source.shape[1], mesh.x0 + mesh.block_width)
    low_y, high_y = max(y, mesh.y0), min(y + source.shape[0], mesh.y0 + mesh.block_height)
    if low_x < high_x and low_y < high_y:
        part = source[low_y - y : high_y - y, low_x - x : high_x - x]
        tiles[low_y - mesh.y0 : high_y - mesh.y0, low_x - mesh.x0 : high_x - mesh.x0] = part


def take(block: Block, like: np.ndarray, source: np.ndarray | None, x: int, y: int) -> np.ndarray:
    """This rank's tiles of a region that begins at core (x, y) of a larger mesh, in its memory. LimitError.

    Without payloads they are as `like`, and otherwise of its kind.
    """
    tiles = block.empty("activations", like.shape[2:], like.dtype)
    mesh = block.mesh
    x, y = x + mesh.x0, y + mesh.y0
    tiles[...] = like if source is None else source[y : y + mesh.block_height, x : x + mesh.block_width]
    return tiles
