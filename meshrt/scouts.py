"""Which packets cross which link at which tick: found by scouts, headers that walk the routers' tables once.

A channel's first use sends one scout for each of its routes. Every tick, each router looks up its own table by the
scout's colour and the port it came in by, and passes it on: inside the block as an index, over an edge of the block in
a message to the neighbour that hosts the next router. So every rank learns, from the tables that the packets met and
from its neighbours alone, what will cross its edges and when; later transfers replay that without looking around.

A line pattern looks the same on all lines of a block as long as their tables do, so its scouts walk one line and the
schedule is applied to all of them at once. Where tables differ from line to line, and for paths with turns, the whole
block is one line of bh * bw cores.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from meshrt.errors import RouteError
from meshrt.mesh import EAST, NORTH, OPPOSITE, PORT_NAMES, RAMP, SOUTH, STEP, WEST
from meshrt.routes import ports
from meshrt.tables import Channel

if TYPE_CHECKING:
    from meshrt.block import Block

AXIS_PORTS = {"x": (EAST, WEST), "y": (NORTH, SOUTH)}


@dataclass
class Tick:
    """What happens in one tick at this rank's routers. A slot is a place for one packet's header."""

    branches: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # (parents' slots, copies' slots)
    moves: list[tuple[int, np.ndarray, np.ndarray]] = field(default_factory=list)  # (port out, slots, cores)
    sends: list[tuple[int, np.ndarray]] = field(default_factory=list)  # (port out, slots in message order)
    recvs: list[tuple[int, np.ndarray]] = field(default_factory=list)  # (port in, slots in message order)
    deliveries: tuple[np.ndarray, np.ndarray] = field(default_factory=lambda: (ints(), ints()))  # (slots, cores)


@dataclass
class Trace:
    """What the scouts of a channel saw at this rank: the ticks, and for every slot where its packet is from.

    `pos` and `line` place the source on the mesh; `core` is the source's core here, or -1 where the packet came in by
    a message; `parent` is the slot that a branch was copied from, or -1.
    """

    whole_block: bool
    ticks: list[Tick]
    pos: np.ndarray
    line: np.ndarray
    core: np.ndarray
    parent: np.ndarray
    meets: bool = False  # somewhere on the mesh two packets leave a router by the same port, if all sources send

    def add(self, pos: np.ndarray, line: np.ndarray, core: np.ndarray, parent: np.ndarray) -> np.ndarray:
        """New slots; returns their numbers."""
        first = len(self.pos)
        self.pos, self.line = np.append(self.pos, pos), np.append(self.line, line)
        self.core, self.parent = np.append(self.core, core), np.append(self.parent, parent)
        return np.arange(first, len(self.pos))


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


# ------------------------------------------------------------------------------------------------------- scouting


def scout(block: "Block", channel: Channel) -> Trace:
    """Walk the tables from every source of the channel. All ranks call it together.

    RouteError at the rank whose router has no rule for a scout, or whose rule leads off the mesh.
    """
    whole_block = block.scouts.total(int(not _uniform(block, channel))) > 0
    trace = Trace(whole_block, [Tick()], ints(), ints(), ints(), ints())
    pos, line, core, colour = _own_sources(block, channel, whole_block)
    slot = trace.add(pos, line, core, np.full(len(pos), -1))
    flight = np.stack([slot, core, np.full(len(pos), RAMP), colour])  # of every scout under way here
    burst = 4
    while True:
        for _ in range(burst):
            flight = _step(block, channel, trace, flight)
        # Are scouts still under way anywhere? The one global question, asked a few times at a channel's first use.
        if not block.scouts.total(flight.shape[1]):
            break
        burst *= 2
    while len(trace.ticks) > 1 and not (trace.ticks[-1].moves or trace.ticks[-1].recvs):
        trace.ticks.pop()
    return trace


def _step(block: "Block", channel: Channel, trace: Trace, flight: np.ndarray) -> np.ndarray:
    """One tick: every scout under way is looked up, then taken out, copied, or moved by one hop.

    Those that leave a router together by one port go in the order of the ports they came in by, then of their colours:
    an order that does not depend on how ranks share the mesh.
    """
    flight = flight[:, np.lexsort((flight[3], flight[2], flight[1]))]
    slot, at, port, colour = flight
    leaves = _look_up(block, channel, trace.whole_block, flight)
    out = (leaves >> RAMP & 1).astype(bool) & (port != RAMP)
    trace.ticks[-1].deliveries = slot[out], at[out]
    tick = Tick()
    trace.ticks.append(tick)
    under_way, outbox = [np.empty((4, 0), np.int64)], {}
    left = np.zeros(len(slot), bool)
    for way in range(4):
        go = (leaves >> way & 1).astype(bool)
        if not go.any():
            continue
        moving = slot[go]
        again = left[go]
        if again.any():
            parent = moving[again]
            copies = trace.add(trace.pos[parent], trace.line[parent], np.full(len(parent), -1), parent)
            tick.branches.append((parent, copies))
            moving[again] = copies
        left |= go
        tick.moves.append((way, moving, at[go]))
        to, inside, edge = _next_core(block, channel, trace.whole_block, way, at[go])
        came = np.full(len(moving), OPPOSITE[way])
        under_way.append(np.stack([moving, to, came, colour[go]])[:, inside])
        over = ~inside
        if over.any():
            if block.mesh.neighbour(way) is None:
                core = core_at(block, channel, trace.whole_block, int(at[go][over][0]))
                raise RouteError(f"core {core} sends colour {colour[go][over][0]} {PORT_NAMES[way]}, off the mesh")
            slots = moving[over]
            tick.sends.append((way, slots))
            outbox[way] = np.stack([edge[over], colour[go][over], trace.pos[slots], trace.line[slots]])
    under_way += _exchange(block, channel, trace, outbox, tick)
    return np.concatenate(under_way, axis=1)


def _exchange(
    block: "Block", channel: Channel, trace: Trace, outbox: dict[int, np.ndarray], tick: Tick
) -> list[np.ndarray]:
    """Give the scouts that leave the block to the neighbours, and take theirs."""
    ways = range(4) if trace.whole_block or channel.axis is None else AXIS_PORTS[channel.axis]
    neighbours = [(way, rank) for way in ways if (rank := block.mesh.neighbour(way)) is not None]
    requests = [block.scouts.isend(outbox.get(way), rank, way) for way, rank in neighbours]
    arrived = []
    for way, rank in neighbours:
        packets = block.scouts.recv(rank, OPPOSITE[way])
        if packets is None:
            continue
        edge, colour, pos, line = packets
        count = len(pos)
        slots = trace.add(pos, line, np.full(count, -1), np.full(count, -1))
        tick.recvs.append((way, slots))
        at = _edge_core(block, channel, trace.whole_block, way, edge)
        arrived.append(np.stack([slots, at, np.full(count, way), colour]))
    for request in requests:
        request.wait()
    return arrived


def line_indices(block: "Block", channel: Channel) -> np.ndarray:
    """The lines of this block, from 0, that the channel is installed on."""
    if channel.axis is None:
        return ints(0)
    across = "y" if channel.axis == "x" else "x"
    low, count = block.mesh.offset(across), block.mesh.block_length(across)
    return np.arange(count) if channel.lines is None else np.flatnonzero(channel.lines[low : low + count])


def _tables(block: "Block", channel: Channel, whole_block: bool) -> tuple[np.ndarray, np.ndarray]:
    """enters and leaves as [colours, positions]: those of the first line, or of all cores of the block."""
    enters, leaves = block.tables.enters, block.tables.leaves
    if whole_block or channel.axis is None:
        return enters.reshape(len(enters), -1), leaves.reshape(len(leaves), -1)
    first = line_indices(block, channel)[:1]
    if channel.axis == "x":
        return enters[:, first].reshape(len(enters), -1), leaves[:, first].reshape(len(leaves), -1)
    return enters[:, :, first].reshape(len(enters), -1), leaves[:, :, first].reshape(len(leaves), -1)


def _uniform(block: "Block", channel: Channel) -> bool:
    """Do all lines of the block have the same entries for the channel's colours, along the axis only?"""
    if channel.axis is None:
        return False
    colours = sorted(set(channel.colours.tolist()))  # np.unique would import numpy.ma, 10 ms on every rank
    along = sum(1 << port for port in (*AXIS_PORTS[channel.axis], RAMP))
    for table in (block.tables.enters, block.tables.leaves):
        part = table[colours].swapaxes(1, 2) if channel.axis == "y" else table[colours]
        part = part[:, line_indices(block, channel)]
        if (part != part[:, :1]).any() or (part & ~np.uint8(along)).any():
            return False
    return True


