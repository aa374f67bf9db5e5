"""Every line of cores adds up a vector of each core, again and again: an allreduce by itself.

The host's time is in the report under `host`, that of the machine under `measured`.
"""

from typing import Annotated, Any, Literal

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import allreduce, pattern
from meshrt.mesh.collectives.treeplan import MOST_PHASES
from meshrt.options import AtLeast, AtMost
from meshrt.ranks.control import largest

MESH = (64, 64)


def run(
    block: Block,
    *,
    algorithm: Annotated[Literal["ktree", "pipeline", "ring"], "how the vectors are added"] = "ktree",
    phases: Annotated[int | None, "K: phases of the K-tree  [default: 2]", AtLeast(1), AtMost(MOST_PHASES)] = None,
    axis: Annotated[Literal["x", "y"], "along rows or columns"] = "x",
    size: Annotated[int, "float32 numbers in each core's vector", AtLeast(1)] = 1024,
    times: Annotated[int, "how often", AtLeast(1)] = 1,
) -> dict[str, Any]:
    """Allreduce one vector per core along every line, some times over, and check the sums."""
    if algorithm != "ktree" and phases is not None:
        raise UsageError(f"--phases {phases} is a number of the K-tree: leave it out with --algorithm {algorithm}")
    mesh = block.mesh
    vectors = block.tiles("vector", (size,), np.float32)
    low, n = mesh.offset(axis), mesh.length(axis)
    positions = np.arange(low, low + block.lead[1 if axis == "x" else 0], dtype=np.float32)
    vectors[...] = (positions if axis == "x" else positions[:, None])[..., None]
    vectors += (np.arange(size) % 16).astype(np.float32)
    total = block.tiles("sum", (size,), np.float32)
    tree = 2 if phases is None else phases
    with pattern(block, algorithm, axis, tree, nbytes=vectors[0, 0].nbytes) as way, block.phase("allreduce"):
        for time in range(times):
            allreduce(block, way, vectors, out=total)
            block.console.progress("allreduce", time + 1, times)
    if not block.payload:
        return {}
    right = n * (n - 1) / 2 + n * (np.arange(size) % 16)
    worst = largest(float(np.abs(extreme(axis=(0, 1)) - right).max()) for extreme in (total.min, total.max))
    return {"max_rel_error": block.control.allreduce(worst, largest) / (float(right.max()) or 1.0)}
