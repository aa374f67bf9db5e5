"""What one rank does in an exchange along lines (exchange.py): its part of every round, clocks, messages."""

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.clock import HOPS, STAGES, TIME
from meshrt.mesh.exchange.itinerary import Itinerary
from meshrt.mesh.exchange.legs import REQUEST_BYTES, Transfer, hops, ways
from meshrt.mesh.exchange.rounds import Hop, RankRound, position_here, round_here
from meshrt.mesh.mesh import OPPOSITE, PORT_NAMES
from meshrt.mesh.wires import tally
from meshrt.mesh.wires.lines import Positions, View, as_index

if TYPE_CHECKING:
    from meshrt.mesh.block import Block

KEEP = 1 << 21  # hops of an itinerary that is kept for the next time; longer ones are found again


class Porter:
    """A transfer along an axis under way at this rank: headers [3, lines, packets], and tiles from other ranks."""

    def __init__(self, block: "Block", transfer: Transfer, number: int) -> None:
        self.block, self.transfer, self.number, self.name = block, transfer, number, f"crossbar packets {number}"
        mesh, axis, tiles = block.mesh, transfer.axis, transfer.tiles
        assert axis is not None
        self.axis, lines = axis, mesh.block_length("y" if axis == "x" else "x")
        self.view = View(axis, slice(None), lines, mesh.block_length(axis))
        self.lines, self.count = lines, len(transfer.owners)
        self.header = self.view.new((3,), self.count, (), np.float64)
        self.header[...] = 0
        clock = block.clock
        self.state, self.free = self.view.of(clock.state, 1), self.view.of(clock.link_free, 1)
        self.ramp_in, self.ramp_out = self.view.of(clock.ramp_in), self.view.of(clock.ramp_out)
        self.crossed = np.zeros((4, self.view.length), np.int64)  # bytes over the links of any of the lines
        self.entered = np.zeros(self.view.length, np.int64)  # bytes that came to a core of any of them
        self.nbytes = prod(tiles.shape[2:]) * tiles.itemsize
        self.busy = np.array([block.device.busy_cycles(size) for size in (REQUEST_BYTES, self.nbytes)])
        self.timed = bool(self.busy.any())
        self.out = block.memory.keep("tile loaded", tiles.copy() if block.payload else np.ones_like(tiles))
        if block.payload:
            self.own = self.view.of(np.ascontiguousarray(tiles))
            self.brought = np.empty((lines, self.count, *tiles.shape[2:]), tiles.dtype)  # pages that are never touched
            self.owned, self.owner_at = position_here(block, axis, np.asarray(transfer.owners))
        clock.path_changes()
        block.memory.take(self.name, 0)

    def rounds(self, cache: dict[object, Any]) -> Iterator[RankRound]:
        """What is to be done: as kept from an earlier transfer like this one, or found while it is followed."""
        owners = np.asarray(self.transfer.owners)
        key = self.axis, owners.tobytes(), self.transfer.asks
        if key not in cache:
            width, height = (self.count, 1) if self.axis == "x" else (1, self.count)
            legs = ways(width, height, owners, self.transfer.asks)
            turns = (round_here(self.block, self.axis, legs, turn) for turn in Itinerary(width, height, legs))
            if hops(legs) > KEEP:
                return turns
            cache[key] = list(turns)
        return iter(cache[key])

    def depart(self, turn: RankRound, tag: int, pending: list[Any]) -> None:
        """Packets leave the cores of this block."""
        self.reserve(turn)
        for hop in turn.hops:
            self.leave(hop)
            self._give(hop.port, hop.leaving, hop.leaving_tiles, tag, pending)

    def arrive(self, turn: RankRound, tag: int) -> None:
        """Packets get to cores of this block."""
        for hop in turn.hops:
            self._get(hop.port, hop.entering, hop.entering_tiles, tag)
            self.come_in(hop)

    def reserve(self, turn: RankRound) -> None:
        """Core memory for what waits at the fullest core: as much at all of them."""
        needed = turn.peak_tiles * self.nbytes + turn.peak_requests * REQUEST_BYTES
        if needed > self.block.memory.names[self.name]:
            self.block.memory.resize(self.name, needed)

    def leave(self, hop: Hop) -> None:
        """Packets leave the cores of this block by the port; those that are sent on, once software has them."""
        count = len(hop.tiles)
        if not count:
            return
        counters, device = self.block.counters, self.block.device
        cells = [Positions(array, hop.cores) for array in (self.state, self.ramp_out, self.free[hop.port])]
        state, ramp, link = (positions.get() for positions in cells)
        heads = Positions(self.header, hop.slots)
        head = heads.get()  # of those that nobody has touched: zero, and no later than any core
        np.copyto(state, head, where=head[TIME] > state[TIME])
        state[TIME] += device.beta * hop.touched
        state[STAGES] += hop.touched
        time = head[TIME]
        if self.timed:
            np.maximum(state[TIME], ramp, out=time)
            np.maximum(time, link, out=time)
            np.add(time, self.busy[hop.tiles.astype(int)], out=ramp)
            link[...] = ramp
            time += device.alpha
        else:
            np.add(state[TIME], device.alpha, out=time)
        np.add(state[HOPS], 1, out=head[HOPS])
        head[STAGES] = state[STAGES]
        for positions, new in zip((*cells, heads), (state, ramp, link, head), strict=True):
            positions.put(new)
        nbytes = np.where(hop.tiles, self.nbytes, REQUEST_BYTES)
        self.crossed[hop.port, hop.cores] += nbytes
        if self.block.mapped:
            busy = self.busy[hop.tiles.astype(int)]
            tally.handed_on(self.block, self.view, hop.port, hop.cores, busy, nbytes, hop.touched)
        counters.messages += self.lines * count
        counters.hops += self.lines * count
        counters.stages += self.lines * int(np.count_nonzero(hop.touched))

    def come_in(self, hop: Hop) -> None:
        """Packets come in from the port's other side, by the ramp of the core that they get to."""
        if not len(hop.end_tiles):
            return
        self.entered[hop.end_cores] += np.where(hop.end_tiles, self.nbytes, REQUEST_BYTES)
        if self.timed:
            heads, ramps = Positions(self.header[TIME], hop.ends), Positions(self.ramp_in, hop.end_cores)
            head, ramp = heads.get(), ramps.get()
            np.maximum(head, ramp, out=head)
            head += self.busy[hop.end_tiles.astype(int)]
            ramps.put(head)
            heads.put(head)
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

    def _give(self, port: int, leaving: np.ndarray, tiles: np.ndarray, tag: int, pending: list[Any]) -> None:
        """Give what leaves the block, slots of which those have tiles, to the neighbour."""
        if not len(leaving):
            return
        from mpi4py import MPI

        block, to = self.block, self.block.mesh.neighbour(port)
        assert to is not None
        data, heads, brought = self._buffer(tiles)
        heads[...] = self.header[..., leaving]
        if block.payload:
            slots = leaving[tiles]
            owned = self.owned[slots]
            brought[:, owned] = self.own[:, self.owner_at[slots[owned]]]
            brought[:, ~owned] = self.brought[:, slots[~owned]]
        pending.append(block.comm.Isend([data, MPI.BYTE], to, tag))
        block.ring(to)
        block.host.messages += 1
        block.host.packets += heads[0].size
        block.host.bytes += data.nbytes
        block.host.sent_to.add(to)

    def _get(self, port: int, entering: np.ndarray, tiles: np.ndarray, tag: int) -> None:
        """Take what comes in from the neighbour, for slots of which those have tiles."""
        if not len(entering):
            return
        from mpi4py import MPI

        block, source = self.block, self.block.mesh.neighbour(OPPOSITE[port])
        assert source is not None
        data, heads, brought = self._buffer(tiles)
        block.watch.waiting(source, f"a crossbar's packets going {PORT_NAMES[port]}".encode())
        block.wait(block.comm.Irecv([data, MPI.BYTE], source, tag), source, data.nbytes)
        block.watch.moving()
        self.header[..., entering] = heads
        if block.payload:
            self.brought[:, entering[tiles]] = brought

    def land(self) -> np.ndarray:
        """The cores wait for their tiles, and have them."""
        block, readers = self.block, np.arange(self.count)
        self.view.of(block.link_bytes, 1)[...] += self.crossed[:, None]
        self.view.of(block.ramp_bytes, 1)[...] += np.stack([self.crossed.sum(axis=0), self.entered])[:, None]
        inside, position = position_here(block, self.axis, readers)
        slots = np.flatnonzero((np.asarray(self.transfer.owners) != readers) & inside)
        if not len(slots):
            return self.out
        cores = as_index(position[slots])
        header, state = self.header[..., as_index(slots)], self.state[..., cores].copy()
        np.copyto(state, header, where=header[TIME] > state[TIME])
        self.state[..., cores] = state
        if block.payload:
            target, owned = self.view.of(self.out), self.owned[slots]
            target[:, position[slots[owned]]] = self.own[:, self.owner_at[slots[owned]]]
            target[:, position[slots[~owned]]] = self.brought[:, slots[~owned]]
        return self.out
