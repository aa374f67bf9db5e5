"""Who sends what where, when tokens go to their experts and back: pieces of tiles that change cores along lines.

    way         what goes                                   route entries    longest packet   stages
    multicast   every core's tile, to its whole line         as many as fit   of a segment     one for each next segment
    ring        every core's tile, N - 1 shifts              3                2 hops           none
    crossbar    what another core is to have, core by core   8                1 hop            one for each hop

On the first two, cores keep of what comes by what is for them: a token brings the numbers of its experts along. Which
pieces go where is the same on all lines.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from math import prod
from typing import Literal

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives import broadcast
from meshrt.mesh.collectives.rings import interleaved_ring
from meshrt.mesh.collectives.shifts import start_shift
from meshrt.mesh.exchange.exchange import crossbar, exchange
from meshrt.mesh.exchange.legs import Transfer
from meshrt.mesh.repeat import sampled
from meshrt.mesh.wires.receiving import receive
from meshrt.programs.mesh.meshgemm import coming_in, in_flight, zeros
from meshrt.records import dataclass

DispatchWay = Literal["multicast", "ring", "crossbar"]


@dataclass(frozen=True, eq=False)
class PieceMoves:
    """Pieces that change cores along a line: core and place before and after. Those of one packet are neighbours here.

    `packet` numbers the packets, from 0 on, where each piece is not one of its own.
    """

    core: np.ndarray
    place: np.ndarray
    to_core: np.ndarray
    to_place: np.ndarray
    packet: np.ndarray | None = None

    def back(self) -> "PieceMoves":
        return PieceMoves(self.to_core, self.to_place, self.core, self.place, self.packet)


def carry(
    block: Block, way: DispatchWay, axis: str, tiles: np.ndarray, moves: PieceMoves, places: int,
    sample: int | None = None, pairs: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Tiles [bh, bw, places of a core, *piece] to [bh, bw, places, *piece], zero where nothing comes. LimitError.

    With a `sample`, by shape, only so many shifts of a ring are run, and the last of them is counted for the others.
    To `pairs`, int64 [N, N], are added the bytes of pieces that go from one core of a line to another, of all lines.
    """
    out = zeros(block, "pieces of tiles that came", (places, *tiles.shape[3:]), tiles.dtype)
    stays = moves.core == moves.to_core
    _keep(block, axis, tiles, out, moves, np.flatnonzero(stays))
    block.elementwise(out)
    if pairs is not None:
        across = block.mesh.length("y" if axis == "x" else "x")
        np.add.at(pairs, (moves.core, moves.to_core), across * prod(tiles.shape[3:]) * tiles.itemsize)
    if stays.all():  # every rank finds the same
        return out
    if way == "crossbar":
        _over_crossbar(block, axis, tiles, out, moves, np.flatnonzero(~stays))
    elif way == "ring":
        _round_ring(block, axis, tiles, out, moves, sample)
    else:
        _to_all(block, axis, tiles, out, moves)
    return out


def _keep(
    block: Block, axis: str, tiles: np.ndarray, out: np.ndarray, moves: PieceMoves, chosen: np.ndarray,
    place: np.ndarray | None = None,
) -> None:  # fmt: skip
    """Those of the moves whose tile is now at the core that they go to: it takes its pieces, from `place` of them."""
    if not block.payload or not len(chosen):
        return
    low, length = block.mesh.offset(axis), block.mesh.block_length(axis)
    chosen_place = moves.place[chosen] if place is None else place
    at = moves.to_core[chosen] - low
    inside = (at >= 0) & (at < length)
    at, source, to = at[inside], chosen_place[inside], moves.to_place[chosen[inside]]
    if axis == "x":
        out[:, at, to] = tiles[:, at, source]
    else:
        out[at, :, to] = tiles[at, :, source]


def _by_source(moves: PieceMoves, n: int) -> list[np.ndarray]:
    """The numbers of the moves from each core of a line."""
    order = np.argsort(moves.core, kind="stable")
    return np.split(order, np.searchsorted(moves.core[order], np.arange(1, n)))


