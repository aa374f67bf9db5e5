"""What NeuronCores report: the counters of all as the JSON has them, and the rows of the table that a person reads."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from meshrt.machine import Measured
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.cores import Cores
from meshrt.neuron.device import NeuronDevice
from meshrt.neuron.engines import COUNTS, NeuronPhase
from meshrt.reports.devicemaps import DeviceStretch, write_device_maps
from meshrt.reports.energy import PICO, Counts, PowerLoads, energy_row, with_energy
from meshrt.reports.kinds import TableRow, row_of
from meshrt.units import short, size

ENGINES = ("tensor", "vector", "scalar", "gpsimd", "dma")
# What a map shows, its unit, and the counter that it adds up to ("sum") or has as its largest number ("max").
MAPS = {
    "link_bytes": ("bytes", "that each NeuronCore sent to others", "sum link_bytes.total, max link_bytes.max"),
    "memory": ("bytes", "the most that each held in HBM", "max memory_bytes.max"),
    "sbuf": ("bytes", "the most that each held in SBUF", "max sbuf_bytes.max"),
    "psum": ("bytes", "the most that each held in PSUM", "max psum_bytes.max"),
    "macs": ("MACs", "of each NeuronCore", "sum macs"),
    "hbm_read": ("bytes", "each read from HBM", "sum hbm_bytes.read"),
    "hbm_written": ("bytes", "each wrote to HBM", "sum hbm_bytes.written"),
    "spill_saved": ("bytes", "that each saved from SBUF", "sum spill_bytes.saved"),
    "spill_reloaded": ("bytes", "that each loaded again", "sum spill_bytes.reloaded"),
    "busy": ("seconds", "in which each tensor engine worked", "sum engines.tensor.busy_seconds"),
    **{f"{name}_busy": ("seconds", f"of {name}, the same", f"sum engines.{name}.busy_seconds") for name in ENGINES[1:]},
}


def summaries(core: NeuronCore) -> list[dict[str, Any]]:
    """A core's whole run, then its phases, as plain numbers."""
    end = core.barrier()  # first: a result that still waits for its place is counted then
    busy = {engine.name: engine.busy for engine in core.engines} | {"dma": core.dma.busy}
    instructions = {engine.name: engine.instructions for engine in core.engines} | {"dma": core.dma.transfers}
    peaks = {buffer.name: buffer.most for buffer in (core.hbm, core.sbuf, core.psum)}
    whole = NeuronPhase("", 0.0, dict(core.counts), busy, instructions, end, peaks)
    return [asdict(phase) for phase in (whole, *core.phases)]


def line_up(of_cores: Sequence[Sequence[dict[str, Any]]]) -> tuple[list[list[dict[str, Any]]], list[float]]:
    """All cores' summaries of the whole run, then of each phase, the second of a name with the second of that name; of
    a phase that a core has not, a summary of nothing. And for each the share of the cores that have it.
    """
    phases: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for index, of_core in enumerate(of_cores):
        names = [summary["name"] for summary in of_core]
        for at, summary in enumerate(of_core[1:], 1):
            phases.setdefault((names[at], names[:at].count(names[at])), {})[index] = summary
    empty = asdict(
        NeuronPhase("", 0.0, dict.fromkeys(COUNTS, 0), dict.fromkeys(ENGINES, 0.0), dict.fromkeys(ENGINES, 0),
                    peaks=dict.fromkeys(("hbm", "sbuf", "psum"), 0))
    )  # fmt: skip
    stretches = [[of_core[0] for of_core in of_cores]]
    for (name, _), of_phase in phases.items():
        absent = empty | {"name": name, "tokens": next(iter(of_phase.values()))["tokens"]}
        stretches.append([of_phase.get(index, absent) for index in range(len(of_cores))])
    return stretches, [1.0, *(len(of_phase) / len(of_cores) for of_phase in phases.values())]


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
        "dma_descriptors": counts["dma_descriptors"],
        "spill_bytes": {"saved": counts["spill_saved"], "reloaded": counts["spill_reloaded"]},
        "macs": counts["macs"],
        "flops": flops,
        "transpose_flops": 2 * counts["transpose_macs"],
        "mac_passes": counts["mac_passes"],
        "operand_bytes": counts["operand_bytes"],
        "mfu": flops / (seconds * len(parts) * device.peak_flops) if seconds else 0.0,
        "engines": engines,
        "sbuf_bytes": peak("sbuf", device.partitions, device.sbuf_bytes),
        "psum_bytes": peak("psum", device.partitions, device.partitions * device.psum_banks * device.psum_bank_bytes),
        "memory_bytes": peak("hbm", 1, device.hbm_bytes),
        "link_bytes": {"total": counts["link_bytes"], "max": max(part["counts"]["link_bytes"] for part in parts)},
        "collectives": max(part["counts"]["collectives"] for part in parts),
    }


def _counts(part: Mapping[str, Any], cores: int, taking_part: Mapping[int, float]) -> Counts:
    """What took energy. What DMA moves is in HBM and in SBUF. `taking_part`: the share of the cores, by id of the part;
    what the others took in its time is theirs.
    """
    return {
        "link_bits": 8 * part["link_bytes"]["total"],
        "hbm_bits": 8 * part["hbm_bytes"]["total"],
        "sram_bits": 8 * (part["operand_bytes"] + part["hbm_bytes"]["total"]),
        "macs": part["mac_passes"],
        "seconds": part["critical_path"]["seconds"] * taking_part[id(part)],
        "devices": cores,
    }


