"""One tile per core goes round the interleaved rings of every row: what moving packets costs the host.

A shift moves every tile one place on; after N shifts each is home again. The host's time of a shift is set beside that
of copying the same bytes with NumPy, in the same run; both are in the report under `host`.
"""

from time import perf_counter
from typing import Annotated, Any, Literal

import numpy as np

from meshrt.block import Block
from meshrt.collectives import finish_shift, interleaved_ring, start_shift
from meshrt.errors import UsageError

MESH = (64, 64)


def run(
    block: Block,
    *,
    axis: Annotated[Literal["x", "y"], "rows or columns"] = "x",
    tile: Annotated[int, "side of a square float32 tile"] = 32,
    steps: Annotated[int | None, "how many shifts  [default: once round]"] = None,
) -> dict[str, Any]:
    """Shift one tile per core round the interleaved ring of every line, beside a NumPy copy of as many bytes."""
    steps = block.mesh.length(axis) if steps is None else steps
    for name, size in (("tile", tile), ("steps", steps)):
        if size < 1:
            raise UsageError(f"--{name} is {size}; it starts at 1")
    tiles, out = (block.tiles(name, (1, 1, tile, tile), np.float32) for name in ("tile", "tile coming in"))
    mesh = block.mesh
    number = np.add.outer(np.arange(mesh.y0, mesh.y0 + block.lead[0]) * mesh.width, np.arange(block.lead[1]) + mesh.x0)
    tiles[...] = number.astype(np.float32)[:, :, None, None, None, None]
    home = tiles.copy()
    shifts, copies = [], []
    with interleaved_ring(block, axis) as ring, block.phase("shift"):
        for step in range(steps):
            start = perf_counter()
            finish_shift(block, start_shift(block, ring, tiles, out))
            shifts.append(perf_counter() - start)
            tiles, out = out, tiles
            block.console.progress("shift", step + 1, steps)
    spare = np.empty_like(tiles)
    for _ in range(len(shifts)):
        start = perf_counter()
        np.copyto(spare, tiles)
        copies.append(perf_counter() - start)
    block.notes |= {"shift_seconds": float(np.median(shifts)), "copy_seconds": float(np.median(copies))}
    block.notes["shift_over_copy"] = round(float(np.median(shifts)) / float(np.median(copies)), 2)
    away = int((tiles != home).any()) if steps % mesh.length(axis) == 0 else 0
    return {"steps": steps, "all_home": not block.control.allreduce(away)}
