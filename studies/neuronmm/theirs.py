"""The paper's own kernels from a checkout of its published code, run as they are by meshrt.nki, beside ours; by shape.

The published functions call them with operands that are transposed before (`x.t()`): that is not in these times.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from meshrt.errors import UsageError
from meshrt.neuron.device import NeuronDevice
from meshrt.ranks.console import Console
from meshrt.ranks.handout import gathered, handed_out
from meshrt.reports.parts import together
from meshrt.studies.neuronmm import published
from meshrt.studies.neuronmm.published import NAMES, PublishedKernel
from meshrt.studies.neuronmm.tables import COLUMNS, SMALL, job, kernel_of, table3_job, times
from meshrt.studies.nki.find import find_kernels
from meshrt.studies.rows import Emulate, PaperRow
from meshrt.studies.store import RunStore
from meshrt.studies.sweep import Outcome, RunJob

PRODUCT, FUSED, GATED = "nki_matmul_fully_optimized_", "fused_three_mm_XTUV", "fused_mlp_up_T"
TILE = 128  # rows of what FUSED calls a tile of K, which are the paper's M
UNSTATED = ("seconds", "hbm_bytes", "active", "mfu")  # columns of what the paper has no numbers of
LAYER = {"k": 2048, "n": 8192, "r": 1280}  # an MLP of Llama-3.2-1B, and the rank at ratio 0.2
TOKENS = (1, 1024)


@dataclass(frozen=True)
class Launch:
    kernel: str
    shapes: tuple[tuple[int, int], ...]
    options: Mapping[str, Any]


@dataclass(frozen=True)
class KernelCell:
    """A cell of a table: their launches, one after the other, and our runs, where no other row has them."""

    table: str
    subject: str
    kernel: str  # of NAMES
    launches: tuple[Launch, ...]
    ours: tuple[RunJob, ...] = ()
    stated: PublishedKernel | None = None


def product(m: int, k: int, n: int) -> Launch:
    """x^T [k, m], w [k, n]."""
    return Launch(PRODUCT, ((k, m), (k, n)), {})


def fused(m: int, k: int, r: int, n: int, **options: Any) -> Launch:
    """x^T [k, m], u [k, r], v [r, n]."""
    return Launch(FUSED, ((k, m), (k, r), (r, n)), options)


def cells(device: NeuronDevice, table: str) -> list[KernelCell]:
    """What of a table their kernels can be run for; nothing of some."""
    if table == "1":
        m, k, r, n = (published.TABLE1_SIZES[name] for name in "mkrn")
        launches = product(m, k, r), product(m, r, n)
        return [KernelCell("1", "M = 2048", "sequential", launches, stated=published.TABLE1["sequential"])]
    if table == "3":
        m, k, r, n = published.LENGTHS[0], *(published.SIZES[name] for name in "krn")
        runs = {
            "dense": (product(m, k, n),), "sequential": (product(m, k, r), product(m, r, n)),
            "fused": (fused(m, k, r, n),),
        }  # fmt: skip
        return [KernelCell("3", f"M = {m}", name, runs[name], (table3_job(device, name, m),)) for name in runs]
    if table == "4":
        sizes = [published.TABLE4_SIZES[name] for name in "mkrn"]
        blocks = {"M_tiles_in_block": 4, "r_tiles_in_block": 8, "N_tiles_in_block": 1}  # 512, 1024, 512
        return [
            KernelCell(
                "4", f"B_M = {size}", "fused", (fused(*sizes, **blocks, K_tiles_in_block=size // TILE),), (), stated
            )
            for size, stated in published.TABLE4.items()
        ]
    return [cell for m in TOKENS for cell in mlp(device, m)] if table == "7" else []


def mlp(device: NeuronDevice, m: int) -> list[KernelCell]:
    """The MLP of a layer for so many tokens: dense (without its activation, which is no kernel there), and at 0.2."""
    k, n, r = LAYER["k"], LAYER["n"], LAYER["r"]
    up, down = {"m": m, "k": k, "n": n}, {"m": m, "k": n, "n": k}
    dense = tuple(job(device, "dense", **sizes) for sizes in (up, up, down))
    low_rank = (
        Launch(GATED, ((m, k), (k, r), (r, n), (k, r), (r, n)), {"blocks": f"get_{GATED}_params", "tokens": m}),
        Launch(FUSED, ((n, m), (n, r), (r, k)), {"blocks": f"get_{FUSED}_params", "tokens": m}),
    )
    subject = f"an MLP, {m} token{'s' if m > 1 else ''}"
    return [
        KernelCell("7", subject, "dense", (product(m, k, n), product(m, k, n), product(m, n, k)), dense),
        KernelCell("7", subject, "fused", low_rank, (job(device, "mlp", m=m, k=k, r=r, n=n),)),
    ]


# ------------------------------------------------------------------------------------------------- in a checkout


@dataclass(frozen=True)
class Checkout:
    """Where the kernels are, and by how much their numbers differ from NumPy's, of the largest."""

    folder: Path
    paths: Mapping[str, str]
    differences: Mapping[str, float]
    contents: str  # a digest of all its files

    def json(self) -> dict[str, Any]:
        return {name: {"file": path, "difference": self.differences[name]} for name, path in self.paths.items()}


