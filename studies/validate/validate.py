"""`meshrt validate`: what rows of measurements were measured on is emulated, and the two set side by side."""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from meshrt import __version__
from meshrt.errors import UsageError, nearest
from meshrt.ranks.console import Console
from meshrt.report import SCHEMA
from meshrt.studies.validate.errors import Compared, by_use, errors
from meshrt.studies.validate.kind import BatchRows, Emulated, MeasurementKind
from meshrt.studies.validate.kinds import KINDS
from meshrt.studies.validate.rows import DATA, MeasuredRow, read_rows


def validate(
    comm: Any, console: Console, files: Sequence[str | Path] = (), kernels: Sequence[str] = (),
    uses: Sequence[str] = (), largest: int | None = None, sample: int | None = None,
    kinds: Sequence[MeasurementKind] = KINDS,
) -> list[Compared]:  # fmt: skip
    """Emulate the rows of these files, or of those that are shipped, shared out to the ranks; all ranks get all.

    `kernels`, `uses` and `largest`, cores a side, choose some of them, and `sample` so many of each kernel. UsageError.
    """
    rows = [
        row for path in files or [DATA / kind.file for kind in kinds if kind.file] for row in read_rows(path, kinds)
    ]
    there_are = list(dict.fromkeys(row.kind.kernel(row.sizes) for row in rows))
    if wrong := [name for name in kernels if name not in there_are]:
        hint = nearest(wrong[0], there_are, f"there are {', '.join(there_are)}")
        raise UsageError(f"no row is of the kernel {wrong[0]!r}: {hint}")
    rows = [row for row in rows if not kernels or row.kind.kernel(row.sizes) in kernels]
    rows = [row for row in rows if not uses or row.use in uses]
    rows = [row for row in rows if largest is None or row.sizes.get("p", 0) <= largest]
    if sample is not None:
        rows = _sampled(rows, sample)
    if not rows:
        raise UsageError("there are no such rows")
    return [Compared(row, outcome) for row, outcome in zip(rows, _emulate(comm, console, rows), strict=True)]


def _sampled(rows: Sequence[MeasuredRow], count: int) -> list[MeasuredRow]:
    """At most so many rows of each kernel, one of each of so many parts of them.

    Not at the same place in each: a file's lines vary one size from line to line, another from block to block.
    """
    kept = set[int]()
    for kernel in dict.fromkeys(row.kind.kernel(row.sizes) for row in rows):
        own = [at for at, row in enumerate(rows) if row.kind.kernel(row.sizes) == kernel]
        number = min(count, len(own))
        part = len(own) // number
        kept |= {own[at * len(own) // number + (at + at // part) % part] for at in range(number)}
    return [row for at, row in enumerate(rows) if at in kept]


def _emulate(comm: Any, console: Console, rows: Sequence[MeasuredRow]) -> list[Emulated]:
    """Batches go to the ranks by what they cost, the dearest first, each to the one that has least to do."""
    batches: list[tuple[float, MeasurementKind, BatchRows]] = []
    for kind in dict.fromkeys(row.kind.name for row in rows):
        own = [at for at, row in enumerate(rows) if row.kind.name == kind]
        of = rows[own[0]].kind
        for cost, numbers in of.batches([rows[at].sizes for at in own]):
            batches.append((cost, of, tuple(own[at] for at in numbers)))
    batches.sort(key=lambda batch: (-batch[0], batch[2]))
    loads, mine = [0.0] * comm.size, list[tuple[float, MeasurementKind, BatchRows]]()
    for batch in batches:
        rank = loads.index(min(loads))
        loads[rank] += batch[0]
        if rank == comm.rank:
            mine.append(batch)
    emulated, done, shown = dict[int, Emulated](), 0.0, -1
    for cost, of, numbers in mine:
        if (percent := int(100 * done / loads[comm.rank])) > shown:  # the dearest come first
            console.progress("rows by what they cost, %", shown := percent, 100)
        done += cost
        emulated |= dict(zip(numbers, of.emulate([rows[at].sizes for at in numbers]), strict=True))
    console.clear()
    everything: dict[int, Emulated] = {}
    for part in comm.allgather(emulated):
        everything |= part
    return [everything[at] for at in range(len(rows))]


def document(comm: Any, compared: Sequence[Compared], began: float) -> dict[str, Any]:
    """The report. A kernel's own numbers are of its `check` rows; those of each use stand beside them."""
    kernels = {}
    for kernel in dict.fromkeys(pair.kernel for pair in compared):
        uses = by_use([pair for pair in compared if pair.kernel == kernel])
        kernels[kernel] = errors(uses.get("check", [])).json() | {
            "uses": {use: errors(part).json() for use, part in uses.items()}
        }
    return {
        "schema": SCHEMA,
        "kernels": kernels,
        "rows": [pair.json() for pair in compared],
        "host": {"ranks": comm.size, "wall_seconds": perf_counter() - began, "version": __version__},
    }
