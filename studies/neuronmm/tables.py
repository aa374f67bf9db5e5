"""Tables 1, 3 and 4 of NeuronMM: what each cell describes as a run, and what that run says as a number.

A table is a function from an emulation to rows, so that tables share runs. Published and emulated kernels are the same
kind of record, so that what is derived is derived of both in the same way.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from statistics import fmean
from typing import Any

from meshrt.neuron.device import GIB, MIB, NeuronDevice
from meshrt.studies.neuronmm import published
from meshrt.studies.neuronmm.published import NAMES, PublishedKernel
from meshrt.studies.rows import Emulate, PaperRow
from meshrt.studies.sweep import Outcome, RunJob

# What a table calls a field of PublishedKernel, its unit, and how many of that unit it is.
COLUMNS: dict[str, tuple[str, str, float]] = {
    "seconds": ("latency", "ms", 1e3),
    "hbm_bytes": ("traffic", "GiB", 1 / GIB),
    "active": ("tensor engine active", "%", 100.0),
    "mfu": ("MFU", "%", 100.0),
    "flops": ("operations", "TFLOP", 1e-12),
    "transpose_flops": ("to transpose", "GFLOP", 1e-9),
    "intensity": ("intensity", "flops/byte", 1.0),
    "sbuf": ("SBUF", "%", 100.0),
    "reloaded": ("spill reload", "MiB", 1 / MIB),
    "saved": ("spill save", "MiB", 1 / MIB),
}
SMALL = {  # Table 1's units
    "hbm_bytes": ("traffic", "MiB", 1 / MIB),
    "flops": ("operations", "GFLOP", 1e-9),
}
PARTS = ("products", "beyond them", "idle")


def job(device: NeuronDevice, kernel: str, **sizes: Any) -> RunJob:
    """A product by shape, with the sums between blocks in bfloat16, as the published kernels keep them.

    The naive kernel keeps none there; the dense one has no rank.
    """
    options = {} if kernel == "naive" else {"sums": "tile"}
    sizes_used = {name: size for name, size in sizes.items() if (kernel, name) != ("dense", "r")}
    arguments = {"kernel": kernel, "dtype": "bfloat16", **options, **sizes_used}
    return RunJob("xuv", (1, 1), device, arguments)


def table3_job(device: NeuronDevice, kernel: str, m: int) -> RunJob:
    """Of Table 3 and Figure 6. The published count of transposes (22.55 GFLOP on average, 2 x 128 x K x M) shows that
    the tensor engine transposed x in the fused kernel, too, though section 4.2.2 has the DMA engines do it.
    """
    options = {"transpose": "tensor"} if kernel == "fused" else {}
    return job(device, kernel, m=m, **published.SIZES, out_transposed=True, **options)


def table4_job(device: NeuronDevice, block_m: int) -> RunJob:
    return job(device, "fused", **published.TABLE4_SIZES, block_m=block_m, out_transposed=True, transpose="tensor")


def kernel_of(outcome: Outcome) -> PublishedKernel | None:
    """What a run measured; None where the machine refused."""
    if outcome.report is None:
        return None
    measured = outcome.report["measured"]
    traffic = measured["hbm_bytes"]["total"]
    return PublishedKernel(
        seconds=measured["critical_path"]["seconds"],
        flops=measured["flops"],
        hbm_bytes=traffic,
        active=measured["engines"]["tensor"]["active"],
        mfu=measured["mfu"],
        transpose_flops=measured["transpose_flops"],
        intensity=measured["flops"] / traffic,
        sbuf=measured["sbuf_bytes"]["max"] / measured["sbuf_bytes"]["limit"],
        reloaded=measured["spill_bytes"]["reloaded"],
        saved=measured["spill_bytes"]["saved"],
    )


def average(kernels: Iterable[PublishedKernel | None]) -> PublishedKernel | None:
    """Each number's mean; None where one of the kernels was refused."""
    figures = [asdict(kernel) if kernel is not None else None for kernel in kernels]
    if not all(figures):
        return None
    return PublishedKernel(
        **{
            name: fmean(numbers[name] for numbers in figures if numbers is not None)
            for name in asdict(PublishedKernel(0.0))
        }
    )


def rows_of(
    table: str, subject: str, kernel: str, stated: PublishedKernel, emulated: PublishedKernel | None, note: str
) -> list[PaperRow]:
    """A row for each number that the table states of a kernel."""
    columns = COLUMNS | (SMALL if table == "1" else {})
    return [
        PaperRow(
            table, subject, NAMES[kernel], column, unit, times(getattr(stated, name), scale),
            times(None if emulated is None else getattr(emulated, name), scale), note=note,
        )
        for name, (column, unit, scale) in columns.items()
        if getattr(stated, name) is not None
    ]  # fmt: skip


def times(value: float | None, scale: float) -> float | None:
    """A value in another unit, where there is one."""
    return None if value is None else value * scale


def derived(
    table: str, subject: str, kernel: str, column: str, unit: str, stated: float | None, emulated: float | None
) -> PaperRow:
    """What follows from other cells, on both sides alike, and counts as no comparison of its own."""
    return PaperRow(table, subject, NAMES[kernel], column, unit, stated, emulated, derived=True)


