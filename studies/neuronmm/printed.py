"""A reproduction of NeuronMM as tables for a person."""

from collections.abc import Iterator, Sequence
from typing import Any

from meshrt.neuron.device import GIB
from meshrt.studies.grid import Cell, Grid, put
from meshrt.studies.neuronmm.reproduce import title
from meshrt.studies.waferllm.printed import compared, number, table, why


def print_reproduction(report: dict[str, Any], form: str = "table") -> None:
    put(said(report), form)


def print_part(report: dict[str, Any], name: str, form: str = "table") -> None:
    put(part(report, name), form)


def said(report: dict[str, Any]) -> Iterator[str | Grid]:
    """Each of the paper's tables with its reasons, the curves, what the times are made of, and what it all comes to."""
    for name in report["why"]:
        yield from part(report, name)
    yield from summary(report)


def part(report: dict[str, Any], name: str) -> Iterator[str | Grid]:
    """One table or figure, what its times are made of, and why published and emulated differ."""
    yield from compared(title(name), [row for row in report["rows"] if row["table"] == name])
    if name == "figure6":
        yield from _curves(report["curves"]["figure6"])
    yield from _shares([share for share in report["shares"] if share["table"] == name])
    yield from why(report["why"][name])


def summary(report: dict[str, Any]) -> Iterator[str]:
    """What the cells of each table come to."""
    yield "\nEmulated over published"
    yield from map(_summary, report["summary"])


def _curves(line: Sequence[dict[str, Any]]) -> Iterator[str | Grid]:
    lengths = sorted({point["m"] for point in line})
    lines = []
    for system in dict.fromkeys(point["system"] for point in line):
        by_length = {point["m"]: point for point in line if point["system"] == system}
        for quantity, scale in (("seconds", 1e3), ("hbm_bytes", 1 / GIB)):
            cells = [by_length[m][quantity] for m in lengths]
            unit = "ms" if quantity == "seconds" else "GiB"
            lines.append((system, unit, *(number(None if cell is None else scale * cell, "refused") for cell in cells)))
    yield from table("Figure 6, emulated, over M", ("system", "unit", *map(str, lengths)), lines)


def _shares(parts: Sequence[dict[str, Any]]) -> Iterator[str | Grid]:
    if not parts:
        return
    names = ("seconds", "products", "transposes", "copies", "dma")
    lines = [
        (part["subject"], part["system"], *(Cell(1e3 * part[name], f"{1e3 * part[name]:.3f}") for name in names))
        for part in parts
    ]
    columns = ("of", "system", "ms", "operations", "transposes", "copies", "HBM")
    yield from table("What the emulated time is made of; the last two are waited for", columns, lines)


def _summary(summary: dict[str, Any]) -> str:
    line = f"  {title(summary['table']):9} {summary['compared']} cells compared"
    if summary["compared"]:
        line += (
            f": median {summary['median_ratio']:.3g}, {summary['within_5_percent']} within 5 %, worst "
            f"{summary['worst_ratio']:.3g} ({summary['worst_cell']})"
        )
    return line
