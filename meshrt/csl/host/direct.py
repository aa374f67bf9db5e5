"""A program without a host script: launch its functions, look at what it exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meshrt.csl.errors import CslError
from meshrt.csl.host.cslc import parse_parameters
from meshrt.csl.host.exported import variable
from meshrt.csl.host.orders import OrderOutcome, compare, digests, outcome
from meshrt.csl.language.program import build
from meshrt.csl.language.types import dtype
from meshrt.csl.language.values import FunctionRef
from meshrt.csl.machine.wafer import Wafer
from meshrt.csl.report import report_of


def run(
    layout: Path,
    parameters: str,
    arch: str,
    launches: tuple[str, ...],
    shows: tuple[str, ...],
    seed: int | None,
    comm: Any = None,
    seeds: int = 0,
) -> tuple[dict[str, Any], dict[str, dict[str, list[Any]]]]:
    """The report, and of each name that is to be shown what each core has. CslError, MemoryLimit, NoRoute, Deadlock.

    With `seeds`, on one rank, the report has what so many other orders of ready tasks change.
    """
    wafer = _launched(layout, parameters, arch, launches, seed, comm)
    report, shown = report_of(wafer), {name: look(wafer, name) for name in shows}
    if seeds:

        def again(seed: int | None) -> OrderOutcome:
            other = _launched(layout, parameters, arch, launches, seed, None)
            return outcome([report_of(other) | {"exported": digests(other)}])

        report["orders"] = compare(outcome([report | {"exported": digests(wafer)}]), seeds, again)
    return report, shown


def _launched(
    layout: Path, parameters: str, arch: str, launches: tuple[str, ...], seed: int | None, comm: Any
) -> Wafer:
    wafer = Wafer(build(layout, parse_parameters(parameters), arch), seed, comm)
    for launch in launches:
        name, _, given = launch.partition(":")
        try:
            arguments = tuple(_number(text) for text in filter(None, given.split(",")))
        except ValueError:
            raise CslError(f"--launch {launch}: NAME or NAME:NUMBER,NUMBER is asked for") from None
        wafer.launch(name, arguments)
        wafer.idle()
    wafer.settle()
    return wafer


def _number(text: str) -> int | float:
    """A whole number, also by its base (0x10), or another. ValueError."""
    try:
        return int(text, 0)
    except ValueError:
        return float(text)


def look(wafer: Wafer, name: str) -> dict[str, list[Any]]:
    """What cores export by a name: a pointer's whole variable, or a variable."""
    values: dict[str, list[Any]] = {}
    for (x, y), core in wafer.cores.items():
        symbol = variable(core, name)
        if symbol is not None:
            at, nbytes, kind = symbol
            values[f"{x},{y}"] = core.memory[at : at + nbytes].view(dtype(kind)).tolist()
    parts = [values] if wafer.block is None else wafer.block.comm.allgather(values)
    shown = {at: part[at] for part in parts for at in part}
    if not shown:
        exports = [pair for image in wafer.program.tiles.values() for pair in image.exports.items()]
        names = sorted({key for key, value in exports if not isinstance(value.value, FunctionRef)})
        raise CslError(f"--show {name}: no tile exports such a variable, there are {', '.join(names) or 'none'}")
    return {f"{x},{y}": shown[f"{x},{y}"] for x, y in wafer.coded if f"{x},{y}" in shown}
