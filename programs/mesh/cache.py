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
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import numpy as np

from meshrt.errors import LimitError
from meshrt.mesh.block import Block
from meshrt.mesh.wires import fabric, routes
from meshrt.mesh.wires.tables import Channel, installed
from meshrt.ranks import hostmemory

Policy = Literal["shift", "concat", "roundrobin"]


@dataclass(frozen=True)
class Stairs:
    """Routes from every row of cores to the next one, both ways."""

    up: Channel
    down: Channel


@dataclass(eq=False)
class Cache:
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
) -> Iterator[Cache]:
    """An empty cache, with the routes that its policy needs at every step.

    `token` is the shape of one token at a core, and `room` the tokens of a row that the host begins with: core memory
    is taken as they come. With `climbs` False the routes are left to `stairs`, for a time when tables have room.
    """
    with stairs(block) if policy == "shift" and climbs else nullcontext() as climb:
        shape = (*block.lead, max(room, 1), *token)
        hostmemory.require("the KV cache of all cores", prod(shape) * np.dtype(dtype).itemsize)
        data = np.full(shape, np.nan, dtype)
        cache = Cache(block, policy, data, np.zeros(block.mesh.height, np.int64), climb)
        try:
            yield cache
        finally:
            block.memory.free(cache.name)


@contextmanager
def stairs(block: Block) -> Iterator[Stairs]:
    """Install routes from every row to the one above and to the one below: 4 entries a core."""
    height = block.mesh.height
    with (
        installed(block.tables, "y", routes.chain(height, -1)) as up,
        installed(block.tables, "y", routes.chain(height, 1)) as down,
    ):
        yield Stairs(up, down)


# ----------------------------------------------------------------------------------------------------- a new token


def append(cache: Cache, token: np.ndarray) -> None:
    """A new token [bh, bw, *token], the same in every row: one row keeps it, the others do not look at it.

    LimitError where that row is full; nothing is changed then, on that rank.
    """
    cache.add(_coming(cache))
    place = place_of_new(cache)
    if cache.block.payload and place is not None:
        cache.data[place[0], :, place[1]] = token[place[0]]


def place_of_new(cache: Cache) -> tuple[int, int] | None:
    """(row of this block, place in it) of the token that `append` took last; None where another rank has that row.

    True until `balance` moves tokens.
    """
    row = _row(cache, int(cache.held.sum()) - 1)
    local_row = row - cache.rows.start
    return (local_row, int(cache.held[row]) - 1) if 0 <= local_row < cache.block.shape[0] else None


def _row(cache: Cache, number: int) -> int:
    """The row that takes the token of that number, the first being 0."""
    height = len(cache.held)
    return number % height if cache.policy == "roundrobin" else height - 1


def _coming(cache: Cache) -> np.ndarray:
    """Tokens that the next `append` adds to each row, int [H]."""
    counts = np.zeros_like(cache.held)
    counts[_row(cache, int(cache.held.sum()))] = 1
    return counts


def balance(cache: Cache) -> None:
    """After `append`, the policy shift: every core learns how much the core above held; a row that gets a token and
    held as many passes its oldest up. The other policies move nothing.

    So the shift runs from the south row up to the first row that holds less than the one above it, or to the top.
    LimitError where a row has no room for a token that comes while its own oldest is still there.
    """
    if cache.policy != "shift":
        return
    if cache.stairs is None:
        raise ValueError("a cache that shifts needs its stairs installed before the first new token")
    block = cache.block
    before = cache.held.copy()
    before[-1] -= 1
    shape = block.shape if block.payload else (1, 1)
    held = np.broadcast_to(before[cache.rows][: shape[0], None, None], (*shape, 1)).astype(np.int32)
    held = block.memory.keep("tokens that it holds", held)
    above = fabric.transfer(block, cache.stairs.down, held)
    full = _as_full(before)
    if block.payload:
        wrong = (held >= above)[:, 0, 0] != full[cache.rows]
        if (wrong & (np.arange(len(full)) > 0)[cache.rows]).any():
            raise AssertionError("a core's neighbour does not hold what was counted")
    rows = _climbing(cache.held)
    if rows.any():
        _pass_up(cache, cache.stairs, rows)


def _as_full(held: np.ndarray) -> np.ndarray:
    """The rows that hold as many tokens as the one above them, or more: bool [H]."""
    full = np.zeros(len(held), bool)
    full[1:] = held[1:] >= held[:-1]
    return full


def _above(rows: np.ndarray) -> np.ndarray:
    """The rows above these, bool [H]."""
    above = np.zeros_like(rows)
    above[:-1] = rows[1:]
    return above


