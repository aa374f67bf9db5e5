"""What ran when, as a file that trace viewers draw: a process for each NeuronCore, a line for each engine and queue."""

import json

from meshrt.neuron.cores import Cores
from meshrt.ranks.files import write_file


def begin_trace(cores: Cores) -> None:
    """Keep what runs from now on."""
    for core in cores.mine:
        core.trace = []


def write_trace(cores: Cores, path: str) -> None:
    """All cores' events in the Trace Event Format (JSON), in microseconds. All ranks call it; rank 0 writes."""
    events = [
        {"name": event.name, "ph": "X", "pid": core.index, "tid": event.engine,
         "ts": 1e6 * event.begin, "dur": 1e6 * (event.end - event.begin)}
        for core in cores.mine
        for event in core.trace or ()
    ]  # fmt: skip
    shares = cores.control.gather(events)
    if shares is not None:
        document = {"traceEvents": [event for share in shares for event in share], "displayTimeUnit": "ns"}
        write_file("--trace", path, lambda stream: stream.write((json.dumps(document) + "\n").encode()))
