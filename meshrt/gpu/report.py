"""What GPUs report: the counters of all of them as the JSON has them, and the rows of the table that a person reads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from meshrt.gpu.device import GpuDevice
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.meter import reading
from meshrt.machine import Measured
from meshrt.reports.devicemaps import DeviceStretch, write_device_maps
from meshrt.reports.energy import PICO, Counts, PowerLoads, energy_row, with_energy
from meshrt.reports.kinds import TableRow, row_of
from meshrt.units import short, size

# What a map shows, its unit, and the counter that it adds up to ("sum") or has as its largest number ("max").
MAPS = {
    "link_bytes": ("bytes", "that each GPU sent to others", "sum link_bytes.total, max link_bytes.max"),
    "memory": ("bytes", "the most that each GPU held", "max memory_bytes.max"),
    "flops": ("operations", "of each GPU", "sum flops"),
    "memory_traffic": ("bytes", "each GPU read and wrote", "sum memory_traffic.total, max memory_traffic.max"),
    "launches": ("launches", "of kernels, of each GPU", "max launches"),
    "busy": ("seconds", "in which each GPU ran kernels", "max compute_seconds"),
    "collective": ("seconds", "in collectives, waiting for others included", "max collective_seconds"),
}
COUNTERS = {"flops": "flops", "memory_traffic": "memory_traffic", "launches": "launches", "busy": "compute_seconds",
            "collective": "collective_seconds"}  # fmt: skip


def combine(parts: Sequence[dict[str, Any]], seconds: float, gpus: Gpus) -> dict[str, Any]:
    """All GPUs' counters of one stretch as the JSON's `measured`: sums, and the largest where it says max."""

    def total(name: str) -> int:
        return sum(int(part.get(name, 0)) for part in parts)

    def most(name: str) -> Any:
        return max(part.get(name, 0) for part in parts)

    kinds = sorted({name.removeprefix("calls ") for part in parts for name in part if name.startswith("calls ")})
    tallies = sorted({name.removeprefix("tally ") for part in parts for name in part if name.startswith("tally ")})
    sent, between = (
        [sum(count for name, count in part.items() if name.startswith(prefix)) for part in parts]
        for prefix in ("bytes ", "between ")
    )
    inside = [every - other for every, other in zip(sent, between, strict=True)]
    flops = total("flops")
    return {
        "critical_path": {"seconds": seconds},
        "launches": most("launches"),
        "graph_launches": most("graphs"),
        "flops": flops,
        "mfu": flops / (seconds * len(parts) * gpus.device.flops) if seconds else 0.0,
        "memory_traffic": {"total": total("memory_traffic"), "max": most("memory_traffic")},
        "compute_seconds": most("compute_seconds"),
        "collective_seconds": most("collective_seconds"),
        "hidden_seconds": most("hidden_seconds"),
        "collectives": {
            kind: {
                "calls": most(f"calls {kind}"),
                "bytes": {"total": total(f"bytes {kind}"), "max": most(f"bytes {kind}")},
            }
            for kind in kinds
        },
        "link_bytes": {"total": sum(sent), "max": max(sent)},
        **(
            {}
            if gpus.node_size is None
            else {
                "intra_node_bytes": {"total": sum(inside), "max": max(inside)},
                "inter_node_bytes": {"total": sum(between), "max": max(between)},
            }
        ),
        **(
            {}
            if gpus.pp * gpus.dp == 1
            else {
                "bubble_seconds": {
                    "total": sum(part.get("bubble_seconds", 0.0) for part in parts),
                    "max": most("bubble_seconds"),
                }
            }
        ),
        **{name: total(f"tally {name}") for name in tallies},
    }


def _counts(part: Mapping[str, Any], gpus: int) -> Counts:
    """What took energy."""
    return {
        "link_bits": 8 * part["link_bytes"]["total"],
        "memory_bits": 8 * part["memory_traffic"]["total"],
        "macs": part["flops"] / 2,
        "seconds": part["critical_path"]["seconds"],
        "devices": gpus,
    }


def _loads(counts: Counts, device: GpuDevice) -> PowerLoads:
    return {
        "links": [(PICO * counts["link_bits"], device.link_picojoules)],
        "memory": [(PICO * counts["memory_bits"], device.memory_picojoules)],
        "compute": [(PICO * counts["macs"], device.mac_picojoules)],
        "idle": [(counts["devices"] * counts["seconds"], device.idle_watts)],
    }


def gather(gpus: Gpus) -> Measured | None:
    """All that was measured at rank 0, None at the others. All ranks call it, once, when the program is done."""
    seconds = gpus.meet()
    totals = [reading(gpu, traffic).numbers for gpu, traffic in zip(gpus.mine, gpus.traffic, strict=True)]
    share = {
        "whole": totals,
        "phases": {name: phase.numbers for name, phase in gpus.phases.items()},
        "memory": [(gpu.memory.peak, gpu.memory.names) for gpu in gpus.mine],
        "host": (gpus.group.messages, gpus.group.message_bytes),
    }
    shares = gpus.control.gather(share)
    if shares is None:
        return None
    memory = [use for share in shares for use in share["memory"]]
    if gpus.maps_path:
        _write_maps(gpus, gpus.maps_path, shares, seconds, [peak for peak, _ in memory])
    peak, names = max(memory, key=lambda use: use[0])
    limits = {"memory_bytes": {"max": peak, "limit": gpus.device.memory_bytes, "of_the_fullest": names}}
    phases = [
        {
            "name": name,
            "tokens": int(phase.tokens),
            **combine([numbers for share in shares for numbers in share["phases"][name]], phase.seconds, gpus),
        }
        for name, phase in gpus.phases.items()
    ]
    whole = combine([numbers for share in shares for numbers in share["whole"]], seconds, gpus) | limits
    with_energy(whole, phases, partial(_counts, gpus=gpus.count), partial(_loads, device=gpus.device))
    return Measured(
        asdict(gpus.device), (gpus.count, 1), whole,
        phases,
        {
            **gpus.notes,
            "ranks": len(shares),
            "messages": sum(share["host"][0] for share in shares),
            "bytes": sum(share["host"][1] for share in shares),
        },
        {"static": gpus.static, **_groups(gpus)},
        {"", *gpus.phases} if gpus.sampled else (),
    )  # fmt: skip


def _write_maps(
    gpus: Gpus, path: str, shares: Sequence[Mapping[str, Any]], seconds: float, peaks: Sequence[int]
) -> None:  # fmt: skip
    """What each GPU did."""

    def numbers(of_gpus: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        sent = [sum(int(count) for name, count in part.items() if name.startswith("bytes ")) for part in of_gpus]
        kept = {name: [part.get(key, 0) for part in of_gpus] for name, key in COUNTERS.items()}
        return {"link_bytes": sent, **kept}

    whole = numbers([part for share in shares for part in share["whole"]])
    stretches = [("total", DeviceStretch(seconds, gpus.sampled, {**whole, "memory": peaks}))]
    for name, phase in gpus.phases.items():
        of_phase = numbers([part for share in shares for part in share["phases"][name]])
        stretches.append((name, DeviceStretch(phase.seconds, gpus.sampled, of_phase)))
    limits = {"memory": gpus.device.memory_bytes}
    write_device_maps(path, "GPU", gpus.device.name, limits, MAPS, stretches)


def _groups(gpus: Gpus) -> dict[str, Any]:
    """How GPUs are shared out to nodes and groups, where there are several."""
    if gpus.node_size is None and gpus.pp * gpus.dp == 1:
        return {}
    tp = gpus.count // (gpus.pp * gpus.dp)
    return {"groups": {
        "tp": tp, "pp": gpus.pp, "dp": gpus.dp, "node_size": gpus.node_size, "collectives": gpus.collectives
    }}  # fmt: skip


def title(report: dict[str, Any]) -> str:
    whole, host, count = report["measured"], report["host"], report["mesh"][0]
    return (
        f"{report['program']} on {count} GPU{'s' if count > 1 else ''} of type {report['device']['name']}"
        f" over {report['device']['link']}{_said(report)}, {host['ranks']} rank{'s' if host['ranks'] > 1 else ''};"
        f" virtual time {1e3 * whole['critical_path']['seconds']:,.3f} ms, wall time {host['wall_seconds']:.2f} s"
    )


def _said(report: dict[str, Any]) -> str:
    groups = report.get("groups")
    if groups is None:
        return ""
    nodes = "" if groups["node_size"] is None else f" in nodes of {groups['node_size']}"
    return f"{nodes} (tp {groups['tp']}, pp {groups['pp']}, dp {groups['dp']})"


def rows(report: dict[str, Any]) -> Iterator[TableRow]:
    """The rows of the table: a cell for each phase, and one for the whole run."""
    whole = report["measured"]
    parts = [*report["phases"], whole]

    def row(path: str, show: Callable[[dict[str, Any]], str]) -> TableRow:
        return row_of("gpu", report, path, [show(part) for part in parts])

    yield row("tokens", lambda part: f"{part['tokens']:,}" if "tokens" in part else "")
    yield row("critical_path.seconds", lambda part: f"{1e3 * part['critical_path']['seconds']:,.3f} ms")
    yield row("compute_seconds", lambda part: f"{1e3 * part['compute_seconds']:,.3f} ms")
    yield row("collective_seconds", lambda part: f"{1e3 * part['collective_seconds']:,.3f} ms")
    if whole["hidden_seconds"]:
        yield row("hidden_seconds", lambda part: f"{1e3 * part['hidden_seconds']:,.3f} ms")
    yield row("launches", lambda part: f"{part['launches']:,}")
    if report["static"]:
        yield row("graph_launches", lambda part: f"{part['graph_launches']:,}")
    for kind in whole["collectives"]:
        sent = [part["collectives"][kind]["bytes"]["max"] if kind in part["collectives"] else None for part in parts]
        cells = ["" if nbytes is None else size(nbytes) for nbytes in sent]
        yield row_of("gpu", report, f"collectives.{kind}.bytes.max", cells)
    if "inter_node_bytes" in whole:
        yield row("intra_node_bytes.total", lambda part: size(part["intra_node_bytes"]["total"]))
        yield row("inter_node_bytes.total", lambda part: size(part["inter_node_bytes"]["total"]))
    if "bubble_seconds" in whole:
        yield row("bubble_seconds.total", lambda part: f"{1e3 * part['bubble_seconds']['total']:,.3f} ms")
    yield row("flops", lambda part: short(part["flops"]))
    yield row("memory_traffic.total", lambda part: size(part["memory_traffic"]["total"]))
    if "attention_heads" in whole:
        yield row("attention_heads", lambda part: short(part.get("attention_heads", 0)))
    yield from energy_row("gpu", report)
    memory = whole["memory_bytes"]
    cells = [*["" for _ in report["phases"]], size(memory["max"])]
    yield row_of("gpu", report, "memory_bytes.max", cells, size(memory["limit"]))
