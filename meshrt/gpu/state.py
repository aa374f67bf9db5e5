"""What the GPUs of a run have come to, clocks, counters and memory, as facts of a snapshot; and back.

A run that goes on has taken its memory and recorded its plans again: what that changed is set back to what was.
"""

from collections.abc import Mapping
from typing import Any

from meshrt.gpu.gpu import Gpu
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.meter import NUMBERS, GpuPhase
from meshrt.groups.group import Traffic
from meshrt.ranks.snapshot import Snapshot


def settings(gpus: Gpus) -> dict[str, Any]:
    """What of the machine has to be the same for a run to go on, by the options that say so."""
    nodes = {"--node-size": gpus.node_size, "--collectives": gpus.collectives} if gpus.node_size else {}
    return {"--tp": gpus.count, "--static": gpus.static} | nodes


def describe(gpus: Gpus) -> dict[str, Any]:
    """The facts, whole at rank 0 only. All ranks call it together; no plan is being recorded."""
    shares_here = [
        {
            "clocks": [gpu.now, gpu.host_clock],
            "counters": {name: getattr(gpu.counters, name) for name in NUMBERS},
            "tally": gpu.counters.tally,
            "memory": [gpu.memory.names, gpu.memory.used, gpu.memory.peak],
            "traffic": {kind: [sent.calls, sent.bytes, sent.between] for kind, sent in traffic.items()},
            "sampled": gpus.sampled,
            "phases": {name: phase.numbers[at] for name, phase in gpus.phases.items()},
        }
        for at, (gpu, traffic) in enumerate(zip(gpus.mine, gpus.traffic, strict=True))
    ]
    shares = gpus.control.gather(shares_here)
    if shares is None:
        return {}
    return {
        "gpus": [facts for share in shares for facts in share],
        "phases": {name: [phase.tokens, phase.seconds] for name, phase in gpus.phases.items()},
    }


def restore(gpus: Gpus, snapshot: Snapshot) -> None:
    """Let these GPUs go on from where those of `describe` were, on any number of ranks."""
    facts = snapshot.facts
    stored = [facts["gpus"][gpu.index] for gpu in gpus.mine]
    gpus.phases.clear()
    for name, (tokens, seconds) in facts["phases"].items():
        phase = gpus.phases[str(name)] = GpuPhase(len(stored))
        phase.tokens, phase.seconds = int(tokens), float(seconds)
        phase.numbers = [dict(gpu_facts["phases"][name]) for gpu_facts in stored]
    gpus.sampled = any(gpu_facts["sampled"] for gpu_facts in stored)
    for gpu, traffic, gpu_facts in zip(gpus.mine, gpus.traffic, stored, strict=True):
        _restore(gpu, gpu_facts)
        traffic.clear()  # the same dictionary: plans hold on to it
        traffic |= {str(kind): Traffic(*map(int, sent)) for kind, sent in gpu_facts["traffic"].items()}


def _restore(gpu: Gpu, gpu_facts: Mapping[str, Any]) -> None:
    gpu.now, gpu.host_clock = map(float, gpu_facts["clocks"])
    for name in NUMBERS:
        setattr(gpu.counters, name, gpu_facts["counters"].get(name, 0))
    gpu.counters.tally = {str(name): int(count) for name, count in gpu_facts["tally"].items()}
    names, used, peak = gpu_facts["memory"]
    gpu.memory.names = {str(name): int(nbytes) for name, nbytes in names.items()}
    gpu.memory.used, gpu.memory.peak = int(used), int(peak)
