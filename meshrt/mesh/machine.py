"""The mesh as a machine: what `meshrt.machine` asks of every one."""

import os
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from meshrt.errors import UsageError
from meshrt.machine import Measured, changed
from meshrt.mesh import report
from meshrt.mesh.block import Block, make_block
from meshrt.mesh.defects import WaferMap, is_rate, make_wafer
from meshrt.mesh.device import Device
from meshrt.mesh.devicefile import find_device
from meshrt.mesh.mesh import parse_mesh
from meshrt.mesh.presets import PRESETS
from meshrt.mesh.report import rows, title
from meshrt.mesh.roofline import ceilings
from meshrt.options import FILE, WRITTEN, AtLeast, AtMost, Choices, Listed, Shown
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.ranks.files import check_target
from meshrt.reports.devicemaps import check_maps

__all__ = [
    "PRESETS", "SHARED", "SUMMARY", "TIMELINE", "asked", "ceilings", "gather", "open_machine", "rows", "title",
]  # fmt: skip

SHARED = {"size": "mesh", "memory": "core_memory"}
SUMMARY = "hops", "stages", "link_bytes.max", "memory_bytes.max", "critical_path.cycles"
TIMELINE = (
    "The part of the time that cores were at each: the mean of the {:,} of the trace, along the diagonal or as"
    " --trace-cores chose them. A packet leaves while its core goes on: sending is no time of a core but where"
    " its software relays, adds or runs on packets."
)


def open_machine(
    comm: Any, board: Board, default: tuple[int, int], payload: bool, console: Console,
    wafer: Callable[[int, int], WaferMap] | None = None, timed: bool = True,
    *,
    mesh: Annotated[str | tuple[int, int] | None, "Cores, shared by the ranks.  [default: the program's own]",
        Shown("WxH")] = None,
    device: Annotated[str | Device, "The machine, or a FILE.toml.", Choices(tuple(PRESETS), ".toml")] = "wse2",
    core_memory: Annotated[int | None, "A core's memory.  [default: device's]", AtLeast(1)] = None,
    route_entries: Annotated[int | None, "A router's limit.  [default: device's]", AtLeast(1), AtMost(256)] = None,
    defects: Annotated[str | None, "Dead cores and links that the mesh is laid around.",
        Shown("RATE|FILE"), FILE, Listed()] = None,
    spares: Annotated[str | tuple[int, int] | None, "Spare columns and rows of the wafer.  [default: an eighth]",
        Shown("CxR")] = None,
    defects_seed: Annotated[int | None, "What is dead at a RATE.  [default: 0]", AtLeast(0)] = None,
    maps: Annotated[str | None, "Write what each core and link did, for `meshrt show`.",
        Shown("FILE.npz"), WRITTEN] = None,
    trace: Annotated[str | None, "Write what some cores did when, for a trace viewer such as Perfetto.",
        Shown("PATH"), WRITTEN] = None,
    trace_cores: Annotated[str | None, "Which.  [default: 32 along the diagonal]",
        Shown("X,Y;X,*;..."), Listed(";,")] = None,
    trace_links: Annotated[str | None, "And when links out of these were busy.  [default: none]",
        Shown("X,Y;X,*;..."), Listed(";,")] = None,
    goal: Annotated[str | None, "Write all messages as a GOAL schedule, for LogGOPSim.", Shown("FILE"), WRITTEN] = None,
    chakra: Annotated[str | None, "The same as Chakra traces PREFIX.CORE.et, for ASTRA-sim.",
        Shown("PREFIX"), WRITTEN] = None,
) -> Block:  # fmt: skip
    """This rank's block of the mesh. `wafer` lays one of that width and height on a wafer with defects; `timed` as in
    `Cores`. UsageError.
    """
    width, height = default if mesh is None else parse_mesh(mesh)
    if maps is not None:
        check_maps(maps)
    if trace_cores is not None and trace is None:
        raise UsageError(f"--trace-cores {trace_cores!r} are for --trace: give it, or leave them away")
    if trace_links is not None and trace is None:
        raise UsageError(f"--trace-links {trace_links!r} are for --trace: give it, or leave them away")
    timeline = None
    if trace is not None:
        from meshrt.mesh.look.timeline import (  # few runs are traced, and all others start sooner without
            Timeline,
            choose,
        )

        timeline = Timeline(trace, trace_cores, trace_links)
        check_target("--trace", trace)
        choose(trace_cores, width, height)
        if trace_links is not None:
            choose(trace_links, width, height, "--trace-links")
    messages = _messages(goal, chakra, width * height)
    numbers = find_device(device, core_memory=core_memory, route_entries=route_entries)
    if defects is None:
        if spares is not None:
            raise UsageError("--spares are for --defects: say what is dead, or leave them away")
        if defects_seed is not None:
            raise UsageError(
                f"--defects-seed is {defects_seed} and nothing is dead: give --defects RATE, or leave it away"
            )
        laid = wafer(width, height) if wafer else None
    elif defects_seed is not None and not is_rate(defects):
        raise UsageError(f"--defects-seed is for a RATE; --defects {defects} is a file, leave the seed away")
    else:
        laid = make_wafer(defects, spares, defects_seed or 0, width, height)
    block = make_block(comm, numbers, width, height, board, payload, laid, maps, timeline, timed, messages)
    block.console = console
    board.owned_by(os.getpid(), block.mesh.cores_here)
    return block


def asked(report: Mapping[str, Any]) -> tuple[dict[str, Any], Collection[str]]:
    """The options that a report tells, and the numbers of the device that they change."""
    numbers = {"core_memory": "core_memory", "route_entries": "route_entries"}
    width, height = report["mesh"]
    return {"mesh": f"{width}x{height}", **changed(report, PRESETS, numbers)}, numbers.values()


def _messages(goal: str | None, chakra: str | None, cores: int) -> Any:
    """What keeps the messages of a run, if they are to be written. UsageError."""
    if goal is None and chakra is None:
        return None
    from meshrt.mesh.look.messages import MANY, Messages  # few runs are

    if goal is not None:
        check_target("--goal", goal)
    if chakra is not None:
        check_target("--chakra", chakra and f"{chakra}.0.et")
        if cores > MANY:
            raise UsageError(f"--chakra writes a file a core, for {MANY} cores at most, and these are {cores}")
    return Messages(goal, chakra)


def gather(block: Block) -> Measured | None:
    """All that was measured at rank 0, None at the others; the maps as well, if they are kept."""
    measured = report.gather(block)
    if block.ledger.maps_path is not None:
        from meshrt.mesh.look.mapfile import write_maps

        write_maps(block, block.ledger.segments, block.ledger.maps_path)
    if block.ledger.timeline is not None:
        from meshrt.mesh.look.timeline import write_timeline
        from meshrt.mesh.meter import merge

        named = [(part.name, part.begin[0], part.end[0]) for part in block.ledger.segments]
        crossed = merge(block.ledger.segments).counters.links
        write_timeline(block.ledger.timeline, block.control, block.device, named, crossed)
    if block.ledger.messages is not None:
        from meshrt.mesh.look.messages import write_messages

        write_messages(block.ledger.messages, block.control, block.device)
    return measured
