"""Which packets cross which link at which tick: found by scouts, headers that walk the routers' tables once.

A channel's first use sends one scout for each of its routes. Every tick, each router looks up its own table by the
scout's colour and the port it came in by, and passes it on: inside the block as an index, over an edge of the block in
a message to the neighbour that hosts the next router. So every rank learns, from the tables that the packets met and
from its neighbours alone, what will cross its edges and when; later transfers replay that without looking around.

A line pattern looks the same on all lines of a block as long as their tables do, so its scouts walk one line and the
schedule is applied to all of them at once. Where tables differ from line to line, and for paths with turns, the whole
block is one line of bh * bw cores.
"""

from dataclasses import field
from math import prod

import numpy as np

from meshrt.errors import RouteError
from meshrt.mesh.cores import Cores
from meshrt.mesh.device import COLOURS
from meshrt.mesh.mesh import OPPOSITE, PORT_NAMES, RAMP
from meshrt.mesh.wires.routers import AXIS_PORTS, core_at, edge_core, ints, look_up, next_core, own_sources, uniform
from meshrt.mesh.wires.tables import Channel, check_installed
from meshrt.records import dataclass

SHORT, MANY = 8, 256  # ticks, and visits to routers, up to which nobody asks whether scouts go in a loop


@dataclass(eq=False)
class Tick:
    """What happens in one tick at this rank's routers. A slot is a place for one packet's header."""

    branches: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)  # (parents' slots, copies' slots)
    moves: list[tuple[int, np.ndarray, np.ndarray]] = field(default_factory=list)  # (port out, slots, cores)
    sends: list[tuple[int, np.ndarray]] = field(default_factory=list)  # (port out, slots in message order)
    recvs: list[tuple[int, np.ndarray]] = field(default_factory=list)  # (port in, slots in message order)
    deliveries: tuple[np.ndarray, np.ndarray] = field(default_factory=lambda: (ints(), ints()))  # (slots, cores)


@dataclass(eq=False)
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


# ------------------------------------------------------------------------------------------------------- scouting


def scouted(block: Cores, channel: Channel) -> Trace:
    """The channel's trace, kept in its cache until an entry is changed by hand. All ranks call it together.

    RouteError as in `scout`, and where the channel's routes are installed no longer.
    """
    cache, epoch = channel.cache, block.tables.epoch
    check_installed(channel)
    if cache.get("epoch") != epoch:
        cache.clear()
        block.watch.under_way()
        try:
            cache["trace"] = scout(block, channel)
        finally:
            block.watch.landed()
        cache["epoch"] = epoch
    trace: Trace = cache["trace"]
    return trace


def scout(block: Cores, channel: Channel) -> Trace:
    """Walk the tables from every source of the channel. All ranks call it together.

    RouteError at the rank whose router has no rule for a scout, or whose rule leads off the mesh, nowhere, or back to
    where it has been.
    """
    whole_block = block.scouts.total(int(not uniform(block, channel))) > 0
    trace = Trace(whole_block, [Tick()], ints(), ints(), ints(), ints())
    pos, line, core, colour = own_sources(block, channel, whole_block)
    slot = trace.add(pos, line, core, np.full(len(pos), -1))
    flight = np.stack([slot, core, np.full(len(pos), RAMP), colour])  # of every scout under way here
    walked, visits, checked = [flight], 0, MANY
    straight = block.mesh.width + block.mesh.height  # hops that take no more than one turn
    burst = max(1, channel.longest)  # ticks, after which all are there, unless tables were changed by hand
    while True:
        for _ in range(burst):
            visits += flight.shape[1]
            flight = _step(block, channel, trace, flight)
            walked.append(flight)
            if len(walked) <= straight or len(trace.ticks[-2].deliveries[0]):
                block.watch.under_way()
            if visits > checked and len(walked) > SHORT:
                _refuse_loops(block, channel, trace, walked)
                checked = 4 * visits
        # Are scouts still under way anywhere? The one global question at a channel's first use, rarely asked twice; and
        # what is to be known of the whole mesh once they are not.
        under_way = flight.shape[1]
        moving, meeting = block.scouts.totals(under_way, 0 if under_way else _packets_meet(trace))
        if not moving:
            trace.meets = meeting > 0
            break
        burst *= 2
    while len(trace.ticks) > 1 and not (trace.ticks[-1].moves or trace.ticks[-1].recvs):
        trace.ticks.pop()
    return trace


def _packets_meet(trace: Trace) -> bool:
    """Do two packets leave a router here by the same port, if all sources send?"""
    for way in range(4):
        cores = [cores for tick in trace.ticks for port, _, cores in tick.moves if port == way]
        if cores and np.bincount(np.concatenate(cores), minlength=1).max() > 1:
            return True
    return False


