"""A crossbar that is none: any core gets the tile of any other, by software that hands packets on from core to core.

A mesh's tables have no room for routes between arbitrary pairs. So there is one lane of single hops in each direction,
four route entries a core whatever the mesh, and a program at every core that takes each packet in, looks at where it is
to go, and sends it on: along x, then along y, a stage a core. That is what a system pays which was built for cores
that are all equally far from each other. The order of the hops is that of meshrt/itinerary.py.

A hop is a message of its own, as for relayed routes: it waits for the ramp and for the link, and a core that sends a
packet on waits until all of it is in.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.clock import HOPS, STAGES, TIME
from meshrt.errors import RouteError
from meshrt.itinerary import Round, hops, itinerary
from meshrt.mesh import OPPOSITE, PORT_NAMES, STEP
from meshrt.routes import chain
from meshrt.scouts import scout
from meshrt.tables import Channel, installed
from meshrt.views import Index, View, as_index

if TYPE_CHECKING:
    from meshrt.block import Block

REQUEST_BYTES = 8  # the number of the core that asks, and of what it asks for
KEEP = 1 << 21  # hops of an itinerary that is kept for the next time; longer ones are found again


@dataclass(frozen=True, eq=False)
class Crossbar:
    """Installed lanes of single hops along both axes, and the itineraries that were used on them."""

    lanes: tuple[Channel, ...]
    cache: dict[object, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Transfer:
    """Every core gets the tile of its owner; one that names itself keeps its own, and takes no part.

    `owners`: along an axis, the position of each position's owner on every line, int [N]; without one, the core number
    y * W + x of each core's, int [W * H]. With `asks` cores have to ask their owners, with REQUEST_BYTES each; else the
    owners know. tiles: [bh, bw, *tile].
    """

    axis: str | None
    owners: np.ndarray
    tiles: np.ndarray
    asks: bool = False


@contextmanager
def crossbar(block: "Block") -> Iterator[Crossbar]:
    """Install the lanes: at most four route entries a core. LimitError."""
    with ExitStack() as stack:
        yield Crossbar(
            tuple(
                stack.enter_context(installed(block.tables, axis, chain(block.mesh.length(axis), step)))
                for axis in "xy"
                for step in (1, -1)
            )
        )


def exchange(block: "Block", bar: Crossbar, *transfers: Transfer) -> list[np.ndarray]:
    """Carry out the transfers, all at once: what every core has then, [bh, bw, *tile] each. All ranks call it together.

    The cores are busy until it is over. What they hold for others meanwhile is counted as core memory. LimitError.
    """
    _check(block, bar)
    flights = [_Flight(block, one, number) for number, one in enumerate(transfers)]
    tag = bar.lanes[0].number % 32768
    try:
        for steps in zip_longest(*(_steps(block, bar, one) for one in transfers)):
            pending: list[Any] = []
            together = [(flight, step) for flight, step in zip(flights, steps, strict=True) if step is not None]
            for flight, step in together:
                flight.reserve(step)
                for hop in step.hops:
                    flight.leave(hop)
                    flight.send(hop, tag, pending)
            for flight, step in together:
                for hop in step.hops:
                    flight.take(hop, tag)
                    flight.arrive(hop)
            for request in pending:
                block.wait(request)
    finally:
        for flight in flights:
            block.memory.free(flight.name)
    return [flight.land() for flight in flights]


def _check(block: "Block", bar: Crossbar) -> None:
    """Scouts walk the lanes at their first use, and again once an entry was changed. RouteError."""
    if bar.cache.get("epoch") == block.tables.epoch:
        return
    for lane in bar.lanes:
        trace = scout(block, lane)
        strayed = len(trace.ticks) > 2 and any(tick.moves or tick.recvs for tick in trace.ticks[2:])
        if block.scouts.total(int(strayed)):
            raise RouteError(f"a lane of single hops along {lane.axis} leads further than to the next core")
    bar.cache["epoch"] = block.tables.epoch


# ------------------------------------------------------------------------------------------------------ this rank's


@dataclass(frozen=True, eq=False)
class Hop:
    """What happens at one port of this rank's cores in one round; slots are packets' numbers."""

    port: int
    slots: Index  # that leave cores of this block
    cores: Index  # which
    tiles: np.ndarray  # bool: do they carry tiles?
    touched: np.ndarray  # bool: are they sent on?
    out: np.ndarray  # slots that leave the block
    out_tiles: np.ndarray
    come: np.ndarray  # slots that come in over the edge at the other side
    come_tiles: np.ndarray
    ends: Index  # slots that get to cores of this block
    end_cores: Index
    end_tiles: np.ndarray


@dataclass(frozen=True, eq=False)
class Step:
    """A round as this rank sees it."""

    hops: tuple[Hop, ...]
    peak_tiles: int
    peak_requests: int


def _steps(block: "Block", bar: Crossbar, transfer: Transfer) -> Iterator[Step]:
    """The rounds of a transfer on this rank: kept ones, or found while they are followed."""
    axis, mesh = transfer.axis, block.mesh
    owners = np.asarray(transfer.owners, np.int64)
    width = mesh.width if axis is None else mesh.length("x") if axis == "x" else 1
    height = mesh.height if axis is None else 1 if axis == "x" else mesh.length("y")
    if owners.shape != (width * height,):
        raise ValueError(f"owners of shape {owners.shape} for {width * height} cores")
    key = axis, owners.tobytes(), transfer.asks
    if key in bar.cache:
        return iter(bar.cache[key])
    found = (_here(block, axis, width, one) for one in itinerary(width, height, owners, transfer.asks))
    if hops(width, owners, transfer.asks) > KEEP:
        return found
    bar.cache[key] = list(found)
    return iter(bar.cache[key])


def _place(block: "Block", axis: str | None, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(is it in this block, place there) of cores, or of positions on lines of the axis."""
    mesh = block.mesh
    x, y = x - (0 if axis == "y" else mesh.x0), y - (0 if axis == "x" else mesh.y0)
    width, height = 1 if axis == "y" else mesh.block_width, 1 if axis == "x" else mesh.block_height
    return (x >= 0) & (x < width) & (y >= 0) & (y < height), y * width + x


