"""The KV cache of a mesh: rows of cores hold tokens, and shift the oldest up as new ones come (waferllm, section 4.3).

New keys and values arrive at the south row. A row that gets a token, and held as many as the row above it before,
passes its oldest one up, which the row above gets in turn: all moves are one hop, all at once, and

    row 0   0 1 2          the oldest
    row 1   3 4            rows differ by one token at most, and their order is the tokens' order
    row 2   5 6            the newest
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Annotated, Any, Literal

import numpy as np

from meshrt import fabric, routes
from meshrt.block import Block
from meshrt.errors import UsageError
from meshrt.tables import Channel, installed

MESH = (8, 8)


@dataclass
class Cache:
    """The tokens in the rows of the mesh. `held` counts them, the same on every rank; `data` is [bh, bw, room, *token].

    A row's tokens lie in order from place 0. Only what is held takes core memory, and only that has meaning.
    """

    block: Block
    data: np.ndarray
    held: np.ndarray  # int [H]
    up: Channel
    down: Channel
    name: str = "KV cache"
    bytes_per_token: int = field(init=False)

    def __post_init__(self) -> None:
        self.bytes_per_token = prod(self.data.shape[3:]) * self.data.dtype.itemsize
        self.block.memory.take(self.name, self._bytes())

    @property
    def own(self) -> np.ndarray:
        """Tokens in each row of this block, int [bh]."""
        return self.held[self.rows]

    @property
    def rows(self) -> slice:
        mesh = self.block.mesh
        return slice(mesh.y0, mesh.y0 + mesh.block_height)

    def _bytes(self) -> np.ndarray:
        return np.broadcast_to(self.own[:, None] * self.bytes_per_token, self.block.shape).copy()

    def add(self, counts: np.ndarray) -> None:
        """So many more (or fewer) tokens in each row, int [H]. LimitError at a row that has no room for them."""
        self.held = self.held + counts
        self.block.memory.resize(self.name, self._bytes())


@contextmanager
def kv_cache(block: Block, token: tuple[int, ...], room: int, dtype: Any) -> Iterator[Cache]:
    """An empty cache with the routes to shift it; `room` places a row on the host, core memory as tokens come."""
    height = block.mesh.height
    with (
        installed(block.tables, "y", routes.chain(height, -1)) as up,
        installed(block.tables, "y", routes.chain(height, 1)) as down,
    ):
        data = np.full((*block.lead, room, *token), np.nan, dtype)
        cache = Cache(block, data, np.zeros(height, np.int64), up, down)
        try:
            yield cache
        finally:
            block.memory.free(cache.name)


def pass_up(cache: Cache, rows: np.ndarray) -> None:
    """These rows (bool [H]) hand their oldest token to the row above, all at once."""
    block, data = cache.block, cache.data
    packet = data[:, :, 0]
    with block.memory.hold("token in flight", cache.bytes_per_token):
        arrived = fabric.transfer(block, cache.up, packet, positions=rows)
    above = np.roll(rows, -1)
    if block.payload:
        gives, takes = np.flatnonzero(rows[cache.rows]), np.flatnonzero(above[cache.rows])
        data[gives, :, :-1] = data[gives, :, 1:]
        place = (cache.own - rows[cache.rows])[takes]
        data[takes, :, place] = arrived[takes]
    cache.add(above.astype(np.int64) - rows)


def pass_down(cache: Cache, rows: np.ndarray) -> None:
    """These rows hand their newest token to the row below, where it becomes the oldest."""
    block, data = cache.block, cache.data
    packet = np.zeros((*block.lead, *data.shape[3:]), data.dtype)
    gives = np.flatnonzero(rows[cache.rows])
    if block.payload:
        packet[gives] = data[gives, :, cache.own[gives] - 1]
    with block.memory.hold("token in flight", cache.bytes_per_token):
        arrived = fabric.transfer(block, cache.down, packet, positions=rows)
    below = np.roll(rows, 1)
    if block.payload:
        takes = np.flatnonzero(below[cache.rows])
        data[takes, :, 1:] = data[takes, :, :-1]
        data[takes, :, 0] = arrived[takes]
    cache.add(below.astype(np.int64) - rows)


def append(cache: Cache, token: np.ndarray) -> None:
    """A new token [bh, bw, *token] arrives at the south row; the rows above do not look at it."""
    counts = np.zeros_like(cache.held)
    counts[-1] = 1
    if cache.block.payload and cache.rows.stop == len(cache.held):
        cache.data[-1, :, cache.held[-1]] = token[-1]
    cache.add(counts)


def balance(cache: Cache) -> None:
    """Every core learns how much the core above held; a row that gets a token and held as many passes its oldest up.

    So the shift runs from the south row up to the first row that holds less than the one above it, or to the top.
    """
    block = cache.block
    before = cache.held.copy()
    before[-1] -= 1
    own = np.broadcast_to(before[cache.rows][:, None, None], (*block.shape, 1)).astype(np.int32)
    above = fabric.transfer(block, cache.down, own if block.payload else own[:1, :1])
    full = np.zeros(len(before), bool)
    full[1:] = before[1:] >= before[:-1]
    if block.payload and (((own >= above)[:, 0, 0] != full[cache.rows]) & (np.arange(len(full)) > 0)[cache.rows]).any():
        raise AssertionError("a core's neighbour does not hold what was counted")
    rows = np.logical_and.accumulate((full & (cache.held > 0))[::-1])[::-1]
    if rows.any():
        pass_up(cache, rows)


def spread_evenly(cache: Cache) -> None:
    """Move tokens between neighbouring rows, in order, until all rows hold as many, the first ones one more."""
    height, total = len(cache.held), int(cache.held.sum())
    goal = np.full(height, total // height)
    goal[: total % height] += 1
    while (cache.held != goal).any():
        surplus = np.cumsum(cache.held - goal)[:-1]  # that has to cross from each row to the next; negative: back
        southward, northward = np.zeros(height, bool), np.zeros(height, bool)
        southward[:-1] = (surplus > 0) & (cache.held[:-1] > 0)
        northward[1:] = (surplus < 0) & (cache.held[1:] > southward[1:])
        if southward.any():
            pass_down(cache, southward)
        if northward.any():
            pass_up(cache, northward)


def run(
    block: Block,
    *,
    policy: Annotated[Literal["shift"], "where new tokens go"] = "shift",
    tokens: Annotated[int, "how many tokens to store, one after the other"] = 32,
    head_dim: Annotated[int, "numbers of one head's key, cut along x"] = 64,
    heads: Annotated[int, "key and value heads"] = 4,
    layers: Annotated[int, "layers that share the cache"] = 4,
    dtype: Annotated[Literal["float32", "float16"], "storage of keys and values"] = "float16",
) -> dict[str, Any]:
    """Fill a shift-based KV cache token by token, and show how evenly the rows hold it."""
    for name, size in (("tokens", tokens), ("head-dim", head_dim), ("heads", heads), ("layers", layers)):
        if size < 1:
            raise UsageError(f"--{name} is {size}; it starts at 1")
    token = (layers, 2, heads, -(-head_dim // block.mesh.width))
    room = tokens // block.mesh.height + 3
    uneven = 0
    with kv_cache(block, token, room, dtype) as cache, block.phase("fill") as phase:
        for number in range(tokens):
            append(cache, np.full((*block.lead, *token), number % 2048, dtype))
            balance(cache)
            uneven = max(uneven, int(np.ptp(cache.held)))
            block.console.progress("tokens", number + 1, tokens)
        phase.tokens = tokens
        return {
            "policy": policy,
            "rows": cache.held.tolist(),
            "most_uneven": uneven,
            "in_order": in_order(cache),
            "bytes_per_token": cache.bytes_per_token,
        }


def in_order(cache: Cache) -> bool:
    """Do the rows hold the tokens' numbers, from north to south, as they were appended?"""
    if not cache.block.payload:
        return True
    flat = cache.data.reshape(*cache.data.shape[:3], -1)
    start = np.concatenate([[0], np.cumsum(cache.held)[:-1]])[cache.rows]
    place = np.arange(flat.shape[2])
    expected = (start[:, None] + place) % 2048
    inside = place < cache.own[:, None]
    same = (flat == expected[:, None, :, None]).all(axis=(1, 3))
    right = bool(same[inside].all())
    return bool(cache.block.control.allreduce(int(not right)) == 0)
