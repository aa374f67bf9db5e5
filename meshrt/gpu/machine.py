"""GPUs as a machine: what `meshrt.machine` asks of every one."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from meshrt.gpu import report
from meshrt.gpu.device import LEAST, LINKS, MOST, GpuDevice
from meshrt.gpu.frameworks import FRAMEWORKS
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.nodes import AUTO, WAYS
from meshrt.gpu.presets import GPU_PRESETS, find_gpu
from meshrt.gpu.report import rows, title
from meshrt.gpu.roofline import ceilings
from meshrt.machine import Held, Measured, changed
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

SHARED = {"size": "tp", "memory": "gpu_memory"}
PRESETS = GPU_PRESETS
SUMMARY = "flops", "memory_traffic.total", "memory_bytes.max", "critical_path.seconds"
TIMELINE = "The part of the time that kernels of each name ran, and that collectives took: the mean of all GPUs, {:,}."
ONE_MEMORY, QUICK = False, True


def open_machine(
    comm: Any, board: Board, default: tuple[int, int], payload: bool, console: Console,
    *,
    tp: Annotated[int | None, "GPUs, shared by the ranks.  [default: the program's own]", AtLeast(1)] = None,
    device: Annotated[str | GpuDevice, "The machine.", Choices(tuple(GPU_PRESETS))] = "a800",
    link: Annotated[str | None, "What joins the GPUs.  [default: device's]", Choices(LINKS)] = None,
    link_rate: Annotated[float | None, "Of it, one way, as 10e9.  [default: device's]", AtLeast(LEAST),
        AtMost(MOST), Shown("BYTES/S")] = None,
    framework: Annotated[
        str | None, "Whose host launches kernels and steps.  [default: cuda, without an engine]",
        Choices(tuple(FRAMEWORKS)),
    ] = None,
    node_size: Annotated[
        int | None, "GPUs of a node; the network joins nodes.  [default: one node]", AtLeast(1)
    ] = None,
    collectives: Annotated[
        str, "Over nodes: flat rings, rings or trees of nodes, or the fastest.", Choices(WAYS)
    ] = AUTO,
    pp: Annotated[int, "Stages of a pipeline, of --tp GPUs each.", AtLeast(1)] = 1,
    dp: Annotated[int, "Replicas of them all.", AtLeast(1)] = 1,
    gpu_memory: Annotated[int | None, "Of a GPU.  [default: device's]", AtLeast(1), Shown("BYTES")] = None,
    static: Annotated[bool, "Record what repeats, and replay it.  [default: eager]", Shown("eager")] = False,
    maps: Annotated[str | None, "Write what each GPU and its link did, for `meshrt show`.",
        Shown("FILE.npz"), WRITTEN] = None,
    trace: Annotated[str | None, "Write what ran when, for a trace viewer such as Perfetto.",
        Shown("PATH"), WRITTEN] = None,
) -> Gpus:  # fmt: skip
    """This rank's GPUs. UsageError."""
    if maps is not None:
        check_maps(maps)
    if trace:
        check_target("--trace", trace)
    numbers = find_gpu(device, link_rate, framework, link=link, memory_bytes=gpu_memory)
    control, count = Control(comm, board, "control"), (tp or default[0]) * pp * dp
    opened = Gpus(count, numbers, control, payload, static, console, node_size, collectives, pp, dp)
    opened.maps_path = maps
    if trace:
        opened.trace_path = trace
        begin_trace(opened.mine)
    return opened


def fullest(gpus: Gpus) -> Held:
    """The GPU that held most, of this rank's."""
    gpu = max(gpus.mine, key=lambda gpu: gpu.memory.peak)
    return Held(gpu.memory.peak, gpu.memory.limit, gpu.index, f"GPU {gpu.index}", gpu.memory.fullest)


def asked(report: Mapping[str, Any]) -> tuple[dict[str, Any], Collection[str]]:
    """The options that a report tells, and the numbers of the device that they change."""
    device = report["device"]
    rate, host = f"{device['link']}_bytes_per_second", ("launch_seconds", "step_seconds")
    numbers = {"link": "link", "link_rate": rate, "gpu_memory": "memory_bytes"}
    options = {"tp": report["mesh"][0], **report.get("groups", {}), "static": report["static"]}
    options |= changed(report, PRESETS, numbers)
    replaced = {*numbers.values(), *(["nvlink_pair_bytes_per_second"] if "link_rate" in options else [])}
    own = bool(changed(report, PRESETS, dict(zip(host, host, strict=True))))
    for name, of in FRAMEWORKS.items():
        if own and [of.launch_seconds, of.step_seconds] == [device[number] for number in host]:
            options["framework"] = name
            replaced |= {*host}
    return options, replaced


def with_memory(settings: Mapping[str, Any], nbytes: int) -> dict[str, Any]:
    """Options for GPUs of so much memory."""
    return {**settings, "gpu_memory": nbytes}


def gather(gpus: Gpus) -> Measured | None:
    """All that was measured at rank 0, None at the others; the trace and the maps as well, if they are kept."""
    if gpus.trace_path:
        write_trace(gpus.control, gpus.mine, gpus.trace_path)
    return report.gather(gpus)
