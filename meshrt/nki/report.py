"""What a launch has come to, as numbers and for a person: time, peaks, spills, traffic, engines."""

from __future__ import annotations

from typing import Any

from meshrt.neuron.report import combine, summaries
from meshrt.nki.session import Session
from meshrt.units import short, size


def measured(launch: Session) -> dict[str, Any]:
    """The JSON's `measured` of NeuronCores (neuron/report.py), with the API's generation and the notes."""
    parts = [summaries(core)[0] for core in launch.cores]
    generation = " and ".join(sorted(launch.generations)) or "either"
    return {**combine(parts, launch.device), "api": generation, "notes": list(launch.notes)}


def shown(name: str, launch: Session, report: dict[str, Any]) -> str:
    """A few lines."""
    count, spills = len(launch.cores), report["spill_bytes"]
    cores = f"{count} NeuronCore{'s' if count > 1 else ''} of {launch.device.name}"
    programs = f", grid {list(launch.grid)}" if launch.grid else ""
    busy = ", ".join(f"{engine} {100 * part['active']:.0f} %" for engine, part in report["engines"].items())
    lines = [
        f"{name} on {cores}{programs}, API {report['api']}: {1e6 * report['critical_path']['seconds']:,.2f} us",
        f"  HBM read {size(report['hbm_bytes']['read'])}, written {size(report['hbm_bytes']['written'])}, spilled "
        f"{size(sum(spills.values()))}; SBUF peak {size(report['sbuf_bytes']['max'])} of "
        f"{size(report['sbuf_bytes']['limit'])}, PSUM {size(report['psum_bytes']['max'])} of "
        f"{size(report['psum_bytes']['limit'])}",
        f"  busy: {busy}; {short(report['flops'])}FLOP, MFU {100 * report['mfu']:.1f} %",
        *(f"  note: {note}" for note in report["notes"]),
    ]
    return "\n".join(lines)
