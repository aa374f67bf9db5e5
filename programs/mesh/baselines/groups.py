"""Where the tiles of a line of cores are, for systems that look at cores as numbers: T10 and Ladder."""

import numpy as np

from meshrt.mesh.block import Block
from meshrt.records import dataclass


@dataclass(frozen=True)
class Groups:
    """Stretches of `width` columns, `count` of them side by side, each a line of its own; those beyond take no part."""

    width: int
    count: int = 1

    def base(self, columns: np.ndarray) -> np.ndarray:
        """The first column of each column's group."""
        return np.asarray(columns - self.local(columns))

    def local(self, columns: np.ndarray) -> np.ndarray:
        """The place of each column in its group; 0 for those beyond."""
        return np.where(columns < self.width * self.count, columns % self.width, 0)

    def owners(self, columns: np.ndarray, places: np.ndarray | int) -> np.ndarray:
        """The column at that place of each column's group; a column beyond the groups is its own owner."""
        inside = columns < self.width * self.count
        return np.where(inside, self.base(columns) + places, columns)


def whole_line(block: Block, axis: str = "x") -> Groups:
    """All of a line as one group."""
    return Groups(block.mesh.length(axis))
