"""3_overlap.py: cores compute while tiles are under way, or wait for them first."""

from typing import Annotated

import numpy as np

from meshrt.mesh import Block, installed, interleaved_ring, receive, send

MESH = (8, 1)


def run(
    block: Block,
    *,
    size: Annotated[int, "rows and columns of a tile"] = 16,
    overlap: Annotated[bool, "compute while tiles move"] = False,
) -> dict:
    """Multiply the own tile with every tile of the row, as they come round."""
    own, mine, came, total = (
        block.tiles(name, (size, size), np.float32) for name in ("own", "mine", "came in", "total")
    )
    own[...], mine[...], total[...] = 1, 1, 0
    with installed(block, "x", interleaved_ring) as way, block.phase("round"):
        for _ in range(block.mesh.width):
            flight = send(block, way, mine, came)  # the cores go on
            if not overlap:
                receive(block, flight)
            block.matmul(own, mine, total=total)
            if overlap:
                receive(block, flight)
            mine, came = came, mine
    return {"in each place": float(total[0, 0, 0, 0])} if block.payload else {}
