"""Tensor-parallel groups of a run, as stages of pipelines and as replicas; what one sends to the next."""

from copy import copy
from typing import Any

from meshrt.gpu import nodes
from meshrt.gpu.gpus import Arrays, Gpus
from meshrt.groups.group import Traffic
from meshrt.records import dataclass
from meshrt.reports.trace import Event


@dataclass(frozen=True)
class UnderWay:
    """Room for what is under way to a stage's GPUs, and when it is there."""

    outs: Arrays
    arrivals: list[float]


def tensor_groups(gpus: Gpus) -> list[list[Gpus]]:
    """The tensor-parallel groups, by replica and stage: each is GPUs of its own, some of which the rank hosts."""
    tp = gpus.count // (gpus.pp * gpus.dp)
    return [
        [_part(gpus, range(first, first + tp)) for first in range(begin, begin + tp * gpus.pp, tp)]
        for begin in range(0, gpus.count, tp * gpus.pp)
    ]


def _part(gpus: Gpus, members: range) -> Gpus:
    own = [at for at, gpu in enumerate(gpus.mine) if gpu.index in members]
    part = copy(gpus)
    part.count, part.members, part.pp, part.dp = len(members), members, 1, 1
    part.among = slice(own[0], own[-1] + 1) if own else slice(0, 0)
    part.mine = gpus.mine[part.among]
    return part


def pass_on(
    gpus: Gpus, source: Gpus, target: Gpus, parts: Arrays, shape: tuple[int, ...], dtype: Any = None
) -> UnderWay:  # fmt: skip
    """Send arrays of this shape from a stage's GPUs to those at the same places of another one. What they get is
    theirs after `arrive`; until then they may do something else."""
    outs = [gpu.new(*shape, dtype=dtype) for gpu in target.mine]
    made, extra = nodes.passed(source, target, parts, outs, gpus.itemsize(dtype))
    for gpu in source.mine:
        gpu.host_clock += gpu.device.launch_seconds
        gpu.now = max(gpu.now, gpu.host_clock)
    begins = [gpu.now + gpu.device.kernel_seconds for gpu in source.mine]
    times = [*(begin + extra for begin in begins), *(0.0 for _ in target.mine)]
    made.run(times)
    made.close()
    source.ended("send", begins, times[: len(begins)])
    for gpu, sent, between in zip(source.mine, made.sent, made.between, strict=False):
        counted = gpus.group.traffic[gpu.index - gpus.mine[0].index].setdefault("send", Traffic())
        counted.calls += 1
        counted.bytes += sent
        counted.between += between
    gpus.group.messages += made.messages
    gpus.group.message_bytes += made.message_bytes
    return UnderWay(outs, times[len(begins) :])


def arrive(target: Gpus, sent: UnderWay) -> Arrays:
    """The GPUs wait for what was sent to them, and have it."""
    for gpu, arrival in zip(target.mine, sent.arrivals, strict=True):
        gpu.host_clock += gpu.device.launch_seconds
        begin = max(gpu.now, gpu.host_clock) + gpu.device.kernel_seconds
        gpu.now = max(begin, arrival)
        gpu.counters.bubble_seconds += gpu.now - begin
        if gpu.trace is not None:
            gpu.trace.append(Event("collectives", "receive", begin, gpu.now))
    return sent.outs
