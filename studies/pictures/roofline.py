"""Rooflines as pictures, log-log: operations a second over operations a byte. By matplotlib, or in characters.

A line is the roof of something that bytes cross: its rate times the intensity, up to the peak. A point is a phase at
its intensity there, as high as what it attained.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log10
from pathlib import Path

from meshrt.errors import UsageError
from meshrt.ranks.files import write_file
from meshrt.reports.roofline import RooflinePart

FORMATS = ("png", "svg")
WIDTH, HEIGHT = 64, 18  # characters


@dataclass(frozen=True)
class Roof:
    """Of one level: its bytes a second, the peak, and the points (phase, operations a byte, attained) below."""

    level: str
    rate: float
    peak: float
    points: tuple[tuple[str, float, float], ...]

    def at(self, intensity: float) -> float:
        """Operations a second that are possible."""
        return min(self.peak, self.rate * intensity)


def roofs(parts: Sequence[RooflinePart]) -> list[Roof]:
    """Of all levels that have a rate and that bytes crossed. The peak is the largest of the parts'."""
    of_levels = []
    for at, level in enumerate(parts[-1].ceilings.levels):
        points = tuple(
            (part.name, part.ceilings.operations / part.ceilings.levels[at].nbytes, part.attained)
            for part in parts
            if part.ceilings.levels[at].nbytes and part.attained
        )
        peaks = [part.ceilings.peak for part in parts if isfinite(part.ceilings.peak)]
        if points and peaks and isfinite(level.rate):
            of_levels.append(Roof(level.name, level.rate, max(peaks), points))
    return of_levels


def sketch(parts: Sequence[RooflinePart]) -> str:
    """A picture in characters: each roof with a digit, each phase with a letter on every level that it has."""
    lines = roofs(parts)
    if not lines:
        return "no roof: nothing that the operations need has a rate"
    west, east, south, north = _frame(lines)
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]

    def put(x: float, y: float, sign: str) -> None:
        row = round((log10(y) - south) / (north - south) * (HEIGHT - 1))
        column = round((log10(x) - west) / (east - west) * (WIDTH - 1))
        if 0 <= row < HEIGHT and 0 <= column < WIDTH:
            cells[HEIGHT - 1 - row][column] = sign

    for number, roof in reversed([*enumerate(lines, 1)]):
        for column in range(WIDTH):
            x = 10 ** (west + (east - west) * column / (WIDTH - 1))
            put(x, roof.at(x), "-" if roof.rate * x > roof.peak else str(number % 10))
    letters = {part.name: chr(ord("a") + at % 26) for at, part in enumerate(parts)}
    for roof in lines:
        for name, x, y in roof.points:
            put(x, y, letters[name])
    picture = [f"{'10^' + format(_y(row, south, north), '.1f'):>8} |{''.join(cells[row])}" for row in range(HEIGHT)]
    axis = f"{'':9}+{'-' * WIDTH}\n{'':10}{'10^' + format(west, '.1f'):<{WIDTH - 8}}{'10^' + format(east, '.1f'):>8}"
    drawn = "; ".join(f"{number} {roof.level}" for number, roof in enumerate(lines, 1))
    named = "; ".join(f"{letter} {name}" for name, letter in letters.items())
    title = "operations a second over operations a byte"
    return "\n".join([title, *(line.rstrip() for line in picture), axis, f"roofs: {drawn}; - peak", f"parts: {named}"])


def check_plot(path: str) -> str:
    """The format of a picture by its file's name. UsageError for another, and without matplotlib."""
    kind = Path(path).suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise UsageError(f"--plot {path}: a picture is written as {' or '.join('.' + name for name in FORMATS)}")
    try:
        import matplotlib  # noqa: F401 - found out before the work
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install matplotlib, or take --picture") from None
    return kind


def draw(path: str, runs: Mapping[str, Sequence[RooflinePart]]) -> None:
    """All runs in one picture file. No display is needed. UsageError."""
    kind = check_plot(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for run, parts in runs.items():
        for roof in roofs(parts):
            west, east, _, _ = _frame([roof])
            xs = [10**west, *([roof.peak / roof.rate] if 10**west < roof.peak / roof.rate < 10**east else []), 10**east]
            (line,) = axes.plot(xs, [roof.at(x) for x in xs], label=f"{run}: {roof.level}")
            for name, x, y in roof.points:
                axes.plot([x], [y], "o", color=line.get_color())
                axes.annotate(name, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=7)
                axes.plot([x, x], [y, roof.at(x)], ":", color=line.get_color(), linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte")
    axes.set_ylabel("operations a second")
    if axes.lines:
        axes.legend(fontsize=7)
    image = io.BytesIO()
    with rc_context({"svg.hashsalt": "meshrt"}):  # twice the same reports give the same file
        figure.savefig(image, format=kind, dpi=120, metadata={"Date": None} if kind == "svg" else None)
    write_file("--plot", path, lambda stream: stream.write(image.getvalue()))


def _frame(lines: Sequence[Roof]) -> tuple[float, float, float, float]:
    """Powers of ten around all ridges and points: west, east, south, north."""
    xs = [x for roof in lines for x in (roof.peak / roof.rate, *(x for _, x, _ in roof.points))]
    west, east = log10(min(xs)) - 0.5, log10(max(xs)) + 0.5
    ys = [y for roof in lines for y in (roof.peak, *(y for _, _, y in roof.points))]
    return west, east, log10(min(ys)) - 0.5, log10(max(ys)) + 0.3


def _y(row: int, south: float, north: float) -> float:
    return south + (north - south) * (HEIGHT - 1 - row) / (HEIGHT - 1)
