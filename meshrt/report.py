"""From every rank's counters to one report: the JSON of a run, and the table that a person reads."""

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from meshrt import fields
from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.device import Device
from meshrt.mesh.meter import Segment, merge, summary

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = 1
LOG_WIDTH = 200  # columns of a table that goes to no terminal
LONGEST_NAME = 240  # bytes of a file's name; systems take 255, some of which go to the temporary name


def combine(shares: Sequence[dict[str, Any]], device: Device) -> dict[str, Any]:
    """All ranks' shares of one segment as the JSON's `measured`: sums, and the largest where a maximum is asked for."""

    def total(key: str) -> int:
        return sum(int(share[key]) for share in shares)

    def most(key: str) -> int:
        return max(int(share[key]) for share in shares)

    cycles, hops, stages = shares[0]["path"]
    wafer = {}
    if shares[0]["wafer_links"]:
        links = [sum(share["wafer_links"][place] for share in shares) for place in shares[0]["wafer_links"]]
        sizes = {"total": sum(int(one.sum()) for one in links), "max": max(int(one.max()) for one in links)}
        wafer = {"wafer": {"hops": total("wafer_hops"), "link_bytes": sizes}}
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
        "cores_used": total("used"),
        "out_of_order": {
            "packets": sum(share["out_of_order"][0] for share in shares),
            "longest_wait": max(share["out_of_order"][1] for share in shares),
        },
        **wafer,
    }


def gather_report(
    block: Block, program: str, arguments: dict[str, Any], result: Any, host: Any
) -> dict[str, Any] | None:
    """The whole report at rank 0, None at the others. All ranks call it, once, when the program is done."""
    segments = block.finish()
    named = [segment for segment in segments if segment.name]
    own = [merge(segments), *named]
    counts = block.host
    share = {
        "segments": [summary(segment, block.ledger.wafers) for segment in own],
        "host": (counts.messages, counts.packets, counts.bytes, getrusage(RUSAGE_SELF).ru_maxrss * 1024),
        "startup": block.startup_cpu_seconds,
    }
    shares = block.control.gather(share)
    if shares is None:
        return None
    measured = [combine([share["segments"][at] for share in shares], block.device) for at in range(len(own))]
    device = {key: value for key, value in asdict(block.device).items() if key != "sources"}
    sums = [sum(share["host"][at] for share in shares) for at in range(4)]
    sampled = {segment.name for segment in own if segment.sampled}
    return fields.with_kinds("mesh", sampled, {
        "schema": SCHEMA,
        "program": program,
        "arguments": arguments,
        "device": device,
        "mesh": [block.mesh.width, block.mesh.height],
        **({} if block.wafer is None else {"wafer": block.wafer.facts()}),
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
    })  # fmt: skip


def _tokens(segment: Segment) -> dict[str, int]:
    return {} if segment.tokens is None else {"tokens": segment.tokens}


def check_target(option: str, path: str) -> None:
    """UsageError where a file cannot be written there, as far as that shows beforehand."""
    try:
        target = os.path.realpath(path)
    except ValueError as error:  # a zero byte, or half of a character
        raise UsageError(f"{option} {path!r} is no name of a file: {error}") from error
    folder, name = os.path.split(target)
    if not path:
        raise UsageError(f"{option} '' names no file")
    if os.path.isdir(target):
        raise UsageError(f"{option} {path} is a folder: name a file in it")
    if _is_stream(path):
        if not os.access(path, os.W_OK):
            raise UsageError(f"{option} {path} cannot be written: you may not")
        return
    if not os.path.isdir(folder):
        raise UsageError(f"{option} {path}: there is no folder {folder}")
    if len(os.fsencode(name)) > LONGEST_NAME:
        raise UsageError(f"{option} {path}: the file's name has more than {LONGEST_NAME} bytes; choose a shorter one")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{option} {path}: the folder {folder} cannot be written")


def _is_stream(path: str) -> bool:
    """Is it there, and no file: a terminal, a pipe, /dev/null? Such are written to and never replaced."""
    return os.path.exists(path) and not os.path.isfile(path)


def write_file(option: str, path: str, write: Callable[[BinaryIO], object]) -> None:
    """Write beside, then rename: a reader sees the whole file or none. UsageError where the disk does not take it."""
    target = Path(path if _is_stream(path) else os.path.realpath(path))  # a link goes on to lead to the file
    beside = target if _is_stream(path) else target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with beside.open("wb") as stream:
            write(stream)
        if beside != target:
            beside.replace(target)
    except OSError as error:
        with suppress(OSError):
            if beside != target:
                beside.unlink(missing_ok=True)
        raise UsageError(f"{option} {path} cannot be written: {error.strerror or error}") from error