def find_checkout(folder: Path, names: Sequence[str], device: NeuronDevice, store: RunStore) -> Checkout:
    """The first file with each of these kernels, of those that run and are right. UsageError."""
    if not folder.is_dir():
        raise UsageError(f"--kernels {folder} is no folder: name a checkout of the paper's code, dinghongsong/NeuronMM")
    kernels = find_kernels(folder)
    paths, differences, contents = {}, {}, _contents(folder)
    for name in names:
        reasons = []
        for path in (kernel.path for kernel in kernels if kernel.name == name):
            outcome = _kept(store, contents, folder, path, name, device, [])
            if outcome["right"]:
                paths[name], differences[name] = path, outcome["difference"]
                break
            reasons.append(f"{path}: {outcome['reason']}")
        if name not in paths:
            why = "; ".join(reasons) or "none of its files has it"
            raise UsageError(f"--kernels {folder}: no {name} that runs and is right ({why})")
    return Checkout(folder, paths, differences, contents)


def _contents(folder: Path) -> str:
    hashed = sha256()
    for path in sorted(folder.rglob("*.py")):
        hashed.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return hashed.hexdigest()


def _kept(
    store: RunStore, contents: str, folder: Path, path: str, name: str, device: NeuronDevice,
    launches: Sequence[Launch], reorder: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """What a kernel's process says, by what is in the checkout; said once. One that ended badly is tried again."""
    identity = (
        "kernel",
        contents,
        path,
        name,
        device.name,
        [(launch.shapes, {**launch.options}) for launch in launches],
        *(["reorder"] if reorder else []),
    )
    key = json.dumps(identity)
    if key not in store.outcomes:
        outcome = _child(folder, path, name, device, launches, reorder)
        if "ended" in outcome:
            return outcome
        store.outcomes[key] = Outcome(outcome)
    return store.outcomes[key].report or {}


def _child(
    folder: Path, path: str, name: str, device: NeuronDevice, launches: Sequence[Launch], reorder: bool
) -> dict[str, Any]:
    command = [sys.executable, "-m", "meshrt.studies.nki.launch", str(folder), path, name, device.name]
    how = {"reorder": True} if reorder else {}
    request = json.dumps([{"shapes": launch.shapes, "options": {**launch.options}, **how} for launch in launches])
    ended = subprocess.run(command, input=request, capture_output=True, text=True, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        last = (ended.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        return {"right": False, "ended": ended.returncode, "reason": f"ended with {ended.returncode}: {last}"}
    outcome: dict[str, Any] = json.loads(lines[-1])
    return outcome


def kernel(checkout: Checkout, device: NeuronDevice, cell: KernelCell, store: RunStore, reorder: bool) -> Outcome:
    """What the launches of a cell come to, one after the other."""
    parts = []
    for launch in cell.launches:
        path, name = checkout.paths[launch.kernel], launch.kernel
        outcome = _kept(store, checkout.contents, checkout.folder, path, name, device, [launch], reorder)
        if "reports" not in outcome:
            return Outcome(None, f"{launch.kernel}: {outcome['reason']}")
        parts.append({key: value for key, value in outcome["reports"][0].items() if key not in ("api", "notes")})
    return Outcome({"measured": together(parts)})


# ------------------------------------------------------------------------------------------------- beside ours


def wanted(names: Sequence[str], device: NeuronDevice) -> list[KernelCell]:
    """The cells of these tables. UsageError where there are none."""
    chosen = [cell for name in names for cell in cells(device, name)]
    if not chosen:
        raise UsageError(f"--kernels are of Tables 1, 3, 4 and 7, and {' '.join(names)} has none: leave --kernels away")
    return chosen


def ask(chosen: Sequence[KernelCell], emulate: Emulate) -> None:
    """Our runs that stand beside theirs."""
    for run in (run for cell in chosen for run in cell.ours):
        emulate(run)


def run_theirs(
    comm: Any, console: Console, checkout: Checkout, device: NeuronDevice, cells: Sequence[KernelCell], store: RunStore,
    reorder: bool,
) -> list[Outcome]:  # fmt: skip
    """What their kernels take, shared out to the ranks, on all of them; kept, each rank's share as it goes along."""
    comm.Barrier()  # all have read the file before one writes it
    before, mine, new = {*store.outcomes}, {}, dict[str, Outcome]()
    for at in handed_out(comm, len(cells)):
        mine[at] = kernel(checkout, device, cells[at], store, reorder)
        new = {key: outcome for key, outcome in store.outcomes.items() if key not in before}
        store.keep(comm.rank, new)
        console.progress("their kernels", at + 1, len(cells))
    every: dict[int, Outcome] = {}
    for outcomes, kept in gathered(comm, (mine, new)):
        every |= outcomes
        store.outcomes |= kept
    store.write(comm)
    return [every[at] for at in range(len(cells))]


def rows(
    cells: Sequence[KernelCell], theirs: Sequence[Outcome], checkout: Checkout, emulate: Emulate, reorder: bool
) -> list[PaperRow]:
    """Rows of their kernels, and of ours where the table has none of that size."""
    table_rows = []
    for cell, outcome in zip(cells, theirs, strict=True):
        files = dict.fromkeys(f"{launch.kernel} of {checkout.paths[launch.kernel]}" for launch in cell.launches)
        table_rows += _rows(
            cell, their_name(cell.kernel, reorder), kernel_of(outcome), outcome.refused or ", ".join(files)
        )
        ours = [emulate(run) for run in cell.ours]
        if ours:
            refused = next((result.refused for result in ours if result.refused), None)
            measured = [result.report["measured"] for result in ours if result.report is not None]
            own = None if refused else kernel_of(Outcome({"measured": together(measured)}))
            table_rows += _rows(cell, NAMES[cell.kernel], own, refused or "")
    return table_rows


def their_name(kernel: str, reorder: bool) -> str:
    return f"{NAMES[kernel]}, published kernel{', reordered' if reorder else ''}"


def _rows(cell: KernelCell, system: str, emulated: PublishedKernel | None, note: str) -> list[PaperRow]:
    return [
        PaperRow(
            cell.table, cell.subject, system, column, unit,
            times(None if cell.stated is None else getattr(cell.stated, name), scale),
            times(None if emulated is None else getattr(emulated, name), scale), note=note,
        )
        for name, (column, unit, scale) in (COLUMNS | (SMALL if cell.table == "1" else {})).items()
        if (name in UNSTATED if cell.stated is None else getattr(cell.stated, name) is not None)
    ]  # fmt: skip
