"""The same work at any number of cores: how many messages, hops and bytes of memory the emulator itself takes.

The work is what other simulators of message-passing machines have been given as well, and their figures stand beside
ours: for each the tool, how many cores, and where the figure is from.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import isqrt
from typing import Any

from meshrt.errors import UsageError
from meshrt.launch.bench import Timing
from meshrt.studies.grid import Cell, Grid, put
from meshrt.units import short, size

CORES = (64, 256, 1024, 4096)
RANKS = (1, 2)
ROOM = ("--core-memory", str(2**20))  # all tiles in core memory, in flight too; more than a wse2 has

BY_CLOCK, OF_PROCESSORS = "messages / s", "messages / CPU s"  # a CPU second is that of any process

Timed = Callable[[int, tuple[str, ...]], Timing]


@dataclass(frozen=True)
class OtherTool:
    """What another tool makes of a piece of work: messages by the number of cores, for each `unit` of time."""

    tool: str
    rates: dict[int, float]
    source: str
    unit: str = BY_CLOCK


@dataclass(frozen=True)
class BenchWork:
    """A piece of work. `arguments` are those of `meshrt` for a number of cores."""

    name: str
    what: str
    arguments: Callable[[int], tuple[str, ...]]
    others: tuple[OtherTool, ...] = field(default=())


HERE = "measured on a shared 2-core machine"


def _shift(pattern: str, *more: str) -> Callable[[int], tuple[str, ...]]:
    arguments = ("run", "shift", "--pattern", pattern, "--axis", "both", "--tile", "64", "--steps", "400", *more, *ROOM)
    return lambda cores: (*arguments, "--mesh", f"{isqrt(cores)}x{isqrt(cores)}")


def _allreduce(cores: int) -> tuple[str, ...]:
    arguments = ("run", "allreduce", "--algorithm", "ring", "--size", "65536", "--times", "10", *ROOM)
    return (*arguments, "--mesh", f"64x{cores // 64}")


def _gemm(cores: int) -> tuple[str, ...]:
    side = isqrt(cores)
    edge, times = str(16 * side), str(max(1, 256 // side))  # 256 steps in all
    return ("run", "gemm", "--m", edge, "--k", edge, "--n", edge, "--times", times, "--mesh", f"{side}x{side}")


SMPI = "SimGrid/SMPI 3.32 and 4.1"
WORKS = (
    BenchWork(
        "W1",
        "Cannon's shift along both axes, 400 steps, tiles of 16 KiB",
        _shift("cannon"),
        (
            OtherTool(SMPI, {64: 59e3, 256: 29e3, 1024: 20e3, 4096: 11e3}, HERE),
            OtherTool("SimGrid from Python", {64: 6.9e3, 256: 5.1e3, 1024: 4.7e3}, HERE),
            OtherTool(
                "LogGOPSim, without data or contention",
                {64: 1.5e6, 1024: 1.15e6, 4096: 0.85e6},
                f"{HERE}; built with -O3",
                OF_PROCESSORS,
            ),
            OtherTool(
                "a Python loop over the cores", {64: 132e3, 4096: 94e3}, f"{HERE}; copies and counts, no machine"
            ),
            OtherTool("one MPI rank per core", {64: 32e3}, HERE),
        ),
    ),
    BenchWork(
        "W1 with products",
        "the same with the product of the two tiles at every step",
        _shift("cannon", "--multiply"),
        (OtherTool(SMPI, {64: 23e3}, HERE),),
    ),
    BenchWork(
        "W2",
        "the interleaved shift, two hops, along both axes, 400 steps, tiles of 16 KiB",
        _shift("interleaved"),
        (OtherTool(SMPI, {64: 47e3}, f"{HERE}; 82 k hops/s"),),
    ),
    BenchWork(
        "W3",
        "ring allreduce of 65,536 floats in every row of 64 cores, 10 times",
        _allreduce,
        (
            OtherTool(SMPI, {64: 79e3}, HERE),
            OtherTool("ASTRA-sim 2, without data", {64: 260e3}, f"{HERE}; 4096 ranks unfinished after 240 s, 5.6 GB"),
        ),
    ),
    BenchWork(
        "W5",
        "MeshGEMM with tiles of 1 KiB, 256 steps: 4 times WaferLLM's own example, 1024^3, on 4096 cores",
        _gemm,
        (OtherTool(SMPI, {4096: 21e3}, HERE, OF_PROCESSORS),),
    ),
)

ELSEWHERE = (  # of other work, in other units
    ("BookSim2, 8 x 8; 32 x 32 and 64 x 64", "371 k; 100 k flit-hops/s", f"{HERE}; no data"),
    ("Noxim", "50 k to 103 k flit-hops/s", f"{HERE}; no data"),
    ("WaferAI-SIM, 4 x 4", "107 k NoC sends/s", f"{HERE}; no data"),
    ("tt-lang simulator", "4 k tile copies/s; 13 GB for 32 x 32", HERE),
    ("Cerebras simfabric", "32 GB and more of memory for W5", "its documentation; closed, not measured"),
)


@dataclass(frozen=True)
class WorkloadFigure:
    """One run: what crossed the mesh, in how many seconds of the host, and the memory of all its ranks."""

    work: str
    cores: int
    ranks: int
    messages: int
    hops: int
    seconds: float  # of moving, with the planning: in the program's phase, or as it noted
    loop_cpu_seconds: float  # of all ranks' processor time, in the same
    wall_seconds: float  # from start to end, with all processes' start
    cpu_seconds: float  # of all processes' processor time from start to end
    rss_bytes: int


def measure(
    timed: Timed, only: Sequence[str] = (), cores: Sequence[int] = CORES, ranks: Sequence[int] = RANKS
) -> list[WorkloadFigure]:
    """Run the works on so many cores and ranks. UsageError."""
    for name in only:
        if name not in [work.name for work in WORKS]:
            raise UsageError(
                f"--only {name}: there is no such work; there are {', '.join(work.name for work in WORKS)}"
            )
    for count in cores:
        if count % 64 or isqrt(count) ** 2 != count:
            raise UsageError(f"--cores {count}: choose a square number of rows of 64, such as 64, 256, 1024 or 4096")
    figures = []
    for work in WORKS:
        if not only or work.name in only:
            figures += [figure(work, timed, count, number) for count in cores for number in ranks]
    return figures


def figure(work: BenchWork, timed: Timed, cores: int, ranks: int) -> WorkloadFigure:
    """Run one work once."""
    wall, spent, report = timed(ranks, work.arguments(cores))
    host, measured = report["host"], report["measured"]
    seconds = host.get("product_seconds", sum(phase["wall_seconds"] for phase in host["phases"]))
    loop_spent = host.get("product_cpu_seconds", sum(phase["cpu_seconds"] for phase in host["phases"]))
    return WorkloadFigure(
        work.name, cores, ranks, measured["messages"], measured["hops"], seconds, loop_spent, wall, spent,
        host["rss_bytes"],
    )  # fmt: skip


def as_json(figures: Sequence[WorkloadFigure]) -> dict[str, Any]:
    """All figures, ours and the others'."""
    others = [{"work": work.name, **asdict(other)} for work in WORKS for other in work.others]
    return {"schema": 1, "figures": [asdict(figure) for figure in figures], "others": others}


