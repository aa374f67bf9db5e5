"""Tables and curves as files: CSV, and PNG where matplotlib is installed."""

import csv
import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meshrt.errors import UsageError
from meshrt.ranks.files import write_file
from meshrt.studies.waferllm.curves import Curves, ProductPoint


def check_folder(option: str, path: str) -> None:
    """Make the folder if need be. UsageError where nothing can be written in it."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be made a folder: {error.strerror or error}") from error
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {path} cannot be written")


def check_matplotlib(option: str = "--png") -> None:
    """UsageError where there is no matplotlib to draw with: said before an hour of emulation, not after."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(f"{option} needs matplotlib: pip install matplotlib, or leave {option} out") from None


def check_outputs(csv_folder: str | None, png_folder: str | None) -> None:
    """UsageError, before any run, where tables or pictures that are asked for could not be made after it."""
    if png_folder:
        check_matplotlib()
    for option, folder in (("--csv", csv_folder), ("--png", png_folder)):
        if folder:
            check_folder(option, folder)


def write_csv(path: str, lines: Sequence[Mapping[str, Any]]) -> None:
    """Dictionaries with the same keys as a CSV file with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    write_file("--csv", path, lambda stream: stream.write(text.getvalue().encode()))


def draw(path: str, curves: Curves, points: Sequence[ProductPoint], device: str) -> None:
    """One panel a size: cycles over cores for each algorithm, and dotted what the products of tiles take by themselves.

    No display is needed, and none of matplotlib's own settings are changed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(curves.sizes), 3.6), layout="constrained")
    panels = figure.subplots(1, len(curves.sizes), squeeze=False)[0]
    for panel, size in zip(panels, curves.sizes, strict=True):
        for algorithm in curves.algorithms:
            line = [point for point in points if (point.size, point.algorithm) == (size, algorithm) and point.cycles]
            panel.plot([p.side for p in line], [p.cycles for p in line], marker="o", label=algorithm)
        alone = [p for p in points if (p.size, p.algorithm) == (size, curves.algorithms[0]) and p.compute_cycles]
        panel.plot(
            [p.side for p in alone], [p.compute_cycles for p in alone], ":", color="grey", label="products alone"
        )
        panel.set_yscale("log")
        panel.set_title(f"{curves.product.upper()} {size}")
        panel.set_xticks(sorted({point.side for point in points}))
        panel.set_xlabel("cores, N of N x N")
    panels[0].set_ylabel(f"cycles, emulated {device}")
    panels[0].legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_file("--png", path, lambda stream: stream.write(image.getvalue()))
