"""The paged cache's book-keeping (Kwon et al. 2023, PagedAttention): which blocks a sequence has. No numbers here.

A block has `size` slots, a slot holds a token. Physical blocks are handed out lowest first, so that the blocks of a
sequence often lie side by side. Block 0 belongs to nobody: rows of a batch that stand for no sequence write there.
"""

import heapq
from collections.abc import Sequence
from dataclasses import field

from meshrt.records import dataclass


@dataclass
class Pages:
    """`blocks` physical blocks, without block 0, and the block table of each sequence that has some."""

    blocks: int
    size: int
    free: list[int] = field(init=False)
    tables: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = [*range(1, self.blocks + 1)]

    @property
    def slots(self) -> int:
        """Of the whole cache, with block 0."""
        return (self.blocks + 1) * self.size

    def needed(self, tokens: int) -> int:
        """Blocks for so many tokens."""
        return -(-tokens // self.size)

    def reserve(self, sequence: int, tokens: int) -> bool:
        """Give a sequence blocks until so many tokens fit. False, and nothing done, where too few are free."""
        table = self.tables.get(sequence, [])
        missing = self.needed(tokens) - len(table)
        if missing > len(self.free):
            return False
        self.tables[sequence] = table + [heapq.heappop(self.free) for _ in range(missing)]
        return True

    def release(self, sequence: int) -> None:
        """Take all blocks back."""
        for block in self.tables.pop(sequence):
            heapq.heappush(self.free, block)

    def slot(self, sequence: int, position: int) -> int:
        """Where a token of a sequence is."""
        return self.tables[sequence][position // self.size] * self.size + position % self.size


def runs(blocks: Sequence[int]) -> list[tuple[int, int, int]]:
    """Stretches of blocks that follow one another: (place in the list, first block, how many)."""
    stretches: list[tuple[int, int, int]] = []
    for index, block in enumerate(blocks):
        if stretches and block == stretches[-1][1] + stretches[-1][2]:
            stretches[-1] = (stretches[-1][0], stretches[-1][1], stretches[-1][2] + 1)
        else:
            stretches.append((index, block, 1))
    return stretches
