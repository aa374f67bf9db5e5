"""A program's cores shared out to ranks, a block of the rectangle each.

What a core does is known at another a wavelet's hops later (room.py). So all ranks run what happens within a little
less than a hop from the first event of all, then meet and tell each other which wavelets have crossed an edge and what
room there is at cores to which others send; and so on. An event's place among those of the same time is made of its
core, of who caused it and of how many that one had caused, so the order at each core, and every number, is the same for
any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshrt.csl.costs import COSTS
from meshrt.csl.errors import NoRoute
from meshrt.csl.machine.filters import Counter
from meshrt.csl.machine.router import RAMP

STEP = 0.999 * COSTS.hop  # less than a hop, whatever is lost in sums of times
NEVER = float("inf")


@dataclass(frozen=True, slots=True, eq=False)
class Far:
    """A core of another rank."""

    number: int
    x: int
    y: int
    rank: int
    post: Callable[[int, tuple[Any, ...], float], None]

    def deliver(self, color: int, train: Any, by: Any) -> None:
        by.sequence += 1
        self.post(self.rank, ("train", self.number, color, by.number, by.sequence, train), train.head)


class WaferBlock:
    """What this rank has of the rectangle, and what it has to say to the others."""

    def __init__(self, comm: Any, size: tuple[int, int], whole: bool):
        self.comm = comm
        self.across, self.down = (1, 1) if whole else shape(size, comm.size)
        self.apart = not whole  # else rank 0 has all cores, and nobody has to be met on the way
        self.size = size
        self.said: list[list[tuple[Any, ...]]] = [[] for _ in range(comm.size)]
        self.soonest = NEVER
        self.readers: dict[tuple[int, int], list[int]] = {}  # core, colour -> ranks with cores that send there

    def owner(self, x: int, y: int) -> int:
        width, height = self.size
        return x * self.across // width + self.across * (y * self.down // height)

    def post(self, rank: int, message: tuple[Any, ...], time: float) -> None:
        """To be said when ranks meet; something may happen there from that time on."""
        self.said[rank].append(message)
        self.soonest = min(self.soonest, time)

    def exchange(self, next_time: float, gives_up: int, said: Any) -> tuple[Any, ...]:
        """Up to when to go on (below 0: a rank gives up; NEVER: nothing happens any more); what each rank has said."""
        heard = self.comm.alltoall([(next_time, gives_up, messages) for messages in said])
        until = -1.0 if any(from_rank[1] for from_rank in heard) else min(from_rank[0] for from_rank in heard) + STEP
        return (until, *(from_rank[2] for from_rank in heard))

    def meet(self, wafer: Any) -> float:
        """As the wafer in Python does."""
        next_time = min([self.soonest, *(event[0] for event in wafer.heap[:1])])
        said, self.said, self.soonest = self.said, [[] for _ in self.said], NEVER
        until, *heard = self.exchange(next_time, 0, said)
        for message in (each for part in heard for each in part):
            if message[0] == "train":
                wafer.arrives(*message[1:])
            else:
                wafer.hears(*message[1:])
        return float(until)

    def agree(self, holds: bool) -> bool:
        """Does it hold on all ranks?"""
        return all(self.comm.allgather(bool(holds)))

    def find_readers(self, wafer: Any) -> None:
        """Which ranks send to which cores, by the routers' entries."""
        readers: dict[tuple[int, int], set[int]] = {}
        for (x, y, color), entry in wafer.routes.items():
            if (x, y) not in wafer.coded or RAMP not in entry.rx:
                continue
            try:
                path = wafer.path(x, y, color)
            except NoRoute:
                continue  # said if it is used
            rank = self.owner(x, y)
            for end, _, end_color in path.cores:
                if self.owner(end.x, end.y) != rank:
                    readers.setdefault((end.number, end_color), set()).add(rank)
        self.readers = {key: sorted(readers[key]) for key in sorted(readers)}


def shape(size: tuple[int, int], ranks: int) -> tuple[int, int]:
    """Blocks across and down, with the fewest links between them."""
    width, height = size
    ways = [(across, ranks // across) for across in range(1, ranks + 1) if ranks % across == 0]
    return min(ways, key=lambda way: (max(0, way[0] - width) + max(0, way[1] - height),
                                      (way[0] - 1) * height + (way[1] - 1) * width))  # fmt: skip


def turns(wafer: Any) -> bool:
    """Does a router change in the run? That is at once so for all cores: such a program is one rank's."""
    images = {id(image): image for image in wafer.program.tiles.values()}.values()
    return any(image.teardown or image.turns for image in images) or any(
        len(entry.positions) > 1 or entry.changes or entry.torn or entry.exact or isinstance(entry.filter, Counter)
        for entry in wafer.routes.values()
    )
