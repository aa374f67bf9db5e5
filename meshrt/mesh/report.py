"""What a mesh reports: all ranks' counters as the JSON has them, and the rows of the table that a person reads."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from resource import RUSAGE_SELF, getrusage
from typing import Any

from meshrt.machine import Measured
from meshrt.mesh.block import Block
from meshrt.mesh.device import Device
from meshrt.mesh.meter import merge, summary
from meshrt.reports.energy import PICO, Counts, PowerLoads, energy_row, with_energy
from meshrt.reports.kinds import TableRow, row_of
from meshrt.units import short, size


def combine(shares: Sequence[dict[str, Any]], device: Device) -> dict[str, Any]:
    """All ranks' shares of one segment as the JSON's `measured`: sums, and the largest where a maximum is asked for."""

    def total(key: str) -> int:
        return sum(int(share[key]) for share in shares)

    def most(key: str) -> int:
        return max(int(share[key]) for share in shares)

    cycles, hops, stages = shares[0]["path"]
    wafer = {}
    if shares[0]["wafer_links"]:
        links = [sum(share["wafer_links"][site] for share in shares) for site in shares[0]["wafer_links"]]
        sizes = {
            "total": sum(int(link_bytes.sum()) for link_bytes in links),
            "max": max(int(link_bytes.max()) for link_bytes in links),
        }
        wafer = {"wafer": {"hops": total("wafer_hops"), "link_bytes": sizes}}
    return {
        "messages": total("messages"),
        "hops": total("hops"),
        "max_hops": most("max_hops"),
        "stages": total("stages"),
        "critical_path": {"hops": hops, "stages": stages, "cycles": cycles, "seconds": cycles / device.clock_hz},
        **{
            name: {"total": sum(share[name][0] for share in shares), "max": max(share[name][1] for share in shares)}
            for name in ("link_bytes", "ramp_bytes")
        },
        "route_entries": {"max": most("entries"), "limit": device.route_entries},
        "memory_bytes": {"max": most("memory"), "limit": device.core_memory},
        "macs": total("macs"),
        "macs_16": total("macs_16"),
        "adds": total("adds"),
        "operand_bytes": total("operand_bytes"),
        **({"rebuilt": total("rebuilt")} if total("rebuilt") else {}),
        "cores": max(sum(share["cores"].get(site, 0) for share in shares) for site in shares[0]["cores"]),
        "cores_used": total("used"),
        "out_of_order": {
            "packets": sum(share["out_of_order"][0] for share in shares),
            "longest_wait": max(share["out_of_order"][1] for share in shares),
        },
        **wafer,
    }


def _counts(part: Mapping[str, Any]) -> Counts:
    """What took energy."""
    return {
        "hop_bits": 8 * part.get("wafer", part)["link_bytes"]["total"],
        "memory_bits": 8 * (part["operand_bytes"] + part["ramp_bytes"]["total"]),
        "macs": part["macs"] - part["macs_16"],
        "macs_16": part["macs_16"],
        "adds": part["adds"],
        "seconds": part["critical_path"]["seconds"],
        "devices": part["cores"],
    }


def _loads(counts: Counts, device: Device) -> PowerLoads:
    return {
        "links": [(PICO * counts["hop_bits"], device.hop_picojoules)],
        "memory": [(PICO * counts["memory_bits"], device.memory_picojoules)],
        "compute": [
            (PICO * counts["macs"], device.mac_picojoules),
            (PICO * counts["macs_16"], device.mac_picojoules_16),
            (PICO * counts["adds"], device.add_picojoules),
        ],
        "idle": [(counts["devices"] * counts["seconds"], device.idle_watts)],
    }


def gather(block: Block) -> Measured | None:
    """All that was measured at rank 0, None at the others. All ranks call it, once, when the program is done."""
    segments = block.finish()
    named = [segment for segment in segments if segment.name]
    shown = [merge(segments), *named]
    several = [name for name, count in Counter(segment.name for segment in named).items() if count > 1]
    joined = [merge([segment for segment in named if segment.name == name]) for name in several]
    counts = block.host
    share = {
        "segments": [summary(segment, block.ledger.wafers) for segment in (*shown, *joined)],
        "host": (counts.messages, counts.packets, counts.bytes, getrusage(RUSAGE_SELF).ru_maxrss * 1024),
        "startup": block.startup_cpu_seconds,
        "phases": [segment.cpu_seconds for segment in named],
    }
    shares = block.control.gather(share)
    if shares is None:
        return None
    everything = [
        combine([share["segments"][at] for share in shares], block.device) for at in range(len(shown) + len(joined))
    ]
    measured = everything[: len(shown)]
    for name, whole in zip(several, everything[len(shown) :], strict=True):
        for segment, part in zip(named, measured[1:], strict=True):
            if segment.name == name:
                _of_all(part, whole)
    sums = [sum(share["host"][at] for share in shares) for at in range(4)]
    host = {
        **block.notes,
        "ranks": len(shares),
        "blocks": [block.mesh.columns, block.mesh.rows],
        "messages": sums[0],
        "packets": sums[1],
        "bytes": sums[2],
        "rss_bytes": sums[3],
        "startup_cpu_seconds": median([share["startup"] for share in shares]),
        "phases": [
            {
                "name": segment.name,
                "wall_seconds": segment.wall_seconds,
                "cpu_seconds": sum(share["phases"][at] for share in shares),
            }
            for at, segment in enumerate(named)
        ],
    }
    with_energy(measured[0], measured[1:], _counts, partial(_loads, device=block.device))
    return Measured(
        asdict(block.device), (block.mesh.width, block.mesh.height), measured[0],
        [
            {"name": segment.name, **({} if segment.tokens is None else {"tokens": int(segment.tokens)}), **part}
            for segment, part in zip(named, measured[1:], strict=True)
        ],
        host,
        {} if block.wafer is None else {"wafer": block.wafer.facts()},
        {segment.name for segment in shown if segment.sampled},
    )  # fmt: skip


def _of_all(part: dict[str, Any], whole: Mapping[str, Any]) -> None:
    """What is the most of a link, a ramp, or all cores that did something, is of all stretches of one name together: of
    one alone it would not be what the busiest carried. What is added up, and peaks, are put together by the name.
    """
    part["cores_used"] = whole["cores_used"]
    for name in ("link_bytes", "ramp_bytes"):
        part[name]["max"] = whole[name]["max"]
    if "wafer" in part:
        part["wafer"]["link_bytes"]["max"] = whole["wafer"]["link_bytes"]["max"]


def median(seconds: Sequence[float]) -> float:
    """As np.median, which loads numpy.ma: a twentieth of a rank's start."""
    ordered = sorted(seconds)
    middle = len(ordered) // 2
    return (ordered[~middle] + ordered[middle]) / 2


