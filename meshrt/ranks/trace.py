"""What ran when, as a file that trace viewers draw: a process for each device, a line for each of its lanes."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

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
    write_rows([text_of(events)] if events else [], option, path)


def write_rows(rows: Iterable[str], option: str, path: str) -> None:
    """Write events, one or more a row, that are JSON already."""
    document = f'{{"traceEvents": [{", ".join(rows)}], "displayTimeUnit": "ns"}}\n'
    write_file(option, path, lambda stream: stream.write(document.encode()))


def text_of(events: Sequence[dict[str, Any]]) -> str:
    """Events as a row of `write_rows`."""
    return json.dumps(events)[1:-1]


class Numbers(dict[float, str]):
    """Numbers as JSON has them. Most of those of a trace are there many times."""

    def __missing__(self, number: float) -> str:
        text = self[number] = repr(number)
        return text

    def column(self, numbers: np.ndarray) -> list[str]:
        return list(map(self.__getitem__, numbers.tolist()))


def rows_of(
    process: str, lane: str, names: Sequence[str], begins: np.ndarray, cycles: np.ndarray, scale: float,
    more: Sequence[str], numbers: Numbers,
) -> list[str]:  # fmt: skip
    """The rows of a line, float64 [rows] in cycles, of `scale` microseconds each; `more` follows in their arguments.

    A dictionary for each and a call of json.dumps take three times as long.
    """
    known = {name: json.dumps(name) for name in dict.fromkeys(names)}
    head = f', "ph": "X", "pid": {json.dumps(process)}, "tid": {json.dumps(lane)}, "ts": '
    columns = (
        [known[name] for name in names], map(repr, (scale * begins).tolist()), numbers.column(scale * cycles),
        map(repr, begins.tolist()), numbers.column(cycles), more,
    )  # fmt: skip
    return [
        f'{{"name": {name}{head}{at}, "dur": {lasts}, "args": {{"begin": {begin}, "cycles": {spent}{rest}}}}}'
        for name, at, lasts, begin, spent, rest in zip(*columns, strict=True)
    ]
