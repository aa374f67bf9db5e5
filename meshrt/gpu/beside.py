"""Collectives beside the kernels: on a second stream of each GPU, while the first goes on.

One begins when what it sends is there and the second stream is free. What it leaves is used after `finish`, which lets
the first stream wait for it (a CUDA event). What kernels take in between is hidden (gpu.py). Kernels are not
slowed down by what goes on beside them: the SMs that NCCL takes for itself are not modelled.
"""

from collections.abc import Sequence

import numpy as np

from meshrt.gpu.gpus import Gpus
from meshrt.groups.course import CollectiveCourse
from meshrt.groups.rings import RingCollective
from meshrt.records import dataclass
from meshrt.reports.trace import Event

Arrays = list[np.ndarray]


@dataclass(frozen=True)
class PendingCollective:
    """Where a collective's results come to, and from when to when it goes on, on each hosted GPU."""

    outs: Arrays
    begins: list[float]
    ends: list[float]


def begin(gpus: Gpus, kind: str, parts: Arrays, outs: Arrays, sizes: Sequence[int] = ()) -> PendingCollective:
    """An "all_gather" along the last axis, whose parts have these `sizes`, or a "reduce_sum", to `outs`."""
    pending = PendingCollective(outs, *([0.0 for _ in parts] for _ in range(2)))
    ring, extra = gpus.ring(kind, parts, outs, sizes, gpus.itemsize(), -1)
    if gpus.plan is not None:
        gpus.plan.add(_go, gpus, ring, extra, pending)
        gpus.plan.closing.append(ring.close)
        return pending
    _launch(gpus, ring, extra, pending)
    if gpus.noted is None:
        ring.close()
    else:
        gpus.noted.add(_launch, gpus, ring, extra, pending)
        gpus.noted.closing.append(ring.close)
    return pending


def finish(gpus: Gpus, pending: PendingCollective) -> Arrays:
    """Kernels that come now begin after the collective: its results."""
    if gpus.plan is not None:
        gpus.plan.add(_wait, gpus, pending)
    else:
        _wait(gpus, pending)
    if gpus.noted is not None:
        gpus.noted.add(_wait, gpus, pending)
    return pending.outs


def _launch(gpus: Gpus, ring: RingCollective | CollectiveCourse, extra: float, pending: PendingCollective) -> None:
    for gpu in gpus.mine:
        gpu.host_clock += gpu.device.launch_seconds
        gpu.beside = max(gpu.beside, gpu.host_clock)
    _go(gpus, ring, extra, pending)


def _go(gpus: Gpus, ring: RingCollective | CollectiveCourse, extra: float, pending: PendingCollective) -> None:
    for at, gpu in enumerate(gpus.mine):
        pending.begins[at] = max(gpu.now, gpu.beside) + gpu.device.kernel_seconds
        pending.ends[at] = pending.begins[at] + extra
    gpus.group.go_round(ring, pending.ends, gpus.among)
    for gpu, start, end in zip(gpus.mine, pending.begins, pending.ends, strict=True):
        gpu.counters.collective_seconds += end - start
        gpu.beside = end
        gpu.under_way.append((start, end))
        if gpu.trace is not None:
            gpu.trace.append(Event("collectives", ring.kind, start, end))


def _wait(gpus: Gpus, pending: PendingCollective) -> None:
    for gpu, start, end in zip(gpus.mine, pending.begins, pending.ends, strict=True):
        gpu.under_way.remove((start, end))
        gpu.now = max(gpu.now, end)