def print_figures(figures: Sequence[WorkloadFigure], form: str = "table") -> None:
    put(said(figures), form)


def said(figures: Sequence[WorkloadFigure]) -> Iterator[str | Grid]:
    """A table for each work: ours by ranks, the others', and how many times the fastest of them ours are, of those in
    one unit.
    """
    for work in WORKS:
        of_work = [figure for figure in figures if figure.work == work.name]
        if not of_work:
            continue
        counts = sorted({figure.cores for figure in of_work})
        rows: list[list[Any]] = []
        for ranks in sorted({figure.ranks for figure in of_work}):
            at = {figure.cores: figure for figure in of_work if figure.ranks == ranks}
            for label, unit, show in LINES:
                row = [show(at[count]) if count in at else None for count in counts]
                rows.append([label.format(ranks), unit, *row, "measured now"])
        for other in work.others:
            shown = [_rate(other.rates[count]) if count in other.rates else None for count in counts]
            rows.append([other.tool, other.unit, *shown, other.source])
        for unit in dict.fromkeys(other.unit for other in work.others):
            ratios = [over(of_work, work, count, unit) for count in counts]
            shown = [Cell(ratio, f"{ratio:.1f}") for ratio in ratios]
            rows.append(["slowest meshrt / fastest other", f"of {unit}", *shown, ""])
        yield f"\n{work.name}: {work.what}"
        yield Grid(["figure", "unit", *(f"{count:,} cores" for count in counts), "source"], rows, work.name)
    yield "\nOther tools, of other work:"
    yield from (f"  {tool}: {rates} ({source})" for tool, rates, source in ELSEWHERE)


def _rate(value: float) -> Cell:
    return Cell(value, rate(value))


def _seconds(value: float) -> Cell:
    return Cell(value, f"{value:.2f}")


def messages_a(unit: str, figure: WorkloadFigure) -> float:
    """Of the loop alone: by the clock, or for each second of all ranks' processor time."""
    return figure.messages / (figure.seconds if unit == BY_CLOCK else figure.loop_cpu_seconds)


LINES: tuple[tuple[str, str, Callable[[WorkloadFigure], Cell]], ...] = (
    ("meshrt, ranks: {}", BY_CLOCK, lambda figure: _rate(messages_a(BY_CLOCK, figure))),
    ("  of all ranks' processor time", OF_PROCESSORS, lambda figure: _rate(messages_a(OF_PROCESSORS, figure))),
    ("  hops", "hops / s", lambda figure: _rate(figure.hops / figure.seconds)),
    ("  loop", "s", lambda figure: _seconds(figure.seconds)),
    ("  loop, all ranks", "CPU s", lambda figure: _seconds(figure.loop_cpu_seconds)),
    ("  with start and end", "s", lambda figure: _seconds(figure.wall_seconds)),
    ("  with start and end, all ranks", "CPU s", lambda figure: _seconds(figure.cpu_seconds)),
    ("  memory of the host", "bytes", lambda figure: Cell(figure.rss_bytes, size(figure.rss_bytes))),
)


def over(figures: Sequence[WorkloadFigure], work: BenchWork, cores: int, unit: str) -> float:
    """Our slowest rate on so many cores over the fastest of the others in that unit, there or at the number of cores
    nearest to it.
    """
    slowest = min(messages_a(unit, figure) for figure in figures if figure.cores == cores)
    others = [other.rates for other in work.others if other.unit == unit]
    fastest = max(rates[min(rates, key=lambda count: abs(count - cores))] for rates in others)
    return slowest / fastest


def rate(value: float) -> str:
    """Things a second, for a person."""
    return f"{value / 1e3:.0f} k" if 1e3 <= value < 1e6 else short(round(value))
