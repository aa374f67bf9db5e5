"""Figure 6 of NeuronMM: time and traffic of the three kernels over the sequence length.

The figure itself is not in the text that the published numbers are from; the text has two of its times and two ratios.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meshrt.neuron.device import GIB, NeuronDevice
from meshrt.ranks.files import write_file
from meshrt.studies.neuronmm import published
from meshrt.studies.neuronmm.published import NAMES
from meshrt.studies.neuronmm.tables import derived, kernel_of, table3_job
from meshrt.studies.rows import Emulate, PaperRow


@dataclass(frozen=True)
class KernelPoint:
    """A kernel at a sequence length. Numbers are None where the machine refused the run."""

    m: int
    system: str
    seconds: float | None = None
    hbm_bytes: float | None = None
    spilled_bytes: float | None = None  # of that, both ways
    active: float | None = None
    mfu: float | None = None
    published_seconds: float | None = None
    refused: str | None = None

    def json(self) -> dict[str, Any]:
        return asdict(self)


def points(device: NeuronDevice, emulate: Emulate) -> list[KernelPoint]:
    """All points of the figure, lengths in order within each kernel."""
    line = []
    for kernel in published.TABLE3:
        for m in published.LENGTHS:
            outcome = emulate(table3_job(device, kernel, m))
            measured = kernel_of(outcome)
            stated = published.LONGEST.get(kernel) if m == 32768 else None
            if measured is None:
                line.append(KernelPoint(m, NAMES[kernel], published_seconds=stated, refused=outcome.refused))
                continue
            spilled = (measured.saved or 0) + (measured.reloaded or 0)
            line.append(
                KernelPoint(
                    m,
                    NAMES[kernel],
                    measured.seconds,
                    measured.hbm_bytes,
                    spilled,
                    measured.active,
                    measured.mfu,
                    stated,
                )
            )
    return line


def figure6(device: NeuronDevice, emulate: Emulate) -> list[PaperRow]:
    """What the text says of the longest sequence."""
    by_length = {(point.system, point.m): point for point in points(device, emulate)}
    last = {kernel: by_length[NAMES[kernel], published.LENGTHS[-1]] for kernel in published.TABLE3}
    subject, fused = f"M = {published.LENGTHS[-1]}", last["fused"]
    rows = [
        PaperRow("figure6", subject, NAMES[kernel], "latency", "ms", 1e3 * stated,
            1e3 * seconds if (seconds := last[kernel].seconds) else None, note=last[kernel].refused or "")
        for kernel, stated in published.LONGEST.items()
    ]  # fmt: skip
    stated = published.LONGEST["dense"] / published.LONGEST["fused"]
    times = _over(last["dense"].seconds, fused.seconds)
    rows.append(derived("figure6", subject, "dense", "time over NeuronMM's", "ratio", stated, times))
    for kernel, ratio in published.LONGEST_TRAFFIC.items():
        emulated = _over(last[kernel].hbm_bytes, fused.hbm_bytes)
        rows.append(derived("figure6", subject, kernel, "traffic over NeuronMM's", "ratio", ratio, emulated))
        rows += _spills(subject, kernel, ratio, last[kernel], fused)
    return rows


def _spills(subject: str, kernel: str, ratio: float, point: KernelPoint, fused: KernelPoint) -> list[PaperRow]:
    """What is spilled, and what would have been, if all else crosses as emulated, with the published traffic."""
    if point.hbm_bytes is None or point.spilled_bytes is None or fused.hbm_bytes is None:
        return []
    stated = ratio * fused.hbm_bytes - (point.hbm_bytes - point.spilled_bytes)
    return [derived("figure6", subject, kernel, "of it spills", "GiB", stated / GIB, point.spilled_bytes / GIB)]


def _over(value: float | None, base: float | None) -> float | None:
    return value / base if value and base else None


def draw(path: str, line: Sequence[Mapping[str, Any]], device: str) -> None:
    """Time and traffic over M, a panel each; what was published as crosses. No display is needed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    time, traffic = figure.subplots(1, 2)
    for name in dict.fromkeys(point["system"] for point in line):
        of_kernel = [point for point in line if point["system"] == name and point["seconds"]]
        lengths = [point["m"] for point in of_kernel]
        (drawn,) = time.plot(lengths, [1e3 * point["seconds"] for point in of_kernel], marker="o", label=name)
        stated = [point for point in of_kernel if point["published_seconds"]]
        time.plot(
            [point["m"] for point in stated], [1e3 * point["published_seconds"] for point in stated], "x",
            color=drawn.get_color(), label=f"{name}, published" if stated else None,
        )  # fmt: skip
        traffic.plot(lengths, [point["hbm_bytes"] / GIB for point in of_kernel], marker="o", label=name)
    for panel, label in ((time, f"ms, emulated {device}"), (traffic, "GiB between HBM and SBUF")):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        panel.set_xlabel("M, sequence length")
        panel.set_ylabel(label)
        panel.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_file("--png", path, lambda stream: stream.write(image.getvalue()))
