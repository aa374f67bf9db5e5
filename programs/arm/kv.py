"""Keys and values of a layer in DRAM: as float32, float16, int8 or e4m3, in room that grows chunk by chunk.

Fused, as section IV.F has it, they are the operator's own: new ones are written behind the others, where products read
them, and when the room is full a larger one is made and all are copied. Apart ("concat"), as an ONNX graph has them,
every pass copies what is past and what is new into a tensor of their length, and that once more in the products' order.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import ml_dtypes
import numpy as np

from meshrt.arm.cache import Pieces, stretch
from meshrt.arm.core import ArmCore, Team
from meshrt.arm.kernel import Tally, vectors
from meshrt.arm.soc import Soc
from meshrt.programs.arm.split import equal

Array = np.ndarray
Kind = Literal["float32", "float16", "int8", "e4m3"]
KINDS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "int8": np.dtype(np.int8),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
}  # fmt: skip
MOST = 127
COPY = vectors(loads=1, stores=1)
# What it takes to store 16 numbers that are float32, and to have 16 of them again as float16.
STORE: dict[str, Tally] = {
    "float32": vectors(stores=4), "float16": vectors(stores=2, fcvtn=4),
    "int8": vectors(stores=1, fabs=4, fmax=4, fdiv=4, fcvtns=4, sqxtn=3, sqxtn2=3),
    "e4m3": vectors(stores=1, fcvtn=4, fmul=2, ushr=4, orr=2, uzp1_16b=1),
}  # fmt: skip
WIDEN: dict[str, Tally] = {
    "float32": vectors(), "float16": vectors(), "int8": vectors(loads=1, sxtl=2, scvtf=2, fmul=2),
    "e4m3": vectors(loads=1, ushll=2, shl=4, orr=2, fmul=2),
}  # fmt: skip


@dataclass
class Stored:
    """Keys or values [heads, room, size] as they are stored, and, of int8, a float16 scale for each [heads, room]."""

    numbers: Array
    scale: Array

    def write(self, begin: int, rows: Array) -> None:
        """float32 [heads, tokens, size] from position `begin` on."""
        span = slice(begin, begin + rows.shape[1])
        if self.numbers.dtype != np.int8:
            self.numbers[:, span] = rows.astype(self.numbers.dtype)
            return
        most = np.abs(rows).max(axis=-1)
        scale = np.where(most > 0, most / np.float32(MOST), np.float32(1)).astype(np.float16)
        self.scale[:, span] = scale
        steps = np.rint(rows / np.maximum(scale, np.finfo(np.float16).smallest_subnormal)[..., None])
        self.numbers[:, span] = np.clip(steps, -MOST, MOST).astype(np.int8)

    def read(self, end: int) -> Array:
        """The first `end` tokens, in what products take: float32, or float16 of narrower ones."""
        numbers = self.numbers[:, :end]
        if numbers.dtype == np.int8:
            numbers = numbers.astype(np.float16) * self.scale[:, :end, None]
        return numbers if numbers.dtype == np.float32 else numbers.astype(np.float16, copy=False)


@dataclass
class LayerCache:
    """What one layer keeps. `chunk`: tokens that room is made for at a time; of `fused` caches only."""

    soc: Soc
    name: str
    heads: int
    size: int
    kind: Kind
    chunk: int
    fused: bool
    room: int = 0
    held: int = 0
    copied: int = 0  # bytes of tokens that were there before, each time that they were moved
    buffer: int = -1
    keys: Stored | None = None
    values: Stored | None = None

    @property
    def token_bytes(self) -> int:
        """Of a key or value of one head."""
        return self.size * KINDS[self.kind].itemsize + 2 * (self.kind == "int8")

    def append(self, keys: Array | None, values: Array | None, tokens: int, sources: Callable[[int], Pieces]) -> None:
        """Keep keys and values [heads, tokens, size] of the next tokens, None by shape.

        `sources`: where these lie, of a key's head, and of a value's that comes after all of the keys'.
        """
        end = self.held + tokens
        if end > self.room:
            self._move(self.chunk * ceil(end / self.chunk) if self.fused else end)
        if keys is not None and values is not None:
            assert self.keys is not None and self.values is not None
            self.keys.write(self.held, keys)
            self.values.write(self.held, values)
        begin, token_bytes, sizes = self.held, self.token_bytes, tokens * self.size

        def work(core: ArmCore, head: int) -> None:
            for tile in (head, self.heads + head):
                core.caches.read(sources(tile))
                core.caches.write(stretch(self.buffer, tile, begin * token_bytes, end * token_bytes))
                core.issue(vectors(loads=4), ceil(sizes / 16))
                core.issue(STORE[self.kind], ceil(sizes / 16))

        self._by_heads(work)
        self.held = end
        if not self.fused:
            self._reorder()

    def fill(self, tokens: int) -> None:
        """By shape: so many tokens are there, whatever they say."""
        self._move(self.chunk * ceil(tokens / self.chunk) if self.fused else tokens)
        self.held = tokens

    def facts(self) -> list[int]:
        """For a state: room, tokens, bytes copied, buffer."""
        return [self.room, self.held, self.copied, self.buffer]

    def stand(self, room: int, held: int, copied: int, buffer: int) -> None:
        """Stand where one stood that said so; its numbers are to be filled in."""
        if self.soc.payload:
            self.keys, self.values = (self._larger(None, room) for _ in range(2))
        self.room, self.held, self.copied, self.buffer = room, held, copied, buffer

    def arrays(self) -> dict[str, Array]:
        """Bytes [heads, tokens, ..] of what is held; none by shape."""
        found = {}
        for name, stored in (("keys", self.keys), ("values", self.values)):
            if stored is not None:
                found[name] = stored.numbers.view(np.uint8)[:, : self.held]
                found[name + "' scales"] = stored.scale[:, : self.held]
        return found

    def _move(self, room: int) -> None:
        """Make room for so many tokens, and copy those that are there; both are in DRAM meanwhile."""
        moved = self.held * self.token_bytes
        new = self.soc.buffer(f"{self.name} of {room}", 2 * self.heads * room * self.token_bytes)
        if self.soc.payload:
            self.keys, self.values = (self._larger(stored, room) for stored in (self.keys, self.values))
        if moved:
            self._copy(new, moved)
            self.copied += 2 * self.heads * moved
        if self.room:
            self.soc.free(f"{self.name} of {self.room}")
        self.buffer, self.room = new, room

    def _by_heads(self, work: Callable[[ArmCore, int], None]) -> None:
        """What is counted for each head, by the core that it is for."""

        def all_heads(team: Team) -> None:
            for core, heads in team:
                for head in heads:
                    work(core, head)

        self.soc.parallel(equal(self.heads, self.soc.count), all_heads)

    def _larger(self, stored: Stored | None, room: int) -> Stored:
        fresh = Stored(
            np.zeros((self.heads, room, self.size), KINDS[self.kind]), np.zeros((self.heads, room), np.float16)
        )
        if stored is not None:
            fresh.numbers[:, : self.held] = stored.numbers[:, : self.held]
            fresh.scale[:, : self.held] = stored.scale[:, : self.held]
        return fresh

    def _reorder(self) -> None:
        """All of it once more, in the order of the products."""
        nbytes = self.held * self.token_bytes
        self._copy(self.soc.buffer("reordered", 2 * self.heads * nbytes), nbytes)
        self.soc.free("reordered")

    def _copy(self, target: int, nbytes: int) -> None:
        """So many bytes of each head's keys and values, to another buffer."""

        def work(core: ArmCore, head: int) -> None:
            for tile in (head, self.heads + head):
                core.caches.read(stretch(self.buffer, tile, 0, nbytes))
                core.caches.write(stretch(target, tile, 0, nbytes))
                core.issue(COPY, ceil(nbytes / 16))

        self._by_heads(work)