def _here(block: "Block", axis: str | None, width: int, one: Round) -> Step:
    """This rank's part of a round."""
    found = []
    y, x = np.divmod(one.cores, width)
    inside, place = _place(block, axis, x, y)
    step = np.array(STEP)[one.ports]
    lands, end = _place(block, axis, x + step[:, 0], y + step[:, 1])
    for port in range(4):
        on = (one.ports == port) & (inside | lands)
        if not on.any():
            continue
        leave, over, come, ends = on & inside, on & inside & ~lands, on & lands & ~inside, on & lands
        found.append(
            Hop(
                port,
                as_index(one.packets[leave]),
                as_index(place[leave]),
                one.tiles[leave],
                one.touched[leave],
                one.packets[over],
                one.tiles[over],
                one.packets[come],
                one.tiles[come],
                as_index(one.packets[ends]),
                as_index(end[ends]),
                one.tiles[ends],
            )
        )
    return Step(tuple(found), one.peak_tiles, one.peak_requests)


class _Flight:
    """A transfer under way at this rank: headers [3, lines, packets], and the tiles that came from other ranks."""

    def __init__(self, block: "Block", transfer: Transfer, number: int) -> None:
        self.block, self.transfer, self.name = block, transfer, f"crossbar packets {number}"
        mesh, axis, tiles = block.mesh, transfer.axis, transfer.tiles
        lines = 1 if axis is None else mesh.block_length("y" if axis == "x" else "x")
        length = mesh.block_width * mesh.block_height if axis is None else mesh.block_length(axis)
        self.view = View(axis, slice(None), lines, length)
        self.lines, self.count = lines, len(transfer.owners)
        self.header = self.view.new((3,), self.count, (), np.float64)
        self.header[...] = 0
        clock = block.clock
        self.state, self.free = self.view.of(clock.state, 1), self.view.of(clock.link_free, 1)
        self.ramp_in, self.ramp_out = self.view.of(clock.ramp_in), self.view.of(clock.ramp_out)
        self.link_bytes = self.view.of(block.link_bytes, 1)
        self.nbytes = prod(tiles.shape[2:]) * tiles.itemsize
        self.busy = np.array([block.device.busy_cycles(size) for size in (REQUEST_BYTES, self.nbytes)])
        self.out = tiles.copy() if block.payload else np.ones_like(tiles)
        if block.payload:
            self.own = self.view.of(np.ascontiguousarray(tiles))
            self.brought = np.empty((lines, self.count, *tiles.shape[2:]), tiles.dtype)  # pages that are never touched
            owner, reader = np.asarray(transfer.owners), np.arange(self.count)
            columns = mesh.width if axis is None else self.count if axis == "x" else 1
            (self.owned, self.owner_at), (self.mine, self.reader_at) = (
                _place(block, axis, *np.divmod(at, columns)[::-1]) for at in (owner, reader)
            )
        block.memory.take(self.name, 0)

    def reserve(self, step: Step) -> None:
        """Core memory for what waits at the fullest core: as much at all of them."""
        asked = step.peak_tiles * self.nbytes + step.peak_requests * REQUEST_BYTES
        if asked > self.block.memory.names[self.name]:
            self.block.memory.resize(self.name, asked)

    def leave(self, hop: Hop) -> None:
        """Packets leave the cores of this block by the port: those that are sent on once they are in, and software is
        done with them."""
        count = len(hop.tiles)
        if not count:
            return
        counters, device = self.block.counters, self.block.device
        state = self.state[..., hop.cores].copy()
        if hop.touched.any():
            head = self.header[..., hop.slots]
            np.copyto(state, head, where=hop.touched & (head[TIME] > state[TIME]))
            state[TIME] += device.beta * hop.touched
            state[STAGES] += hop.touched
            self.block.clock.path_changes()
            self.state[..., hop.cores] = state
            counters.stages += self.lines * int(hop.touched.sum())
        time = state[TIME]
        busy = self.busy[hop.tiles.astype(int)]
        if busy.any():
            for free in (self.ramp_out, self.free[hop.port]):
                np.maximum(time, free[:, hop.cores], out=time)
                free[:, hop.cores] = time + busy
        time += device.alpha
        state[HOPS] += 1
        self.header[..., hop.slots] = state
        self.link_bytes[hop.port][:, hop.cores] += np.where(hop.tiles, self.nbytes, REQUEST_BYTES)
        counters.messages += self.lines * count
        counters.hops += self.lines * count

    def arrive(self, hop: Hop) -> None:
        """Packets come in from the port's other side, by the ramp of the core that they get to."""
        if len(hop.end_tiles):
            busy = self.busy[hop.end_tiles.astype(int)]
            if busy.any():
                head = self.header[TIME][:, hop.ends]
                head = np.maximum(head, self.ramp_in[:, hop.end_cores]) + busy
                self.ramp_in[:, hop.end_cores] = self.header[TIME][:, hop.ends] = head
            self.block.counters.max_hops = max(self.block.counters.max_hops, 1)

    def _buffer(self, tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bytes of a message, and its headers and tiles as they lie in them."""
        packets, full = len(tiles) * self.lines, int(tiles.sum()) * self.lines
        payload = self.nbytes if self.block.payload else 0
        data = np.empty(packets * 24 + full * payload, np.uint8)
        heads = data[: packets * 24].view(np.float64).reshape(3, self.lines, len(tiles))
        brought = data[packets * 24 :]
        if payload:
            shape = (self.lines, int(tiles.sum()), *self.transfer.tiles.shape[2:])
            brought = brought.view(self.transfer.tiles.dtype).reshape(shape)
        return data, heads, brought

    def send(self, hop: Hop, tag: int, pending: list[Any]) -> None:
        """Give what leaves the block to the neighbour."""
        if not len(hop.out):
            return
        from mpi4py import MPI

        block, to = self.block, self.block.mesh.neighbour(hop.port)
        assert to is not None
        data, heads, brought = self._buffer(hop.out_tiles)
        heads[...] = self.header[..., hop.out]
        if block.payload:
            slots = hop.out[hop.out_tiles]
            owned = self.owned[slots]
            brought[:, owned] = self.own[:, self.owner_at[slots[owned]]]
            brought[:, ~owned] = self.brought[:, slots[~owned]]
        pending.append(block.comm.Isend([data, MPI.BYTE], to, tag))
        block.host.messages += 1
        block.host.packets += heads[0].size
        block.host.bytes += data.nbytes
        block.host.sent_to.add(to)

    def take(self, hop: Hop, tag: int) -> None:
        """Take what comes in from the neighbour."""
        if not len(hop.come):
            return
        from mpi4py import MPI

        block, source = self.block, self.block.mesh.neighbour(OPPOSITE[hop.port])
        assert source is not None
        data, heads, brought = self._buffer(hop.come_tiles)
        block.watch.waiting(source, f"a crossbar's packets going {PORT_NAMES[hop.port]}".encode())
        block.wait(block.comm.Irecv([data, MPI.BYTE], source, tag))
        block.watch.moving()
        self.header[..., hop.come] = heads
        if block.payload:
            self.brought[:, hop.come[hop.come_tiles]] = brought

    def land(self) -> np.ndarray:
        """The cores wait for their tiles, and have them."""
        owners = np.asarray(self.transfer.owners)
        block, moved = self.block, owners != np.arange(self.count)
        columns = block.mesh.width if self.transfer.axis is None else self.count if self.transfer.axis == "x" else 1
        here, place = _place(block, self.transfer.axis, *np.divmod(np.arange(self.count), columns)[::-1])
        slots = np.flatnonzero(moved & here)
        if not len(slots):
            return self.out
        cores = as_index(place[slots])
        header, state = self.header[..., as_index(slots)], self.state[..., cores].copy()
        np.copyto(state, header, where=header[TIME] > state[TIME])
        block.clock.path_changes()
        self.state[..., cores] = state
        if block.payload:
            there, owned = self.view.of(self.out), self.owned[slots]
            there[:, place[slots[owned]]] = self.own[:, self.owner_at[slots[owned]]]
            there[:, place[slots[~owned]]] = self.brought[:, slots[~owned]]
        return self.out