def _own_sources(block: "Block", channel: Channel, whole_block: bool) -> tuple[np.ndarray, ...]:
    """(position, line, core in the block, colour) of the channel's sources that this rank hosts."""
    mesh = block.mesh
    if channel.axis is None:
        y, x = np.divmod(channel.sources.astype(np.int64), mesh.width)
        x, y = x - mesh.x0, y - mesh.y0
        own = (x >= 0) & (x < mesh.block_width) & (y >= 0) & (y < mesh.block_height)
        core = y * mesh.block_width + x
        line = np.zeros(len(core), np.int64)
        return channel.sources[own].astype(np.int64), line[own], core[own], channel.colours[own].astype(np.int64)
    at = channel.sources.astype(np.int64) - mesh.offset(channel.axis)
    own = (at >= 0) & (at < mesh.block_length(channel.axis))
    pos, at, colour = channel.sources[own].astype(np.int64), at[own], channel.colours[own].astype(np.int64)
    lines = line_indices(block, channel)
    if not whole_block:
        count = len(pos) if len(lines) else 0
        return pos[:count], np.zeros(count, np.int64), at[:count], colour[:count]
    pos, at, colour = (np.tile(part, len(lines)) for part in (pos, at, colour))
    line = np.repeat(lines, own.sum())
    core = line * mesh.block_width + at if channel.axis == "x" else at * mesh.block_width + line
    return pos, line + mesh.offset("y" if channel.axis == "x" else "x"), core, colour