def _refuse_loops(block: Cores, channel: Channel, trace: Trace, walked: list[np.ndarray]) -> None:
    """RouteError where scouts of one source have come to a router twice by the same port: in a loop, or by two ways
    that join. Either way what follows would happen once more, and in a loop for ever.
    """
    slot, at, port, colour = walk = np.concatenate(walked, axis=1)
    cores, lines = prod(block.shape), max(block.mesh.width, block.mesh.height)
    key = (((trace.pos[slot] * lines + trace.line[slot]) * COLOURS + colour) * cores + at) * 5 + port
    order = np.argsort(key, kind="stable")
    repeated = order[1:][key[order][1:] == key[order][:-1]]
    if len(repeated):
        _, at, port, colour = walk[:, repeated.min()].tolist()
        raise RouteError(
            f"core {core_at(block, channel, trace.whole_block, at)} gets a packet of colour {colour} from the"
            f" {PORT_NAMES[port]} for the second time: the entries lead it in a loop, or by two ways that join"
        )


def _step(block: Cores, channel: Channel, trace: Trace, flight: np.ndarray) -> np.ndarray:
    """One tick: every scout under way is looked up, then taken out, copied, or moved by one hop.

    Those that leave a router together by one port go in the order of the ports they came in by, then of their colours:
    an order that does not depend on how ranks share the mesh.
    """
    if not flight.shape[1]:  # few ranks have any in most ticks, where each hosts few cores
        tick = Tick()
        trace.ticks.append(tick)
        return np.concatenate([flight, *_exchange(block, channel, trace, {}, tick)], axis=1)
    flight = flight[:, np.lexsort((flight[3], flight[2], flight[1]))]
    slot, at, port, colour = flight
    leaves = look_up(block, channel, trace.whole_block, flight)
    out = (leaves >> RAMP & 1).astype(bool) & (port != RAMP)
    trace.ticks[-1].deliveries = slot[out], at[out]
    tick = Tick()
    trace.ticks.append(tick)
    under_way, outbox = [np.empty((4, 0), np.int64)], {}
    leaving = np.zeros(len(slot), bool)
    for way in range(4):
        go = (leaves >> way & 1).astype(bool)
        if not go.any():
            continue
        moving = slot[go]
        copied = leaving[go]
        if copied.any():
            parent = moving[copied]
            copies = trace.add(trace.pos[parent], trace.line[parent], np.full(len(parent), -1), parent)
            tick.branches.append((parent, copies))
            moving[copied] = copies
        leaving |= go
        tick.moves.append((way, moving, at[go]))
        to, inside, edge = next_core(block, channel, trace.whole_block, way, at[go])
        enters_by = np.full(len(moving), OPPOSITE[way])
        under_way.append(np.stack([moving, to, enters_by, colour[go]])[:, inside])
        over = ~inside
        if over.any():
            if block.mesh.neighbour(way) is None:
                core = core_at(block, channel, trace.whole_block, int(at[go][over][0]))
                raise RouteError(f"core {core} sends colour {colour[go][over][0]} {PORT_NAMES[way]}, off the mesh")
            slots = moving[over]
            tick.sends.append((way, slots))
            outbox[way] = np.stack([edge[over], colour[go][over], trace.pos[slots], trace.line[slots]])
    if not (out | leaving).all():
        lost = int(np.argmin(out | leaving))
        raise RouteError(
            f"core {core_at(block, channel, trace.whole_block, int(at[lost]))} has a rule that leads a packet of colour"
            f" {colour[lost]} from the {PORT_NAMES[port[lost]]} nowhere"
        )
    under_way += _exchange(block, channel, trace, outbox, tick)
    return np.concatenate(under_way, axis=1)


def _exchange(
    block: Cores, channel: Channel, trace: Trace, outbox: dict[int, np.ndarray], tick: Tick
) -> list[np.ndarray]:
    """Give the scouts that leave the block to the neighbours, and take theirs."""
    ways = range(4) if trace.whole_block or channel.axis is None else AXIS_PORTS[channel.axis]
    neighbours = block.mesh.neighbours(ways)
    values = block.scouts.swap(neighbours, [outbox.get(way) for _, way, _ in neighbours])
    arrived = []
    for (_, way, _), packets in zip(neighbours, values, strict=True):
        if packets is None:
            continue
        edge, colour, pos, line = packets
        count = len(pos)
        slots = trace.add(pos, line, np.full(count, -1), np.full(count, -1))
        tick.recvs.append((way, slots))
        at = edge_core(block, channel, trace.whole_block, way, edge)
        arrived.append(np.stack([slots, at, np.full(count, way), colour]))
    return arrived
