"""A program without a host script: launch its functions, look at what it exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshrt.csl.cslc import parse_parameters
from meshrt.csl.errors import CslError
from meshrt.csl.program import build
from meshrt.csl.report import report_of
from meshrt.csl.types import Array, Pointer, dtype
from meshrt.csl.values import FunctionRef, Memory
from meshrt.csl.wafer import Wafer


def run(
    layout: Path,
    parameters: str,
    arch: str,
    launches: tuple[str, ...],
    shows: tuple[str, ...],
    seed: int | None,
    comm: Any = None,
) -> tuple[dict[str, Any], dict[str, dict[str, list[Any]]]]:
    """The report, and of each name that is to be shown what each core has. CslError, MemoryLimit, NoRoute, Deadlock."""
    wafer = Wafer(build(layout, parse_parameters(parameters), arch), seed, comm)
    for launch in launches:
        name, _, given = launch.partition(":")
        try:
            arguments = tuple(float(one) if "." in one else int(one, 0) for one in filter(None, given.split(",")))
        except ValueError:
            raise CslError(f"--launch {launch}: NAME or NAME:NUMBER,NUMBER is asked for") from None
        wafer.launch(name, arguments)
        wafer.idle()
    wafer.settle()
    return report_of(wafer), {name: look(wafer, name) for name in shows}


def look(wafer: Wafer, name: str) -> dict[str, list[Any]]:
    """What cores export by a name: a pointer's whole variable, or a variable."""
    found: dict[str, list[Any]] = {}
    for (x, y), core in wafer.cores.items():
        one = core.image.exports.get(name)
        if one is None or isinstance(one.value, FunctionRef):
            continue
        if isinstance(one.type, Pointer):
            at = int(core.m_uint16[int(one.spot.address) // 2]) if isinstance(one.spot, Memory) else int(one.value)
            kind = one.type.to.element if isinstance(one.type.to, Array) else one.type.to
        else:
            at, kind = int(one.spot.address), one.type.element if isinstance(one.type, Array) else one.type
        nbytes = next((size for address, size, _ in core.image.places if address == at), 0)
        found[f"{x},{y}"] = core.memory[at : at + nbytes].view(dtype(kind)).tolist()
    parts = [found] if wafer.block is None else wafer.block.comm.allgather(found)
    shown = {at: part[at] for part in parts for at in part}
    if not shown:
        exports = [pair for image in wafer.program.tiles.values() for pair in image.exports.items()]
        names = sorted({key for key, one in exports if not isinstance(one.value, FunctionRef)})
        raise CslError(f"--show {name}: no tile exports such a variable, there are {', '.join(names) or 'none'}")
    return {f"{x},{y}": shown[f"{x},{y}"] for x, y in wafer.coded if f"{x},{y}" in shown}
