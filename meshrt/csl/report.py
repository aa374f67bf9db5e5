"""What a run of a program has come to: cycles, operations, wavelets, memory."""

from __future__ import annotations

from typing import Any


def report_of(wafer: Any) -> dict[str, Any]:
    """As the JSON has it; of several ranks each has it."""
    mine = (
        [(core.number, core.t, core.tasks_run, core.operations) for core in wafer.cores.values()],
        (wafer.counters.wavelets, wafer.counters.hops, wafer.counters.most_hops),
    )
    parts = [mine] if wafer.block is None else wafer.block.comm.allgather(mine)
    cores = sorted(core for part, _ in parts for core in part)
    times = [time for _, time, _, _ in cores]
    images = {id(image): image for image in wafer.program.tiles.values()}.values()
    width, height = wafer.program.size
    return {
        "mesh": [width, height],
        "arch": wafer.program.arch,
        "images": len(images),
        "cycles": {"max": max(times), "mean": sum(times) / len(times)},
        "tasks": sum(core[2] for core in cores),
        "operations": sum(core[3] for core in cores),
        "wavelets": sum(counted[0] for _, counted in parts),
        "hops": sum(counted[1] for _, counted in parts),
        "max_hops": max(counted[2] for _, counted in parts),
        "route_entries": {"max": _most_entries(wafer), "limit": 24},
        "memory_bytes": {"max": max(image.used for image in images), "limit": max(image.limit for image in images)},
    }


def _most_entries(wafer: Any) -> int:
    counts: dict[tuple[int, int], int] = {}
    for x, y, _ in wafer.routes:
        counts[x, y] = counts.get((x, y), 0) + 1
    return max(counts.values(), default=0)
