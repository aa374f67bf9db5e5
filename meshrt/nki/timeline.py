"""The engine timeline of a launch, as a file."""

from __future__ import annotations

from meshrt.nki.session import Session
from meshrt.reports.trace import events_of, write_events


def write_timeline(launch: Session, path: str) -> None:
    """What ran when on each engine, in the Trace Event Format, which Perfetto draws."""
    write_events([event for core in launch.cores for event in events_of(core)], "trace=", path)