def _climbing(held: np.ndarray) -> np.ndarray:
    """The rows, bool [H], that pass their oldest token up; `held` counts the newest token in the south row."""
    before = held.copy()
    before[-1] -= 1
    passes = _as_full(before) & (held > 0)
    return np.asarray(np.logical_and.accumulate(passes[::-1])[::-1])


def refusal(cache: Cache) -> str | None:
    """Why a core has no memory for the next token, moves included; None where it fits. The same on all ranks.

    The memory is really asked for, and given back. All ranks call it together.
    """
    coming, counts = _coming(cache), 0
    if cache.policy == "shift":
        coming += _above(_climbing(cache.held + coming))
        counts = 2 * np.dtype(np.int32).itemsize  # of tokens, a core's own and its neighbour's
    problem = None
    try:
        with cache.block.memory.hold("next token of the KV cache", cache.memory_of(coming) + counts):
            pass
    except LimitError as error:
        problem = str(error)
    control = cache.block.control
    if not control.total(int(problem is not None)):
        return None
    reason: str = control.allreduce(problem, lambda texts: next(text for text in texts if text is not None))
    return reason


# ---------------------------------------------------------------------------------------------------- moving tokens


def _pass_up(cache: Cache, stairs: Stairs, rows: np.ndarray) -> None:
    """These rows (bool [H]) hand their oldest token to the row above, all at once."""
    above = _above(rows)
    arrived = _move(cache, stairs.up, rows, above, cache.data[:, :, 0])
    if cache.block.payload:
        data = cache.data
        fullest = min(int(cache.held.max()) + 1, data.shape[2])
        givers, takers = np.flatnonzero(rows[cache.rows]), np.flatnonzero(above[cache.rows])
        data[givers, :, : fullest - 1] = data[givers, :, 1:fullest]
        data[takers, :, cache.block_held[takers] - 1] = arrived[takers]


def _pass_down(cache: Cache, stairs: Stairs, rows: np.ndarray) -> None:
    """These rows hand their newest token to the row below, where it becomes the oldest."""
    below = np.zeros_like(rows)
    below[1:] = rows[:-1]
    packet = np.zeros((*cache.block.lead, *cache.data.shape[3:]), cache.data.dtype)
    if cache.block.payload:
        givers = np.flatnonzero(rows[cache.rows])
        packet[givers] = cache.data[givers, :, cache.block_held[givers] - 1]
    arrived = _move(cache, stairs.down, rows, below, packet)
    if cache.block.payload:
        data, fullest = cache.data, int(cache.held.max())
        takers = np.flatnonzero(below[cache.rows])
        data[takers, :, 1:fullest] = data[takers, :, : fullest - 1]
        data[takers, :, 0] = arrived[takers]


def _move(cache: Cache, channel: Channel, rows: np.ndarray, to: np.ndarray, packet: np.ndarray) -> np.ndarray:
    """A token from each of `rows` to the next row, one of `to`. What arrives, [bh, bw, *token].

    A token comes into a place of its own while the receiving core's own token, if one leaves, is still there: at the
    rows that get one, so that it is charged to these only. It leaves from its place in the cache.
    """
    with cache.block.memory.hold("token in flight", cache.memory_of(to.astype(np.int64))):
        arrived = fabric.transfer(cache.block, channel, packet, np.full_like(packet, np.nan), positions=rows)
    cache.moved += int(rows.sum())
    cache.add(to.astype(np.int64) - rows)
    return arrived


def spread_evenly(cache: Cache) -> None:
    """Move tokens between neighbouring rows, in order, until all rows hold as many, the first ones one more.

    For a prompt, whatever the policy. Routes that the cache does not have are installed meanwhile.
    """
    height, total = len(cache.held), int(cache.held.sum())
    goal = np.full(height, total // height)
    goal[: total % height] += 1
    if (cache.held == goal).all():
        return
    with stairs(cache.block) if cache.stairs is None else nullcontext(cache.stairs) as climb:
        while (cache.held != goal).any():
            surplus = np.cumsum(cache.held - goal)[:-1]  # that has to cross from each row to the next; negative: back
            southward, northward = np.zeros(height, bool), np.zeros(height, bool)
            southward[:-1] = (surplus > 0) & (cache.held[:-1] > 0)
            northward[1:] = (surplus < 0) & (cache.held[1:] > southward[1:])
            if southward.any():
                _pass_down(cache, climb, southward)
            if northward.any():
                _pass_up(cache, climb, northward)


def fill_evenly(cache: Cache, tokens: int) -> None:
    """Count so many tokens in, spread over the rows, without payloads: as if they had been there. LimitError."""
    height = len(cache.held)
    cache.add(np.full(height, tokens // height) + (np.arange(height) < tokens % height))