def title(report: dict[str, Any]) -> str:
    width, height = report["mesh"]
    host, seconds = report["host"], report["measured"]["critical_path"]["seconds"]
    return (
        f"{report['program']} on {width} x {height} cores of {report['device']['name']},"
        f" {host['ranks']} rank{'s' if host['ranks'] > 1 else ''};"
        f" virtual time {1e6 * seconds:,.1f} us"
    )


def rows(report: dict[str, Any]) -> Iterator[TableRow]:
    """The rows of the table: a cell for each phase, and one for the whole run."""
    host, device = report["host"], report["device"]
    parts = [*report["phases"], report["measured"]]

    def count(path: str) -> TableRow:
        return row_of("mesh", report, path, [f"{_at(part, path):,.0f}" for part in parts])

    def nbytes(path: str, limit: int | None = None) -> TableRow:
        cells = [size(_at(part, path)) for part in parts]
        return row_of("mesh", report, path, cells, limit and size(limit))

    if any("tokens" in part for part in parts):
        yield row_of("mesh", report, "tokens", [str(part.get("tokens", "")) for part in parts])
    yield count("messages")
    yield count("hops")
    if "wafer" in report:
        yield count("wafer.hops")
    yield row_of("mesh", report, "max_hops", [str(part["max_hops"]) for part in parts])
    yield count("stages")
    yield count("critical_path.hops")
    yield count("critical_path.cycles")
    if any(part["out_of_order"]["packets"] for part in parts):
        yield count("out_of_order.packets")
    yield nbytes("link_bytes.max")
    if "wafer" in report:
        yield nbytes("wafer.link_bytes.max")
    entries = [str(part["route_entries"]["max"]) for part in parts]
    yield row_of("mesh", report, "route_entries.max", entries, device["route_entries"])
    yield nbytes("memory_bytes.max", device["core_memory"])
    yield row_of("mesh", report, "macs", [short(part["macs"]) for part in parts])
    if any("rebuilt" in part for part in parts):
        yield row_of("mesh", report, "rebuilt", [short(part.get("rebuilt", 0)) for part in parts])
    yield from energy_row("mesh", report)
    wall = [phase["wall_seconds"] for phase in host["phases"]] + [host["wall_seconds"]]
    yield TableRow("wall time", [f"{seconds:.2f} s" for seconds in wall])


def _at(part: dict[str, Any], path: str) -> Any:
    for name in path.split("."):
        part = part[name]
    return part
