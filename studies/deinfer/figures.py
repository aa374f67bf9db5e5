"""DeInfer's Figures 1 and 5 to 7 as points, and its orders as claims: who is faster, what scales with what."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from meshrt.studies.deinfer import runs
from meshrt.studies.deinfer.published import LINKS, MODELS, RATIO, RATIOS, SPEEDUP, SYSTEMS, TPS
from meshrt.studies.rows import Emulate, Finding, PaperRow

ALIKE = 0.02  # what differs by less is neither order


@dataclass(frozen=True)
class LoadPoint:
    """New tokens a second of a load, emulated."""

    figure: str
    subject: str
    link: str
    system: str
    tp: int
    ratio: float
    tokens_per_second: float | None


def figure7(emulate: Emulate) -> list[LoadPoint]:
    """Throughput over compression ratios and GPUs, LLaMA-3-70B on A800 with and without NVLink; also Figure 1."""
    cells = [(8, ratio) for ratio in RATIOS] + [(tp, RATIO) for tp in TPS if tp != 8]
    return [
        _point(emulate, "7", "llama3-70b", link, system, tp, ratio, "s1")
        for link in LINKS
        for system in ("Base", "DeInfer")
        for tp, ratio in cells
    ]


def figure5(emulate: Emulate) -> list[LoadPoint]:
    return _batches(emulate, "5", "s1")


def figure6(emulate: Emulate) -> list[LoadPoint]:
    return _batches(emulate, "6", "s2")


def _batches(emulate: Emulate, figure: str, load: str) -> list[LoadPoint]:
    return [
        _point(emulate, figure, model, link, system, tp, RATIO, load)
        for model in MODELS
        for link in LINKS
        for system in SYSTEMS
        for tp in TPS
    ]


def _point(
    emulate: Emulate, figure: str, model: str, link: str, system: str, tp: int, ratio: float, load: str
) -> LoadPoint:
    run = runs.served(system, model, load, tp, runs.machine("a800", link), ratio)
    rate, _ = runs.read(emulate, run, runs.throughput)
    return LoadPoint(figure, MODELS[model], link, system, tp, ratio, rate)


FIGURES: dict[str, Callable[[Emulate], list[LoadPoint]]] = {"figure5": figure5, "figure6": figure6, "figure7": figure7}


# ---- claims


def claims_of(name: str, points: Sequence[LoadPoint]) -> list[Finding]:
    """What the paper says of a figure."""
    return _scaling(points) if name == "figure7" else _faster(points)


def _scaling(points: Sequence[LoadPoint]) -> list[Finding]:
    claims = []
    for link, words in LINKS.items():
        for system, grows in (("DeInfer", True), ("Base", False)):
            of_system = [point for point in points if (point.link, point.system) == (link, system)]
            by_ratio = [
                point.tokens_per_second for point in sorted(of_system, key=lambda point: point.ratio) if point.tp == 8
            ]
            by_tp = [
                point.tokens_per_second
                for point in sorted(of_system, key=lambda point: point.tp)
                if point.ratio == RATIO
            ]
            for cause, line in (("compression ratio 20 to 60 %", by_ratio), ("2 to 8 GPUs", by_tp)):
                says = f"{system} {'gains' if grows else 'gains nothing'} from {cause}, {words}"
                claims.append(_grows(f"Figure {'1, 7' if link == 'nvlink' else '7'}", says, line, grows))
        ends = {
            point.system: point.tokens_per_second
            for point in points
            if (point.link, point.tp, point.ratio) == (link, 8, RATIOS[-1])
        }
        base, deinfer = ends.get("Base"), ends.get("DeInfer")
        says = f"at 60 % and 8 GPUs DeInfer is {SPEEDUP[link]}x as fast as Base, {words}"  # holds: it is faster
        times = deinfer / base if base and deinfer else None
        claims.append(
            Finding("5.5", None, says, "-" if times is None else f"{times:.2f}x", None if times is None else times > 1)
        )
    return claims


def _grows(where: str, says: str, line: Sequence[float | None], grows: bool) -> Finding:
    """Does a line rise at each point? Or does it not, by more than a tenth over all of it?"""
    values = [value for value in line if value is not None]
    if len(values) < len(line) or not values:
        return Finding(where, None, says, "-", None)
    text = " -> ".join(f"{value:,.0f}" for value in values) + f" tokens/s, {values[-1] / values[0]:.2f}x"
    rises = all(after > before for before, after in pairwise(values))
    return Finding(where, None, says, text, rises if grows else values[-1] <= 1.1 * values[0])


def _faster(points: Sequence[LoadPoint]) -> list[Finding]:
    claims = []
    for link, words in LINKS.items():
        for subject in MODELS.values():
            cells: dict[int, dict[str, float | None]] = {}
            for point in points:
                if (point.link, point.subject) == (link, subject):
                    cells.setdefault(point.tp, {})[point.system] = point.tokens_per_second
            for system in ("DeInfer", "DeInfer†"):
                pairs = [(cell.get("Base"), cell.get(system)) for cell in cells.values()]
                complete = [(a, b) for a, b in pairs if a and b]
                speedups = ", ".join(f"{b / a:.2f}x" for a, b in complete) or "-"
                says = f"{subject}: {system} outperforms Base on 2, 4, 8 GPUs, {words}"
                holds = all(b > a for a, b in complete) if complete else None
                claims.append(Finding(f"Figure {points[0].figure}", None, says, speedups, holds))
    return claims


def orders(table: str, rows: Sequence[PaperRow]) -> list[Finding]:
    """Of the cells that differ in their system only, and of neighbours in the number of GPUs: how many pairs are in the
    published order? Pairs that are published within 2 % of each other say nothing."""
    cells: dict[tuple[str, str], dict[str, PaperRow]] = {}
    for row in rows:
        cells.setdefault((row.subject, row.column), {})[row.system] = row
    of_systems = [pair for cell in cells.values() for pair in combinations(cell.values(), 2)]
    lines: dict[tuple[str, str, str], list[PaperRow]] = {}
    for row in rows:
        if "TP=" in row.column:
            before, after = row.column.split("TP=")
            lines.setdefault((row.subject, row.system, before + after[1:]), []).append(row)
    of_sizes = [pair for line in lines.values() for pair in pairwise(line)]
    claims = []
    for kind, pairs in (("systems", of_systems), ("2, 4 and 8 GPUs", of_sizes)):
        ordered = [(a, b) for a, b in pairs if _order(a.published, b.published)]
        emulated = [(a, b) for a, b in ordered if a.emulated is not None and b.emulated is not None]
        if not ordered:
            continue
        right = [(a, b) for a, b in emulated if _order(a.published, b.published) == _order(a.emulated, b.emulated)]
        wrong = [f"{a.subject}, {a.column}: {a.system} and {b.system}" for a, b in emulated if (a, b) not in right]
        if kind != "systems":
            wrong = [f"{a.subject}, {a.system}: {a.column} and {b.column}" for a, b in emulated if (a, b) not in right]
        result = f"{len(right)} of {len(emulated)} pairs" + (f"; not {'; '.join(wrong)}" if wrong else "")
        holds = len(right) == len(emulated) if emulated else None
        claims.append(Finding(f"Table {table}", None, f"the order of {kind} in every cell", result, holds))
    return claims


def _order(a: float | None, b: float | None) -> int:
    """-1, 0, 1: is the one smaller, alike, larger?"""
    if a is None or b is None:
        return 0
    if abs(a - b) <= ALIKE * max(abs(a), abs(b)):
        return 0
    return 1 if a > b else -1
