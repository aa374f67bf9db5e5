"""What ran when, as a file that trace viewers draw: a process for each NeuronCore, a line for each engine and queue."""

import json
from typing import Any

from meshrt.neuron.cores import Cores
from meshrt.neuron.engines import Core
from meshrt.ranks.files import write_file


def begin_trace(cores: Cores) -> None:
    """Keep what runs from now on."""
    for core in cores.mine:
        core.trace = []


def write_trace(cores: Cores, path: str) -> None:
    """All cores' events. All ranks call it; rank 0 writes."""
    shares = cores.control.gather([event for core in cores.mine for event in events_of(core)])
    if shares is not None:
        write_events([event for share in shares for event in share], "--trace", path)


def events_of(core: Core) -> list[dict[str, Any]]:
    """What a core has kept, in the Trace Event Format: microseconds."""
    return [
        {"name": event.name, "ph": "X", "pid": core.index, "tid": event.engine,
         "ts": 1e6 * event.begin, "dur": 1e6 * (event.end - event.begin)}
        for event in core.trace or ()
    ]  # fmt: skip


def write_events(events: list[dict[str, Any]], option: str, path: str) -> None:
    """Write events as JSON to the file that an option names."""
    document = {"traceEvents": events, "displayTimeUnit": "ns"}
    write_file(option, path, lambda stream: stream.write((json.dumps(document) + "\n").encode()))
