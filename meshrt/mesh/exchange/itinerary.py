"""The rounds of an exchange between any cores, hop by hop, before any packet is sent.

In a round a packet goes one core on, and software there sends it on in the next. A core sends one packet by each port:
the one that passes straight through, if there is one, else the one that has waited longest, of those its own. So a line
never queues, and a core that packets turn at holds what its two ports do not take. The map is known to all cores
beforehand, so every rank finds the same rounds without a message.

As nothing stops on a leg, all there is to decide is when each begins: in the first round in which nobody comes through.
That costs little where packets are many and rounds are, too: what is done in a round is done for all that begin or end
a leg, and next to nothing for those that go straight on. A place on a line moves on by a core a round; it is taken from
when a packet enters it until that packet leaves the line.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from meshrt.mesh.exchange.legs import REQUEST, Legs
from meshrt.mesh.mesh import STEP
from meshrt.records import dataclass

TILES = REQUEST - 1  # the part of what is held that counts tiles
LEGS = 4  # of a packet, at most: along x and y, to the owner and back
ROOM = 64  # seats for the packets of a port to begin with


@dataclass(frozen=True, eq=False)
class Round:
    """The hops of one round. Valid until the next is asked for.

    A packet has one seat for the length of a leg; those that leave by a port have the seats spans[port]. `before` and
    `after`: the core y * width + x of each seat, width * height for an empty one. `legs`: the leg of each. `entered`
    and `ended`: (seats, legs) of what begins before the hop, and ends with it. `old_seats`: None, or, if seats were
    given out anew before this round, the old one of each, -1 for none. `fresh`: seats of packets that nobody has
    touched yet. `count`: packets. `bound`: no core holds more tiles of others, nor more requests, after this round;
    `held()`: the most that one really does.
    """

    spans: tuple[slice, ...]
    before: np.ndarray
    after: np.ndarray
    legs: np.ndarray
    entered: tuple[np.ndarray, np.ndarray]
    ended: tuple[np.ndarray, np.ndarray]
    old_seats: np.ndarray | None
    fresh: np.ndarray
    count: int
    bound: tuple[int, int]
    held: Callable[[], tuple[int, int]]


class Itinerary:
    """Who waits, and who is under way, round after round."""

    def __init__(self, width: int, height: int, legs: Legs) -> None:
        self.legs, self.nobody = legs, width * height
        count, doors = len(legs.doors), 4 * self.nobody
        self.start = np.full(count, -1)  # round in which each leg begins
        self.came = np.full(count, -2)  # round in which the packet got to where it begins; -2 for its first
        # Who waits at a door: next[count + door] is the first leg, next[leg] the one after it, -1 for none.
        self.next = np.full(count + doors, -1)
        self.last = np.arange(count, count + doors)
        self.open = np.empty(0, np.int64)  # doors at which somebody waits, rising
        self.slots, self.period = _slots(width, height)
        self.taken = np.zeros(4 * self.period * (width + height), np.int64)  # until which round each place is taken
        self.steps = np.array([x + y * width for x, y in STEP])
        self.ports = np.arange(5) * self.nobody  # the first door of each port
        self.low, self.room, self.fill = ([0] * 4 for _ in range(3))  # first seat, seats, seats given out, by port
        self.alive = 0  # packets on seats
        # Of each seat: core, from there to the next, the first round after the leg, leg, what it is to who holds it.
        self.cores = self.ahead = self.stop = self.leg = self.mass = np.empty(0, np.int64)
        self.holds = np.zeros(self.nobody + 1, np.int64)  # what every core holds
        self.most = (0, 0)
        self.now = 0

    def __iter__(self) -> Iterator[Round]:
        first = np.flatnonzero(self.legs.first)
        door = self.legs.doors[first]
        order = np.argsort(door, kind="stable")
        self._queue(first[order], door[order])
        while len(self.open) or self.alive:
            entered, old_seats = self._enter()
            before, after = self.cores, self.cores + self.ahead
            seats = (self.stop == self.now + 1).nonzero()[0]
            ended = seats, self.leg.take(seats)
            self._hold(before, after, entered, ended)
            fresh = entered[0][self.legs.first.take(entered[1])]
            spans = tuple(slice(low, low + fill) for low, fill in zip(self.low, self.fill, strict=True))
            yield Round(
                spans, before, after, self.leg, entered, ended, old_seats, fresh, self.alive, self.most, self.held
            )
            self.cores = after
            self.alive -= len(seats)
            self._leave(*ended)
            self.now += 1

    # ------------------------------------------------------------------------------------------------------ queues

    def _enter(self) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray | None]:
        """The legs that begin now take their seats: (seats, legs), and where the seats were before if they moved."""
        legs, now, count = self.legs, self.now, len(self.legs.doors)
        slot = self.slots.take(self.open) - now % self.period
        free = self.taken.take(slot) <= now
        at = free.nonzero()[0]
        doors, slot = self.open.take(at), slot.take(at)
        queues = doors + count
        first_legs = self.next.take(queues)
        next_legs = self.next.take(first_legs)
        self.next[queues] = next_legs
        empty = next_legs < 0
        self.last[doors[empty]] = queues[empty]
        free[at[~empty]] = False
        self.open = self.open[~free]
        self.start[first_legs] = now
        stop = legs.lengths.take(first_legs) + now
        self.taken[slot] = self.taken[slot ^ self.period] = stop
        return self._seat(first_legs, doors, stop)

    def _queue(self, legs: np.ndarray, doors: np.ndarray) -> None:
        """Legs, in the order in which they go, queue at doors, which rise."""
        repeated = doors[1:] == doors[:-1]
        head, tail = legs, legs
        if repeated.any():
            self.next[legs[:-1][repeated]] = legs[1:][repeated]
            fore = np.concatenate([[True], ~repeated])
            head, tail, doors = legs[fore], legs[np.concatenate([~repeated, [True]])], doors[fore]
        behind = self.last.take(doors)
        self.next[behind] = head
        self.last[doors] = tail
        self.open = np.concatenate([self.open, doors[behind >= len(self.legs.doors)]])
        self.open.sort()

    def _leave(self, seats: np.ndarray, legs: np.ndarray) -> None:
        """The packets on these seats are at the ends of their legs: they queue for the next."""
        self.cores[seats], self.ahead[seats] = self.nobody, 0
        more = legs + 1
        doors = self.legs.doors.take(more)
        on_way = doors >= 0
        more, doors = more[on_way], doors[on_way]
        if len(more):
            self.came[more] = self.now
            order = doors.argsort()
            more, doors = more.take(order), doors.take(order)
            if (doors[1:] == doors[:-1]).any():
                order = np.lexsort([*self._since(more), doors])
                more, doors = more.take(order), doors.take(order)
            self._queue(more, doors)

    def _since(self, legs: np.ndarray) -> list[np.ndarray]:
        """Keys by which packets that got to a core together queue there, the last one first.

        Those that have been where they are for longest come first. Of two that moved in the same round that is the one
        that came first before it did: the one that began to move later, and of such two the one that had stood longer.
        """
        keys = []
        at = legs - 1
        for _ in range(LEGS):
            for _ in range(LEGS):  # back to the leg that began after a wait, as all first ones did
                at = np.where(self.came.take(at) == self.start.take(at) - 1, at - 1, at)
            keys += [-self.start.take(at), self.came.take(at)]
            at = np.where(self.legs.first.take(at), at, at - 1)
        return [self.legs.packets.take(legs), *keys[::-1]]

    # ------------------------------------------------------------------------------------------------------- seats

    def _seat(
        self, legs: np.ndarray, doors: np.ndarray, stop: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray | None]:
        """Give legs that begin at these doors, which rise, seats."""
        cuts = doors.searchsorted(self.ports).tolist()
        number = [high - low for low, high in pairwise(cuts)]
        old_seats = None
        full = any(fill + more > room for fill, more, room in zip(self.fill, number, self.room, strict=True))
        if full or sum(self.fill) > 2 * self.alive + 4 * ROOM:
            old_seats = self._make_room(number)
        first = [low + fill - cut for low, fill, cut in zip(self.low, self.fill, cuts[:4], strict=True)]
        seats = np.arange(len(legs)) + np.array(first).repeat(number)
        self.fill = [fill + more for fill, more in zip(self.fill, number, strict=True)]
        self.alive += len(legs)
        self.leg[seats], self.stop[seats] = legs, stop
        self.mass[seats] = self.legs.passes.take(legs)
        self.ahead[seats] = self.steps.repeat(number)
        self.cores[seats] = doors - self.ports[:4].repeat(number)
        return (seats, legs), old_seats

    def _make_room(self, number: list[int]) -> np.ndarray:
        """New seats for all, without gaps, and room for as many again; the old seat of each, -1 for none."""
        seats_by_port = [
            low + np.flatnonzero(self.cores[low : low + fill] != self.nobody)
            for low, fill in zip(self.low, self.fill, strict=True)
        ]
        self.fill = [len(port_seats) for port_seats in seats_by_port]
        self.room = [fill + fill // 2 + more + ROOM for fill, more in zip(self.fill, number, strict=True)]
        self.low = [sum(self.room[:port]) for port in range(4)]
        old = np.full(sum(self.room), -1)
        for port_seats, low in zip(seats_by_port, self.low, strict=True):
            old[low : low + len(port_seats)] = port_seats
        self.cores, self.ahead, self.stop, self.leg, self.mass = (
            seated_again(seats, old, empty)
            for seats, empty in (
                (self.cores, self.nobody), (self.ahead, 0), (self.stop, -1), (self.leg, 0), (self.mass, 0)
            )
        )  # fmt: skip
        return old

    # -------------------------------------------------------------------------------------------------- what is held

    def _hold(
        self, before: np.ndarray, after: np.ndarray, entered: tuple[np.ndarray, np.ndarray],
        ended: tuple[np.ndarray, np.ndarray],
    ) -> None:  # fmt: skip
        """Enter what moves at the cores that hold it."""
        legs, holds = self.legs, self.holds
        np.add.at(holds, before.take(entered[0]), legs.begins.take(entered[1]))
        np.subtract.at(holds, before, self.mass)
        np.add.at(holds, after, self.mass)
        np.add.at(holds, after.take(ended[0]), legs.stops.take(ended[1]))
        held = holds.take(after)
        tiles, requests = self.most
        self.most = max(tiles, int((held & TILES).max())), max(requests, int(held.max()) // REQUEST)

    def held(self) -> tuple[int, int]:
        """The most tiles of others, and the most requests, that one core holds after this round."""
        self.most = int((self.holds & TILES).max()), int(self.holds.max()) // REQUEST
        return self.most


def seated_again(seats: np.ndarray, old: np.ndarray, empty: float) -> np.ndarray:
    """What belongs to seats [.., old seats] after they were given out anew; `old` as Round.old_seats."""
    filled = old >= 0
    seated = np.full((*seats.shape[:-1], len(old)), empty, seats.dtype)
    seated[..., filled] = seats[..., old[filled]]
    return seated


def _slots(width: int, height: int) -> tuple[np.ndarray, int]:
    """For every door a place in a list, P long each, of the places that move along its line; and P, a power of two.

    The place that passes a door in round t has the number slot - t % P, and also that number with bit P turned over.
    """
    period = 1 << (max(width, height) - 1).bit_length()
    y, x = np.divmod(np.arange(width * height), width)
    lines = (x, 2 * width + y, width + x, 2 * width + height + y)  # north, east, south, west
    along = (height - 1 - y, x, y, width - 1 - x)
    return np.concatenate([2 * period * line + period + at for line, at in zip(lines, along, strict=True)]), period
