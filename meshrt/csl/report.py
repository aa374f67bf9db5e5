"""What a run of a program has come to: cycles, operations, wavelets, memory."""

from __future__ import annotations

from typing import Any

from meshrt.csl.machine.banks import RULED
from meshrt.csl.machine.router import COLORS


def report_of(wafer: Any) -> dict[str, Any]:
    """As the JSON has it; of several ranks each has it."""
    mine = (
        [
            (core.number, core.t, core.tasks_run, core.operations, core.waited, tuple(core.chain), uses(core))
            for core in wafer.cores.values()
        ],
        (wafer.counters.wavelets, wafer.counters.hops, wafer.counters.most_hops),
        sum(core.conflicts for core in wafer.cores.values()),
    )
    parts = [mine] if wafer.block is None else wafer.block.comm.allgather(mine)
    cores = sorted(core for part, _, _ in parts for core in part)
    times = [core[1] for core in cores]
    last = max(cores, key=lambda core: core[1])  # of equal times the first core
    images = {id(image): image for image in wafer.program.tiles.values()}.values()
    width, height = wafer.program.size
    return {
        "mesh": [width, height],
        "arch": wafer.program.arch,
        "images": len(images),
        "cycles": {
            "max": max(times),
            "mean": sum(times) / len(times),
            "waiting": sum(core[4] for core in cores) / len(times),
        },
        "critical_path": {"hops": last[5][0], "stages": last[5][1], "cycles": last[1]},
        "cores_used": sum(core[6] for core in cores),
        "tasks": sum(core[2] for core in cores),
        "operations": sum(core[3] for core in cores),
        "bank_conflicts": sum(met for _, _, met in parts) if wafer.program.arch in RULED else None,
        "wavelets": sum(counted[0] for _, counted, _ in parts),
        "hops": sum(counted[1] for _, counted, _ in parts),
        "max_hops": max(counted[2] for _, counted, _ in parts),
        "route_entries": {"max": _most_entries(wafer), "limit": COLORS},
        "memory_bytes": {"max": max(image.used for image in images), "limit": max(image.limit for image in images)},
    }


def uses(core: Any) -> bool:
    """Has it computed, or taken a wavelet?"""
    return bool(core.operations or core.taken)


def _most_entries(wafer: Any) -> int:
    counts: dict[tuple[int, int], int] = {}
    for x, y, _ in wafer.routes:
        counts[x, y] = counts.get((x, y), 0) + 1
    return max(counts.values(), default=0)
