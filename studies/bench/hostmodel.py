"""A model of the host's time, from runs on this machine: per rank, tick, message, packet, byte and product.

The work is what MeshGEMM moves, without its matrices: both tiles of every core go round their rings and are multiplied
at every step (`meshrt run shift --axis both --multiply`). The processor seconds of whole jobs are told by counts of
their reports, each with a price that is not negative; the prices are found on some sizes and tried on others. What more
nodes would bring is then made of the same prices, and of a network that is assumed: nothing of it was measured.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any

import numpy as np

from meshrt.launch.bench import Timing
from meshrt.studies.grid import Cell, Grid, put

ROOM = ("--core-memory", str(2**20))
ITEM, HEADER = 4, 24  # bytes of a number, and of a packet's header in a message between ranks


@dataclass(frozen=True)
class GemmSize:
    """side x side cores, tiles of tile x tile numbers, so many steps, on so many ranks."""

    side: int
    tile: int
    steps: int
    ranks: int

    @property
    def tile_bytes(self) -> int:
        return ITEM * self.tile**2


# Of so many steps that most take longer than to start, and three of a few, for what cores take before the first.
FITTED = (
    GemmSize(8, 2, 20000, 1), GemmSize(8, 16, 40000, 1), GemmSize(8, 2, 10000, 2), GemmSize(8, 8, 10000, 4),
    GemmSize(8, 16, 5000, 8), GemmSize(32, 8, 10000, 1), GemmSize(32, 2, 10000, 2), GemmSize(32, 32, 2000, 2),
    GemmSize(32, 2, 5000, 4), GemmSize(32, 16, 3000, 8), GemmSize(128, 2, 3000, 1), GemmSize(128, 16, 600, 1),
    GemmSize(128, 8, 1500, 2), GemmSize(128, 2, 2000, 4), GemmSize(128, 8, 800, 8), GemmSize(360, 3, 500, 1),
    GemmSize(360, 2, 3, 2), GemmSize(360, 8, 100, 2), GemmSize(360, 3, 400, 4), GemmSize(600, 2, 2, 1),
    GemmSize(600, 2, 150, 2), GemmSize(660, 2, 2, 2),
)  # fmt: skip
HELD = (
    GemmSize(16, 4, 15000, 1), GemmSize(16, 8, 8000, 4), GemmSize(64, 3, 4000, 2), GemmSize(64, 16, 1000, 4),
    GemmSize(64, 4, 3000, 8), GemmSize(240, 4, 600, 1), GemmSize(240, 3, 600, 8), GemmSize(512, 3, 200, 2),
    GemmSize(720, 3, 100, 4),
)  # fmt: skip


@dataclass(frozen=True)
class TimedRun:
    """A job: what its report counted, and the processor seconds of all its processes, from start to end."""

    size: GemmSize
    cpu_seconds: float
    messages: int  # between ranks
    message_bytes: int
    packets: int
    ramp_bytes: int
    macs: int


# What has a price: a job, each of its ranks, cores and a rank's steps, and what is counted.
TERMS: dict[str, Callable[[TimedRun], float]] = {
    "job": lambda run: 1,
    "rank": lambda run: run.size.ranks,
    "core": lambda run: run.size.side**2,
    "tick of a rank": lambda run: run.size.ranks * run.size.steps,
    "message": lambda run: run.messages,
    "byte of a message": lambda run: run.message_bytes,
    "packet": lambda run: run.packets,
    "byte of a tile": lambda run: run.ramp_bytes,
    "MAC": lambda run: run.macs,
}
Prices = dict[str, float]  # seconds, by term


@dataclass(frozen=True)
class HostModel:
    """Prices, and the runs that they were found on and tried on."""

    prices: Prices
    fitted: tuple[TimedRun, ...]
    held: tuple[TimedRun, ...]


def measure(
    timed: Callable[[int, tuple[str, ...]], Timing],
    fitted: Sequence[GemmSize] = FITTED,
    held: Sequence[GemmSize] = HELD,
) -> HostModel:
    """Run all sizes, find prices on the first ones."""
    fit_runs, tried = (tuple(_run(timed, size) for size in sizes) for sizes in (fitted, held))
    return HostModel(fit(fit_runs), fit_runs, tried)


def _run(timed: Callable[[int, tuple[str, ...]], Timing], size: GemmSize) -> TimedRun:
    words = ("run", "shift", "--axis", "both", "--multiply", "--mesh", f"{size.side}x{size.side}", *ROOM)
    timing = timed(size.ranks, (*words, "--tile", str(size.tile), "--steps", str(size.steps)))
    host, counted = timing.report["host"], timing.report["measured"]
    return TimedRun(
        size, timing.cpu_seconds, host["messages"], host["bytes"], counted["messages"], counted["ramp_bytes"]["total"],
        counted["macs"],
    )  # fmt: skip


def fit(runs: Sequence[TimedRun]) -> Prices:
    """The prices for which the squares of relative errors are least, none of them negative: what would be is 0."""
    used = list(TERMS)
    while True:
        rows = np.array([[TERMS[name](run) / run.cpu_seconds for name in used] for run in runs])
        scale = rows.max(axis=0)  # a price a byte and one a job are far apart
        scale[scale == 0] = 1
        prices = np.linalg.lstsq(rows / scale, np.ones(len(runs)), rcond=None)[0] / scale
        if prices.min() >= 0:
            return dict.fromkeys(TERMS, 0.0) | dict(zip(used, prices.tolist(), strict=True))
        del used[int(np.argmin(prices * scale))]


def told(prices: Prices, run: TimedRun) -> float:
    """Processor seconds by the model."""
    return sum(prices[name] * count(run) for name, count in TERMS.items())


@dataclass(frozen=True)
class Network:
    """Between nodes, as it is assumed: nodes of so many processors, seconds a message, bytes a second of a node."""

    processors: int = 64
    latency: float = 2e-6
    bandwidth: float = 12.5e9


@dataclass(frozen=True)
class Projection:
    """Seconds of one job on whole nodes, a rank a processor; `alone` on one processor; `share` that messages take."""

    nodes: int
    ranks: int
    seconds: float
    alone: float
    share: float


def projected(prices: Prices, size: GemmSize, nodes: int, network: Network) -> Projection:
    """The slowest rank of a job whose blocks are squares: it has all four neighbours, and a message to each a step.

    On one node messages cost what they cost here. The launcher's own time over many nodes is not in it.
    """
    ranks = min(nodes * network.processors, size.side**2)
    cores, lines = size.side**2 / ranks, size.side / sqrt(ranks)
    packet = prices["packet"] + 2 * size.tile_bytes * prices["byte of a tile"]  # up and down a ramp
    core = 2 * packet * size.steps + size.steps * size.tile**3 * prices["MAC"]  # a tile along each axis
    start = prices["job"] + prices["rank"] + size.steps * prices["tick of a rank"]
    core += prices["core"]
    message = prices["message"] + lines * (size.tile_bytes + HEADER) * prices["byte of a message"]
    if nodes > 1:  # the processors of a node share its way out: those at its edge, all at once
        edge = 4 * sqrt(network.processors) * lines * (size.tile_bytes + HEADER)
        message += network.latency + edge / network.bandwidth / 4
    messages = 0.0 if ranks == 1 else 4 * size.steps * message
    alone = start + size.side**2 * core
    seconds = start + cores * core + messages
    return Projection(nodes, ranks, seconds, alone, messages / seconds)


WAFER = GemmSize(720, 3, 720, 1)
WORKS = {
    "two tiles a core round a wafer, 720 x 720 cores, 720 steps": WAFER,
    "100 wafers as one mesh, 7,200 x 7,200 cores, 720 steps": GemmSize(7200, 3, 720, 1),
}
NODES = (1, 10, 100, 1000)


def as_json(model: HostModel, network: Network, nodes: Sequence[int] = NODES) -> dict[str, Any]:
    """Prices, runs with what the model says of them, and what nodes would bring."""
    runs = [
        {**asdict(run), "held_back": run in model.held, "model_seconds": told(model.prices, run)}
        for run in (*model.fitted, *model.held)
    ]
    work = {name: [asdict(projected(model.prices, size, n, network)) for n in nodes] for name, size in WORKS.items()}
    return {"schema": 1, "prices": model.prices, "runs": runs, "network": asdict(network), "projected": work}


def print_model(model: HostModel, network: Network, form: str = "table", nodes: Sequence[int] = NODES) -> None:
    put(said(model, network, nodes), form)


def said(model: HostModel, network: Network, nodes: Sequence[int] = NODES) -> Iterator[str | Grid]:
    """Prices, sizes that were held back, and projections."""
    yield "Processor seconds by the model: a price for each"
    yield Grid(("of a", "seconds"), [(name, Cell(price, f"{price:.3g}")) for name, price in model.prices.items()])
    yield "\nSizes that no price was found on"
    rows = []
    for run in model.held:
        size, by_model = run.size, told(model.prices, run)
        rows.append((
            f"{size.side} x {size.side}", size.tile, size.steps, size.ranks,
            Cell(run.cpu_seconds, f"{run.cpu_seconds:.2f}"), Cell(by_model, f"{by_model:.2f}"),
            Cell(by_model / run.cpu_seconds, f"{by_model / run.cpu_seconds:.2f}"),
        ))  # fmt: skip
    yield Grid(("cores", "tile", "steps", "ranks", "measured", "by the model", "ratio"), rows)
    yield (
        f"\nWhat nodes would bring: {network.processors} processors a node, {network.latency * 1e6:g} us a message,"
        f" {network.bandwidth / 1e9:g} GB/s a node (assumed)"
    )
    brought = []
    for name, size in WORKS.items():
        for count in nodes:
            projection = projected(model.prices, size, count, network)
            brought.append((
                name, count, projection.ranks, Cell(projection.seconds, f"{projection.seconds:.3g}"),
                Cell(projection.alone / projection.seconds, f"{projection.alone / projection.seconds:.0f}"),
                Cell(projection.share, f"{projection.share:.0%}"),
            ))  # fmt: skip
    yield Grid(("work", "nodes", "ranks", "seconds", "times one processor", "messages"), brought)
    runs = 3600 / projected(model.prices, WAFER, 1, Network(1)).alone * network.processors
    yield "\nRuns an hour of the first, one a processor (an array job; a run has no other to wait for)"
    yield Grid(("nodes", "runs an hour"), [(count, Cell(runs * count, f"{runs * count:,.0f}")) for count in nodes])
