"""Caches by ranges of bytes: what was used last stays. Each core has an L1 and an L2; all share the SLC before DRAM.

A range is a tile of a buffer, cut into pieces of at most `PIECE` bytes; so what is where is a consequence of the order
in which a program's loops touch tiles. Of a piece that was read or written in part, a cache has that part. A core's
reads go through its L1 and L2 as they happen; what misses both, and what was written, goes to the SLC when the stretch
of work is over, in turns of the cores.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from itertools import zip_longest

from meshrt.records import dataclass

PIECE = 8192
CacheKey = tuple[int, int, int]  # buffer, tile, offset of the piece
CacheSpan = tuple[int, int]  # bytes of a piece, from the first to the one behind the last
CachePieces = list[tuple[CacheKey, CacheSpan]]  # and what of them


def lacking(span: CacheSpan, spans: Iterable[CacheSpan]) -> list[CacheSpan]:
    """What of a span is in none of these, which are in order and apart."""
    begin, end = span
    parts = []
    for low, high in spans:
        if begin < low < end:
            parts.append((begin, low))
        if high > begin and low < end:
            begin = high
    return [*parts, (begin, end)] if begin < end else parts


def joined(spans: tuple[CacheSpan, ...], more: Sequence[CacheSpan]) -> tuple[CacheSpan, ...]:
    """The bytes of both, in order and apart."""
    parts: list[CacheSpan] = []
    for low, high in sorted((*spans, *more)):
        if parts and low <= parts[-1][1]:
            parts[-1] = parts[-1][0], max(high, parts[-1][1])
        else:
            parts.append((low, high))
    return tuple(parts)


def bytes_of(spans: Iterable[CacheSpan]) -> int:
    nbytes = 0
    for low, high in spans:  # a sum of a generator takes three times as long, and this is done for each miss
        nbytes += high - low
    return nbytes


class Lru:
    """Pieces by when they were used, at most `capacity` bytes of them."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self.held: OrderedDict[CacheKey, tuple[CacheSpan, ...]] = OrderedDict()

    def touch(self, key: CacheKey, span: CacheSpan) -> tuple[Sequence[CacheSpan], Sequence[CacheKey]]:
        """Use these bytes of a piece, which are there then: which were not there, and which pieces had to go?"""
        held = self.held
        spans = held.get(key)
        missing: tuple[CacheSpan, ...] = (span,)
        if spans is None:
            held[key] = missing
        else:
            held.move_to_end(key)
            low, high = spans[0]
            if (low <= span[0] and span[1] <= high) or not (missing := tuple(lacking(span, spans))):
                return _NONE, _NONE
            held[key] = joined(spans, missing)
        self.used += bytes_of(missing)
        if self.used <= self.capacity:
            return missing, _NONE
        gone = []
        while self.used > self.capacity:
            old, spans = held.popitem(last=False)
            self.used -= bytes_of(spans)
            gone.append(old)
        return missing, gone

    def forget(self, keys: Collection[CacheKey]) -> None:
        """These are not there any more, or are others."""
        candidates = keys if len(keys) < len(self.held) else [key for key in self.held if key in keys]
        for key in candidates:
            self.used -= bytes_of(self.held.pop(key, _NONE))

    def drop(self, buffer: int) -> None:
        """Forget a buffer that is not needed any more."""
        self.forget([key for key in self.held if key[0] == buffer])


_NONE: tuple[()] = ()


def pieces(buffer: int, tile: int, nbytes: int) -> CachePieces:
    return [((buffer, tile, at), (0, min(PIECE, nbytes - at))) for at in range(0, nbytes, PIECE)]


def stretch(buffer: int, tile: int, begin: int, end: int) -> CachePieces:
    """What lies from byte `begin` to `end` of a tile, by the pieces of it."""
    first = begin // PIECE * PIECE
    return [((buffer, tile, at), (max(begin - at, 0), min(end - at, PIECE))) for at in range(first, end, PIECE)]


@dataclass
class CoreCaches:
    """L1 and L2 of a core, and of the present stretch: bytes that came from L2 and from beyond, and which."""

    l1: Lru
    l2: Lru
    l2_bytes: int = 0
    slc_bytes: int = 0
    misses: CachePieces = field(default_factory=list)
    written: dict[CacheKey, tuple[CacheSpan, ...]] = field(default_factory=dict)

    def read(self, parts: CachePieces) -> None:
        for key, span in parts:
            for beyond_l1 in self.l1.touch(key, span)[0]:
                self.l2_bytes += beyond_l1[1] - beyond_l1[0]
                for beyond in self.l2.touch(key, beyond_l1)[0]:
                    self.slc_bytes += beyond[1] - beyond[0]
                    self.misses.append((key, beyond))

    def write(self, parts: CachePieces) -> None:
        """Write these: nothing is fetched for that, neither they nor what else is in their pieces."""
        for key, span in parts:
            self.l1.touch(key, span)
            self.l2.touch(key, span)
            before = self.written.get(key)
            self.written[key] = (span,) if before is None else joined(before, (span,))

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
    changed: dict[CacheKey, tuple[CacheSpan, ...]] = field(default_factory=dict)

    def serve(self, misses: Sequence[CachePieces], written: Sequence[CachePieces]) -> list[tuple[int, int]]:
        """The cores' accesses of a stretch, in turns: bytes that each read from DRAM, and had written there."""
        moved = [[0, 0] for _ in misses]
        for accesses, kind in ((misses, 0), (written, 1)):
            for turn in zip_longest(*accesses):
                for core, access in enumerate(turn):
                    if access is None:
                        continue
                    key, span = access
                    missing, gone = self.lru.touch(key, span)
                    if kind:
                        before = self.changed.get(key)
                        self.changed[key] = (span,) if before is None else joined(before, (span,))
                    else:
                        moved[core][0] += bytes_of(missing)
                    for old in gone:
                        moved[core][1] += bytes_of(self.changed.pop(old, _NONE))
        return [(read, wrote) for read, wrote in moved]

    def drop(self, buffer: int) -> None:
        self.lru.drop(buffer)
        self.changed = {key: spans for key, spans in self.changed.items() if key[0] != buffer}
