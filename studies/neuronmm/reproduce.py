"""`meshrt reproduce neuronmm`: the paper's tables and Figure 6, published beside emulated, and why they differ.

Device constants have sources of their own (`meshrt devices`); none is fitted to what it is compared with here.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from meshrt import __version__
from meshrt.errors import UsageError
from meshrt.neuron.device import NeuronDevice
from meshrt.ranks.console import Console
from meshrt.reports.report import SCHEMA
from meshrt.studies.files import write_csv
from meshrt.studies.neuronmm import manycores, theirs
from meshrt.studies.neuronmm import tables as neuronmm_tables
from meshrt.studies.neuronmm.figure import KernelPoint, draw, figure6, points
from meshrt.studies.neuronmm.model import table6, table7
from meshrt.studies.neuronmm.shares import Shares, shares
from meshrt.studies.neuronmm.speedups import table5
from meshrt.studies.neuronmm.theirs import Checkout, KernelCell
from meshrt.studies.neuronmm.why import reasons
from meshrt.studies.rows import Emulate, PaperRow, off
from meshrt.studies.store import RunStore, open_store
from meshrt.studies.sweep import Outcome

TABLES: dict[str, Callable[[NeuronDevice, Emulate], list[PaperRow]]] = {
    **neuronmm_tables.TABLES, "5": table5, "6": table6, "7": table7, "figure6": figure6, "tp32": manycores.table,
}  # fmt: skip
NAMES = tuple(TABLES)
OF_THE_PAPER = tuple(name for name in NAMES if name != "tp32")


def reproduce(
    comm: Any, console: Console, names: Sequence[str], device: NeuronDevice, store: RunStore,
    kernels: Path | None = None, show: Callable[[dict[str, Any], str], object] | None = None, reorder: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Emulate what these tables describe, shared out to the ranks: the report, on all of them. `kernels` is a checkout
    of the paper's own, which are run beside ours; `reorder`: with instructions in the order that suits their engines.
    `show(report so far, name)` is called on rank 0 as soon as a table is done. UsageError.
    """
    start = perf_counter()
    rows: list[PaperRow] = []
    beside: list[PaperRow] = []
    checkout, all_cells = None, list[KernelCell]()
    all_shares: list[Shares] = []
    line: list[KernelPoint] = []
    why: dict[str, list[str]] = {}

    def report() -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "paper": "neuronmm",
            "device": {key: value for key, value in asdict(device).items() if key != "sources"},
            "rows": [row.json() for name in names for row in (*rows, *beside) if row.table == name],
            **({} if checkout is None else {"kernels": checkout.json()}),
            "curves": {"figure6": [point.json() for point in line]} if line else {},
            "shares": [share.json() for share in all_shares],
            "summary": [summary(name, [row for row in rows if row.table == name]) for name in why],
            "why": why,
            "host": {"ranks": comm.size, "wall_seconds": perf_counter() - start, "version": __version__},
        }

    if kernels is not None:
        all_cells = theirs.wanted(names, device)
        checkout = _found(comm, kernels, all_cells, device, store)
        console.text("Kernels of the checkout are right; they are run by shape\n")
    for name in names:
        cells, done = [cell for cell in all_cells if cell.table == name], list[Outcome]()
        if checkout is not None:
            done = theirs.run_theirs(comm, console, checkout, device, cells, store, reorder)
            console.clear()
        theirs.ask(cells, store.emulate)
        table_rows, parts = store.made(comm, console, title(name), start, partial(_asked, name, device, store.emulate))
        why[name] = reasons(name, table_rows, parts)
        rows += table_rows
        all_shares += parts
        if checkout is not None:
            beside += theirs.rows(cells, done, checkout, store.emulate, reorder)
        if name == "figure6":
            line = points(device, store.emulate)
        if show is not None and comm.rank == 0:
            show(report(), name)
    return report()


def _asked(name: str, device: NeuronDevice, emulate: Emulate) -> tuple[list[PaperRow], list[Shares]]:
    """A table's rows, and where the time of its cells went."""
    return TABLES[name](device, emulate), shares(device, emulate, name)


def _found(comm: Any, folder: Path, cells: Sequence[KernelCell], device: NeuronDevice, store: RunStore) -> Checkout:
    """The kernels that are wanted, on all ranks: rank 0 looks for them. UsageError."""
    checkout: Checkout | UsageError | None = None
    if comm.rank == 0:
        try:
            names = dict.fromkeys(launch.kernel for cell in cells for launch in cell.launches)
            checkout = theirs.find_checkout(folder, [*names], device, store)
        except UsageError as error:
            checkout = error
    checkout = comm.bcast(checkout)
    if isinstance(checkout, UsageError):
        raise checkout
    assert checkout is not None
    return checkout


def open_runs(path: str | None) -> RunStore:
    """What the file of `reproduce neuronmm` holds; what runs the published kernels is among the studies. UsageError."""
    return open_store(path, "neuronmm", sorted((Path(__file__).parents[1] / "nki").rglob("*.py")))


def summary(name: str, rows: Sequence[PaperRow]) -> dict[str, Any]:
    """Of a table's cells that are no derivations: how many ratios there are, the middle one and the worst."""
    ratios = {row: ratio for row in rows if not row.derived and (ratio := row.ratio) is not None}
    worst = max(ratios, key=lambda row: off(ratios[row]), default=None)
    return {
        "table": name,
        "compared": len(ratios),
        "median_ratio": median(ratios.values()) if ratios else None,
        "within_5_percent": sum(off(ratio) <= 1.05 for ratio in ratios.values()),
        "worst_ratio": ratios[worst] if worst else None,
        "worst_cell": f"{worst.subject}, {worst.system}, {worst.column}" if worst else None,
    }


def title(name: str) -> str:
    return {"figure6": "Figure 6", "tp32": "AWS's, 32 cores"}.get(name, f"Table {name}")


def write_files(report: dict[str, Any], csv: str | None, png: str | None) -> list[str]:
    """Rows, points and shares as files in these folders: their paths."""
    line = report["curves"].get("figure6", [])
    written = []
    for name, lines in (("tables", report["rows"]), ("shares", report["shares"]), ("figure6", line)):
        if csv and lines:
            written.append(f"{csv}/{name}.csv")
            write_csv(written[-1], lines)
    if png and line:
        written.append(f"{png}/figure6.png")
        draw(written[-1], line, report["device"]["name"])
    return written
