"""A reproduction of NeuronMM as tables for a person."""

from collections.abc import Sequence
from typing import Any

from meshrt.neuron.device import GIB
from meshrt.studies.neuronmm.reproduce import title
from meshrt.studies.waferllm.printed import number, print_lines, print_rows, print_why


def print_reproduction(told: dict[str, Any]) -> None:
    """Each of the paper's tables with its reasons, the curves, what the times are made of, and what it all comes to."""
    for name, why in told["why"].items():
        print_rows(title(name), [row for row in told["rows"] if row["table"] == name])
        if name == "figure6":
            _print_curves(told["curves"]["figure6"])
        _print_shares([one for one in told["shares"] if one["table"] == name])
        print_why(why)
    print("\nEmulated over published")
    for one in told["summary"]:
        _print_summary(one)


def _print_curves(line: Sequence[dict[str, Any]]) -> None:
    lengths = sorted({point["m"] for point in line})
    lines = []
    for system in dict.fromkeys(point["system"] for point in line):
        own = {point["m"]: point for point in line if point["system"] == system}
        for what, scale in (("seconds", 1e3), ("hbm_bytes", 1 / GIB)):
            cells = [own[m][what] for m in lengths]
            unit = "ms" if what == "seconds" else "GiB"
            lines.append((system, unit, *("refused" if cell is None else number(scale * cell) for cell in cells)))
    print_lines("Figure 6, emulated, over M", ("", "", *map(str, lengths)), lines)


def _print_shares(parts: Sequence[dict[str, Any]]) -> None:
    if not parts:
        return
    names = ("seconds", "products", "transposes", "copies", "dma")
    lines = [(one["subject"], one["system"], *(f"{1e3 * one[name]:.3f}" for name in names)) for one in parts]
    columns = ("", "system", "ms", "operations", "transposes", "copies", "HBM")
    print_lines("What the emulated time is made of; the last two are waited for", columns, lines)


def _print_summary(one: dict[str, Any]) -> None:
    line = f"  {title(one['table']):9} {one['compared']} cells compared"
    if one["compared"]:
        line += (
            f": median {one['median_ratio']:.3g}, {one['within_5_percent']} within 5 %, worst "
            f"{one['worst_ratio']:.3g} ({one['worst_cell']})"
        )
    print(line)
