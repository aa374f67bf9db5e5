"""What every number of a report is: how it came about, its unit, what it contains, and where it is raised.

A machine has those of its reports in its fields.py: the one source for `kinds` in the JSON, its schema, the marks of
printed tables, docs/machine.md and `meshrt explain`.
A path leads from `measured`, or from a phase, to a number; a * in it stands for any one name.
"""

from typing import Any

from meshrt.records import dataclass

COUNTED, DECLARED, TIMED, MODELLED = "counted", "declared", "timed", "modelled"
EXTRAPOLATED, HOST = "extrapolated", "host"
KINDS = {
    COUNTED: "raised by the runtime where the thing happens",
    DECLARED: "said by the program, or by the device's numbers; nothing checks it",
    TIMED: "by the device's model, from what was counted",
    MODELLED: "what was counted, or timed, times a number of the device",
    EXTRAPOLATED: "scaled up from the part that ran (--layers-run, --steps-run)",
    HOST: "of the computers that the emulation ran on",
}


@dataclass(frozen=True)
class Field:
    """One number. `scaled`: a part of a run that stands for others multiplies it. `row`: its name in printed tables, in
    which one that is `inner` is with --verbose alone.
    """

    kind: str
    unit: str
    says: str
    source: str
    scaled: bool = False
    row: str = ""
    inner: bool = False


def rows(kind: str, source: str, paths: dict[str, tuple[Any, ...]], scaled: bool = False) -> dict[str, Field]:
    """Fields of one kind and source: unit, contents and, if it is printed, the name of its row, and INNER if it is."""
    return {path: Field(kind, unit, says, source, scaled, *row) for path, (unit, says, *row) in paths.items()}


INNER = True  # of what takes some knowledge of the machine to be of use
LIMIT = "the device's numbers (`meshrt devices`), or the option that replaces one"
TOKENS = rows(DECLARED, "the program, at the phase", {"tokens": ("tokens", "that the phase worked on", "tokens")})


def energy(**parts: str) -> dict[str, Field]:
    """Of machines whose device has joules: the sums, and the parts of the mean."""
    return rows(MODELLED, "meshrt/energy.py, by the device's joules (docs/energy.md)", {
        "energy.low": ("J", "all that took energy, each with the lowest that its sources give"),
        "energy.mean": ("J", f"halfway between energy.low and energy.high: {', '.join(parts)}", "energy"),
        "energy.high": ("J", "all that took energy, each with the highest that its sources give"),
        **{f"energy.{part}": ("J", f"of energy.mean: {says}") for part, says in parts.items()},
    }, scaled=True)  # fmt: skip