# -------------------------------------------------------------------------------------------------------- tables


def table1(device: NeuronDevice, emulate: Emulate) -> list[PaperRow]:
    """Sequential products against a fused kernel without a cache (section 3.2)."""
    rows = []
    for kernel, stated in published.TABLE1.items():
        outcome = emulate(job(device, kernel, **published.TABLE1_SIZES))
        emulated = kernel_of(outcome)
        rows += rows_of("1", "M = 2048", kernel, stated, emulated, outcome.refused or "")
        rows += _rates(device, "1", "M = 2048", kernel, stated, emulated)
    return rows


def table3(device: NeuronDevice, emulate: Emulate) -> list[PaperRow]:
    """Averages over sequence lengths, and the speed-ups that the text states of them (section 5.2)."""
    rows: list[PaperRow] = []
    means: dict[str, PublishedKernel | None] = {}
    # Long sequences of all kernels follow one another, so that ranks that share them out have about as much to do.
    order = [(kernel, m) for m in published.LENGTHS for kernel in published.TABLE3]
    runs = {(kernel, m): emulate(table3_job(device, kernel, m)) for kernel, m in order}
    for kernel, stated in published.TABLE3.items():
        outcomes = [runs[kernel, m] for m in published.LENGTHS]
        means[kernel] = average(map(kernel_of, outcomes))
        note = next((outcome.refused for outcome in outcomes if outcome.refused), "")
        rows += rows_of("3", "average", kernel, stated, means[kernel], note)
        rows += _parts(device, kernel, stated, means[kernel])
    for kernel, speedup in published.SPEEDUPS.items():
        rows.append(_ratio_row(kernel, "time over NeuronMM's", speedup, means, lambda record: record.seconds))
    for kernel, times in published.TRAFFIC.items():
        rows.append(_ratio_row(kernel, "traffic over NeuronMM's", times, means, lambda record: record.hbm_bytes))
    return rows


def table4(device: NeuronDevice, emulate: Emulate) -> list[PaperRow]:
    """The fused kernel over B_M (section 5.3)."""
    rows = []
    for block_m, stated in published.TABLE4.items():
        outcome = emulate(table4_job(device, block_m))
        emulated = kernel_of(outcome)
        rows += rows_of("4", f"B_M = {block_m}", "fused", stated, emulated, outcome.refused or "")
        rows += _rates(device, "4", f"B_M = {block_m}", "fused", stated, emulated)
    return rows


TABLES: dict[str, Callable[[NeuronDevice, Emulate], list[PaperRow]]] = {"1": table1, "3": table3, "4": table4}


# ------------------------------------------------------------------------------------------------------- derived


def _rates(
    device: NeuronDevice,
    table: str,
    subject: str,
    kernel: str,
    stated: PublishedKernel,
    emulated: PublishedKernel | None,
) -> list[PaperRow]:
    """What a time comes to as a share of the machine: of its operations a second, of its bytes a second.

    Where the table has no operations or bytes they follow from the emulated ones and from its intensity.
    """
    if emulated is None or emulated.flops is None or emulated.hbm_bytes is None:
        return []
    flops = stated.flops or emulated.flops
    traffic = stated.hbm_bytes or (flops / stated.intensity if stated.intensity else None)
    rate = None if traffic is None else traffic / stated.seconds / 1e9
    mfu = [
        100 * count / record.seconds / device.peak_flops
        for count, record in ((flops, stated), (emulated.flops, emulated))
    ]
    return [
        derived(table, subject, kernel, "HBM rate", "GB/s", rate, emulated.hbm_bytes / emulated.seconds / 1e9),
        derived(table, subject, kernel, "MFU", "%", *mfu),
    ]


def parts(device: NeuronDevice, flops: float, record: PublishedKernel) -> tuple[float, float, float]:
    """Seconds that a time is made of, in the order of PARTS.

    What the operations take at the peak rate; what the tensor engine works beyond that (transposes, and what a product
    takes longer than a column a cycle); what it is idle. The ratio of its work to the first is active / MFU.
    """
    assert record.active is not None and record.mfu is not None
    least = flops / device.peak_flops
    busy = least * record.active / record.mfu
    return least, busy - least, record.seconds - busy


def _parts(
    device: NeuronDevice, kernel: str, stated: PublishedKernel, emulated: PublishedKernel | None
) -> list[PaperRow]:
    if emulated is None or emulated.flops is None:
        return []
    sides = [parts(device, emulated.flops, record) for record in (stated, emulated)]
    return [
        derived("3", "average", kernel, f"of it {name}", "ms", 1e3 * left, 1e3 * right)
        for name, left, right in zip(PARTS, *sides, strict=True)
    ]


def _ratio_row(
    kernel: str,
    column: str,
    stated: float,
    means: dict[str, PublishedKernel | None],
    field: Callable[[PublishedKernel], float | None],
) -> PaperRow:
    record, fused = means[kernel], means["fused"]
    value, least = (None if kernel is None else field(kernel) for kernel in (record, fused))
    return derived("3", "average", kernel, column, "ratio", stated, value / least if value and least else None)
