"""A reproduction of NeuronMM as tables for a person."""

from collections.abc import Sequence
from typing import Any

from meshrt.neuron.device import GIB
from meshrt.studies.neuronmm.reproduce import title
from meshrt.studies.waferllm.printed import number, print_lines, print_rows, print_why


def print_reproduction(report: dict[str, Any]) -> None:
    """Each of the paper's tables with its reasons, the curves, what the times are made of, and what it all comes to."""
    for name, why in report["why"].items():
        print_rows(title(name), [row for row in report["rows"] if row["table"] == name])
        if name == "figure6":
            _print_curves(report["curves"]["figure6"])
        _print_shares([share for share in report["shares"] if share["table"] == name])
        print_why(why)
    print("\nEmulated over published")
    for summary in report["summary"]:
        _print_summary(summary)


def _print_curves(line: Sequence[dict[str, Any]]) -> None:
    lengths = sorted({point["m"] for point in line})
    lines = []
    for system in dict.fromkeys(point["system"] for point in line):
        by_length = {point["m"]: point for point in line if point["system"] == system}
        for what, scale in (("seconds", 1e3), ("hbm_bytes", 1 / GIB)):
            cells = [by_length[m][what] for m in lengths]
            unit = "ms" if what == "seconds" else "GiB"
            lines.append((system, unit, *("refused" if cell is None else number(scale * cell) for cell in cells)))
    print_lines("Figure 6, emulated, over M", ("", "", *map(str, lengths)), lines)


def _print_shares(parts: Sequence[dict[str, Any]]) -> None:
    if not parts:
        return
    names = ("seconds", "products", "transposes", "copies", "dma")
    lines = [(part["subject"], part["system"], *(f"{1e3 * part[name]:.3f}" for name in names)) for part in parts]
    columns = ("", "system", "ms", "operations", "transposes", "copies", "HBM")
    print_lines("What the emulated time is made of; the last two are waited for", columns, lines)


def _print_summary(summary: dict[str, Any]) -> None:
    line = f"  {title(summary['table']):9} {summary['compared']} cells compared"
    if summary["compared"]:
        line += (
            f": median {summary['median_ratio']:.3g}, {summary['within_5_percent']} within 5 %, worst "
            f"{summary['worst_ratio']:.3g} ({summary['worst_cell']})"
        )
    print(line)
