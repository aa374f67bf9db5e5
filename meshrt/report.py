"""From every rank's counters to one report: the JSON of a run, and the table that a person reads."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any, BinaryIO

import numpy as np

from meshrt.block import Block
from meshrt.device import Device
from meshrt.errors import UsageError
from meshrt.meter import Segment, merge, summary

SCHEMA = 1


def combine(shares: Sequence[dict[str, Any]], device: Device) -> dict[str, Any]:
    """All ranks' shares of one segment as the JSON's `measured`: sums, and the largest where a maximum is asked for."""

    def total(key: str) -> int:
        return sum(int(share[key]) for share in shares)

    def most(key: str) -> int:
        return max(int(share[key]) for share in shares)

    cycles, hops, stages = shares[0]["path"]
    return {
        "messages": total("messages"),
        "hops": total("hops"),
        "max_hops": most("max_hops"),
        "stages": total("stages"),
        "critical_path": {"hops": hops, "stages": stages, "cycles": cycles, "seconds": cycles / device.clock_hz},
        "link_bytes": {
            "total": sum(share["link_bytes"][0] for share in shares),
            "max": max(share["link_bytes"][1] for share in shares),
        },
        "route_entries": {"max": most("entries"), "limit": device.route_entries},
        "memory_bytes": {"max": most("memory"), "limit": device.core_memory},
        "macs": total("macs"),
    }


def gather_report(
    block: Block, program: str, arguments: dict[str, Any], result: Any, host: Any
) -> dict[str, Any] | None:
    """The whole report at rank 0, None at the others. All ranks call it, once, when the program is done."""
    segments = block.finish()
    named = [segment for segment in segments if segment.name]
    own = [merge(segments, block.mesh), *named]
    counts = block.host
    share = {
        "segments": [summary(segment) for segment in own],
        "host": (counts.messages, counts.packets, counts.bytes, getrusage(RUSAGE_SELF).ru_maxrss * 1024),
        "startup": block.startup_cpu_seconds,
    }
    shares = block.control.gather(share)
    if shares is None:
        return None
    measured = [combine([share["segments"][at] for share in shares], block.device) for at in range(len(own))]
    device = {key: value for key, value in asdict(block.device).items() if key != "sources"}
    sums = [sum(share["host"][at] for share in shares) for at in range(4)]
    return {
        "schema": SCHEMA,
        "program": program,
        "arguments": arguments,
        "device": device,
        "mesh": [block.mesh.width, block.mesh.height],
        "result": result,
        "measured": measured[0],
        "phases": [
            {"name": segment.name, **_tokens(segment), **part}
            for segment, part in zip(named, measured[1:], strict=True)
        ],
        "host": {
            **host,
            **block.notes,
            "ranks": len(shares),
            "blocks": [block.mesh.columns, block.mesh.rows],
            "messages": sums[0],
            "packets": sums[1],
            "bytes": sums[2],
            "rss_bytes": sums[3],
            "startup_cpu_seconds": float(np.median([share["startup"] for share in shares])),
            "phases": [{"name": segment.name, "wall_seconds": segment.wall_seconds} for segment in named],
        },
    }


def _tokens(segment: Segment) -> dict[str, int]:
    return {} if segment.tokens is None else {"tokens": segment.tokens}


def check_target(option: str, path: str) -> None:
    """UsageError where a file cannot be written there, as far as that shows beforehand."""
    target = Path(path).absolute()
    if target.is_dir():
        raise UsageError(f"{option} {path} is a folder: name a file in it")
    if not target.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no folder {target.parent}")
    if not os.access(target.parent, os.W_OK):
        raise UsageError(f"{option} {path}: the folder {target.parent} cannot be written")


def write_file(option: str, path: str, write: Callable[[BinaryIO], object]) -> None:
    """Write beside, then rename: a reader sees the whole file or none. UsageError where the disk does not take it."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with beside.open("wb") as stream:
            write(stream)
        beside.replace(target)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise UsageError(f"{option} {path} cannot be written: {error.strerror or error}") from error


def write_json(report: dict[str, Any], path: str) -> None:
    """The report as a file."""
    write_file("--json", path, lambda stream: stream.write((json.dumps(report, indent=1) + "\n").encode()))


def print_json(report: dict[str, Any]) -> None:
    print(json.dumps(report, indent=1))


def print_result(report: dict[str, Any]) -> None:
    """The program's own result, a line each; what is long or was printed already is left to the JSON."""
    for key, value in report["result"].items():
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) < 60):
            print(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}")


def print_table(report: dict[str, Any]) -> None:
    """One row for each phase and one for the whole run."""
    from rich.console import Console
    from rich.table import Table

    wall = [phase["wall_seconds"] for phase in report["host"]["phases"]]
    table = Table(title=_title(report), title_justify="left", box=None, pad_edge=False, header_style="bold")
    heads = (
        "phase",
        "tokens",
        "messages",
        "hops",
        "longest",
        "stages",
        "path hops",
        "path cycles",
        "busiest link",
        "entries",
        "memory",
        "wall",
    )
    for head in heads:
        table.add_column(head, justify="left" if head == "phase" else "right", overflow="fold")
    rows = [
        *zip(report["phases"], wall, strict=True),
        ({"name": "total", **report["measured"]}, report["host"]["wall_seconds"]),
    ]
    for part, seconds in rows:
        path, entries, memory = part["critical_path"], part["route_entries"], part["memory_bytes"]
        table.add_row(
            part["name"],
            str(part.get("tokens", "")),
            f"{part['messages']:,}",
            f"{part['hops']:,}",
            str(part["max_hops"]),
            f"{part['stages']:,}",
            f"{path['hops']:,}",
            f"{path['cycles']:,.0f}",
            size(part["link_bytes"]["max"]),
            of(str(entries["max"]), entries["limit"]),
            of(size(memory["max"]), memory["limit"] and size(memory["limit"])),
            f"{seconds:.2f} s",
        )
    console = Console()
    if console.width < 130 and not console.is_terminal:
        console = Console(width=150)  # a log has no width; do not fold it to 80 columns
    console.print(table, highlight=False)


def _title(report: dict[str, Any]) -> str:
    width, height = report["mesh"]
    host, seconds = report["host"], report["measured"]["critical_path"]["seconds"]
    return (
        f"{report['program']} on {width} x {height} cores of {report['device']['name']}, {host['ranks']} ranks;"
        f" virtual time {1e6 * seconds:,.1f} us"
    )


def of(value: str, limit: Any) -> str:
    return value if limit is None else f"{value} of {limit}"


def size(nbytes: int) -> str:
    """Bytes for a person, in binary units."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"
