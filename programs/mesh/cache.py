"""The KV cache of a mesh, and which row of cores keeps a new token (waferllm, section 4.3 and Figure 5).

    shift        the south row; rows then pass their oldest tokens up, so that all hold as many, in the tokens' order
    concat       the south row, for good: what a cache in one memory does; that row fills up while the others idle
    roundrobin   row `number of the token` mod H: as even as shift, and nothing moves, but order is not position

Every row of cores has a new token's key and value, so any row can keep them without traffic. A shift is one hop for
each token that moves, all of them at once:

    row 0   0 1 2          the oldest
    row 1   3 4            rows differ by one token at most, and their order is the tokens' order
    row 2   5 6            the newest
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import field
from math import prod
from typing import Any, Literal

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.wires import routes
from meshrt.mesh.wires.tables import Channel, installed
from meshrt.ranks import hostmemory
from meshrt.records import dataclass

Policy = Literal["shift", "concat", "roundrobin"]


@dataclass(frozen=True)
class Stairs:
    """Routes from every row of cores to the next one, both ways."""

    up: Channel
    down: Channel


@dataclass(eq=False)
class TokenCache:
    """The tokens in the rows of the mesh. `held` counts them, the same on every rank; `data` is [bh, bw, room, *token].

    A row's tokens lie from place 0 on. Only what is held takes core memory, and only that has meaning; `room` is what
    the host has for each row, and grows.
    """

    block: Block
    policy: Policy
    data: np.ndarray
    held: np.ndarray  # int [H]
    stairs: Stairs | None  # shift needs them at every step
    moved: int = 0  # times that a row gave a token to the next
    name: str = "KV cache"
    bytes_per_token: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes_per_token = prod(self.data.shape[3:]) * self.data.dtype.itemsize
        self.block.memory.take(self.name, self.memory_of(self.held))

    @property
    def block_held(self) -> np.ndarray:
        """Tokens in each row of this block, int [bh]."""
        return self.held[self.rows]

    @property
    def rows(self) -> slice:
        mesh = self.block.mesh
        return slice(mesh.y0, mesh.y0 + mesh.block_height)

    def memory_of(self, counts: np.ndarray) -> np.ndarray:
        """Core memory of so many tokens in each row of the mesh, int [H] -> int [bh, bw]."""
        return np.broadcast_to(counts[self.rows, None] * self.bytes_per_token, self.block.shape)

    def add(self, counts: np.ndarray) -> None:
        """So many more (or fewer) tokens in each row, int [H]. LimitError at a row that has no room for them."""
        held = self.held + counts
        self.block.memory.resize(self.name, self.memory_of(held))
        self.held = held
        room, fullest = self.data.shape[2], int(held.max())
        if fullest > room:
            extra = max(fullest - room, room)
            hostmemory.require("a KV cache that grows", (2 * room + extra) * self.data[:, :, 0].nbytes)
            blank = np.full((*self.data.shape[:2], extra, *self.data.shape[3:]), np.nan, self.data.dtype)
            self.data = np.concatenate([self.data, blank], axis=2)


@contextmanager
def kv_cache(
    block: Block, token: tuple[int, ...], room: int, dtype: Any, policy: Policy = "shift", climbs: bool = True
) -> Iterator[TokenCache]:
    """An empty cache, with the routes that its policy needs at every step.

    `token` is the shape of one token at a core, and `room` the tokens of a row that the host begins with: core memory
    is taken as they come. With `climbs` False the routes are left to `stairs`, for a time when tables have room.
    """
    with stairs(block) if policy == "shift" and climbs else nullcontext() as climb:
        shape = (*block.lead, max(room, 1), *token)
        hostmemory.require("the KV cache of all cores", prod(shape) * np.dtype(dtype).itemsize)
        data = np.full(shape, np.nan, dtype)
        cache = TokenCache(block, policy, data, np.zeros(block.mesh.height, np.int64), climb)
        try:
            yield cache
        finally:
            block.memory.free(cache.name)


@contextmanager
def stairs(block: Block) -> Iterator[Stairs]:
    """Install routes from every row to the one above and to the one below: 4 entries a core."""
    with installed(block, "y", routes.chain, -1) as up, installed(block, "y", routes.chain) as down:
        yield Stairs(up, down)


# ----------------------------------------------------------------------------------------------------- a new token


def append(cache: TokenCache, token: np.ndarray) -> None:
    """A new token [bh, bw, *token], the same in every row: one row keeps it, the others do not look at it.

    LimitError where that row is full; nothing is changed then, on that rank.
    """
    cache.add(coming(cache))
    place = place_of_new(cache)
    if cache.block.payload and place is not None:
        cache.data[place[0], :, place[1]] = token[place[0]]


def place_of_new(cache: TokenCache) -> tuple[int, int] | None:
    """(row of this block, place in it) of the token that `append` took last; None where another rank has that row.

    True until `climb.balance` moves tokens.
    """
    row = _row(cache, int(cache.held.sum()) - 1)
    local_row = row - cache.rows.start
    return (local_row, int(cache.held[row]) - 1) if 0 <= local_row < cache.block.shape[0] else None


@dataclass(frozen=True)
class Seen:
    """The tokens that the newest one sees: in each row of the mesh `counts`, from place `first` on, int [H] both."""

    counts: np.ndarray
    first: np.ndarray

    @property
    def most(self) -> int:
        return int(self.counts.max())

    def here(self, cache: TokenCache, numbers: np.ndarray) -> np.ndarray:
        """Those of this block's rows."""
        return numbers[cache.rows]


def seen_by_newest(cache: TokenCache, window: int | None) -> Seen:
    """All that are held, or the last `window` of them, where rows hold tokens in the order of their positions."""
    first = np.zeros_like(cache.held)
    if window is not None:
        ends = np.cumsum(cache.held)
        first = np.clip(ends[-1] - window - (ends - cache.held), 0, cache.held)
    return Seen(cache.held - first, first)


def _row(cache: TokenCache, number: int) -> int:
    """The row that takes the token of that number, the first being 0."""
    height = len(cache.held)
    return number % height if cache.policy == "roundrobin" else height - 1


def coming(cache: TokenCache) -> np.ndarray:
    """Tokens that the next `append` adds to each row, int [H]."""
    counts = np.zeros_like(cache.held)
    counts[_row(cache, int(cache.held.sum()))] = 1
    return counts
