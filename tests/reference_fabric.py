"""The reference fabric: what a hop, a link, a ramp, a stage and a delivery are. One router and one packet at a time.

A machine is a dictionary of routers, and cores that each work through a list of operations:

    ("send", flight, colour, nbytes, routers, keep, stream)   a packet leaves by the ramp and walks these tables; its
                                                              deliveries keep a ramp for `keep` cycles
    ("wait", flight)                                          until the core's packet of that flight is in
    ("work", cycles)  ("stage", cycles)                       the core is busy; a stage counts on its path as well
    ("meet", number)                                          all cores go on when the last one is there

What happens next in virtual time happens next: one queue for all. A link belongs to the head that asks for it first; of
those that ask together to that of the flight that was started first, then to the one with fewer hops, the lower port.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Any

from meshrt.mesh.mesh import OPPOSITE, RAMP, STEP

Core = tuple[int, int]
Routers = dict[Core, dict[int, tuple[frozenset[int], frozenset[int]]]]  # core -> colour -> (ports in, ports out)


@dataclass(frozen=True, order=True)
class Packet:
    flight: int
    colour: int
    nbytes: int
    routers: Routers = field(repr=False)
    keep: float  # cycles for which a delivery keeps the ramp
    stream: bool  # the core goes on with the head, not with the tail
    path: tuple[int, int]  # hops and stages that led to its departure
    hops: int = 0


@dataclass
class State:
    """One core: its clock and the path that led there, and what it has still to do."""

    todo: list[tuple[Any, ...]]
    time: float = 0.0
    path: tuple[int, int] = (0, 0)
    ramp_free: float = 0.0  # core to router


@dataclass
class Outcome:
    cores: dict[Core, State]
    arrivals: dict[tuple[int, Core], tuple[float, int, int]] = field(default_factory=dict)  # time, hops, stages
    link_bytes: dict[tuple[Core, int], int] = field(default_factory=lambda: defaultdict(int))
    messages: int = 0
    hops: int = 0
    longest: int = 0
    behind: int = 0  # packets that found a link or a ramp busy


def run(todo: dict[Core, list[tuple[Any, ...]]], alpha: float, width: float | None) -> Outcome:
    """Carry out what every core has to do: clocks, arrivals and counters at the end. KeyError: no rule, or no router.

    RuntimeError where cores wait for ever.
    """
    outcome = Outcome({core: State(list(reversed(todo[core]))) for core in todo})
    free: dict[tuple[Core, int], float] = defaultdict(float)  # when each link is free; a ramp is the link to its core
    queue: list[tuple[float, int, int, int, Core, int, Packet]] = []
    met = dict[int, set[Core]]()

    def ask(time: float, core: Core, port: int, packet: Packet) -> None:
        heappush(queue, (time, packet.flight, packet.hops, port, core, packet.colour, packet))

    def busy(nbytes: int) -> float:
        return 0.0 if width is None else float(-(-nbytes // width))

    def go_on(core: Core) -> None:
        """The core works through its list until it has to wait."""
        state = outcome.cores[core]
        while state.todo:
            operation, *rest = state.todo[-1]
            if operation == "wait":
                if (rest[0], core) not in outcome.arrivals:
                    return
                time, *path = outcome.arrivals[rest[0], core]
                if time > state.time:
                    state.time, state.path = time, (path[0], path[1])
            elif operation == "meet":
                met.setdefault(rest[0], set()).add(core)
                if len(met[rest[0]]) < len(outcome.cores):
                    return
                last = max((core_state.time, *core_state.path) for core_state in outcome.cores.values())
                for other in outcome.cores.values():
                    other.time, other.path = last[0], (last[1], last[2])
                    other.todo.pop()
                for other_core in outcome.cores:
                    go_on(other_core)
                return
            elif operation == "send":
                flight, colour, nbytes, routers, keep, stream = rest
                start = max(state.time, state.ramp_free)
                state.ramp_free = start + busy(nbytes)
                outcome.messages += 1
                ask(start, core, RAMP, Packet(flight, colour, nbytes, routers, keep, stream, state.path))
            else:
                state.time += rest[0]
                if operation == "stage":
                    state.path = state.path[0], state.path[1] + 1
            state.todo.pop()

    for core in todo:
        go_on(core)
    while queue:
        time, _, _, port, core, colour, packet = heappop(queue)
        enters, leaves = packet.routers[core][colour]
        if port not in enters:
            raise KeyError(f"{core} takes colour {colour} not from port {port}")
        for out in sorted(leaves):
            start = max(time, free[core, out])
            outcome.behind += start > time
            if out == RAMP:
                free[core, out] = start + packet.keep
                outcome.longest = max(outcome.longest, packet.hops)
                hops, stages = packet.path
                arrival = start if packet.stream else start + busy(packet.nbytes)
                outcome.arrivals[packet.flight, core] = arrival, hops + packet.hops, stages
                go_on(core)
            else:
                free[core, out] = start + busy(packet.nbytes)
                outcome.hops += 1
                outcome.link_bytes[core, out] += packet.nbytes
                to = core[0] + STEP[out][0], core[1] + STEP[out][1]
                ask(start + alpha, to, OPPOSITE[out], replace(packet, hops=packet.hops + 1))
    if any(state.todo for state in outcome.cores.values()):
        raise RuntimeError("cores wait for what nobody sends")
    return outcome
