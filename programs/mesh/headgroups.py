"""Attention by head groups: products and sums that stay inside the columns of their own heads (waferllm, section 4.4).

A head has too few numbers for a wide mesh: 64 rotary pairs cannot be cut over 660 columns. So the heads form G groups
side by side, each on w columns, w a divisor of the side N of a square mesh. Inside a group, queries, keys and values
are cut N x w, and scores N x N, N / w tiles of a row at each core: a ring of N places lies over w cores. MeshGEMM's
loops are then these:

    scores = q k^T     keys go round the columns, sums round the group's rows; a core adds its product to the sum in
                       its first place, and every sum passes all first places once
    scores v           values go round the columns, scores round the rows; a core multiplies those in its first place
"""

from collections.abc import Iterator
from contextlib import contextmanager

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.rings import Rings, ring_in_groups
from meshrt.programs.mesh.chunks import Chunks


@contextmanager
def group_rings(block: Block, rings: Rings, chunks: Chunks) -> Iterator[Rings]:
    """Rings of N places on the rows of each group, 4 route entries a core; along y, the rings that there are."""
    width, used = chunks.group_width, chunks.groups * chunks.group_width
    with ring_in_groups(block, chunks.slots, width, chunks.groups) as (onward, back):
        starts = [onward.places[x % width * chunks.slots] if x < used else 0 for x in range(block.mesh.width)]
        yield Rings(onward, rings.y, back, rings.back_y, tuple(starts), rings.rows)
