"""From the counters of all GPUs to one report: the JSON of a run, and the table that a person reads."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from meshrt import fields
from meshrt.gpu.device import GpuDevice
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.meter import snapshot
from meshrt.report import of, short, show, size


def combine(parts: Sequence[dict[str, Any]], seconds: float, device: GpuDevice) -> dict[str, Any]:
    """All GPUs' counters of one stretch as the JSON's `measured`: sums, and the largest where it says max."""

    def total(name: str) -> int:
        return sum(int(part.get(name, 0)) for part in parts)

    def most(name: str) -> Any:
        return max(part.get(name, 0) for part in parts)

    kinds = sorted({name.removeprefix("calls ") for part in parts for name in part if name.startswith("calls ")})
    tallies = sorted({name.removeprefix("tally ") for part in parts for name in part if name.startswith("tally ")})
    sent = [sum(count for name, count in part.items() if name.startswith("bytes ")) for part in parts]
    flops = total("flops")
    return {
        "critical_path": {"seconds": seconds},
        "launches": most("launches"),
        "graph_launches": most("graphs"),
        "flops": flops,
        "mfu": flops / (seconds * len(parts) * device.flops) if seconds else 0.0,
        "memory_traffic": {"total": total("memory_traffic"), "max": most("memory_traffic")},
        "compute_seconds": most("compute_seconds"),
        "collective_seconds": most("collective_seconds"),
        "collectives": {
            kind: {
                "calls": most(f"calls {kind}"),
                "bytes": {"total": total(f"bytes {kind}"), "max": most(f"bytes {kind}")},
            }
            for kind in kinds
        },
        "link_bytes": {"total": sum(sent), "max": max(sent)},
        **{name: total(f"tally {name}") for name in tallies},
    }


def gather_report(gpus: Gpus, program: str, arguments: dict[str, Any], result: Any, host: Any) -> Any:
    """The whole report at rank 0, None at the others. All ranks call it, once, when the program is done."""
    seconds = gpus.meet()
    own = [snapshot(gpu, traffic).numbers for gpu, traffic in zip(gpus.mine, gpus.group.traffic, strict=True)]
    share = {
        "whole": own,
        "phases": {name: phase.numbers for name, phase in gpus.phases.items()},
        "memory": [(gpu.memory.peak, gpu.memory.names) for gpu in gpus.mine],
        "host": (gpus.group.messages, gpus.group.message_bytes),
    }
    shares = gpus.control.gather(share)
    if shares is None:
        return None
    memory = [one for share in shares for one in share["memory"]]
    peak, names = max(memory, key=lambda one: one[0])
    limits = {"memory_bytes": {"max": peak, "limit": gpus.device.memory_bytes, "of_the_fullest": names}}
    return fields.with_kinds("gpu", {"", *gpus.phases} if gpus.sampled else set(), {
        "schema": 1,
        "program": program,
        "arguments": arguments,
        "device": {key: value for key, value in asdict(gpus.device).items() if key != "sources"},
        "mesh": [gpus.count, 1],
        "static": gpus.static,
        "result": result,
        "measured": combine([one for share in shares for one in share["whole"]], seconds, gpus.device) | limits,
        "phases": [
            {
                "name": name,
                "tokens": phase.tokens,
                **combine([one for share in shares for one in share["phases"][name]], phase.seconds, gpus.device),
            }
            for name, phase in gpus.phases.items()
        ],
        "host": {
            **host,
            "ranks": len(shares),
            "messages": sum(share["host"][0] for share in shares),
            "bytes": sum(share["host"][1] for share in shares),
        },
    })  # fmt: skip


def print_table(report: dict[str, Any]) -> None:
    """What was measured, phase by phase, on standard output."""
    from rich.table import Table

    whole = report["measured"]
    parts = [*report["phases"], {"name": "total", **whole}]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for part in parts:
        table.add_column(part["name"], justify="right", no_wrap=True)

    def row(path: str, show: Any) -> None:
        table.add_row(fields.heading("gpu", report, path), *(show(part) for part in parts))

    row("tokens", lambda part: f"{part['tokens']:,}" if "tokens" in part else "")
    row("critical_path.seconds", lambda part: f"{1e3 * part['critical_path']['seconds']:,.3f} ms")
    row("compute_seconds", lambda part: f"{1e3 * part['compute_seconds']:,.3f} ms")
    row("collective_seconds", lambda part: f"{1e3 * part['collective_seconds']:,.3f} ms")
    row("launches", lambda part: f"{part['launches']:,}")
    if report["static"]:
        row("graph_launches", lambda part: f"{part['graph_launches']:,}")
    for kind in whole["collectives"]:
        row(
            f"collectives.{kind}.bytes.max",
            lambda part, kind=kind: (
                size(part["collectives"][kind]["bytes"]["max"]) if kind in part["collectives"] else ""
            ),
        )
    row("flops", lambda part: short(part["flops"]))
    row("memory_traffic.total", lambda part: size(part["memory_traffic"]["total"]))
    if "attention_heads" in whole:
        row("attention_heads", lambda part: short(part.get("attention_heads", 0)))
    memory, host, count = whole["memory_bytes"], report["host"], report["mesh"][0]
    named = fields.heading("gpu", report, "memory_bytes.max")
    table.add_row(named + of(size(memory["limit"])), *["" for _ in parts[:-1]], size(memory["max"]))
    print(
        f"{report['program']} on {count} GPU{'s' if count > 1 else ''} of type {report['device']['name']}"
        f" over {report['device']['link']}, {host['ranks']} rank{'s' if host['ranks'] > 1 else ''};"
        f" virtual time {1e3 * whole['critical_path']['seconds']:,.3f} ms, wall time {host['wall_seconds']:.2f} s"
    )
    show(table)
    print(fields.legend(report))