def write_json(report: dict[str, Any], path: str) -> None:
    """The report as a file."""
    write_file("--json", path, lambda stream: stream.write((json.dumps(report, indent=1) + "\n").encode()))


def print_json(report: dict[str, Any]) -> None:
    print(json.dumps(report, indent=1))


def deliver_json(report: dict[str, Any], path: str | None) -> None:
    """The report where it was asked for: a file, - for standard output, or nowhere."""
    if path == "-":
        print_json(report)
    elif path:
        write_json(report, path)


def print_result(report: dict[str, Any]) -> None:
    """The program's own result, a line each; what is long or was printed already is left to the JSON."""
    for key, value in report["result"].items():
        if isinstance(value, (bool, int, float)) or (isinstance(value, str) and len(value) < 60):
            print(f"{key}: {value:.4g}" if isinstance(value, float) else f"{key}: {value}")


def print_table(report: dict[str, Any]) -> None:
    """One column for each phase and one for the whole run; a row for each thing that was measured."""
    from rich.table import Table

    host, device = report["host"], report["device"]
    parts = [*report["phases"], {"name": "total", **report["measured"]}]
    wall = [phase["wall_seconds"] for phase in host["phases"]] + [host["wall_seconds"]]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    for part in parts:
        table.add_column(part["name"], justify="right", no_wrap=True)

    def row(path: str, show: Callable[[dict[str, Any]], str], limit: Any = None) -> None:
        table.add_row(fields.heading("mesh", report, path) + of(limit), *map(show, parts))

    if any("tokens" in part for part in parts):
        row("tokens", lambda part: str(part.get("tokens", "")))
    row("messages", lambda part: f"{part['messages']:,}")
    row("hops", lambda part: f"{part['hops']:,}")
    if "wafer" in report:
        row("wafer.hops", lambda part: f"{part['wafer']['hops']:,}")
    row("max_hops", lambda part: str(part["max_hops"]))
    row("stages", lambda part: f"{part['stages']:,}")
    row("critical_path.hops", lambda part: f"{part['critical_path']['hops']:,}")
    row("critical_path.cycles", lambda part: f"{part['critical_path']['cycles']:,.0f}")
    if any(part["out_of_order"]["packets"] for part in parts):
        row("out_of_order.packets", lambda part: f"{part['out_of_order']['packets']:,}")
    row("link_bytes.max", lambda part: size(part["link_bytes"]["max"]))
    if "wafer" in report:
        row("wafer.link_bytes.max", lambda part: size(part["wafer"]["link_bytes"]["max"]))
    row("route_entries.max", lambda part: str(part["route_entries"]["max"]), device["route_entries"])
    limit = device["core_memory"]
    row("memory_bytes.max", lambda part: size(part["memory_bytes"]["max"]), limit and size(limit))
    row("macs", lambda part: short(part["macs"]))
    table.add_row("wall time", *(f"{seconds:.2f} s" for seconds in wall))
    print(_title(report))
    show(table)
    print(fields.legend(report))


def show(table: "Table") -> None:
    """Print a table: as wide as the terminal, or, in a log or a pipe, as wide as its numbers are."""
    from rich.console import Console

    screen = Console()
    (screen if screen.is_terminal else Console(width=LOG_WIDTH)).print(table, highlight=False)


def _title(report: dict[str, Any]) -> str:
    width, height = report["mesh"]
    host, seconds = report["host"], report["measured"]["critical_path"]["seconds"]
    return (
        f"{report['program']} on {width} x {height} cores of {report['device']['name']},"
        f" {host['ranks']} rank{'s' if host['ranks'] > 1 else ''};"
        f" virtual time {1e6 * seconds:,.1f} us"
    )


def of(limit: Any) -> str:
    """' of LIMIT' where there is one."""
    return "" if limit is None else f" of {limit}"


def short(count: int) -> str:
    """A count for a person: 1,234, then 12.3 M and so on."""
    for unit, scale in (("T", 10**12), ("G", 10**9), ("M", 10**6)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count:,}"


def size(nbytes: int) -> str:
    """Bytes for a person, in binary units."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"
