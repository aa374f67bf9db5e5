"""From the counters of all NeuronCores to one report: the JSON of a run, and the table that a person reads."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from meshrt import fields
from meshrt.neuron.core import COUNTS, NeuronCore, Phase
from meshrt.neuron.cores import Cores
from meshrt.neuron.device import NeuronDevice
from meshrt.report import of, short, show, size

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma")


def summaries(core: NeuronCore) -> list[dict[str, Any]]:
    """A core's whole run, then its phases, as plain numbers."""
    busy = {engine.name: engine.busy for engine in core.engines} | {"dma": core.dma.busy}
    instructions = {engine.name: engine.instructions for engine in core.engines} | {"dma": core.dma.transfers}
    peaks = {buffer.name: buffer.most for buffer in (core.hbm, core.sbuf, core.psum)}
    whole = Phase("", 0.0, dict(core.counts), busy, instructions, core.barrier(), peaks)
    return [asdict(phase) for phase in (whole, *core.phases)]


def combine(parts: Sequence[dict[str, Any]], device: NeuronDevice) -> dict[str, Any]:
    """All cores' shares of one stretch as the JSON's `measured`. A stretch lasts as long as on its slowest core."""
    counts = {key: sum(part["counts"][key] for part in parts) for key in COUNTS}
    seconds = max(part["end"] - part["begin"] for part in parts)
    flops = 2 * counts["macs"]

    def peak(name: str, times: int, limit: int) -> dict[str, int]:
        return {"max": max(part["peaks"][name] for part in parts) * times, "limit": limit}

    engines = {}
    for name in ENGINES:
        busy = sum(part["busy"][name] for part in parts)
        engines[name] = {
            "busy_seconds": busy,
            "active": busy / (seconds * len(parts)) if seconds else 0.0,
            "instructions": sum(part["instructions"][name] for part in parts),
        }
    return {
        "critical_path": {"cycles": seconds * device.tensor_hz, "seconds": seconds},
        "hbm_bytes": {
            "read": counts["hbm_read"],
            "written": counts["hbm_written"],
            "total": counts["hbm_read"] + counts["hbm_written"],
        },
        "spill_bytes": {"saved": counts["spill_saved"], "reloaded": counts["spill_reloaded"]},
        "macs": counts["macs"],
        "flops": flops,
        "transpose_flops": 2 * counts["transpose_macs"],
        "mfu": flops / (seconds * len(parts) * device.peak_flops) if seconds else 0.0,
        "engines": engines,
        "sbuf_bytes": peak("sbuf", device.partitions, device.sbuf_bytes),
        "psum_bytes": peak("psum", device.partitions, device.partitions * device.psum_banks * device.psum_bank_bytes),
        "memory_bytes": peak("hbm", 1, device.hbm_bytes),
        "link_bytes": {"total": counts["link_bytes"], "max": max(part["counts"]["link_bytes"] for part in parts)},
        "collectives": max(part["counts"]["collectives"] for part in parts),
    }


def gather_report(cores: Cores, program: str, arguments: dict[str, Any], result: Any, host: Any) -> Any:
    """The whole report at rank 0, None at the others. All ranks call it, once, when the program is done."""
    sent = (cores.group.messages, cores.group.message_bytes)
    shares = cores.control.gather(([summaries(core) for core in cores.mine], sent))
    if shares is None:
        return None
    of_cores = [summary for of_rank, _ in shares for summary in of_rank]
    messages, nbytes = (sum(sent[at] for _, sent in shares) for at in (0, 1))
    stretches = [[of_core[at] for of_core in of_cores] for at in range(len(of_cores[0]))]
    measured = [combine(parts, cores.device) for parts in stretches]
    phases = [
        {"name": parts[0]["name"], **({} if parts[0]["tokens"] is None else {"tokens": parts[0]["tokens"]}), **part}
        for parts, part in zip(stretches[1:], measured[1:], strict=True)
    ]
    return fields.with_kinds("neuron", set(), {
        "schema": 1,
        "program": program,
        "arguments": arguments,
        "device": {key: value for key, value in asdict(cores.device).items() if key != "sources"},
        "mesh": [cores.count, 1],
        "result": result,
        "measured": measured[0],
        "phases": phases,
        "host": {**host, "ranks": len(shares), "messages": messages, "bytes": nbytes},
    })  # fmt: skip


def print_table(report: dict[str, Any]) -> None:
    """One column for each phase and one for the whole run; a row for each thing that was measured."""
    from rich.table import Table

    parts = [*report["phases"], {"name": "total", **report["measured"]}]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", *(part["name"] for part in parts)):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)

    def row(path: str, show: Any, limit: Any = None) -> None:
        table.add_row(fields.heading("neuron", report, path) + of(limit), *(show(part) for part in parts))

    if any("tokens" in part for part in parts):
        row("tokens", lambda part: str(part.get("tokens", "")))
    row("critical_path.seconds", lambda part: f"{1e3 * part['critical_path']['seconds']:,.3f} ms")
    row("hbm_bytes.read", lambda part: size(part["hbm_bytes"]["read"]))
    row("hbm_bytes.written", lambda part: size(part["hbm_bytes"]["written"]))
    row("spill_bytes.saved", lambda part: size(sum(part["spill_bytes"].values())))
    row("flops", lambda part: short(part["flops"]))
    row("transpose_flops", lambda part: short(part["transpose_flops"]))
    row("engines.tensor.active", lambda part: f"{100 * part['engines']['tensor']['active']:.1f} %")
    row("mfu", lambda part: f"{100 * part['mfu']:.1f} %")
    first = report["measured"]
    for key in ("sbuf_bytes", "psum_bytes", "memory_bytes"):
        row(f"{key}.max", lambda part, key=key: size(part[key]["max"]), size(first[key]["limit"]))
    if first["collectives"]:
        row("link_bytes.total", lambda part: size(part["link_bytes"]["total"]))
    count, host = report["mesh"][0], report["host"]
    print(
        f"{report['program']} on {count} NeuronCore{'s' if count > 1 else ''} of {report['device']['name']},"
        f" {host['ranks']} rank{'s' if host['ranks'] > 1 else ''};"
        f" virtual time {1e3 * first['critical_path']['seconds']:,.3f} ms, wall time {host['wall_seconds']:.2f} s"
    )
    show(table)
    print(fields.legend(report))