def _loads(counts: Counts, device: NeuronDevice) -> PowerLoads:
    return {
        "links": [(PICO * counts["link_bits"], device.link_picojoules)],
        "memory": [
            (PICO * counts["hbm_bits"], device.hbm_picojoules), (PICO * counts["sram_bits"], device.sram_picojoules)
        ],
        "compute": [(PICO * counts["macs"], device.mac_picojoules)],
        "idle": [(counts["devices"] * counts["seconds"], device.idle_watts)],
    }  # fmt: skip


def gather(cores: Cores) -> Measured | None:
    """All that was measured at rank 0, None at the others. All ranks call it, once, when the program is done."""
    sent = (cores.group.messages, cores.group.message_bytes)
    shares = cores.control.gather(([summaries(core) for core in cores.mine], sent))
    if shares is None:
        return None
    of_cores = [summary for of_rank, _ in shares for summary in of_rank]
    messages, nbytes = (sum(sent[at] for _, sent in shares) for at in (0, 1))
    stretches, taking = line_up(of_cores)
    measured = [combine(parts, cores.device) for parts in stretches]
    for part, most in zip(measured[1:], _most_sent(stretches[1:]), strict=True):
        part["link_bytes"]["max"] = most
    taking_part = {id(part): share for part, share in zip(measured, taking, strict=True)}
    if cores.maps_path:
        _write_maps(cores, cores.maps_path, stretches)
    counts = partial(_counts, cores=cores.count, taking_part=taking_part)
    with_energy(measured[0], measured[1:], counts, partial(_loads, device=cores.device))
    phases = [
        {
            "name": parts[0]["name"],
            **({} if parts[0]["tokens"] is None else {"tokens": int(parts[0]["tokens"])}),
            **part,
        }
        for parts, part in zip(stretches[1:], measured[1:], strict=True)
    ]
    host = {**cores.notes, "ranks": len(shares), "messages": messages, "bytes": nbytes}
    return Measured(asdict(cores.device), (cores.count, 1), measured[0], phases, host)


def _most_sent(phases: Sequence[Sequence[Mapping[str, Any]]]) -> list[int]:
    """For each phase the bytes of the core that sent most in all phases of its name, which a report has as one."""
    sums: dict[str, list[int]] = {}
    for parts in phases:
        sent = sums.setdefault(parts[0]["name"], [0] * len(parts))
        sums[parts[0]["name"]] = [n + part["counts"]["link_bytes"] for n, part in zip(sent, parts, strict=True)]
    return [max(sums[parts[0]["name"]]) for parts in phases]


def _write_maps(cores: Cores, path: str, stretches: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """What each core did."""
    partitions = cores.device.partitions

    def numbers(parts: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        same = ("link_bytes", "macs", "hbm_read", "hbm_written", "spill_saved", "spill_reloaded")
        counts = {name: [part["counts"][name] for part in parts] for name in same}
        for name, buffer, times in (("memory", "hbm", 1), ("sbuf", "sbuf", partitions), ("psum", "psum", partitions)):
            counts[name] = [part["peaks"][buffer] * times for part in parts]
        for name, engine in (("busy", "tensor"), *((f"{engine}_busy", engine) for engine in ENGINES[1:])):
            counts[name] = [part["busy"][engine] for part in parts]
        return counts

    named = [
        (
            str(parts[0]["name"]),
            DeviceStretch(max(part["end"] - part["begin"] for part in parts), False, numbers(parts)),
        )
        for parts in stretches
    ]
    sbuf, hbm = cores.device.partitions * cores.device.sbuf_partition_bytes, cores.device.hbm_bytes
    write_device_maps(path, "NeuronCore", cores.device.name, {"memory": hbm, "sbuf": sbuf}, MAPS, named)


def title(report: dict[str, Any]) -> str:
    count, host, seconds = report["mesh"][0], report["host"], report["measured"]["critical_path"]["seconds"]
    return (
        f"{report['program']} on {count} NeuronCore{'s' if count > 1 else ''} of {report['device']['name']},"
        f" {host['ranks']} rank{'s' if host['ranks'] > 1 else ''};"
        f" virtual time {1e3 * seconds:,.3f} ms, wall time {host['wall_seconds']:.2f} s"
    )


def rows(report: dict[str, Any]) -> Iterator[TableRow]:
    """The rows of the table: a cell for each phase, and one for the whole run."""
    parts, whole = [*report["phases"], report["measured"]], report["measured"]

    def row(path: str, show: Callable[[dict[str, Any]], str], limit: str | None = None) -> TableRow:
        return row_of("neuron", report, path, [show(part) for part in parts], limit)

    if any("tokens" in part for part in parts):
        yield row("tokens", lambda part: str(part.get("tokens", "")))
    yield row("critical_path.seconds", lambda part: f"{1e3 * part['critical_path']['seconds']:,.3f} ms")
    yield row("hbm_bytes.read", lambda part: size(part["hbm_bytes"]["read"]))
    yield row("hbm_bytes.written", lambda part: size(part["hbm_bytes"]["written"]))
    yield row("spill_bytes.saved", lambda part: size(sum(part["spill_bytes"].values())))
    yield row("flops", lambda part: short(part["flops"]))
    yield row("transpose_flops", lambda part: short(part["transpose_flops"]))
    yield row("engines.tensor.active", lambda part: f"{100 * part['engines']['tensor']['active']:.1f} %")
    yield row("mfu", lambda part: f"{100 * part['mfu']:.1f} %")
    yield from energy_row("neuron", report)
    for key in ("sbuf_bytes", "psum_bytes", "memory_bytes"):
        cells = [size(part[key]["max"]) for part in parts]
        yield row_of("neuron", report, f"{key}.max", cells, size(whole[key]["limit"]))
    if whole["collectives"]:
        yield row("link_bytes.total", lambda part: size(part["link_bytes"]["total"]))
