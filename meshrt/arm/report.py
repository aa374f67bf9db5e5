"""What a system on a chip reports: all cores' counters as the JSON has them, and the rows that a person reads."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from meshrt.arm.device import ArmDevice
from meshrt.arm.soc import ArmPhase, Soc
from meshrt.machine import Measured
from meshrt.reports.devicemaps import DeviceStretch, write_device_maps
from meshrt.reports.energy import PICO, Counts, PowerLoads, energy_row, with_energy
from meshrt.reports.kinds import TableRow, row_of
from meshrt.units import short, size

# What a map shows, its unit, and the counter that it adds up to.
MAPS = {
    "instructions": ("instructions", "of each core", "sum instructions.total"),
    "operations": ("operations", "of each core", "sum operations"),
    "l1_bytes": ("bytes", "between each core's registers and its L1", "sum l1_bytes"),
    "l2_bytes": ("bytes", "that each core had from its L2", "sum l2_bytes"),
    "slc_bytes": ("bytes", "that each core had from the cache of all", "sum slc_bytes"),
}


def combine(cores: Mapping[str, int], system: Mapping[str, Any]) -> dict[str, Any]:
    """The counters of one stretch as the JSON's `measured`."""
    ran = {key.removeprefix("instructions "): n for key, n in sorted(cores.items()) if key.startswith("instructions ")}
    useful = {key.removeprefix("useful "): n for key, n in sorted(cores.items()) if key.startswith("useful ")}
    read, written = int(system["dram_read"]), int(system["dram_written"])
    return {
        "critical_path": {"seconds": float(system["seconds"])},
        "compute_seconds": float(system["compute_seconds"]),
        "idle_seconds": float(system["idle_seconds"]),
        "flash_wait_seconds": float(system["flash_wait_seconds"]),
        "flash_bytes": int(system["flash_bytes"]),
        "stretches": int(system["stretches"]),
        "shared_stretches": int(system["shared_stretches"]),
        "instructions": {"total": sum(ran.values()), **ran},
        "spills": {"loads": cores["spill_loads"], "stores": cores["spill_stores"]},
        "operations": cores["operations"],
        "useful_operations": {"total": sum(useful.values()), **useful},
        "products": {"weight_bytes": cores["product_weight_bytes"], "numbers": cores["product_numbers"]},
        "l1_bytes": cores["l1_bytes"],
        "l2_bytes": cores["l2_bytes"],
        "slc_bytes": cores["slc_bytes"],
        "dram_bytes": {"read": read, "written": written, "total": read + written},
    }


def _counts(part: Mapping[str, Any], cores: int) -> Counts:
    """What took energy."""
    bits = {f"{level}_bits": 8 * part[f"{level}_bytes"] for level in ("l1", "l2", "slc")}
    return {
        **bits,
        "dram_bits": 8 * part["dram_bytes"]["total"],
        "instructions": part["instructions"]["total"],
        "seconds": part["critical_path"]["seconds"],
        "devices": cores,
    }


def _loads(counts: Counts, device: ArmDevice) -> PowerLoads:
    return {
        "memory": [
            (PICO * counts["l1_bits"], device.l1_picojoules), (PICO * counts["l2_bits"], device.l2_picojoules),
            (PICO * counts["slc_bits"], device.slc_picojoules), (PICO * counts["dram_bits"], device.dram_picojoules),
        ],
        "compute": [(PICO * counts["instructions"], device.instruction_picojoules)],
        "idle": [(counts["devices"] * counts["seconds"], device.idle_watts)],
    }  # fmt: skip


