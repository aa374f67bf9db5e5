"""One tile per core goes round the ring of every row, of every column, or both: what moving packets costs the host.

A shift moves every tile one place on; on a line of N cores each is home again after N shifts. `interleaved` is
MeshGEMM's ring, two hops at most, and `cannon` the plain one, whose last core sends back along the whole line. Both
axes at once, with the products, are the loop of Cannon's algorithm.

The host's time of a shift is set beside that of copying the same bytes with NumPy, in the same run; both are in the
report under `host`.
"""

from contextlib import ExitStack
from math import lcm
from time import perf_counter
from typing import Annotated, Any, Literal

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.rings import interleaved_ring, plain_ring
from meshrt.mesh.collectives.shifts import start_shift
from meshrt.mesh.report import median
from meshrt.mesh.wires import routes
from meshrt.mesh.wires.receiving import receive
from meshrt.options import AtLeast
from meshrt.ranks.control import largest

MESH = (64, 64)
COPIES = 5  # of all tiles, to take the median of: as many in a short run as in a long one
RINGS = {"interleaved": interleaved_ring, "cannon": plain_ring}


def run(
    block: Block,
    *,
    pattern: Annotated[
        Literal["interleaved", "cannon"], "the ring: interleaved, or with a wrap-around"
    ] = "interleaved",
    axis: Annotated[Literal["x", "y", "both"], "rows, columns, or a tile along each"] = "x",
    tile: Annotated[int, "side of a square float32 tile", AtLeast(1)] = 32,
    steps: Annotated[int | None, "how many shifts  [default: once round]", AtLeast(1)] = None,
    multiply: Annotated[bool, "add up the products of the two tiles of --axis both while they move"] = False,
) -> dict[str, Any]:
    """Shift one tile per core round the ring of every line, beside a NumPy copy of as many bytes."""
    axes = "xy" if axis == "both" else axis
    if multiply and axis != "both":
        raise UsageError("--multiply takes two tiles at every core: add --axis both")
    steps = max(map(block.mesh.length, axes)) if steps is None else steps
    tiles = {line: block.tiles(f"tile along {line}", (1, 1, tile, tile), np.float32) for line in axes}
    total = block.tiles("sum", (1, 1, tile, tile), np.float32) if multiply else None
    if total is not None:
        total[...] = 0
    for line in axes:
        tiles[line][...] = expected(block, pattern, line, 0)[:, :, None, None, None, None]
    seconds = []
    with ExitStack() as stack:
        for line in axes:  # the host moves tiles in place
            stack.enter_context(block.memory.hold(f"tile coming in along {line}", tile * tile * 4))
        rings = {line: stack.enter_context(RINGS[pattern](block, line)) for line in axes}
        stack.enter_context(block.phase("shift"))
        for step in range(steps):
            start = perf_counter()
            flights = [start_shift(block, rings[line], tiles[line], tiles[line], later=True) for line in axes]
            if total is not None:
                block.matmul(tiles["x"], tiles["y"], total)
            receive(block, *flights)
            seconds.append(perf_counter() - start)
            block.console.progress("shift", step + 1, steps)
    if not block.payload:
        return {"steps": steps}
    misplaced = sum(
        int((tiles[line] != expected(block, pattern, line, steps)[:, :, None, None, None, None]).any()) for line in axes
    )
    result: dict[str, Any] = {"steps": steps, "in_place": not block.control.allreduce(misplaced)}
    if total is not None:
        result["max_rel_error"] = error_of_sums(block, pattern, steps, total)
    else:
        compare_with_copying(block, tiles, seconds)
    return result


def expected(block: Block, pattern: str, axis: str, steps: int) -> np.ndarray:
    """The number that fills a core's tile after so many shifts: of the core that it set out from. float32 [bh, bw]."""
    mesh, n = block.mesh, block.mesh.length(axis)
    order = np.array(routes.ring_order(n) if pattern == "interleaved" else range(n))
    came_from = np.empty(n, np.int64)
    came_from[order] = np.roll(order, steps)
    x, y = (came_from[block.x], block.y) if axis == "x" else (block.x, came_from[block.y])
    return np.asarray(y[:, None] * mesh.width + x, np.float32)


def error_of_sums(block: Block, pattern: str, steps: int, total: np.ndarray) -> float:
    """How far the sums of the products are from what float64 makes of them, over the largest on the mesh."""
    right, around = np.zeros(block.lead), lcm(block.mesh.width, block.mesh.height)
    for step in range(min(steps, around)):
        product = expected(block, pattern, "x", step).astype(np.float64) * expected(block, pattern, "y", step)
        right += product * len(range(step, steps, around))  # each time that all tiles are where they were
    right *= total.shape[-1]
    worst = float(np.abs(total - right[:, :, None, None, None, None]).max())
    greatest = block.control.allreduce(float(right.max()), max)
    return float(block.control.allreduce(worst, largest) / (greatest or 1.0))


def compare_with_copying(block: Block, tiles: dict[str, np.ndarray], seconds: list[float]) -> None:
    """Note the host's median time of a shift, and of copying the same tiles."""
    copies, others = [], {axis: along.copy() for axis, along in tiles.items()}
    for _ in range(COPIES):
        start = perf_counter()
        for axis, along in tiles.items():
            np.copyto(others[axis], along)
        copies.append(perf_counter() - start)
    shift, copy = median(seconds), median(copies)
    block.notes.update({"shift_seconds": shift, "copy_seconds": copy, "shift_over_copy": round(shift / copy, 2)})
