"""What ran when, as a file that trace viewers draw: a process for each device, a line for each of its tracks."""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np

from meshrt.ranks.control import Control
from meshrt.ranks.files import write_file

TOGETHER = 1000  # events that are written in one: their text stays small enough that the same memory takes the next


class Event(NamedTuple):
    """From `begin` to `end`, in seconds, on a track of a device: an engine, a queue, a stream."""

    track: str
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
        {"name": event.name, "ph": "X", "pid": device.index, "tid": event.track,
         "ts": 1e6 * event.begin, "dur": 1e6 * (event.end - event.begin)}
        for event in device.trace or ()
    ]  # fmt: skip


def write_events(events: list[dict[str, Any]], option: str, path: str) -> None:
    """Write events as JSON to the file that an option names."""
    write_rows([text_of(events)] if events else [], option, path)


def write_rows(rows: Iterable[str], option: str, path: str) -> None:
    """Write events, one or more a row, that are JSON already."""

    def write(stream: BinaryIO) -> None:  # row by row: to have memory for one text of all takes longer than to make it
        stream.write(b'{"traceEvents": [')
        for at, row in enumerate(rows):
            stream.write(b", " * (at > 0) + row.encode())
        stream.write(b'], "displayTimeUnit": "ns"}\n')

    write_file(option, path, write)


def text_of(events: Sequence[dict[str, Any]]) -> str:
    """Events as a row of `write_rows`."""
    return json.dumps(events)[1:-1]


class Numbers(dict[float, str]):
    """Numbers as JSON has them. Most of those of a trace are there many times."""

    def __missing__(self, number: float) -> str:
        text = self[number] = repr(number)
        return text

    def column(self, numbers: np.ndarray) -> Iterator[str]:
        return map(self.__getitem__, numbers.tolist())


def rows_of(
    process: str, track: str, names: Iterable[str], begins: np.ndarray, cycles: np.ndarray, scale: float,
    more: Iterable[str], numbers: Numbers,
) -> Iterator[str]:  # fmt: skip
    """The events of a line, as rows of `write_rows` of some each: float64 [events] in cycles, of `scale` microseconds
    each; `more` follows in their arguments.

    A dictionary for each and a call of json.dumps take three times as long.
    """
    head = f', "ph": "X", "pid": {json.dumps(process)}, "tid": {json.dumps(track)}, "ts": '
    columns = (
        map(_Named(head).__getitem__, names), map(repr, (scale * begins).tolist()), numbers.column(scale * cycles),
        map(repr, begins.tolist()), numbers.column(cycles), more,
    )  # fmt: skip
    events = (
        f'{{"name": {name}{at}, "dur": {lasts}, "args": {{"begin": {begin}, "cycles": {spent}{rest}}}}}'
        for name, at, lasts, begin, spent, rest in zip(*columns, strict=True)
    )
    while text := ", ".join(islice(events, TOGETHER)):
        yield text


class _Named(dict[str, str]):
    """Names of events as JSON, with what follows them."""

    def __init__(self, head: str) -> None:
        self.head = head

    def __missing__(self, name: str) -> str:
        text = self[name] = json.dumps(name) + self.head
        return text
