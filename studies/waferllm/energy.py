"""What the emulated runs of Tables 6 to 8 take in joules, beside what the paper's power and times come to.

The paper's ratios are those of times, with a WSE-2 at 37.5 times the power of an A100, 400 W: 15 kW. Here the WSE-2's
joules are counted (docs/energy.md); the A100s' are their published times at those 400 W.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from meshrt.mesh.device import Device
from meshrt.studies.rows import PaperRow
from meshrt.studies.waferllm import published
from meshrt.studies.waferllm.published import PublishedCell
from meshrt.units import joules


class Joules(NamedTuple):
    """Of one product, or of one token."""

    low: float
    mean: float
    high: float


def wafer_joules(device: Device, part: Mapping[str, Any], times: int = 1) -> Joules | None:
    """Of a part of a report that did something so many times: each of them. None where the device has no joules.

    A wafer is on as a whole: cores beyond the mesh take what cores take that do nothing.
    """
    if "energy" not in part:
        return None
    low, high = device.idle_watts or (0.0, 0.0)
    others = max(0, (device.width or 0) * (device.height or 0) - part["cores"]) * part["critical_path"]["seconds"]
    idle = {"low": low, "mean": (low + high) / 2, "high": high}
    return Joules(*((part["energy"][name] + others * watts) / times for name, watts in idle.items()))


def rows(cells: Sequence[PublishedCell], spent: Joules | None) -> list[PaperRow]:
    """A block of Tables 6 to 8: joules of the WSE-2, and how those of the A100s compare."""
    (wafer,) = (cell for cell in cells if cell.system != "a100" and cell.unit != "ratio")
    watts = published.WSE_A100_POWER * published.A100_WATTS
    note = (
        "refused, or a device without joules"
        if spent is None
        else f"counted, {joules(spent.low)} to {joules(spent.high)}; published: its time at {watts / 1e3:g} kW"
    )
    mean = None if spent is None else spent.mean
    stated = watts * _seconds(wafer)
    lines = [PaperRow(str(wafer.table), wafer.model, "waferllm", "energy", "J", stated, mean, note=note, derived=True)]
    gpus = {cell.column: cell for cell in cells if cell.system == "a100"}
    for cell in cells:
        if cell.unit == "ratio":
            other = gpus[cell.column.removeprefix("energy, ").removesuffix(" / WSE-2")]
            taken = published.GPUS[other.column] * published.A100_WATTS * _seconds(other)
            lines.append(
                PaperRow(
                    str(cell.table), cell.model, "waferllm", f"{cell.column}, counted", "ratio", cell.value,
                    None if mean is None else taken / mean, note="A100s: 400 W for the published time", derived=True,
                )
            )  # fmt: skip
    return lines


def _seconds(cell: PublishedCell) -> float:
    """Of a product, or of a token, by a published number: milliseconds, or tokens a second."""
    assert cell.value is not None
    return 1e-3 * cell.value if cell.unit == "ms" else 1 / cell.value
