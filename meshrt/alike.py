"""Do all ranks ask for the same runs? Else what they ask for would be mixed, and reported as rank 0's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshrt.errors import UsageError
from meshrt.program import Program, settings_of

AskedRun = tuple[Program, Mapping[str, Any], Mapping[str, Any]]  # with its options, and those of its machine
LONGEST = 60  # characters of a value in a message
SCRIPTS = "all ranks make the same calls; what is drawn or read from a clock is to be one rank's, for all of them"
COMMANDS = "start all ranks with the same command line"


def check_alike(comm: Any, runs: Sequence[AskedRun], payload: bool, wanted: str = SCRIPTS) -> None:
    """UsageError on a rank that asks for other runs than rank 0 does. All ranks call it."""
    if comm.size == 1:
        return
    own = [_values(run) | {"payload": repr(payload)} for run in runs]
    first = comm.bcast(own)
    if len(own) != len(first):
        raise UsageError(f"rank {comm.rank} asks for {len(own)} runs and rank 0 for {len(first)}: {wanted}")
    for values, others in zip(own, first, strict=True):
        for name in {**others, **values}:
            if values.get(name) != others.get(name):
                own_text, first_text = (_short(each.get(name, "left away")) for each in (values, others))
                raise UsageError(f"{name} is {own_text} on rank {comm.rank} and {first_text} on rank 0: {wanted}")


def _values(run: AskedRun) -> dict[str, str]:
    """What a run is, by the names of its options. Files are left out: each node may have its own."""
    program, arguments, settings = run
    own = [(option, arguments.get(option.name, option.default)) for option in program.options]
    of_machine = settings_of(program.machine).values()
    own += [(option, settings.get(option.name, option.default)) for option in of_machine]
    values = {option.name: repr(value) for option, value in own if option.reported and not option.file}
    return {"program": repr(program.name), "machine": repr(program.machine), **values}


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
