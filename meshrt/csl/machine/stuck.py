"""What is told of cores that nothing moves any more."""

from __future__ import annotations

from meshrt.csl import origin
from meshrt.csl.machine.core import WaferCore
from meshrt.csl.machine.trains import waiting
from meshrt.csl.machine.vectors import Fab

TOLD = 4  # cores of which is told why


def deadlock(count: int, cores: int, lines: list[str]) -> str:
    """So many of all cores go on no more; lines of the first of them."""
    text = [f"deadlock: {count} of {cores} cores never came to unblock_cmd_stream, and nothing moves", *lines[:TOLD]]
    if count > TOLD:
        text.append(f"  and {count - TOLD} more")
    return "\n".join(text)


def told(core: WaferCore) -> str:
    return f"  core ({core.x}, {core.y}): {why(core)}"


def why(core: WaferCore) -> str:
    """What a core waits for."""
    parts = []
    for pending in core.pending:
        colors = [f"colour {core.input_color(part)}" for part in pending.sources if isinstance(part, Fab)]
        reason = f"waits for {' and '.join(colors)}" if colors else "waits for room"
        if isinstance(pending.target, Fab):
            reason += f", sends on colour {core.output_color(pending.target)}"
        location = origin.location(core, pending.where).split(": core")[0]
        parts.append(f"@{pending.of.name} at {location} {reason} ({pending.done} of {pending.total} done)")
    for number in sorted(core.ready):
        if number in core.blocked:
            name = core.image.tasks[number].node.name if number in core.image.tasks else str(number)
            parts.append(f"task {name} is active and blocked")
    for color, trains in core.arrived.items():
        if trains:
            parts.append(f"{waiting(trains)} wavelets of colour {color} that nobody takes")
    return "; ".join(parts) or "nothing is active"
