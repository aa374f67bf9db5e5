"""Where activations lie: in panels of eight columns, of which a micro-tile's rows are next to each other.

So a product stores what it has computed in one piece, and whoever reads some rows, or the columns of a head, reads the
same pieces.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from meshrt.arm.cache import CachePieces

PANEL = 8  # columns
STEP = 8  # numbers along k that a step of a loop takes
ITEM = 4  # bytes: float32


def block(buffer: int, heights: Sequence[int], tiles: Iterable[int], columns: range) -> CachePieces:
    """The pieces of these row tiles, of all that have such heights, in these columns."""
    panels = range(columns.start // PANEL, -(-columns.stop // PANEL))
    return [
        ((buffer, panel * len(heights) + tile, 0), (0, heights[tile] * PANEL * ITEM))
        for tile in tiles
        for panel in panels
    ]


def covering(heights: Sequence[int], begin: int, end: int) -> list[int]:
    """The row tiles that have rows begin..end."""
    ends = [*accumulate(heights)]
    return [tile for tile, last in enumerate(ends) if last > begin and last - heights[tile] < end]
