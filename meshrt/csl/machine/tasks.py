"""Tasks of a core: which may run, and what a wavelet gives the one that it starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt.csl.language.tilebuiltins import CONTROL
from meshrt.csl.machine.pending import PendingOperation


@dataclass(slots=True, eq=False)
class Task:
    """A task, or what the host launched, that runs."""

    name: str
    generator: Any
    waits: PendingOperation | None = None


def candidates(core: Any) -> list[tuple[float, int, Any]]:
    """What may run: from when on, its number, the wavelet's colour or None."""
    runnable: list[tuple[float, int, Any]] = [
        (since, number, None) for number, since in core.ready.items() if number not in core.blocked
    ]
    for color, trains in core.arrived.items():
        if not trains:
            continue
        first = trains[0]
        time = first.head + first.gap * first.at
        if first.control:
            number = _control_task(core, int(first.data[first.at]))
            if number is not None and not any(core.reads(pending, color, True) for pending in core.pending):
                runnable.append((time, number, color))
            continue
        number = core.data.get(color)
        if number is None or number in core.blocked or any(core.reads(pending, color) for pending in core.pending):
            continue
        runnable.append((time, number, color))
    return runnable


def _control_task(core: Any, raw: int) -> int | None:
    number = (raw >> 16 & 63) + CONTROL
    return number if number in core.image.tasks else None


def given(raw: Any, dtypes: list[Any]) -> list[Any]:
    """A wavelet's data as a task's parameters: the first has the low bits."""
    arguments, shift = [], 0
    for dtype in dtypes:
        size = dtype.itemsize
        if size == 4:
            arguments.append(raw.view(dtype)[0])
        else:
            arguments.append((raw >> np.uint32(shift)).astype(np.uint16).view(dtype)[0])
        shift += 16
    return arguments
