"""Work on rows of activations that lie in panels: by all cores, some row tiles each."""

from collections.abc import Callable, Sequence
from itertools import accumulate, repeat

import numpy as np

from meshrt.arm.core import ArmCore, Team
from meshrt.arm.soc import Soc
from meshrt.programs.arm.layout import block
from meshrt.programs.arm.split import equal
from meshrt.programs.arm.tiles import row_tiles

Array = np.ndarray
BufferColumns = tuple[int, range]  # a buffer, and columns of it


def by_rows(
    soc: Soc, count: int, high: int, reads: Sequence[BufferColumns], writes: Sequence[BufferColumns],
    work: Callable[[Team], Sequence[Array | None]], arrays: int, also: Callable[[ArmCore, range], object] | None = None,
) -> list[Array | None]:  # fmt: skip
    """What `work` makes of all rows, by teams whose units are rows: so many `arrays` [rows, ..], None by shape.

    Rows lie in micro-tiles `high` rows at the most; of each buffer these columns are read and written, and whatever
    else `also` says of a core's rows.
    """
    heights = tuple(row_tiles(count, high))
    ends = [0, *accumulate(heights)]

    def all_of(team: Team) -> Sequence[Array | None]:
        for core, tiles in team:
            for buffer, columns in reads:
                core.caches.read(block(buffer, heights, tiles, columns))
            for buffer, columns in writes:
                core.caches.write(block(buffer, heights, tiles, columns))
            if also is not None:
                also(core, range(ends[tiles[0]], ends[tiles[-1] + 1]))
        return work([(core, range(ends[tiles[0]], ends[tiles[-1] + 1])) for core, tiles in team])

    parts = [part for _, part in soc.parallel(equal(len(heights), soc.count), all_of)]
    made = zip(*parts, strict=True) if parts else repeat((None,), arrays)
    return [None if any(piece is None for piece in pieces) else np.concatenate(pieces) for pieces in made]
