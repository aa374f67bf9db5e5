"""What the emulated time of a kernel is made of, by emulating it again with parts of the machine for free."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from meshrt.neuron.device import NeuronDevice
from meshrt.studies.neuronmm import published
from meshrt.studies.neuronmm.published import NAMES
from meshrt.studies.neuronmm.tables import job, table3_job, table4_job
from meshrt.studies.rows import Emulate
from meshrt.studies.sweep import RunJob

FREE = 1e18  # a rate at which something takes no time


@dataclass(frozen=True)
class Shares:
    """Seconds of a run, which add up.

    `dma` would go if DMA took no time, and then `copies` if no instruction of the vector, scalar and GpSimd engines
    did; where two causes overlap, the first has the time. What is left is the tensor engine's: `products` at the peak
    rate, and `transposes` with what else it does.
    """

    table: str
    subject: str
    system: str
    seconds: float
    products: float
    transposes: float
    copies: float
    dma: float

    def json(self) -> dict[str, Any]:
        return asdict(self)


def without_dma(device: NeuronDevice) -> NeuronDevice:
    """The same machine, but HBM and the way there take no time."""
    device = replace(device, dma_descriptor_seconds=0.0, dma_transfer_seconds=0.0, dma_start_seconds=0.0)
    return replace(device, dma_bytes_per_second=FREE, hbm_bytes_per_second=FREE)


def without_copies(device: NeuronDevice) -> NeuronDevice:
    """The same machine, but all engines beside the tensor engine take no time."""
    return replace(device, vector_hz=FREE, scalar_hz=FREE, gpsimd_hz=FREE)


def shares(device: NeuronDevice, emulate: Emulate, table: str) -> list[Shares]:
    """Of the runs of a table that say most; none where the machine refused one."""
    all_shares = []
    for subject, run in _runs(device, table):
        machines = (device, without_dma(device), without_copies(without_dma(device)))
        reports = [emulate(replace(run, device=machine)).report for machine in machines]
        times = [report["measured"]["critical_path"]["seconds"] for report in reports if report is not None]
        if reports[0] is None or len(times) < len(machines):
            continue
        least = reports[0]["measured"]["flops"] / device.peak_flops
        whole, no_dma, tensor = times
        system = NAMES[run.arguments["kernel"]]
        all_shares.append(Shares(table, subject, system, whole, least, tensor - least, no_dma - tensor, whole - no_dma))
    return all_shares


def _runs(device: NeuronDevice, table: str) -> Iterator[tuple[str, RunJob]]:
    if table == "1":
        for kernel in published.TABLE1:
            yield "M = 2048", job(device, kernel, **published.TABLE1_SIZES)
    if table == "3":
        for kernel in published.TABLE3:
            for m in sorted({published.LENGTHS[len(published.LENGTHS) // 2 - 1], published.LENGTHS[-1]}):
                yield f"M = {m}", table3_job(device, kernel, m)
    if table == "4":
        for block_m in published.TABLE4:
            yield f"B_M = {block_m}", table4_job(device, block_m)