def _round_ring(
    block: Block, axis: str, tiles: np.ndarray, out: np.ndarray, moves: PieceMoves, sample: int | None
) -> None:
    """Every tile passes every core once; at each step a core looks at the one that is there."""
    n = block.mesh.length(axis)
    sources = _by_source(moves, n)
    with interleaved_ring(block, axis) as ring:
        places = np.array(ring.places)
        core_at = np.argsort(places)
        now, coming = in_flight(block, "tile", tiles), coming_in(block, "tile", tiles)
        for step in sampled(block, n - 1, sample):
            receive(block, start_shift(block, ring, now, coming))
            now, coming = coming, now
            holds = core_at[(places - step - 1) % n]  # whose tile is at each core
            chosen = np.concatenate(sources)
            chosen = chosen[holds[moves.to_core[chosen]] == moves.core[chosen]]
            _keep(block, axis, now, out, moves, chosen)
            block.elementwise(out)


def _to_all(block: Block, axis: str, tiles: np.ndarray, out: np.ndarray, moves: PieceMoves) -> None:
    """One core of every line after the other sends its tile to all, the next before the last one's is everywhere."""
    n = block.mesh.length(axis)
    sources = _by_source(moves, n)
    room = [coming_in(block, "tile", tiles) for _ in range(2)]
    with ExitStack() as stack:
        x, y = stack.enter_context(broadcast.spreads(block))
        spread = x if axis == "x" else y
        under_way: tuple[int, broadcast.Broadcast] | None = None
        for source in range(n):
            begun = broadcast.start(block, spread, source, tiles, room[source % 2])
            broadcast.relay(block, begun)
            if under_way is not None:
                _arrive(block, axis, under_way, out, moves, sources)
            under_way = source, begun
        if under_way is not None:
            _arrive(block, axis, under_way, out, moves, sources)


def _arrive(
    block: Block, axis: str, under_way: tuple[int, broadcast.Broadcast], out: np.ndarray, moves: PieceMoves,
    sources: list[np.ndarray],
) -> None:  # fmt: skip
    source, begun = under_way
    chosen = sources[source]
    _keep(block, axis, broadcast.finish(block, begun), out, moves, chosen[moves.to_core[chosen] != source])
    block.elementwise(out)


def _over_crossbar(
    block: Block, axis: str, tiles: np.ndarray, out: np.ndarray, moves: PieceMoves, chosen: np.ndarray
) -> None:
    """Only what goes to another core leaves: packets of as many pieces as the largest of them has."""
    n, transfers, wanted = block.mesh.length(axis), [], []
    packets = np.arange(len(chosen)) if moves.packet is None else moves.packet[chosen]
    pieces = np.split(chosen, np.flatnonzero(np.diff(packets)) + 1)
    size = max(map(len, pieces))
    low, length = block.mesh.offset(axis), block.mesh.block_length(axis)
    for group in _matchings(moves, pieces):
        owners = np.arange(n)
        packet = zeros(block, "packets for others", (size, *tiles.shape[3:]), tiles.dtype)
        for piece in group:
            source = int(moves.core[piece[0]])
            owners[moves.to_core[piece[0]]] = source
            if block.payload and low <= source < low + length:
                at, place = source - low, moves.place[piece]
                if axis == "x":
                    packet[:, at, : len(piece)] = tiles[:, at, place]
                else:
                    packet[at, :, : len(piece)] = tiles[at][:, place]
        transfers.append(Transfer(axis, owners, packet))
        wanted.append(group)
    with crossbar(block) as bar:
        arrived = exchange(block, bar, *transfers)
    for tile, group in zip(arrived, wanted, strict=True):
        places = np.concatenate([np.arange(len(piece)) for piece in group])
        _keep(block, axis, tile, out, moves, np.concatenate(group), places)


def _matchings(moves: PieceMoves, pieces: list[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Packets in groups in which every core sends one at most and gets one at most, in an order that is always so."""
    groups: list[list[np.ndarray]] = []
    busy: list[set[tuple[str, int]]] = []
    for piece in pieces:
        ends = {("from", int(moves.core[piece[0]])), ("to", int(moves.to_core[piece[0]]))}
        at = next((at for at, taken in enumerate(busy) if not taken & ends), len(groups))
        if at == len(groups):
            groups.append([])
            busy.append(set())
        groups[at].append(piece)
        busy[at] |= ends
    yield from groups
