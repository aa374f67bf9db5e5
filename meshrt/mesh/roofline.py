"""What a mesh can do at most: its cores, its links, and the latency of the path that was measured."""

from collections.abc import Mapping
from math import inf, prod
from typing import Any

from meshrt.mesh.device import Device
from meshrt.reports.ceilings import Ceilings, Level

LONG = 10**15  # numbers of a vector beside which the cost of its instruction is nothing


def ceilings(report: Mapping[str, Any], part: Mapping[str, Any]) -> Ceilings:
    """Of a part of a report. Operations are multiply-accumulates, two each; 16-bit ones may be faster.

    A model on several regions of the wafer works on one at a time: cores are those of the largest mesh that was at
    work, links those of the first. On a wafer with defects links are the mesh's: the clock knows detours as latency.
    """
    device = Device(**report["device"])
    width, height = report["mesh"]
    cores, links = part["cores"], 2 * (width * (height - 1) + height * (width - 1))
    macs, narrow = part["macs"], part["macs_16"]
    rates = {itemsize: _macs_per_cycle(device, itemsize) for itemsize in (2, 4)}
    cycles = narrow / rates[2] + (macs - narrow) / rates[4]
    rate = macs / cycles if cycles else rates[4]
    width_of_link = device.link_bytes_per_cycle or inf
    path = part["critical_path"]
    return Ceilings(
        "macs", 2 * macs, 2 * rate * cores * device.clock_hz,
        (
            Level(
                "links", "link_bytes.total", part["link_bytes"]["total"], links * width_of_link * device.clock_hz,
                part["link_bytes"]["max"] / width_of_link / device.clock_hz,
            ),
            Level(
                "ramps", "ramp_bytes.total", part["ramp_bytes"]["total"], 2 * cores * width_of_link * device.clock_hz,
                part["ramp_bytes"]["max"] / width_of_link / device.clock_hz,
            ),
        ),
        {"latency": (path["hops"] * device.alpha + path["stages"] * device.beta) / device.clock_hz},
    )  # fmt: skip


def _macs_per_cycle(device: Device, itemsize: int) -> float:
    """Of a core, by a matrix unit, or in vectors so long that nothing else counts; infinite where they cost nothing."""
    if itemsize == 2 and device.matrix_unit is not None:
        return prod(device.matrix_unit) / device.matrix_passes
    cycles = device.vector_cycles(LONG, 1, itemsize) - device.call_cycles
    return LONG / cycles if cycles else inf
