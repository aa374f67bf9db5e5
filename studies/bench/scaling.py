"""The host's time over the number of cores: one product of real numbers, on ever larger meshes.

Every mesh is run twice: as it is, for the seconds and the memory, and under the profiler, for where the time goes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meshrt.studies.bench.hosttime import KINDS, MEANINGS
from meshrt.studies.bench.workloads import Timed, rate
from meshrt.studies.grid import Cell, Grid, put
from meshrt.units import size

SIDES = (8, 32, 64, 256, 512, 720)
RANKS = (1, 2, 4, 8)
EDGE = 2048
ROOM = 4 * 2**20  # bytes a core: 64 of them hold three matrices of 2048 x 2048, and two in flight


@dataclass(frozen=True)
class MeshPoint:
    """One mesh. `shares` are rank 0's seconds under the profiler by kind, over their sum."""

    mesh: tuple[int, int]
    ranks: int
    edge: int
    wall_seconds: float
    cpu_seconds: float  # of all processes
    rss_bytes: int
    messages: int
    hops: int
    max_rel_error: float
    shares: Mapping[str, float]


def measure(
    timed: Timed, sides: Sequence[int] = SIDES, ranks: Sequence[int] = RANKS, edge: int = EDGE
) -> list[MeshPoint]:
    """MeshGEMM of `edge`^3 on square meshes, each on so many ranks."""
    return [_point(timed, side, count, edge) for count in ranks for side in sides]


def _point(timed: Timed, side: int, ranks: int, edge: int) -> MeshPoint:
    sizes = [part for name in ("m", "k", "n") for part in (f"--{name}", str(edge))]
    arguments = ("run", "gemm", "--mesh", f"{side}x{side}", *sizes, "--core-memory", str(ROOM))
    wall, spent, report = timed(ranks, arguments)
    with TemporaryDirectory() as folder:
        path = Path(folder, "seconds.json")
        timed(ranks, ("bench", "profile", "--to", str(path), *arguments))
        seconds: dict[str, float] = json.loads(path.read_text())
    total = sum(seconds.values())
    return MeshPoint(
        (side, side), ranks, edge, wall, spent, report["host"]["rss_bytes"], report["measured"]["messages"],
        report["measured"]["hops"], report["result"]["max_rel_error"],
        {name: value / total for name, value in seconds.items()},
    )  # fmt: skip


def as_json(points: Sequence[MeshPoint]) -> dict[str, Any]:
    return {"schema": 1, "points": [asdict(point) for point in points]}


def print_points(points: Sequence[MeshPoint], form: str = "table") -> None:
    put(said(points), form)


def said(points: Sequence[MeshPoint]) -> Iterator[str | Grid]:
    """A line for each mesh and number of ranks."""
    yield f"MeshGEMM {points[0].edge}^3, real numbers"
    rows = [
        (
            point.ranks, point.mesh[0] * point.mesh[1], Cell(point.wall_seconds, f"{point.wall_seconds:.2f}"),
            Cell(point.cpu_seconds, f"{point.cpu_seconds:.2f}"),
            Cell(point.rss_bytes, size(point.rss_bytes)),
            Cell(point.hops / point.wall_seconds, rate(point.hops / point.wall_seconds)),
            Cell(point.max_rel_error, f"{point.max_rel_error:.0e}"),
            *(Cell(point.shares[name], f"{point.shares[name]:.0%}") for name in KINDS),
        )
        for point in points
    ]  # fmt: skip
    yield Grid(("ranks", "cores", "seconds", "processor s", "memory", "hops/s", "error", *KINDS), rows)
    yield from (f"  {name}: {MEANINGS[name]}" for name in KINDS)
