"""What ran when, as a file that trace viewers draw: a process for each device, a line for each of its lanes."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from meshrt.ranks.control import Control
from meshrt.ranks.files import write_file


class Event(NamedTuple):
    """From `begin` to `end`, in seconds, on a lane of a device: an engine, a queue, a stream."""

    lane: str
    name: str
    begin: float
    end: float


class Traced(Protocol):
    """Device `index`, with what ran on it, if somebody wants to look at it."""

    index: int
    trace: list[Event] | None


def begin_trace(devices: Sequence[Traced]) -> None:
    """Keep what runs from now on."""
    for device in devices:
        device.trace = []


def write_trace(control: Control, devices: Sequence[Traced], path: str) -> None:
    """All devices' events. All ranks call it; rank 0 writes."""
    shares = control.gather([event for device in devices for event in events_of(device)])
    if shares is not None:
        write_events([event for share in shares for event in share], "--trace", path)


def events_of(device: Traced) -> list[dict[str, Any]]:
    """What ran on a device, in the Trace Event Format: microseconds."""
    return [
        {"name": event.name, "ph": "X", "pid": device.index, "tid": event.lane,
         "ts": 1e6 * event.begin, "dur": 1e6 * (event.end - event.begin)}
        for event in device.trace or ()
    ]  # fmt: skip


def write_events(events: list[dict[str, Any]], option: str, path: str) -> None:
    """Write events as JSON to the file that an option names."""
    document = {"traceEvents": events, "displayTimeUnit": "ns"}
    write_file(option, path, lambda stream: stream.write((json.dumps(document) + "\n").encode()))
