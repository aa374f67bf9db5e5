"""What a run of a program has come to: cycles, operations, wavelets, memory."""

from __future__ import annotations

from typing import Any


def report_of(wafer: Any) -> dict[str, Any]:
    """As the JSON has it."""
    cores = list(wafer.cores.values())
    images = {id(core.image): core.image for core in cores}.values()
    width, height = wafer.program.size
    return {
        "mesh": [width, height],
        "arch": wafer.program.arch,
        "images": len(images),
        "cycles": {"max": max(core.t for core in cores), "mean": sum(core.t for core in cores) / len(cores)},
        "tasks": sum(core.tasks_run for core in cores),
        "operations": sum(core.operations for core in cores),
        "wavelets": wafer.counters.wavelets,
        "hops": wafer.counters.hops,
        "max_hops": wafer.counters.most_hops,
        "route_entries": {"max": _most_entries(wafer), "limit": 24},
        "memory_bytes": {"max": max(image.used for image in images), "limit": max(image.limit for image in images)},
    }


def _most_entries(wafer: Any) -> int:
    counts: dict[tuple[int, int], int] = {}
    for x, y, _ in wafer.routes:
        counts[x, y] = counts.get((x, y), 0) + 1
    return max(counts.values(), default=0)
