"""The virtual clock beside a published model of the same machine: reductions and broadcasts on one line of a WSE-2.

"Near-Optimal Wafer-Scale Reduce" (HPDC 2024) gives a pattern's time as

    T = max(C, E / N + L) + (2 T_R + 1) D

    C  contention: most words that any core takes in     E  energy: hops of all words      N  links that they share
    L  hops of the longest way to the root               D  depth: messages on it, one after the other
    T_R = 2, the latency of the ramp between a core and its router

and finds it within 4 % of the silicon. The terms are worked out here, on paper, for P cores and B words; the clock's
cycles are those of a run, by headers alone. `REASONS` says where and why they differ.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block, make_block
from meshrt.mesh.collectives.allreduce import ktree, pipeline
from meshrt.mesh.collectives.trees import Tree, reduce
from meshrt.mesh.device import Device
from meshrt.mesh.presets import WSE2
from meshrt.mesh.wires import fabric, routes
from meshrt.mesh.wires.tables import installed
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.studies.grid import Cell, Grid, put

LENGTHS = (8, 16, 32, 64, 128, 256, 512)
WORDS = (1, 4, 16, 64, 256, 1024, 4096)
STAR = 64  # cores: a star has as many colours at its root as there are others, so it is for short lines anyway
T_RAMP = 2


@dataclass(frozen=True)
class Terms:
    """The model's terms for one pattern on P cores and B words, and its time."""

    contention: int
    energy: int
    links: int
    longest: int
    depth: int

    @property
    def cycles(self) -> float:
        return max(self.contention, self.energy / self.links + self.longest) + (2 * T_RAMP + 1) * self.depth


def chain_terms(p: int, b: int) -> Terms:
    """From the far end, every core adds its own to what comes and passes it on: B + (2 T_R + 2) (P - 1) in all."""
    return Terms(b, b * (p - 1), p - 1, p - 1, p - 1)


def broadcast_terms(p: int, b: int) -> Terms:
    """One multicast from an end."""
    return Terms(b, b * (p - 1), p - 1, p - 1, 1)


