"""Unequal cores behind one bus: what the ways to share work out come to, beside the best there could be.

First two pieces of work by themselves, on cores whose speeds are as 1, 3 x 0.7, 4 x 0.35 and which can draw 30, 3 x 20
and 4 x 8 GB/s of a bus of 68: one that only computes, one that only reads. Then products by shape on a device.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshrt.arm.bus import ends, fair
from meshrt.emulate import run
from meshrt.programs.arm.split import SplitWork, by_speed, in_order, share_out
from meshrt.studies.grid import Cell, Grid, put

SPEEDS = (1.0, 0.7, 0.7, 0.7, 0.35, 0.35, 0.35, 0.35)
CAPS = (30e9, 20e9, 20e9, 20e9, 8e9, 8e9, 8e9, 8e9)
BUS = 68e9
UNITS, BYTES = 688, 4e9
WAYS = ("equal", "speed", "rate", "steal")  # `paper` is equal or speed, by the operator
COMPUTING = SplitWork(UNITS, tuple(1e-3 / speed for speed in SPEEDS), 0.0, CAPS, BUS)
READING = SplitWork(40_000, tuple(1e-9 / speed for speed in SPEEDS), BYTES / 40_000, CAPS, BUS)


@dataclass(frozen=True)
class SplitLine:
    """One way to split one piece of work: milliseconds, the same over the best, units of each core."""

    work: str
    split: str
    milliseconds: float
    ratio: float
    units: tuple[int, ...] | None = None


def measure(device: str, rows: int, inner: int, columns: int) -> list[SplitLine]:
    """The two pieces of work, then a product of one row and of `rows`."""
    lines = []
    for name, work in (("computing", COMPUTING), ("reading 4 GB", READING)):
        best = UNITS * 1e-3 / sum(SPEEDS) if work is COMPUTING else BYTES / sum(fair(CAPS, BUS))
        for way in WAYS:
            shares = shares_of(way, work)
            lines.append(
                SplitLine(name, way, 1e3 * last(work, shares), last(work, shares) / best, tuple(map(len, shares)))
            )
    for m in (1, rows):
        took = {
            way: run("linear", payload=False, device=device, m=m, k=inner, n=columns, split=way)
            .phase("linear", "critical_path.seconds")
            for way in ("equal", "paper", "rate", "steal")
        }  # fmt: skip
        best = min(took.values())
        name = f"{m} x {inner} x {columns} on {device}"
        lines += [SplitLine(name, way, 1e3 * seconds, seconds / best) for way, seconds in took.items()]
    return lines


def shares_of(way: str, work: SplitWork) -> list[Sequence[int]]:
    if way == "speed":
        return in_order(by_speed(work.units, SPEEDS))
    return share_out(way, work)  # type: ignore[arg-type]  # one of the ways that are left


def last(work: SplitWork, shares: Sequence[Sequence[int]]) -> float:
    """Seconds until the last core is done."""
    counts = [len(share) for share in shares]
    busy = [count * seconds for count, seconds in zip(counts, work.seconds, strict=True)]
    return max(ends(busy, [count * work.unit_bytes for count in counts], work.caps, work.bus))


def as_json(lines: Sequence[SplitLine]) -> dict[str, Any]:
    return {"schema": 1, "lines": [asdict(line) for line in lines]}


def print_lines(lines: Sequence[SplitLine], form: str = "table") -> None:
    rows = [
        (
            line.work, line.split, Cell(line.milliseconds, f"{line.milliseconds:,.2f}"),
            Cell(line.ratio, f"{line.ratio:.3f}"), "" if line.units is None else " ".join(map(str, line.units)),
        )
        for line in lines
    ]  # fmt: skip
    note = "best: what the two pieces could take at the least; of products, the best split. paper: equal or by speed"
    put([Grid(("work", "split", "ms", "of the best", "units of the cores"), rows), note], form)
