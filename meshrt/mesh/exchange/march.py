"""The rounds of an exchange in the compiled core (march.c): who waits and who is under way, and what time it takes.

itinerary.py, convoy.py and porter.py define them. Arrays are as narrow as what they hold, made once for an exchange,
and gone through from front to back in each round.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meshrt.mesh.exchange.legs import REQUEST_BYTES, Legs
from meshrt.mesh.mesh import STEP
from meshrt.mesh.wires import tally
from meshrt.mesh.wires.lines import View

if TYPE_CHECKING:
    from meshrt.mesh.block import Block

PORTS, HEADER, STRETCH = len(STEP), 3, 6
ROUNDS, MOVE = 16, 4  # of bands.c: rounds at once, at most; numbers of a move
ASKS, TOUCHED = 1, 2  # bits of a packet's kind: it bears no tile, software had it before
BY_LEG = ("doors", "lengths", "packets", "first", "tiles", "start", "came", "next")
SEATS = ("core", "leg", "stop", "kind", "heads")
STEPS = ("line_step", "core_step", "head_row", "head_line", "slot_step")
NUMBERS = (
    *("width", "cores", "legs", *BY_LEG, "fore", "last", "open", "some", "tiles held", "requests held"),
    *(f"{name} {turn}" for turn in (0, 1) for name in SEATS),
    *("from", "ended", "leaving", "coming", "local", "from lines", "to lines"),
    *("cells", "row", "waiting", "heads", "lines", *STEPS),
    *("stretches", "leaves", "comes", "leaves at", "comes at", "crossed", "entered", "links"),
)
Places = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
TABLE = np.dtype(  # March in march.c: whole numbers, and the addresses of arrays
    [(name, np.int64) for name in NUMBERS]
    + [("nbytes", np.int64, 2), ("timed", np.int64), ("busy", np.float64, 2), ("alpha", np.float64)]
    + [("beta", np.float64), ("now", np.int64), ("most", np.int64, 2)]
    + [(name, np.int64, PORTS) for name in ("fill", "over", "into")]
)


class March:
    """What `Itinerary` and `Round` are without the compiled core, and the clocks of the block.

    Packets that leave by a port have the seats port * cores and on, in the order of their cores.
    """

    def __init__(self, core: Any, width: int, height: int, legs: Legs) -> None:
        self.core, self.legs, self.cores = core, legs, width * height
        count, doors = len(legs.doors), PORTS * self.cores
        words = -(-doors // 64)
        self.seats: dict[str, np.ndarray] = {
            **{name: np.empty((2, doors), np.int32) for name in ("core", "leg", "stop")},
            "kind": np.empty((2, doors), np.uint8),
            "heads": np.empty((2, HEADER, doors)),
        }
        self.held_by = np.zeros((2, self.cores), np.int32)  # tiles of others, requests
        self.crossing = {way: np.empty(doors, np.int32) for way in ("leaving", "coming")}  # seats of such packets
        self.table = np.zeros((), TABLE)
        self.arrays: dict[str, np.ndarray] = {}  # that the table has the addresses of
        self.put(width=width, cores=self.cores, legs=count)
        self.put(**{name: getattr(legs, name).astype(np.int32) for name in ("doors", "lengths", "packets")})
        self.put(first=legs.first, tiles=legs.tiles, next=np.empty(count, np.int32))
        self.put(start=np.full(count, -1, np.int32), came=np.full(count, -2, np.int32))
        self.put(fore=np.full(doors, -1, np.int32), last=np.full(doors, -1, np.int32))
        self.put(open=np.zeros(words, np.uint64), some=np.zeros(-(-words // 64), np.uint64))
        self.put(**{"tiles held": self.held_by[0], "requests held": self.held_by[1]}, **self.crossing)
        self.put(**{f"{name} {turn}": of_both[turn] for name, of_both in self.seats.items() for turn in (0, 1)})
        self.put(**{"from": np.empty(doors, np.int32)}, ended=np.empty((doors, 2), np.int32))
        self.address = core.address(self.table)
        self.bound = 0, 0  # no core holds more tiles of others, nor more requests, after this round
        core.line_up(self.address)

    def put(self, **numbers: Any) -> None:
        """Numbers of the table, or arrays of which it has the addresses."""
        for name, number in numbers.items():
            if isinstance(number, np.ndarray):
                self.arrays[name], number = number, self.core.address(number)
            self.table[name] = number

    def carry(self, block: "Block", nbytes: int, row: int, **arrays: np.ndarray) -> None:
        """What moves are packets of the block, whose tiles have so many bytes; between the rows of cells lie `row`.

        `arrays`: local, cells, crossed, entered, waiting or heads; see march.h.
        """
        sizes = nbytes, REQUEST_BYTES
        busy = [block.device.busy_cycles(size) for size in sizes]
        self.put(**arrays, row=row, links=arrays["crossed"].shape[1], nbytes=sizes)
        self.put(busy=busy, timed=any(busy), alpha=block.device.alpha, beta=block.device.beta)

    def on_lines(self, lines: np.ndarray, count: int, steps: tuple[int, ...]) -> None:
        """So many lines do the same; those from lines[0] to lines[1], [2, cores], have a core in this block.

        `steps`: those of STEPS, in numbers.
        """
        self.lines = np.ascontiguousarray(lines, np.int32)
        self.put(**{"from lines": self.lines[0], "to lines": self.lines[1]}, lines=count)
        self.put(**dict(zip(STEPS, steps, strict=True)))

    def plan_ahead(self, rows: int) -> None:
        """Make room for some rounds at once, of a block of so many rows (bands.c)."""
        numbers, room = STRETCH if "stretches" in self.arrays else MOVE, ROUNDS * PORTS * self.cores + MOVE
        for way in ("leaves", "comes"):  # pages that are hardly touched
            begins = {f"{way} at": np.empty(ROUNDS * (rows + 3), np.int32)}
            self.put(**{way: np.empty((room, numbers), np.int32)}, **begins)

    def enter(self) -> int:
        """A round begins: so many packets move in it."""
        moving, tiles, requests = self.core.enter(self.address)
        self.bound = tiles, requests
        return int(moving)

    def held(self) -> tuple[int, int]:
        """The most tiles of others, and the most requests, that one core holds after this round."""
        self.table["most"] = self.bound = tiles, requests = self.held_by.max(axis=1).tolist()
        return tiles, requests

    def leave(self, block: "Block", view: View, places: Places) -> None:
        """The packets of a round leave the cores of the block.

        `places(cores)`, for the maps: (those of the cores that are in the block, their places in the view).
        """
        if block.mapped:
            self._map(block, view, places)
        self.count(block, *self.core.leave(self.address))

    def count(self, block: "Block", left: int, fresh: int, arrived: int) -> None:
        """So many packets left cores of the block, of these so many untouched ones, and so many got to them."""
        counters = block.counters
        counters.messages += left
        counters.hops += left
        counters.stages += left - fresh
        if arrived:
            counters.max_hops = max(counters.max_hops, 1)

    def _map(self, block: "Block", view: View, places: Places) -> None:
        """Enter what leaves in the maps."""
        for port, span in enumerate(self.spans()):
            inside, at = places(self.of("core")[span])
            kind = self.of("kind")[span][inside]
            busy, nbytes = (self.table[name].take(kind & ASKS) for name in ("busy", "nbytes"))
            tally.handed_on(block, view, port, at, busy, nbytes, kind >= TOUCHED)

    def come_in(self) -> None:
        """And get to the next ones, with which the round ends."""
        self.core.come_in(self.address)

    def of(self, name: str) -> np.ndarray:
        """That of the packets of this round, by seat."""
        return np.asarray(self.seats[name][int(self.table["now"]) & 1])

    def spans(self) -> list[slice]:
        """The seats of those that leave by each port."""
        first = [port * self.cores for port in range(PORTS)]
        return [slice(low, low + fill) for low, fill in zip(first, self.table["fill"].tolist(), strict=True)]

    def over_edge(self, way: str, port: int) -> tuple[np.ndarray, np.ndarray]:
        """The seats and legs of packets that go over the edge of the block by a port: "leaving" it, or "coming".

        Of lines, those that do one or the other on one of them.
        """
        count = self.table["over" if way == "leaving" else "into"][port]
        seats = self.crossing[way][port * self.cores :][:count]
        return seats, self.of("leg").take(seats)


def rounds(marches: Sequence[March]) -> Iterator[Sequence[March]]:
    """The rounds of marches that go in step: cores of one meet none of another, but they are one transfer."""
    while sum([march.enter() for march in marches]):
        yield marches


def reserve(block: "Block", name: str, marches: Sequence[March]) -> None:
    """Core memory of that name for what is held after this round at the fullest core. LimitError."""
    if _bytes(marches, [march.bound for march in marches]) > block.memory.names[name]:
        reserve_held(block, name, marches)


def reserve_held(block: "Block", name: str, marches: Sequence[March]) -> None:
    """The same where it is not known that what there is does."""
    needed = _bytes(marches, [march.held() for march in marches])
    if needed > block.memory.names[name]:
        block.memory.resize(name, needed)


def _bytes(marches: Sequence[March], held: list[tuple[int, int]]) -> int:
    """What the most of tiles and the most of requests take."""
    tiles, requests = (max(of_each) for of_each in zip(*held, strict=True))
    return int(tiles * marches[0].table["nbytes"][0] + requests * marches[0].table["nbytes"][1])
