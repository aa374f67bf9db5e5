"""All-reduces among GPUs, in microseconds: Vidur's profiles (data/README.md).

A profile has how long the collective's kernel ran on one GPU, which is as long as it waits for the last GPU to launch
its own. The host of that one needs `late_seconds` for a launch, in PyTorch; so small messages take as long as that,
whatever the links do. It is so here too: the last GPU's host is that slow, the others are ahead of the device, and what
is read is the clock of the first, of a few collectives after one another once they go on evenly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from meshrt.gpu.device import GpuDevice, Protocol
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.presets import A100, GPU_PRESETS, H100
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control
from meshrt.studies.validate.kind import BatchRows, Emulated, MeasurementKind, Sizes, whole, word

BEFORE = 2  # collectives, until they go on evenly
DTYPE = np.dtype(np.float16)


@dataclass(frozen=True)
class MeasuredSystem:
    """Machines that were measured. `late_seconds`, by the number of GPUs that a run had, was found on rows for fitting;
    of another number it is the nearest one's. `note` is for what was not measured."""

    device: GpuDevice
    late_seconds: Mapping[int, float]
    note: str = ""

    def late(self, gpus: int) -> float:
        return self.late_seconds[min(self.late_seconds, key=lambda count: abs(count - gpus))]


# Cards in pairs have bridges in place of switches: 12 links, of which NCCL assumes 20 and 20.6 GB/s.
A100_PAIRS = replace(
    A100, nvlink_gpus=2,
    nvlink_protocols=(*A100.nvlink_protocols[:-1], Protocol("Simple", 8.4e-6, 10.06e-6, 0.774)),
)  # fmt: skip
H100_PAIRS = replace(H100, nvlink_gpus=2, nvlink_bytes_per_second=247e9)
SYSTEMS = {
    "a100_dgx": MeasuredSystem(A100, {2: 53.9e-6, 8: 31.9e-6, 16: 46.8e-6}),
    "a100_pairwise_nvlink": MeasuredSystem(A100_PAIRS, {2: 60.3e-6, 4: 64.6e-6}),
    "h100_pairwise_nvlink": MeasuredSystem(H100_PAIRS, {2: 28.1e-6, 4: 26.9e-6}),
}

_LATE = {0: median(late for system in SYSTEMS.values() for late in system.late_seconds.values())}
_NOTE = "no run of such a system was measured: links are as their sources have them, hosts the middle one of all others"
BY_SOURCES = {  # bridges and PCIe are in a preset, as are switches
    **{f"{name}_dgx": MeasuredSystem(GPU_PRESETS[name], _LATE, _NOTE) for name in ("a800", "h100", "h200")},
    **{f"{name}_pairwise_nvlink": MeasuredSystem(GPU_PRESETS[name], _LATE, _NOTE) for name in ("a40", "a6000")},
}


def device_of(system: MeasuredSystem, gpus: int, in_node: int) -> GpuDevice:
    """As these GPUs are joined: over the network; by NVLink; or, where they are more than that joins, by PCIe."""
    device = replace(system.device, node_gpus=in_node)
    if gpus > in_node:
        return replace(device, link="network")
    return device if gpus <= device.nvlink_gpus else replace(device, link="pcie")


def emulated(row: Sizes) -> Emulated:
    there_are = SYSTEMS | BY_SOURCES
    if row["system"] not in there_are:
        return Emulated(None, f"{row['system']} is not known; there are {', '.join(there_are)}")
    system, count = there_are[row["system"]], row["gpus"]
    if count < 2:
        return Emulated(None, f"an all-reduce among {count}: there have to be 2 GPUs at least")
    device = device_of(system, count, row["gpus_per_node"])
    gpus = Gpus(count, device, Control(Alone(), Board.alone(), "control"), payload=False)
    gpus.mine[-1].device = replace(device, launch_seconds=system.late(count))
    for gpu in gpus.mine:
        gpu.dtype = DTYPE
    parts = [gpu.shaped((-(-row["bytes"] // DTYPE.itemsize),)) for gpu in gpus.mine]
    clock = []
    for _ in range(BEFORE + count):  # who is ahead of whom goes round the ring
        with gpus.scope():
            gpus.reduce_sum(parts)
        clock.append(gpus.mine[0].now)
    return Emulated(1e6 * (clock[-1] - clock[BEFORE - 1]) / count, system.note)


def _by_ring(rows: Sequence[Sizes]) -> list[tuple[float, BatchRows]]:
    batches: dict[tuple[str, int], list[int]] = {}
    for at, row in enumerate(rows):
        batches.setdefault((row["system"], row["gpus"]), []).append(at)
    return [(float(1000 * gpus**2 * len(batch)), tuple(batch)) for (_, gpus), batch in batches.items()]


ALLREDUCE = MeasurementKind(
    name="gpu all-reduce",
    file="gpu_allreduce.csv",
    columns={"system": word, "gpus": whole, "gpus_per_node": whole, "bytes": whole},
    measured="microseconds",
    unit="us",
    kernel=lambda row: f"{row['system'].split('_')[0].upper()} all-reduce",
    size=lambda row: f"{row['system']}, {row['gpus']} GPUs, {row['gpus_per_node']} a node",
    batches=_by_ring,
    emulate=lambda rows: [emulated(row) for row in rows],
)
