"""NeuronCores as a machine: what `meshrt.machine` asks of every one."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Annotated, Any

from meshrt.machine import Held, Measured, changed
from meshrt.neuron import report
from meshrt.neuron.cores import Cores
from meshrt.neuron.device import NEURON_PRESETS, NeuronDevice, find_neuron_device
from meshrt.neuron.report import rows, title
from meshrt.neuron.roofline import ceilings
from meshrt.options import WRITTEN, AtLeast, AtMost, Choices, Shown
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

SHARED = {"size": "cores", "memory": "sbuf_bytes"}
PRESETS = NEURON_PRESETS
SUMMARY = "flops", "hbm_bytes.read", "sbuf_bytes.max", "critical_path.seconds"
TIMELINE = (
    "The part of the time that each engine and each DMA queue was busy: the mean of all NeuronCores, {:,}."
    " They work side by side and add up to more or less than the time; the last row is the time with none."
)
ONE_MEMORY, QUICK = False, False


def open_machine(
    comm: Any, board: Board, default: tuple[int, int], payload: bool, console: Console,
    *,
    cores: Annotated[int | None, "Shared by the ranks.  [default: the program's own]", AtLeast(1), AtMost(65_536)
        ] = None,
    device: Annotated[str | NeuronDevice, "", Choices(tuple(NEURON_PRESETS))] = "trn1",
    maps: Annotated[str | None, "Write what each core and its link did, for `meshrt show`.",
        Shown("FILE.npz"), WRITTEN] = None,
    trace: Annotated[str | None, "Write what ran when, for a trace viewer such as Perfetto.",
        Shown("PATH"), WRITTEN] = None,
    sbuf_bytes: Annotated[int | None, "Of a partition of SBUF.  [default: device's]", AtLeast(1)] = None,
) -> Cores:  # fmt: skip
    """This rank's NeuronCores. UsageError."""
    if maps is not None:
        check_maps(maps)
    if trace:
        check_target("--trace", trace)
    numbers = find_neuron_device(device, sbuf_partition_bytes=sbuf_bytes)
    opened = Cores(cores or default[0], numbers, Control(comm, board, "control"), payload, console)
    opened.maps_path = maps
    if trace:
        opened.trace_path = trace
        begin_trace(opened.mine)
    return opened


def fullest(cores: Cores) -> Held:
    """The core whose HBM held most, of this rank's. SBUF spills to it, and what PSUM cannot hold is refused."""
    core = max(cores.mine, key=lambda core: core.hbm.most)
    return Held(core.hbm.most, core.hbm.limit, core.index, f"HBM of NeuronCore {core.index}", core.hbm.fullest)


def asked(report: Mapping[str, Any]) -> tuple[dict[str, Any], Collection[str]]:
    """The options that a report tells, and the numbers of the device that they change."""
    numbers = {"sbuf_bytes": "sbuf_partition_bytes"}
    return {"cores": report["mesh"][0], **changed(report, PRESETS, numbers)}, numbers.values()


def with_memory(settings: Mapping[str, Any], nbytes: int) -> dict[str, Any]:
    """Options for cores with so much HBM."""
    return {**settings, "device": replace(find_neuron_device(settings.get("device", "trn1")), hbm_bytes=nbytes)}


def gather(cores: Cores) -> Measured | None:
    """All that was measured at rank 0, None at the others; the trace and the maps as well, if they are kept."""
    if cores.trace_path:
        write_trace(cores.control, cores.mine, cores.trace_path)
    return report.gather(cores)
