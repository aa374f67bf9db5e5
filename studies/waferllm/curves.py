"""GEMM and GEMV over core counts (waferllm, sections 7.2 and 7.3, Figures 9 and 10), and what the text claims of them.

The figures are not in the text that the published numbers are from; its sentences are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from meshrt.mesh.device import Device
from meshrt.studies.rows import Emulate
from meshrt.studies.sweep import RunJob
from meshrt.studies.waferllm import published
from meshrt.studies.waferllm.cells import DTYPE
from meshrt.studies.waferllm.published import Claim

ALL_STEPS = 208  # cores a side up to which all steps of SUMMA are run; beyond, of either half of its loop
STRETCHES = 1


@dataclass(frozen=True)
class ProductPoint:
    """One product by one algorithm on side x side cores. Numbers are None where the machine refused the run.

    `compute_cycles` are those of its products of tiles alone: one of them, emulated on one core, times their number.
    """

    product: str  # gemm or gemv
    size: str
    algorithm: str
    side: int
    cycles: float | None = None
    seconds: float | None = None
    compute_cycles: float | None = None
    max_hops: int | None = None
    memory_bytes: int | None = None
    refused: str | None = None
    steps_run: int | None = None  # stretches of either half of SUMMA's loop that stand for all; None where all ran

    @property
    def efficiency(self) -> float | None:
        """Share of the time that goes into products of tiles; the rest is communication that nothing hides."""
        return None if not self.cycles or self.compute_cycles is None else self.compute_cycles / self.cycles

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "efficiency": self.efficiency}


@dataclass(frozen=True)
class CheckedClaim:
    """A claim of the text beside the emulated number that it is about."""

    claim: Claim
    product: str
    where: str
    emulated: float | None

    @property
    def holds(self) -> bool | None:
        """Within the stated bounds, or within a fifth of a single stated number; None where nothing was emulated."""
        low, high = self.claim.low, self.claim.high
        if self.emulated is None:
            return None
        if low is not None and low == high:
            return 0.8 * low <= self.emulated <= 1.2 * low
        return (low is None or self.emulated >= low) and (high is None or self.emulated <= high)

    def json(self) -> dict[str, Any]:
        return {
            "product": self.product, "section": self.claim.section, "claim": self.claim.text, "what": self.claim.name,
            "where": self.where, "published": self.claim.stated(), "emulated": self.emulated, "holds": self.holds,
        }  # fmt: skip


@dataclass(frozen=True)
class Curves:
    """A product's sizes, its algorithms (ours first), and how many products of tiles a core does on `side` cores."""

    product: str
    option: str
    algorithms: tuple[str, ...]
    sizes: Mapping[str, int]
    products: Callable[[int], int]


CURVES = {
    "gemm": Curves("gemm", "algorithm", ("meshgemm", "cannon", "summa"), published.GEMM_SIZES, lambda side: side),
    "gemv": Curves("gemv", "allreduce", ("ktree", "pipeline"), published.GEMV_SIZES, lambda side: 1),
}


def points(
    curves: Curves, device: Device, emulate: Emulate, sides: Sequence[int] = published.SIDES
) -> list[ProductPoint]:
    """All points of a figure."""
    return [
        _point(curves, device, emulate, size, algorithm, side)
        for size in curves.sizes
        for algorithm in curves.algorithms
        for side in sides
    ]


def _point(curves: Curves, device: Device, emulate: Emulate, size: str, algorithm: str, side: int) -> ProductPoint:
    length = curves.sizes[size]
    run = emulate(_job(curves, device, algorithm, side, length))
    tile_run = emulate(_job(curves, device, curves.algorithms[0], 1, ceil(length / side)))
    if run.report is None or tile_run.report is None:
        return ProductPoint(curves.product, size, algorithm, side, refused=run.refused or tile_run.refused)
    measured = run.report["measured"]
    path = measured["critical_path"]
    return ProductPoint(
        curves.product, size, algorithm, side, path["cycles"], path["seconds"],
        curves.products(side) * tile_run.report["measured"]["critical_path"]["cycles"],
        measured["max_hops"], measured["memory_bytes"]["max"], None, run.report["arguments"].get("steps_run"),
    )  # fmt: skip


def _job(curves: Curves, device: Device, algorithm: str, side: int, length: int) -> RunJob:
    sizes = ("m", "k", "n") if curves.product == "gemm" else ("k", "n")
    arguments = {curves.option: algorithm, "dtype": DTYPE, **dict.fromkeys(sizes, length)}
    if algorithm == "summa" and side > ALL_STEPS:
        arguments["steps_run"] = STRETCHES
    return RunJob(curves.product, (side, side), device, arguments)


# ------------------------------------------------------------------------------------------------------- claims


def claims(curves: Curves, points: Sequence[ProductPoint]) -> list[CheckedClaim]:
    """What the text says of the figure, beside what the points say."""
    return list(_gemm_claims(points) if curves.product == "gemm" else _gemv_claims(points))


def _gemm_claims(points: Sequence[ProductPoint]) -> Iterator[CheckedClaim]:
    side = max(point.side for point in points)
    large = list(published.GEMM_SIZES)[-1]
    for size, other, ratio in _speedups(points, "meshgemm", side):
        where = f"{size}, {side}x{side}, over {other}"
        yield CheckedClaim(published.GEMM_SPEEDUP, "gemm", where, ratio)
        if size == large:
            yield CheckedClaim(published.GEMM_LARGE, "gemm", where, None if ratio is None else 1 - 1 / ratio)
    for point in points:
        if point.side == side:
            claim = published.GEMM_EFFICIENCY if point.algorithm == "meshgemm" else published.GEMM_OTHERS
            yield CheckedClaim(claim, "gemm", f"{point.size}, {side}x{side}, {point.algorithm}", point.efficiency)


def _gemv_claims(points: Sequence[ProductPoint]) -> Iterator[CheckedClaim]:
    side = max(point.side for point in points)
    for size, other, ratio in _speedups(points, "ktree", side):
        where = f"{size}, {side}x{side}, over {other}"
        yield CheckedClaim(published.GEMV_SPEEDUP, "gemv", where, ratio)
        yield CheckedClaim(published.GEMV_END_TO_END, "gemv", where, ratio)
    for point in points:
        if point.side == side and point.algorithm != "ktree":
            share = None if point.efficiency is None else 1 - point.efficiency
            where = f"{point.size}, {side}x{side}, {point.algorithm}"
            yield CheckedClaim(published.GEMV_COMMUNICATION, "gemv", where, share)


def _speedups(points: Sequence[ProductPoint], algorithm: str, side: int) -> Iterator[tuple[str, str, float | None]]:
    """(size, other algorithm, how many times as long it takes) on side x side cores."""
    cycles = {(point.size, point.algorithm): point.cycles for point in points if point.side == side}
    for (size, other), other_cycles in cycles.items():
        own_cycles = cycles[size, algorithm]
        if other != algorithm:
            yield size, other, other_cycles / own_cycles if other_cycles and own_cycles else None
