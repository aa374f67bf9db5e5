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

HOST_FIELDS = {  # of `host` in reports, by their paths in it; a run has those that its machine and program note
    **rows(HOST, "meshrt/emulate.py", {
        "wall_seconds": ("s", "of the run by the clock, without the start of its processes", "wall time"),
        "mpi": ("", "the MPI library that the ranks use, or none"),
        "version": ("", "of meshrt"),
    }),
    **rows(HOST, "the machine's report.py", {
        "ranks": ("ranks", "MPI processes that the machine was on"),
        "messages": ("messages", "that ranks sent each other for the machine: loading and reports are not in it"),
        "bytes": ("bytes", "of these messages"),
    }),
    **rows(HOST, "meshrt/mesh/report.py", {
        "blocks": ("ranks", "columns and rows of ranks that the mesh is cut into"),
        "packets": ("packets", "in these messages; with a core a rank they are measured.hops"),
        "rss_bytes": ("bytes", "the most memory that each rank has had, added up"),
        "startup_cpu_seconds": ("CPU s", "that a rank had used when it got its block: Python, imports, MPI's start; the"
                                " median of all ranks"),
        "phases.wall_seconds": ("s", "of a phase by the clock, on rank 0", "wall time"),
        "phases.cpu_seconds": ("CPU s", "of a phase, of all ranks' processor time added up"),
    }),
    **rows(HOST, "programs/gemm.py", {
        "product_seconds": ("s", "of all products by the clock, on rank 0, without placing and checking"),
        "product_cpu_seconds": ("CPU s", "of the same, of all ranks' processor time added up"),
    }),
    **rows(HOST, "programs/shift.py", {
        "shift_seconds": ("s", "of a shift by the clock, on rank 0; the median of all"),
        "copy_seconds": ("s", "of NumPy's copying the same tiles, on rank 0; the median of several"),
        "shift_over_copy": ("", "shift_seconds over copy_seconds"),
    }),
    **rows(HOST, "programs/generation/keep.py", {
        "resumed_at_token": ("tokens", "that the state had, from which the run went on (--resume)"),
    }),
}  # fmt: skip


def energy(**parts: str) -> dict[str, Field]:
    """Of machines whose device has joules: the sums, and the parts of the mean."""
    return rows(MODELLED, "meshrt/reports/energy.py, by the device's joules (docs/energy.md)", {
        "energy.low": ("J", "all that took energy, each with the lowest that its sources give"),
        "energy.mean": ("J", f"halfway between energy.low and energy.high: {', '.join(parts)}", "energy"),
        "energy.high": ("J", "all that took energy, each with the highest that its sources give"),
        **{f"energy.{part}": ("J", f"of energy.mean: {says}") for part, says in parts.items()},
    }, scaled=True)  # fmt: skip
