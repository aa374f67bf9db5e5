"""Keys and values of a layer in DRAM: as float32, float16, int8 or e4m3, in room that grows chunk by chunk.

Fused, as section IV.F has it, they are the operator's own: new ones are written behind the others, where products read
them, and when the room is full a larger one is made and all are copied. Apart ("concat"), as an ONNX graph has them,
every pass copies what is past and what is new into a tensor of their length, and that once more in the products' order.
"""

from collections.abc import Callable, Sequence
from math import ceil

import numpy as np

from meshrt.arm.cache import CachePieces, stretch
from meshrt.arm.core import Team
from meshrt.arm.soc import Soc
from meshrt.programs.arm.simd.stored import COPY, KINDS, StoredKind, restored, store
from meshrt.programs.arm.split import equal
from meshrt.records import dataclass

Array = np.ndarray
KeysAndValues = tuple[Array | None, Array | None]  # keys and values float32 [heads, tokens, size]; None by shape


@dataclass
class Stored:
    """Keys or values [heads, room, size] as they are stored, and, of int8, a float16 scale for each [heads, room]."""

    numbers: Array
    scale: Array

    def write(self, heads: Sequence[int], begin: int, numbers: Array, scale: Array | None) -> None:
        """Of these heads, from position `begin` on."""
        span = slice(begin, begin + numbers.shape[1])
        self.numbers[heads, span] = numbers
        if scale is not None:
            self.scale[heads, span] = scale


@dataclass
class ArmLayerCache:
    """What one layer keeps. `chunk`: tokens that room is made for at a time; of `fused` caches only.

    `others`: layers that it stands for as well, whose room is charged.
    """

    soc: Soc
    name: str
    heads: int
    size: int
    kind: StoredKind
    chunk: int
    fused: bool
    others: int = 0
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

    def bytes_of(self, room: int) -> int:
        """Of keys and values of all heads of so many tokens."""
        return 2 * self.heads * room * self.token_bytes

    def append(self, tokens: int, sources: Callable[[int], CachePieces], make: Callable[[Team], KeysAndValues]) -> None:
        """Keep keys and values of the next tokens, which `make` makes by a team whose units are heads.

        `sources`: where these come from, of a key's head, and of a value's that comes after all of the keys'.
        """
        end = self.held + tokens
        if end > self.room:
            self._move(self.chunk * ceil(end / self.chunk) if self.fused else end)
        begin, token_bytes, kept = self.held, self.token_bytes, (self.keys, self.values)

        def work(team: Team) -> list[tuple[Array | None, Array | None]]:
            for core, heads in team:
                for head in heads:
                    for tile in (head, self.heads + head):
                        core.caches.read(sources(tile))
                        core.caches.write(stretch(self.buffer, tile, begin * token_bytes, end * token_bytes))
            return [store(team, self.kind, (tokens, self.size), made) for made in make(team)]

        for heads, parts in self.soc.parallel(equal(self.heads, self.soc.count), work):
            for stored, (numbers, scale) in zip(kept, parts, strict=True):
                if stored is not None and numbers is not None:
                    stored.write(heads, begin, numbers, scale)
        self.held = end
        if not self.fused:
            self._reorder()

    def read(self, team: Team, group: int, times: int, begin: int = 0) -> KeysAndValues:
        """Keys and values of all tokens from `begin` on in what products take, for query heads that are the team's
        units.

        `group` of them have one head of keys and values; they are widened so many `times`.
        """
        shape, heads = (self.held - begin, self.size), [unit // group for _, units in team for unit in units]
        made = []
        for stored in (self.keys, self.values):
            numbers = scale = None
            if stored is not None:
                numbers, scale = stored.numbers[heads, begin : self.held], stored.scale[heads, begin : self.held]
            made.append(restored(team, self.kind, shape, numbers, scale, times))
        return made[0], made[1]

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
        arrays = {}
        for name, stored in (("keys", self.keys), ("values", self.values)):
            if stored is not None:
                arrays[name] = stored.numbers.view(np.uint8)[:, : self.held]
                arrays[name + "' scales"] = stored.scale[:, : self.held]
        return arrays

    def _move(self, room: int) -> None:
        """Make room for so many tokens, and copy those that are there; both are in DRAM meanwhile."""
        moved = self.held * self.token_bytes
        new = self.soc.buffer(f"{self.name} of {room}", self.bytes_of(room))
        if self.soc.payload:
            self.keys, self.values = (self._larger(stored, room) for stored in (self.keys, self.values))
        if moved:
            self._copy(new, moved)
            self.copied += 2 * self.heads * moved
        if self.others:  # they move one after the other, before which this one's old room goes
            others = f"{self.name} and others of"
            if self.room:
                self.soc.free(f"{others} {self.room}")
            self.soc.buffer(f"{others} {room}", self.others * self.bytes_of(room))
        if self.room:
            self.soc.free(f"{self.name} of {self.room}")
        self.buffer, self.room = new, room

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

        def work(team: Team) -> None:
            for core, heads in team:
                for head in heads:
                    for tile in (head, self.heads + head):
                        core.caches.read(stretch(self.buffer, tile, 0, nbytes))
                        core.caches.write(stretch(target, tile, 0, nbytes))
                core.count(COPY, 2 * len(heads), ceil(nbytes / 16), 0)

        self.soc.parallel(equal(self.heads, self.soc.count), work)
