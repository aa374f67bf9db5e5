"""A system on a chip as a machine: what `meshrt.machine` asks of every one."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from meshrt.arm import report
from meshrt.arm.device import ARM_PRESETS, ArmDevice, find_arm_device
from meshrt.arm.report import rows, title
from meshrt.arm.roofline import ceilings
from meshrt.arm.soc import Soc
from meshrt.machine import Held, Measured, changed
from meshrt.options import WRITTEN, AtLeast, Choices, Shown
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.ranks.control import Control
from meshrt.ranks.files import check_target
from meshrt.reports.devicemaps import check_maps
from meshrt.reports.trace import begin_trace, write_trace

__all__ = [
    "ONE_MEMORY", "PRESETS", "QUICK", "SHARED", "SUMMARY", "TIMELINE", "asked", "ceilings", "fullest", "gather",
    "open_machine", "rows", "title", "with_memory",
]  # fmt: skip

SHARED = {"size": "cores", "memory": "dram"}
PRESETS = ARM_PRESETS
SUMMARY = "operations", "dram_bytes.total", "memory_bytes.max", "critical_path.seconds"
TIMELINE = "The part of the time that cores were at each: the mean of all, {:,}."
ONE_MEMORY, QUICK = True, False


def open_machine(
    comm: Any, board: Board, default: tuple[int, int], payload: bool, console: Console,
    *,
    cores: Annotated[int | None, "The first so many, shared by the ranks.  [default: device's]", AtLeast(1)] = None,
    device: Annotated[str | ArmDevice, "The machine.", Choices(tuple(ARM_PRESETS))] = "n2x8",
    dram: Annotated[int | None, "Of all cores.  [default: device's]", AtLeast(1), Shown("BYTES")] = None,
    registers: Annotated[int | None, "Of a core, of 128 bits.  [default: device's]", AtLeast(1)] = None,
    spill: Annotated[bool, "Kernels may ask for more registers, which go to the stack."] = False,
    maps: Annotated[str | None, "Write what each core did, for `meshrt show`.", Shown("FILE.npz"), WRITTEN] = None,
    trace: Annotated[str | None, "Write what ran when, for a trace viewer such as Perfetto.",
        Shown("PATH"), WRITTEN] = None,
) -> Soc:  # fmt: skip
    """This rank's cores. UsageError."""
    if maps is not None:
        check_maps(maps)
    if trace:
        check_target("--trace", trace)
    numbers = find_arm_device(device, dram_bytes=dram, registers=registers)
    count = len(numbers.cores) if cores is None else cores
    opened = Soc(numbers, count, Control(comm, board, "control"), payload, spill, console)
    opened.maps_path = maps
    if trace:
        opened.trace_path = trace
        begin_trace(opened.mine)
    return opened


def fullest(soc: Soc) -> Held:
    """What DRAM held."""
    return Held(soc.memory.peak, soc.device.dram_bytes, 0, "DRAM", soc.memory.fullest)


def asked(report: Mapping[str, Any]) -> tuple[dict[str, Any], Collection[str]]:
    """The options that a report tells, and the numbers of the device that they change. --spill without a spill is no
    other run.
    """
    numbers = {"dram": "dram_bytes", "registers": "registers"}
    spill = any(report["measured"]["spills"].values())
    return {"cores": report["mesh"][0], "spill": spill, **changed(report, PRESETS, numbers)}, numbers.values()


def with_memory(settings: Mapping[str, Any], nbytes: int) -> dict[str, Any]:
    """Options for cores that share so much DRAM."""
    return {**settings, "dram": nbytes}


def gather(soc: Soc) -> Measured | None:
    """All that was measured at rank 0, None at the others; the trace and the maps as well, if they are kept."""
    if soc.trace_path:
        write_trace(soc.control, soc.mine, soc.trace_path)
    return report.gather(soc)
