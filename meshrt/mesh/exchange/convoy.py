"""What one rank does in an exchange between any cores of the mesh (exchange.py): clocks, counters, messages.

Each packet has a seat for the length of a leg (itinerary.py), so that headers lie in a row and stay there while
packets go straight on. All seats of the mesh are looked at, wherever their packets are: one that is empty, or whose
packet is at another rank's core, stands at the clock's cell for no core.
"""

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.clock import HOPS, LINK_FREE, RAMP_IN, RAMP_OUT, STAGES, TIME
from meshrt.mesh.exchange.itinerary import Itinerary, Round, seated_again
from meshrt.mesh.exchange.legs import REQUEST_BYTES, Transfer, ways
from meshrt.mesh.mesh import OPPOSITE, PORT_NAMES

if TYPE_CHECKING:
    from meshrt.mesh.block import Block


class Convoy:
    """A transfer between any cores under way at this rank."""

    def __init__(self, block: "Block", transfer: Transfer, number: int) -> None:
        self.block, self.transfer, self.name = block, transfer, f"crossbar packets {number}"
        mesh, tiles, clock = block.mesh, transfer.tiles, block.clock
        self.owners = np.asarray(transfer.owners)
        self.legs = ways(mesh.width, mesh.height, self.owners, transfer.asks)
        self.nowhere = block.shape[0] * block.shape[1]
        self.place = np.full(mesh.width * mesh.height + 1, self.nowhere)  # of every core of the mesh in this block
        here = self.place[:-1].reshape(mesh.height, mesh.width)[mesh.y0 :, mesh.x0 :][
            : block.shape[0], : block.shape[1]
        ]
        here[...] = np.arange(self.nowhere).reshape(block.shape)
        self.whole = self.nowhere == mesh.width * mesh.height
        self.cells = clock.cells.reshape(-1)
        size = clock.cells.shape[1]
        self.ramp_in = RAMP_IN * size
        rows = np.array([TIME, HOPS, STAGES, RAMP_OUT])
        self.fields = [np.append(rows, LINK_FREE + port)[:, None] * size for port in range(4)]
        self.nbytes = prod(tiles.shape[2:]) * tiles.itemsize
        self.busy = np.where(self.legs.tiles, *map(block.device.busy_cycles, (self.nbytes, REQUEST_BYTES)))
        self.timed = bool(self.busy.any())
        self.each = np.where(self.legs.tiles, self.nbytes, REQUEST_BYTES)  # bytes of a packet on each leg
        self.crossed = np.zeros((4, self.nowhere + 1), np.int64)  # bytes over every link; a last one for no core
        self.per_stage = np.array([[block.device.beta], [0.0], [1.0]])
        self.per_hop = np.array([[block.device.alpha], [1.0], [0.0]])
        self.waiting = np.zeros((3, len(self.legs.doors)))  # headers of those that wait, by the leg that they wait for
        self.heads = np.zeros((3, 0))  # of those under way, by seat
        self.seat_busy = np.zeros(0)
        self.seat_bytes = np.zeros(0, np.int64)
        self.out = block.memory.keep("tile loaded", tiles.copy() if block.payload else np.ones_like(tiles))
        if block.payload:
            shape = (self.nowhere, *tiles.shape[2:])
            self.own = np.ascontiguousarray(tiles).reshape(shape)
            self.brought = np.empty((len(self.owners), *tiles.shape[2:]), tiles.dtype)  # pages that are never touched
        clock.path_changes()
        block.memory.take(self.name, 0)

    def rounds(self, kept: dict[object, Any]) -> Iterator[Round]:
        mesh = self.block.mesh
        return iter(Itinerary(mesh.width, mesh.height, self.legs))

    def depart(self, one: Round, tag: int, pending: list[Any]) -> None:
        """The packets of a round leave the cores of this block; those that are sent on, once software has them."""
        self._seat(one)
        self._reserve(one)
        self.at = one.before if self.whole else self.place.take(one.before)
        self.to = one.after if self.whole else self.place.take(one.after)
        touched = None
        if len(one.fresh):
            touched = np.ones(len(self.at), bool)
            touched[one.fresh] = False
        for port, lane in enumerate(one.lanes):
            if lane.stop > lane.start:
                self._leave(port, lane, None if touched is None else touched[lane])
        count, new = one.count, len(one.fresh)
        if not self.whole:
            count = int(np.count_nonzero(self.at != self.nowhere))
            new = int(np.count_nonzero(self.at.take(one.fresh) != self.nowhere))
        counters = self.block.counters
        counters.messages += count
        counters.hops += count
        counters.stages += count - new
        if not self.whole:
            for port, lane in enumerate(one.lanes):
                self._send(port, lane, one, tag, pending)

    def _seat(self, one: Round) -> None:
        """Packets that begin a leg take their seats."""
        if one.moved is not None:
            self.heads, self.seat_busy, self.seat_bytes = (
                seated_again(seats, one.moved, 0) for seats in (self.heads, self.seat_busy, self.seat_bytes)
            )
        seats, legs = one.entered
        self.heads[:, seats] = self.waiting.take(legs, axis=1)
        self.seat_busy[seats] = self.busy.take(legs)
        self.seat_bytes[seats] = self.each.take(legs)

    def _reserve(self, one: Round) -> None:
        """Core memory for what waits at the fullest core: as much at all of them."""
        memory = self.block.memory
        if self._bytes(*one.bound) > memory.names[self.name]:
            asked = self._bytes(*one.held())
            if asked > memory.names[self.name]:
                memory.resize(self.name, asked)

    def _bytes(self, tiles: int, requests: int) -> int:
        return tiles * self.nbytes + requests * REQUEST_BYTES

    def _leave(self, port: int, lane: slice, touched: np.ndarray | None) -> None:
        at, head = self.at[lane], self.heads[:, lane]
        self.crossed[port][at] += self.seat_bytes[lane]  # one packet at most from each core, but for the empty seats
        places = at + self.fields[port]
        cells = self.cells.take(places)
        state, free = cells[:3], cells[3:]
        np.copyto(state, head, where=head[TIME] > state[TIME])
        state += self.per_stage if touched is None else self.per_stage * touched
        if self.timed:
            time = np.maximum(state[TIME], free[0])
            np.maximum(time, free[1], out=time)
            np.add(time, self.seat_busy[lane], out=free)
            self.cells[places] = cells
            state[TIME] = time
        else:
            self.cells[places] = cells
        np.add(state, self.per_hop, out=head)

    def arrive(self, one: Round, tag: int) -> None:
        """They come in from the other side, by the ramps of the cores that they get to."""
        for port, lane in enumerate(one.lanes):
            if lane.stop > lane.start:
                if not self.whole:
                    self._take(port, lane, one, tag)
                if self.timed:
                    ramp = self.to[lane] + self.ramp_in
                    head = self.heads[TIME, lane]
                    np.maximum(head, self.cells.take(ramp), out=head)
                    head += self.seat_busy[lane]
                    self.cells[ramp] = head
        seats, legs = one.ended
        self.waiting[:, legs + 1] = self.heads.take(seats, axis=1)
        if not self.block.counters.max_hops and (self.to != self.nowhere).any():
            self.block.counters.max_hops = 1

    # ------------------------------------------------------------------------------------------------ other ranks

    def _buffer(self, legs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bytes of a message, and its headers and tiles as they lie in them."""
        full = int(self.legs.tiles.take(legs).sum()) if self.block.payload else 0
        data = np.empty(len(legs) * 24 + full * self.nbytes, np.uint8)
        heads, brought = data[: len(legs) * 24].view(np.float64).reshape(3, -1), data[len(legs) * 24 :]
        tiles = self.transfer.tiles
        return data, heads, brought.view(tiles.dtype).reshape(full, *tiles.shape[2:])

    def _send(self, port: int, lane: slice, one: Round, tag: int, pending: list[Any]) -> None:
        """Give what leaves the block to the neighbour."""
        block, to = self.block, self.block.mesh.neighbour(port)
        seats = lane.start + np.flatnonzero((self.at[lane] != self.nowhere) & (self.to[lane] == self.nowhere))
        if not len(seats):
            return
        from mpi4py import MPI

        assert to is not None
        legs = one.legs.take(seats)
        data, heads, brought = self._buffer(legs)
        heads[...] = self.heads.take(seats, axis=1)
        if block.payload:
            packets = self.legs.packets.take(legs[self.legs.tiles.take(legs)])
            place = self.place.take(self.owners.take(packets))
            mine = place != self.nowhere
            brought[mine] = self.own[place[mine]]
            brought[~mine] = self.brought[packets[~mine]]
        pending.append(block.comm.Isend([data, MPI.BYTE], to, tag))
        block.host.messages += 1
        block.host.packets += len(seats)
        block.host.bytes += data.nbytes
        block.host.sent_to.add(to)

    def _take(self, port: int, lane: slice, one: Round, tag: int) -> None:
        """Take what comes in from the neighbour."""
        block, source = self.block, self.block.mesh.neighbour(OPPOSITE[port])
        seats = lane.start + np.flatnonzero((self.at[lane] == self.nowhere) & (self.to[lane] != self.nowhere))
        if not len(seats):
            return
        from mpi4py import MPI

        assert source is not None
        legs = one.legs.take(seats)
        data, heads, brought = self._buffer(legs)
        block.watch.waiting(source, f"a crossbar's packets going {PORT_NAMES[port]}".encode())
        block.wait(block.comm.Irecv([data, MPI.BYTE], source, tag))
        block.watch.moving()
        self.heads[:, seats] = heads
        if block.payload:
            self.brought[self.legs.packets.take(legs[self.legs.tiles.take(legs)])] = brought

    # -------------------------------------------------------------------------------------------------- the end

    def land(self) -> np.ndarray:
        """The cores wait for their tiles, and have them."""
        block = self.block
        block.link_bytes[...] += self.crossed[:, :-1].reshape(block.link_bytes.shape)
        readers = np.flatnonzero((self.legs.ends >= 0) & (self.place[:-1] != self.nowhere))
        if not len(readers):
            return self.out
        place = self.place.take(readers)
        header = self.waiting.take(self.legs.ends.take(readers), axis=1)
        places = place + self.fields[0][:3]
        state = self.cells.take(places)
        np.copyto(state, header, where=header[TIME] > state[TIME])
        self.cells[places] = state
        if block.payload:
            owner = self.place.take(self.owners.take(readers))
            there, mine = self.out.reshape(self.own.shape), owner != self.nowhere
            there[place[mine]] = self.own[owner[mine]]
            there[place[~mine]] = self.brought[readers[~mine]]
        return self.out
