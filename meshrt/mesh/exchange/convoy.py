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
from meshrt.mesh.wires import tally
from meshrt.mesh.wires.lines import View

if TYPE_CHECKING:
    from meshrt.mesh.block import Block

Seats = tuple[Any, ...]  # where headers are in `heads`, behind its first axis


class Convoy:
    """A transfer between any cores under way at this rank."""

    def __init__(self, block: "Block", transfer: Transfer, number: int) -> None:
        self.block, self.transfer, self.name = block, transfer, f"crossbar packets {number}"
        mesh, tiles, clock = block.mesh, transfer.tiles, block.clock
        self.owners = np.asarray(transfer.owners)
        self.nowhere = block.shape[0] * block.shape[1]
        self.local = np.full(mesh.width * mesh.height + 1, self.nowhere)  # of every core of the mesh in this block
        block_part = self.local[:-1].reshape(mesh.height, mesh.width)[mesh.y0 :, mesh.x0 :][
            : block.shape[0], : block.shape[1]
        ]
        block_part[...] = np.arange(self.nowhere).reshape(block.shape)
        self.whole = self.nowhere == mesh.width * mesh.height
        self.view = View(None, slice(None), 1, self.nowhere)
        self.cells = clock.cells.reshape(-1)
        size = clock.cells.shape[1]
        self.ramp_in = RAMP_IN * size
        rows = np.array([TIME, HOPS, STAGES, RAMP_OUT])
        self.fields = [np.append(rows, LINK_FREE + port)[:, None] * size for port in range(4)]
        self.nbytes = prod(tiles.shape[2:]) * tiles.itemsize
        self.crossed = np.zeros((4, self.nowhere + 1), np.int64)  # bytes over every link; a last one for no core
        self.entered = np.zeros(self.nowhere + 1, np.int64)  # bytes that came to every core
        self._open()
        self.out = block.memory.keep("tile loaded", tiles.copy() if block.payload else np.ones_like(tiles))
        if block.payload:
            shape = (self.nowhere, *tiles.shape[2:])
            self.own = np.ascontiguousarray(tiles).reshape(shape)
            self.brought = np.empty((len(self.owners), *tiles.shape[2:]), tiles.dtype)  # pages that are never touched
        clock.path_changes()
        block.memory.take(self.name, 0)

    def _open(self) -> None:
        """What moves, and by what: nobody is under way."""
        device, mesh = self.block.device, self.block.mesh
        self.legs = ways(mesh.width, mesh.height, self.owners, self.transfer.asks)
        self.busy = np.where(self.legs.tiles, *map(device.busy_cycles, (self.nbytes, REQUEST_BYTES)))
        self.timed = bool(self.busy.any())
        self.each = np.where(self.legs.tiles, self.nbytes, REQUEST_BYTES)  # bytes of a packet on each leg
        self.per_stage = np.array([[device.beta], [0.0], [1.0]])
        self.per_hop = np.array([[device.alpha], [1.0], [0.0]])
        self.waiting = np.zeros((3, len(self.legs.doors)))  # headers of those that wait, by the leg that they wait for
        self.heads = np.zeros((3, 0))  # of those under way, by seat
        self.seat_busy = np.zeros(0)
        self.seat_bytes = np.zeros(0, np.int64)

    def rounds(self, cache: dict[object, Any]) -> Iterator[Any]:
        mesh = self.block.mesh
        return iter(Itinerary(mesh.width, mesh.height, self.legs))

    def depart(self, turn: Round, tag: int, pending: list[Any]) -> None:
        """The packets of a round leave the cores of this block; those that are sent on, once software has them."""
        self._seat(turn)
        self._reserve(turn)
        self.at = turn.before if self.whole else self.local.take(turn.before)
        self.to = turn.after if self.whole else self.local.take(turn.after)
        touched = None
        if len(turn.fresh):
            touched = np.ones(len(self.at), bool)
            touched[turn.fresh] = False
        for port, span in enumerate(turn.spans):
            if span.stop > span.start:
                self._leave(port, span, None if touched is None else touched[span])
        count, new = turn.count, len(turn.fresh)
        if not self.whole:
            count = int(np.count_nonzero(self.at != self.nowhere))
            new = int(np.count_nonzero(self.at.take(turn.fresh) != self.nowhere))
        self._count(count, new)
        if not self.whole:
            for port, span in enumerate(turn.spans):
                seats = span.start + np.flatnonzero((self.at[span] != self.nowhere) & (self.to[span] == self.nowhere))
                self._send(port, (seats,), turn.legs.take(seats), tag, pending)

    def _count(self, count: int, new: int) -> None:
        """So many packets left, of which nobody had touched so many."""
        counters = self.block.counters
        counters.messages += count
        counters.hops += count
        counters.stages += count - new

    def _seat(self, turn: Round) -> None:
        """Packets that begin a leg take their seats."""
        if turn.old_seats is not None:
            self.heads, self.seat_busy, self.seat_bytes = (
                seated_again(seats, turn.old_seats, 0) for seats in (self.heads, self.seat_busy, self.seat_bytes)
            )
        seats, legs = turn.entered
        self.heads[:, seats] = self.waiting.take(legs, axis=1)
        self.seat_busy[seats] = self.busy.take(legs)
        self.seat_bytes[seats] = self.each.take(legs)

    def _reserve(self, turn: Round) -> None:
        """Core memory for what waits at the fullest core: as much at all of them."""
        memory = self.block.memory
        if self._bytes(*turn.bound) > memory.names[self.name]:
            needed = self._bytes(*turn.held())
            if needed > memory.names[self.name]:
                memory.resize(self.name, needed)

    def _bytes(self, tiles: int, requests: int) -> int:
        return tiles * self.nbytes + requests * REQUEST_BYTES

    def _leave(self, port: int, span: slice, touched: np.ndarray | None) -> None:
        at, head = self.at[span], self.heads[:, span]
        self.crossed[port][at] += self.seat_bytes[span]  # one packet at most from each core, but for the empty seats
        if self.block.mapped:
            inside = at != self.nowhere
            sent_on = np.ones(len(at), bool) if touched is None else touched
            busy, nbytes = self.seat_busy[span][inside], self.seat_bytes[span][inside]
            tally.handed_on(self.block, self.view, port, at[inside], busy, nbytes, sent_on[inside])
        at_cells = at + self.fields[port]
        cells = self.cells.take(at_cells)
        state, free = cells[:3], cells[3:]
        np.copyto(state, head, where=head[TIME] > state[TIME])
        state += self.per_stage if touched is None else self.per_stage * touched
        if self.timed:
            time = np.maximum(state[TIME], free[0])
            np.maximum(time, free[1], out=time)
            np.add(time, self.seat_busy[span], out=free)
            self.cells[at_cells] = cells
            state[TIME] = time
        else:
            self.cells[at_cells] = cells
        np.add(state, self.per_hop, out=head)

    def arrive(self, turn: Round, tag: int) -> None:
        """They come in from the other side, by the ramps of the cores that they get to."""
        for port, span in enumerate(turn.spans):
            if span.stop > span.start:
                if not self.whole:
                    at, to = self.at[span], self.to[span]
                    seats = span.start + np.flatnonzero((at == self.nowhere) & (to != self.nowhere))
                    self._take(port, (seats,), turn.legs.take(seats), tag)
                self.entered[self.to[span]] += self.seat_bytes[span]  # one at most to each core by a port
                if self.timed:
                    ramp = self.to[span] + self.ramp_in
                    head = self.heads[TIME, span]
                    np.maximum(head, self.cells.take(ramp), out=head)
                    head += self.seat_busy[span]
                    self.cells[ramp] = head
        seats, legs = turn.ended
        self.waiting[:, legs + 1] = self.heads.take(seats, axis=1)
        if not self.block.counters.max_hops and (self.to != self.nowhere).any():
            self.block.counters.max_hops = 1

    # ------------------------------------------------------------------------------------------------ other ranks

    def _buffer(self, legs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Bytes of a message, and its headers and tiles as they lie in them."""
        full = int(self._bear_tiles(legs).sum()) if self.block.payload else 0
        data = np.empty(len(legs) * 24 + full * self.nbytes, np.uint8)
        heads, brought = data[: len(legs) * 24].view(np.float64).reshape(3, -1), data[len(legs) * 24 :]
        tiles = self.transfer.tiles
        return data, heads, brought.view(tiles.dtype).reshape(full, *tiles.shape[2:])

    def _send(self, port: int, seats: Seats, legs: np.ndarray, tag: int, pending: list[Any]) -> None:
        """Give what leaves the block, on these legs, to the neighbour."""
        block, to = self.block, self.block.mesh.neighbour(port)
        if not len(legs):
            return
        from mpi4py import MPI

        assert to is not None
        data, heads, brought = self._buffer(legs)
        heads[...] = self._headers(seats)
        if block.payload:
            packets = self._with_tiles(seats, legs)
            local = self.local.take(self.owners.take(packets))
            inside = local != self.nowhere
            brought[inside] = self.own[local[inside]]
            brought[~inside] = self.brought[packets[~inside]]
        pending.append(block.comm.Isend([data, MPI.BYTE], to, tag))
        block.ring(to)
        block.host.messages += 1
        block.host.packets += len(legs)
        block.host.bytes += data.nbytes
        block.host.sent_to.add(to)

    def _take(self, port: int, seats: Seats, legs: np.ndarray, tag: int) -> None:
        """Take what comes in from the neighbour, on these legs."""
        block, source = self.block, self.block.mesh.neighbour(OPPOSITE[port])
        if not len(legs):
            return
        from mpi4py import MPI

        assert source is not None
        data, heads, brought = self._buffer(legs)
        block.watch.waiting(source, f"a crossbar's packets going {PORT_NAMES[port]}".encode())
        block.wait(block.comm.Irecv([data, MPI.BYTE], source, tag), source, data.nbytes)
        block.watch.moving()
        self._put_headers(seats, heads)
        if block.payload:
            self.brought[self._with_tiles(seats, legs)] = brought

    def _headers(self, seats: Seats) -> np.ndarray:
        return self.heads[:, *seats]

    def _put_headers(self, seats: Seats, heads: np.ndarray) -> None:
        self.heads[:, *seats] = heads

    def _bear_tiles(self, legs: np.ndarray) -> np.ndarray:
        return self.legs.tiles.take(legs)

    def _with_tiles(self, seats: Seats, legs: np.ndarray) -> np.ndarray:
        """The packets of those that carry their tiles, on these legs."""
        return np.asarray(self.legs.packets.take(legs[self.legs.tiles.take(legs)]))

    # -------------------------------------------------------------------------------------------------- the end

    def land(self) -> np.ndarray:
        """The cores wait for their tiles, and have them."""
        block = self.block
        block.link_bytes[...] += self.crossed[:, :-1].reshape(block.link_bytes.shape)
        block.ramp_bytes[...] += np.stack([self.crossed.sum(axis=0), self.entered])[:, :-1].reshape(2, *block.shape)
        readers = np.flatnonzero((self.owners != np.arange(len(self.owners))) & (self.local[:-1] != self.nowhere))
        if not len(readers):
            return self.out
        local = self.local.take(readers)
        header = self._arrived(readers)
        cells = local + self.fields[0][:3]
        state = self.cells.take(cells)
        np.copyto(state, header, where=header[TIME] > state[TIME])
        self.cells[cells] = state
        if block.payload:
            owner = self.local.take(self.owners.take(readers))
            target, inside = self.out.reshape(self.own.shape), owner != self.nowhere
            target[local[inside]] = self.own[owner[inside]]
            target[local[~inside]] = self.brought[readers[~inside]]
        return self.out

    def _arrived(self, readers: np.ndarray) -> np.ndarray:
        """The headers of the packets for these cores."""
        return self.waiting.take(self.legs.ends.take(readers), axis=1)
