"""What Arm cores can do at most: SIMD pipes, loads and stores, caches, the bus to DRAM, flash, fork-joins."""

from collections.abc import Mapping
from typing import Any

from meshrt.arm.device import ArmDevice, Cluster
from meshrt.arm.isa import OPERATIONS
from meshrt.arm.kernel import OTHERS
from meshrt.reports.ceilings import Ceilings, Level


def ceilings(report: Mapping[str, Any], part: Mapping[str, Any]) -> Ceilings:
    """Of a part of a report. The peak is that of the instructions that multiplied: an smmla has eight times an fmla's.

    Rates are of all cores that the run was given, work of theirs as even as it could be.
    """
    numbers = report["device"]
    clusters = tuple(Cluster(**cluster) for cluster in numbers["clusters"])
    device = ArmDevice(**{**numbers, "clusters": clusters, "isa": tuple(numbers["isa"])})
    cores = device.cores[: report["mesh"][0]]
    ran = {op: count for op, count in part["instructions"].items() if op != "total"}
    issued = device.peak(1, len(cores))  # SIMD instructions a second
    multiplied = sum(count for op, count in ran.items() if op in OPERATIONS and OPERATIONS[op].operations)
    operations = part["operations"]
    simd = sum(count for op, count in ran.items() if op not in OTHERS)

    moved = sum(16 * (core.loads + core.stores) * core.hz for core in cores)

    def level(name: str, path: str, nbytes: int, rate: float) -> Level:
        return Level(name, path, nbytes, rate, nbytes / rate)

    return Ceilings(
        "operations", operations, issued * operations / multiplied if multiplied else device.peak(8, len(cores)),
        (
            level("registers", "l1_bytes", part["l1_bytes"], moved),
            level("L2", "l2_bytes", part["l2_bytes"], sum(core.l2_bytes_per_cycle * core.hz for core in cores)),
            level("SLC", "slc_bytes", part["slc_bytes"], sum(core.slc_bytes_per_cycle * core.hz for core in cores)),
            level(
                "DRAM", "dram_bytes.total", part["dram_bytes"]["total"],
                min(device.bus_bytes_per_second, sum(core.bytes_per_second for core in cores)),
            ),
            level("flash", "flash_bytes", part["flash_bytes"], device.flash_bytes_per_second),
        ),
        {
            "SIMD instructions": simd / issued,
            "fork-joins": part["shared_stretches"] * device.fork_join_seconds,
        },
    )  # fmt: skip