def _look_up(block: "Block", channel: Channel, whole_block: bool, flight: np.ndarray) -> np.ndarray:
    """The ports that each scout leaves by, from the table of the router it is at."""
    _, at, port, colour = flight
    enters, leaves = _tables(block, channel, whole_block)
    known = (enters[colour, at] >> port.astype(np.uint8) & 1).astype(bool)
    if not known.all():
        lost = int(np.flatnonzero(~known)[0])
        rule = int(enters[colour[lost], at[lost]])
        raise RouteError(
            f"core {core_at(block, channel, whole_block, int(at[lost]))} has no rule for a packet of colour"
            f" {colour[lost]} from the {PORT_NAMES[port[lost]]}"
            + (f"; its rule takes that colour from {ports(rule)} only" if rule else "; its table lacks that colour")
        )
    return np.asarray(leaves[colour, at])


def _next_core(
    block: "Block", channel: Channel, whole_block: bool, way: int, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(core after a hop, is it inside the block, place along the edge that is crossed where it is not)."""
    mesh = block.mesh
    if not whole_block and channel.axis is not None:
        to = at + sum(STEP[way])
        return to, (to >= 0) & (to < mesh.block_length(channel.axis)), np.zeros(len(at), np.int64)
    y, x = np.divmod(at, mesh.block_width)
    edge = y if way in (EAST, WEST) else x
    x, y = x + STEP[way][0], y + STEP[way][1]
    inside = (x >= 0) & (x < mesh.block_width) & (y >= 0) & (y < mesh.block_height)
    return y * mesh.block_width + x, inside, edge


def _edge_core(block: "Block", channel: Channel, whole_block: bool, port: int, edge: np.ndarray) -> np.ndarray:
    """The cores behind that edge of the block at which packets come in."""
    width, height = block.mesh.block_width, block.mesh.block_height
    if not whole_block and channel.axis is not None:
        last = block.mesh.block_length(channel.axis) - 1
        return np.full(len(edge), last if port in (EAST, SOUTH) else 0)
    if port in (EAST, WEST):
        return np.asarray(edge * width + (width - 1 if port == EAST else 0))
    return np.asarray(edge + (width * (height - 1) if port == SOUTH else 0))


def core_at(block: "Block", channel: Channel, whole_block: bool, at: int) -> tuple[int, int]:
    """(x, y) on the mesh of a core of a trace."""
    mesh = block.mesh
    if whole_block or channel.axis is None:
        y, x = divmod(at, mesh.block_width)
    else:
        line = int(line_indices(block, channel)[0])
        x, y = (at, line) if channel.axis == "x" else (line, at)
    return mesh.x0 + x, mesh.y0 + y