def gather(soc: Soc) -> Measured | None:
    """All that was measured at rank 0, None at the others. All ranks call it, once, when the program is done."""
    whole = ArmPhase(None, soc.counted(), soc.system)
    shares = soc.control.gather(
        (
            [whole.cores, *(phase.cores for phase in soc.phases.values())],
            max(core.registers for core in soc.mine),
            [{**core.counts, "instructions": sum(core.instructions.values())} for core in soc.mine],
        )
    )
    if shares is None:
        return None
    stretches: list[Counter[str]] = [Counter() for _ in shares[0][0]]
    for of_rank, *_ in shares:
        for total, counted in zip(stretches, of_rank, strict=True):
            total.update(counted)
    limits = {
        "registers": {"max": max(registers for _, registers, _ in shares), "limit": soc.device.registers},
        "memory_bytes": {"max": soc.memory.peak, "limit": soc.device.dram_bytes},
    }
    phases = [
        {
            "name": name,
            **({} if phase.tokens is None else {"tokens": int(phase.tokens)}),
            **combine(cores, phase.system),
        }
        for (name, phase), cores in zip(soc.phases.items(), stretches[1:], strict=True)
    ]
    measured = combine(stretches[0], whole.system) | limits
    if soc.maps_path:
        counts = [core for *_, of_rank in shares for core in of_rank]
        numbers = {name: [int(core.get(name, 0)) for core in counts] for name in MAPS}
        run = DeviceStretch(measured["critical_path"]["seconds"], soc.sampled, numbers)
        write_device_maps(soc.maps_path, "Arm core", soc.device.name, {}, MAPS, [("total", run)])
    with_energy(measured, phases, partial(_counts, cores=soc.count), partial(_loads, device=soc.device))
    return Measured(
        asdict(soc.device), (soc.count, 1), measured, phases,
        {**soc.notes, "ranks": len(shares)}, sampled={"", *soc.phases} if soc.sampled else (),
    )  # fmt: skip


def title(report: dict[str, Any]) -> str:
    count, host, seconds = report["mesh"][0], report["host"], report["measured"]["critical_path"]["seconds"]
    return (
        f"{report['program']} on {count} core{'s' if count > 1 else ''} of {report['device']['name']},"
        f" {host['ranks']} rank{'s' if host['ranks'] > 1 else ''};"
        f" virtual time {1e3 * seconds:,.3f} ms, wall time {host['wall_seconds']:.2f} s"
    )


def rows(report: dict[str, Any]) -> Iterator[TableRow]:
    """The rows of the table: a cell for each phase, and one for the whole run."""
    whole = report["measured"]
    parts = [*report["phases"], whole]

    def row(path: str, show: Callable[[dict[str, Any]], str], limit: str | None = None) -> TableRow:
        return row_of("arm", report, path, [show(part) for part in parts], limit)

    if any("tokens" in part for part in parts):
        yield row("tokens", lambda part: str(part.get("tokens", "")))
    yield row("critical_path.seconds", lambda part: f"{1e3 * part['critical_path']['seconds']:,.3f} ms")
    yield row("compute_seconds", lambda part: f"{1e3 * part['compute_seconds']:,.3f} ms")
    yield row("idle_seconds", lambda part: f"{1e3 * part['idle_seconds']:,.3f} ms")
    yield row("instructions.total", lambda part: short(part["instructions"]["total"]))
    for op in whole["instructions"]:
        if op in ("smmla", "sdot", "fmla", "fmla_8h"):
            yield row(f"instructions.{op}", lambda part, op=op: short(part["instructions"].get(op, 0)))  # type: ignore[misc]  # the default binds the loop's op
    if whole["spills"]["loads"]:
        yield row("spills.loads", lambda part: short(part["spills"]["loads"]))
    yield row("operations", lambda part: short(part["operations"]))
    for level in ("l1_bytes", "l2_bytes", "slc_bytes"):
        yield row(level, lambda part, level=level: size(part[level]))  # type: ignore[misc]  # the default binds the loop's level
    yield row("dram_bytes.total", lambda part: size(part["dram_bytes"]["total"]))
    if whole["flash_bytes"]:
        yield row("flash_bytes", lambda part: size(part["flash_bytes"]))
        yield row("flash_wait_seconds", lambda part: f"{1e3 * part['flash_wait_seconds']:,.3f} ms")
    yield from energy_row("arm", report)
    for key, show in (("registers", str), ("memory_bytes", size)):
        cells = [*["" for _ in report["phases"]], show(whole[key]["max"])]
        yield row_of("arm", report, f"{key}.max", cells, show(whole[key]["limit"]))
