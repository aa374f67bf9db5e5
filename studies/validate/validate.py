"""`meshrt validate`: what rows of measurements were measured on is emulated, and the two set side by side."""

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from meshrt import __version__
from meshrt.errors import UsageError, nearest
from meshrt.ranks.console import Console
from meshrt.reports.report import SCHEMA
from meshrt.studies.validate.errors import Compared, by_use, errors
from meshrt.studies.validate.kept import KeptRows, key_of
from meshrt.studies.validate.kind import BatchRows, Emulated, MeasurementKind
from meshrt.studies.validate.kinds import KINDS
from meshrt.studies.validate.rows import DATA, MeasuredRow, read_rows

NOTHING = KeptRows(None, "", {})  # is kept
SCATTER = 2654435761  # 2**32 over the golden ratio: its multiples lie evenly, neighbours far from each other

RowBatch = tuple[float, MeasurementKind, BatchRows]


def validate(
    comm: Any, console: Console, files: Sequence[str | Path] = (), kernels: Sequence[str] = (),
    uses: Sequence[str] = (), largest: int | None = None, sample: int | None = None,
    kinds: Sequence[MeasurementKind] = KINDS, show: Callable[[list[Compared]], object] | None = None,
    kept: KeptRows = NOTHING,
) -> list[Compared]:  # fmt: skip
    """Emulate the rows of these files, or of those that are shipped, shared out to the ranks; all ranks get all.

    `kernels`, `uses` and `largest`, cores a side, choose some of them, and `sample` so many of each kernel.
    `show(rows)` is called on rank 0 as soon as a kernel's are done. Rows that are `kept` are taken as they are, and the
    others kept as they come. UsageError.
    """
    rows = [
        row for path in files or [DATA / kind.file for kind in kinds if kind.file] for row in read_rows(path, kinds)
    ]
    count = len(rows)
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
        said = [f"--only {name}" for name in kernels] + [f"--use {use}" for use in uses]
        said += [] if largest is None else [f"--largest {largest}"]
        raise UsageError(
            f"none of {count} rows is left by {' '.join(said)}: leave one of these away" if count
            else f"there are no rows in {', '.join(map(str, files))}: a line for each is wanted below the header"
        )  # fmt: skip
    emulated = _emulate(comm, console, rows, show, kept)
    return [Compared(row, outcome) for row, outcome in zip(rows, emulated, strict=True)]


def _sampled(rows: Sequence[MeasuredRow], count: int) -> list[MeasuredRow]:
    """At most so many rows of each kernel, in the order of all."""
    kept = set[int]()
    for kernel in dict.fromkeys(row.kind.kernel(row.sizes) for row in rows):
        own = [at for at, row in enumerate(rows) if row.kind.kernel(row.sizes) == kernel]
        kept |= {own[at] for at in _spread([rows[at] for at in own], count)}
    return [row for at, row in enumerate(rows) if at in kept]


def _spread(rows: Sequence[MeasuredRow], count: int) -> list[int]:
    """Numbers of so many rows of one kernel, which have each use, each part of a column's values, and each two of these
    about as often as all rows have: one by one the row of which most is lacking.

    Of several one that is anywhere, as neighbours in a file are alike. Only whole numbers are compared, so that it is
    the same on any machine.
    """
    columns: list[list[Any]] = [[row.use for row in rows]]
    columns += [_parts([row.sizes[name] for row in rows], count) for name in rows[0].sizes]
    columns += [[*zip(first, second, strict=True)] for first, second in combinations(columns, 2)]
    codes = [np.unique([str(part) for part in column], return_inverse=True)[1].reshape(-1) for column in columns]
    shares = [np.bincount(code) for code in codes]
    taken = [np.zeros_like(share) for share in shares]
    order = sorted(range(len(rows)), key=lambda at: at * SCATTER % (1 << 32))
    codes, chosen = [code[order] for code in codes], list[int]()
    while len(chosen) < min(count, len(rows)):
        lacks = np.zeros(len(rows), np.int64)
        for code, share, have in zip(codes, shares, taken, strict=True):
            lacks += ((len(chosen) + 1) * share - len(rows) * have)[code]
        lacks[chosen] = lacks.min() - 1
        chosen.append(int(lacks.argmax()))
        for code, have in zip(codes, taken, strict=True):
            have[code[chosen[-1]]] += 1
    return [order[at] for at in chosen]


def _parts(values: Sequence[Any], most: int) -> list[int]:
    """The part of a column that each of its values is in: of its different values in order, in at most so many."""
    different = sorted(set(values), key=lambda value: (value is not None, value))
    number = min(most, len(different))
    part_of = {value: at * number // len(different) for at, value in enumerate(different)}
    return [part_of[value] for value in values]


def _emulate(
    comm: Any, console: Console, rows: Sequence[MeasuredRow], show: Callable[[list[Compared]], object] | None,
    kept: KeptRows,
) -> list[Emulated]:  # fmt: skip
    """Kernel by kernel, so that what is done can be shown."""
    kernels: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        kernels.setdefault(row.kind.kernel(row.sizes), []).append(at)
    keys = [key_of(row) for row in rows]
    new = [[at for at in own if keys[at] not in kept.emulated] for own in kernels.values()]
    shared_out = [_shared_out(comm.size, rows, own)[comm.rank] for own in new]
    cost_of_all = sum(cost for mine in shared_out for cost, _, _ in mine)
    everything, own_rows, done, shown = {**kept.emulated}, dict[str, Emulated](), 0.0, -1
    for own, mine in zip(kernels.values(), shared_out, strict=True):
        for cost, of, numbers in mine:
            if (percent := int(100 * done / cost_of_all)) > shown:  # of a kernel the dearest come first
                console.progress("rows by what they cost, %", shown := percent, 100)
            done += cost
            emulated = of.emulate([rows[at].sizes for at in numbers])
            own_rows |= {keys[at]: row for at, row in zip(numbers, emulated, strict=True)}
            kept.keep(comm.rank, own_rows)
        for part in comm.allgather({keys[at]: own_rows[keys[at]] for _, _, numbers in mine for at in numbers}):
            everything |= part
        if show is not None and comm.rank == 0:
            console.clear()
            show([Compared(rows[at], everything[keys[at]]) for at in own])
    console.clear()
    kept.write(comm, everything)
    return [everything[key] for key in keys]


def _shared_out(ranks: int, rows: Sequence[MeasuredRow], own: Sequence[int]) -> list[list[RowBatch]]:
    """Batches of these rows for each rank, by what they cost: the dearest first, each to the one that has least to do.

    Rows of one kernel are of one kind.
    """
    if not own:
        return [[] for _ in range(ranks)]
    of = rows[own[0]].kind
    batches: list[RowBatch] = [
        (cost, of, tuple(own[at] for at in numbers)) for cost, numbers in of.batches([rows[at].sizes for at in own])
    ]
    loads, shared_out = [0.0] * ranks, [list[RowBatch]() for _ in range(ranks)]
    for batch in sorted(batches, key=lambda batch: (-batch[0], batch[2])):
        rank = loads.index(min(loads))
        loads[rank] += batch[0]
        shared_out[rank].append(batch)
    return shared_out


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
