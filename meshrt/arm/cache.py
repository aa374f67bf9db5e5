"""Caches by ranges of bytes: what was used last stays. Each core has an L1 and an L2; all share the SLC before DRAM.

A range is a tile of a buffer, cut into pieces of at most `PIECE` bytes; so what is where is a consequence of the order
in which a program's loops touch tiles. A core's reads go through its L1 and L2 as they happen; what misses both, and
what was written, goes to the SLC when the stretch of work is over, in turns of the cores.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import field
from itertools import zip_longest

from meshrt.records import dataclass

PIECE = 8192
CacheKey = tuple[int, int, int]  # buffer, tile, offset of the piece
CachePieces = list[tuple[CacheKey, int]]  # with their bytes


class Lru:
    """Pieces by when they were used, at most `capacity` bytes of them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.held: OrderedDict[CacheKey, int] = OrderedDict()

    def touch(self, key: CacheKey, nbytes: int) -> tuple[bool, CachePieces]:
        """Use a piece, which is there then: was it there before, and what had to go?"""
        held = self.held
        before = held.get(key, 0)
        if before:
            held.move_to_end(key)
        if nbytes > before:  # a piece grows with what is written to it
            held[key] = nbytes
            self.used += nbytes - before
        if self.used <= self.capacity:
            return before > 0, _NONE
        gone = []
        while self.used > self.capacity:
            gone.append(held.popitem(last=False))
            self.used -= gone[-1][1]
        return before > 0, gone

    def forget(self, keys: Collection[CacheKey]) -> None:
        """These are not there any more, or are others."""
        candidates = keys if len(keys) < len(self.held) else [key for key in self.held if key in keys]
        for key in candidates:
            self.used -= self.held.pop(key, 0)

    def drop(self, buffer: int) -> None:
        """Forget a buffer that is not needed any more."""
        self.forget([key for key in self.held if key[0] == buffer])


_NONE: CachePieces = []


def pieces(buffer: int, tile: int, nbytes: int) -> CachePieces:
    return [((buffer, tile, at), min(PIECE, nbytes - at)) for at in range(0, nbytes, PIECE)]


def stretch(buffer: int, tile: int, begin: int, end: int) -> CachePieces:
    """What lies from byte `begin` to `end` of a tile, by the pieces of it."""
    first = begin // PIECE * PIECE
    return [((buffer, tile, at), min(end, at + PIECE) - max(begin, at)) for at in range(first, end, PIECE)]


@dataclass
class CoreCaches:
    """L1 and L2 of a core, and of the present stretch: bytes that came from L2 and from beyond, and which."""

    l1: Lru
    l2: Lru
    l2_bytes: int = 0
    slc_bytes: int = 0
    misses: CachePieces = field(default_factory=list)
    written: dict[CacheKey, int] = field(default_factory=dict)

    def read(self, parts: CachePieces) -> None:
        for key, nbytes in parts:
            if self.l1.touch(key, nbytes)[0]:
                continue
            self.l2_bytes += nbytes
            if not self.l2.touch(key, nbytes)[0]:
                self.slc_bytes += nbytes
                self.misses.append((key, nbytes))

    def write(self, parts: CachePieces) -> None:
        """Write all of these pieces: nothing is fetched for that."""
        for key, nbytes in parts:
            self.l1.touch(key, nbytes)
            self.l2.touch(key, nbytes)
            self.written[key] = nbytes

    def forget(self, written: Collection[CacheKey]) -> None:
        """Another core has written these."""
        self.l1.forget(written)
        self.l2.forget(written)

    def begin(self) -> None:
        self.l2_bytes = self.slc_bytes = 0
        self.misses, self.written = [], {}


@dataclass
class SharedCache:
    """The SLC: what is written stays until it has to make room, and goes to DRAM then."""

    lru: Lru
    changed: set[CacheKey] = field(default_factory=set)

    def serve(self, misses: Sequence[CachePieces], written: Sequence[CachePieces]) -> list[tuple[int, int]]:
        """The cores' accesses of a stretch, in turns: bytes that each read from DRAM, and had written there."""
        moved = [[0, 0] for _ in misses]
        for accesses, kind in ((misses, 0), (written, 1)):
            for turn in zip_longest(*accesses):
                for core, access in enumerate(turn):
                    if access is None:
                        continue
                    key, nbytes = access
                    hit, gone = self.lru.touch(key, nbytes)
                    if kind:
                        self.changed.add(key)
                    elif not hit:
                        moved[core][0] += nbytes
                    for old, size in gone:
                        if old in self.changed:
                            self.changed.discard(old)
                            moved[core][1] += size
        return [(read, wrote) for read, wrote in moved]

    def drop(self, buffer: int) -> None:
        self.lru.drop(buffer)
        self.changed = {key for key in self.changed if key[0] != buffer}
