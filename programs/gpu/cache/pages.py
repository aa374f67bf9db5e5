"""The paged cache's book-keeping (PagedAttention, SOSP 2023): which blocks a sequence has. No numbers here.

A block has `size` slots, a slot holds a token. Physical blocks are handed out lowest first, so that the blocks of a
sequence often lie side by side. Block 0 belongs to nobody: rows of a batch that stand for no sequence write there.

Prefixes that are kept (vLLM's automatic prefix caching): a full block is known by its tokens and all before them, and
sequences that begin alike share it. When nobody has it any more it lies idle, until its room is wanted: who was left
first goes first, of a sequence the last block.
"""

import hashlib
import heapq
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from meshrt.records import dataclass


@dataclass
class Pages:
    """`blocks` physical blocks, without block 0, and the block table of each sequence that has some.

    With `keeps` full blocks are kept for others: `by_name` has those of each name, `names` the other way round,
    `owners` how many sequences more than one have a block, and `idle` those that none has, the oldest first.
    """

    blocks: int
    size: int
    keeps: bool = False
    free: list[int] = field(init=False)
    tables: dict[int, list[int]] = field(default_factory=dict)
    by_name: dict[bytes, int] = field(default_factory=dict)
    names: dict[int, bytes] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)
    idle: dict[int, None] = field(default_factory=dict)
    chains: dict[int, list[bytes]] = field(default_factory=dict)  # of sequences, the names of their full blocks

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
        table = self.tables.get(sequence)
        return (table is not None and tokens <= len(table) * self.size) or self._give(sequence, tokens, [])

    def _give(self, sequence: int, tokens: int, shared: Sequence[int]) -> bool:
        """The same, with blocks of others in front."""
        table = self.tables.get(sequence, [])
        missing = self.needed(tokens) - len(table) - len(shared)
        if missing <= 0 and table:
            return True
        if missing > len(self.free) + len(self.idle) - sum(block in self.idle for block in shared):
            return False
        for block in shared:
            if block in self.idle:
                del self.idle[block]
            else:
                self.owners[block] = self.owners.get(block, 0) + 1
        self.tables[sequence] = [*table, *shared, *(self._take() for _ in range(missing))]
        return True

    def _take(self) -> int:
        """A free block, or one that lies idle."""
        if self.free:
            return heapq.heappop(self.free)
        block = next(iter(self.idle))
        del self.idle[block]
        del self.by_name[self.names.pop(block)]
        return block

    def release(self, sequence: int) -> None:
        """Take all blocks back, but for those that others have too."""
        self.chains.pop(sequence, None)
        for block in reversed(self.tables.pop(sequence)):
            if more := self.owners.pop(block, 0):
                if more > 1:
                    self.owners[block] = more - 1
            elif block in self.names:
                self.idle[block] = None
            else:
                heapq.heappush(self.free, block)

    # ---- prefixes

    def admit(self, sequence: int, ids: "array[int]", left: int | None) -> int | None:
        """Reserve for a sequence that has nothing yet, whose tokens are `ids`, and for the one that comes; or for so
        many (`left`) after those that are in the cache already. The number of these, one less than all at most.

        None, and nothing done, where too few blocks are free.
        """
        shared: list[int] = []
        if self.keeps:
            for name in self._names(ids, 0, (len(ids) - 1) // self.size, b""):
                if name not in self.by_name:
                    break
                shared.append(self.by_name[name])
        hit = len(shared) * self.size
        tokens = len(ids) + 1 if left is None else min(len(ids), hit + left)
        return hit if self._give(sequence, tokens, shared) else None

    def learn(self, sequence: int, ids: "array[int]", cached: int) -> None:
        """The first `cached` tokens of a sequence are in the cache: its full blocks are for all that begin alike, where
        they are kept."""
        chain = self.chains.setdefault(sequence, [])
        for name in self._names(ids, len(chain), cached // self.size, chain[-1] if chain else b""):
            block = self.tables[sequence][len(chain)]
            chain.append(name)
            if name not in self.by_name:
                self.by_name[name], self.names[block] = block, name

    def _names(self, ids: "array[int]", first: int, end: int, before: bytes) -> Iterator[bytes]:
        """Of the blocks from `first` to `end` of these tokens; `before` is the name of the one in front."""
        for at in range(first, end):
            digest = hashlib.blake2b(before, digest_size=16)
            digest.update(ids[at * self.size : (at + 1) * self.size].tobytes())
            before = digest.digest()
            yield before

    def slot(self, sequence: int, position: int) -> int:
        """Where a token of a sequence is."""
        return self.tables[sequence][position // self.size] * self.size + position % self.size

    def slots_of(self, sequence: int, begin: int, end: int) -> NDArray[np.int64]:
        """Where the tokens of a sequence from `begin` to `end` are."""
        positions = np.arange(begin, end)
        return np.asarray(self.tables[sequence])[positions // self.size] * self.size + positions % self.size


def runs(blocks: Sequence[int]) -> list[tuple[int, int, int]]:
    """Stretches of blocks that follow one another: (place in the list, first block, how many)."""
    stretches: list[tuple[int, int, int]] = []
    for index, block in enumerate(blocks):
        if stretches and block == stretches[-1][1] + stretches[-1][2]:
            stretches[-1] = (stretches[-1][0], stretches[-1][1], stretches[-1][2] + 1)
        else:
            stretches.append((index, block, 1))
    return stretches