def star_terms(p: int, b: int) -> Terms:
    """All send to one end, which takes in P - 1 times B words."""
    return Terms(b * (p - 1), b * p * (p - 1) // 2, p - 1, p - 1, 1)


def tree_terms(p: int, b: int, counts: Sequence[int] = ()) -> Terms:
    """A K-tree with those numbers of groups, each the divisor of the one before; without any, two arms to the middle.

    m members, s hops apart, come in over arms of m // 2 and (m - 1) // 2 of them, each of B words at the middle one.
    """
    contention = energy = longest = depth = 0
    members, spacing = p, 1
    for count in (*counts, 1):
        m = members // count
        contention += b * ((m > 1) + (m > 2))
        energy += b * count * (m - 1) * spacing
        longest += m // 2 * spacing
        depth += m // 2
        members, spacing = count, spacing * m
    return Terms(contention, energy, p - 1, longest, depth)


def root_groups(p: int) -> int:
    """The number of equal groups nearest below sqrt(P): what the published K-tree, with K = 2, takes."""
    return max(count for count in range(1, p + 1) if p % count == 0 and count * count <= p)


MODEL: Mapping[str, Callable[[int, int], Terms]] = {
    "chain": chain_terms,
    "tree K=1": tree_terms,
    "tree K=2": lambda p, b: tree_terms(p, b, (root_groups(p),)),
    "broadcast": broadcast_terms,
    "star": star_terms,
}


REASONS = (
    "chain: nothing; one packet at a time is all that the model's terms describe",
    "tree: it adds the depth to the larger of contention and distance. In a run the root takes in near members' words",
    "      while far ones are on their way, which is less; where two arms come in together, one waits, which is more",
    "broadcast: the model's one message deep, 5 cycles: two ramps and a core. The clock charges them to cores that",
    "      add or relay, as the device's beta, and a packet that is only delivered has none",
    "star: that beta again. In the model it is a latency, once; by the clock the root is busy with it for each packet,",
    "      which shows where a packet comes in faster than that, in tiles of less than 5 words",
)


@dataclass(frozen=True)
class PatternPoint:
    """One pattern, length and size: cycles by the clock, cycles by the model, and the difference over the model's."""

    pattern: str
    cores: int
    words: int
    clock: float
    model: float
    difference: float


def measure(
    lengths: Sequence[int] = LENGTHS, words: Sequence[int] = WORDS, console: Console | None = None
) -> list[PatternPoint]:
    """All patterns on lines of those lengths, tiles of those sizes, on wse2; stars on short lines only. UsageError."""
    if min(lengths) < 2 or min(words) < 1:
        raise UsageError(
            f"lines of {min(lengths)} cores, tiles of {min(words)} words: give 2 cores or more, and 1 word or more"
        )
    machine = replace(WSE2, width=None, route_entries=None, core_memory=None)  # of a line that long, a star's colours
    console = console or Console()
    points = []
    for done, n in enumerate(lengths):
        console.progress("lengths", done, len(lengths))
        for pattern, terms in MODEL.items():
            if pattern != "star" or n <= STAR:
                for size in words:
                    clock, model = cycles_of(pattern, n, size, machine), terms(n, size).cycles
                    points.append(PatternPoint(pattern, n, size, clock, model, clock / model - 1))
    console.clear()
    return points


def cycles_of(pattern: str, n: int, words: int, device: Device) -> float:
    """The last core's clock when the pattern is done on a line of n cores, each with a tile of float32."""
    block = make_block(Alone(), device, n, 1, Board.alone(), payload=False)
    tiles = np.zeros((1, 1, words), np.float32)
    try:
        if pattern == "broadcast":
            with installed(block, "x", routes.multicast, 0) as channel:
                fabric.transfer(block, channel, tiles)
        else:
            with _reduction(block, pattern, n) as tree:
                reduce(block, tree, tiles)
        return block.clock.last()[0]
    finally:
        block.close()


@contextmanager
def _reduction(block: Block, pattern: str, n: int) -> Iterator[Tree]:
    with ExitStack() as stack:
        if pattern == "chain":
            yield stack.enter_context(pipeline(block, "x"))
        elif pattern == "star":
            yield stack.enter_context(_star(block, n))
        else:
            phases = int(pattern[-1])
            yield stack.enter_context(ktree(block, "x", phases, (root_groups(n),) if phases == 2 else None))


@contextmanager
def _star(block: Block, n: int) -> Iterator[Tree]:
    """Routes from every core to core 0, which adds the nearest one's tile first."""
    ways = [routes.Route(core, (0,)) for core in range(1, n)]
    cores = np.arange(n)
    with installed(block, "x", ways) as channel:
        steps = tuple((channel, cores == core, cores == 0) for core in range(1, n))
        yield Tree("x", 0, (), steps, cores == 0, channel)


def as_json(points: Sequence[PatternPoint]) -> dict[str, Any]:
    return {"schema": 1, "device": WSE2.name, "points": [asdict(point) for point in points]}


def print_points(points: Sequence[PatternPoint], form: str = "table") -> None:
    put(said(points), form)


def said(points: Sequence[PatternPoint]) -> Iterator[str | Grid]:
    """For each pattern a line per length: cycles by the clock, and how far they are from the model, per size."""
    sizes = sorted({point.words for point in points})
    yield "wse2: cycles by the virtual clock, and their difference from T = max(C, E/N + L) + (2 T_R + 1) D"
    rows: dict[tuple[str, int], list[Any]] = {}
    for point in sorted(points, key=lambda point: (list(MODEL).index(point.pattern), point.cores, point.words)):
        cells = rows.setdefault((point.pattern, point.cores), [point.pattern, point.cores])
        cells.append(Cell(point.clock, f"{point.clock:,.0f} {point.difference:+.1%}"))
    header = ["pattern", "cores", *(f"{size:,} word{'s' * (size > 1)}" for size in sizes)]
    yield Grid(header, [*rows.values()])
    for pattern in dict.fromkeys(point.pattern for point in points):
        off = [abs(point.difference) for point in points if point.pattern == pattern]
        yield f"  {pattern}: median {median(off):.1%} off, at most {max(off):.1%}"
    yield "Why they differ:"
    yield from (f"  {reason}" for reason in REASONS)
