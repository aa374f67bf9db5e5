"""`meshrt reproduce waferllm`: the paper's tables and figures, published beside emulated, and why they differ.

Device constants have sources of their own (`meshrt devices`); none is fitted to what it is compared with here.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from time import perf_counter
from typing import Any

from meshrt import __version__
from meshrt.errors import UsageError
from meshrt.mesh.device import Device
from meshrt.ranks.console import Console
from meshrt.reports.report import SCHEMA
from meshrt.studies.files import draw, write_csv
from meshrt.studies.rows import PaperRow, summary
from meshrt.studies.store import RunStore
from meshrt.studies.sweep import Outcome, RunJob
from meshrt.studies.waferllm import published
from meshrt.studies.waferllm.curves import CURVES, CheckedClaim, ProductPoint, claims, points
from meshrt.studies.waferllm.tables import TABLES

NAMES = (*TABLES, *CURVES)
LEFT_OUT = Outcome(None, "left out")

_SOFTWARE = (
    "Loops, steps, shifts and allreduces cost what they do in two kernels on a real WSE-3 (docs/validation.md), scalar "
    "code (division, square root, exponential) its instructions by the size of routines. Other software costs nothing."
)
_FP16 = (
    "The published programs keep sums in fp16 and send them so; in ours sums are float32 and twice as long on the "
    "links."
)
_MODEL = (
    "The published programs that print such figures have one head of the model's whole width, no grouped queries, no "
    "LM head and no cache that moves, and time one layer: those are in the columns `as published`. Ours have the "
    "models' own heads, and the cache shifts."
)
_LONG = (
    "What a SIMD width of 16-bit numbers takes on a WSE-2 follows from the documented rule of its banks, measured "
    "nowhere; each width counts as much as the first. How often decode sets up operands is counted in its code, and "
    "what it pays around an allreduce is known from MeshGEMV alone."
)
_JOULES = (
    "The paper's energies are times at one power each. Counted ones are of what moved, was computed and read, and of "
    "cores of the whole wafer that do nothing; instructions, clocks, cooling and power supplies are not in them."
)
WHY: dict[str, tuple[str, ...]] = {
    "2": (
        _SOFTWARE,
        _FP16,
        _MODEL,
        _LONG,
        "The last column of Table 2 is missing in the text: there is nothing to compare.",
    ),
    "3": (
        _SOFTWARE,
        _FP16,
        _MODEL,
        _LONG,
        "How T10 and Ladder were ported to the WSE-2 is published nowhere beyond a sentence each.",
    ),
    "4": (
        _SOFTWARE,
        _FP16,
        _MODEL,
        _LONG,
        "How T10 and Ladder were ported to the WSE-2 is published nowhere beyond a sentence each.",
    ),
    "5": (
        "The paper does not say what else a core's 48 KB hold, nor how layers are spread over the wafer: code, "
        "activations and buffers take nothing here. The ratio of the policies does not depend on it.",
        "As published: as many regions as 850,000 cores are by area, more than the wafer has room for, every matrix "
        "padded at each core; for LLaMA3-8B that is what the paper has, for LLaMA2-13B it is not.",
    ),
    "6": (_SOFTWARE, _FP16, "The paper names no core count: the best of the emulated ones stands here.", _JOULES),
    "7": ("As Table 3.", _JOULES),
    "8": ("As Table 4.", _JOULES),
    "gemm": (
        _SOFTWARE,
        "Tiles move while the cores multiply: what an algorithm's longer ways cost shows only where a step of them "
        "takes longer than a product of tiles, so the ratios hang on what the products take.",
    ),
    "gemv": (_SOFTWARE, _FP16),
}


def reproduce(
    comm: Any, console: Console, names: Sequence[str], device: Device, store: RunStore,
    sides: Sequence[int] = published.SIDES, systems: Sequence[str] = (), models: Sequence[str] = (),
    show: Callable[[dict[str, Any], str], object] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Emulate what these tables and figures describe, shared out to the ranks: the report, on all of them.

    `systems` and `models` leave the cells of others without an emulated value; there are cells of baselines as inferred
    from the tables only where `systems` has these. `show(report so far, name)` is called on rank 0 as soon as a table
    or figure is done.
    """
    start, unasked = perf_counter(), {system for system in published.INFERRED if system not in systems}

    def emulate(job: RunJob) -> Outcome:
        arguments = job.arguments
        system = "as-published" if arguments.get("as_published") else arguments.get("system")
        if system in unasked:
            return LEFT_OUT
        for chosen, name in ((systems, system), (models, arguments.get("model"))):
            if chosen and name is not None and name not in chosen:
                return LEFT_OUT
        return store.emulate(job)

    rows: list[PaperRow] = []
    curves: dict[str, list[ProductPoint]] = {}
    checked: list[CheckedClaim] = []

    def report() -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "paper": "waferllm",
            "device": {key: value for key, value in asdict(device).items() if key != "sources"},
            "rows": [row.json() for row in rows],
            "curves": {name: [point.json() for point in line] for name, line in curves.items()},
            "claims": [claim.json() for claim in checked],
            "summary": summary(rows),
            "why": {name: list(WHY[name]) for name in names},
            "host": {"ranks": comm.size, "wall_seconds": perf_counter() - start, "version": __version__},
        }

    for name in names:
        if name in TABLES:
            table_rows = store.made(comm, console, title(name), start, partial(TABLES[name], device, emulate))
            rows += [row for row in table_rows if row.system not in unasked]
        else:
            make_points = partial(points, CURVES[name], device, emulate, sides)
            curves[name] = store.made(comm, console, title(name), start, make_points)
            checked += claims(CURVES[name], curves[name])
        if show is not None and comm.rank == 0:
            show(report(), name)
    return report()


def of_systems(
    names: Sequence[str], given: bool, systems: Sequence[str], models: Sequence[str] = ()
) -> list[str]:  # fmt: skip
    """The tables that have cells of these systems, and where models are chosen those of whole models; of those that
    were given by name, or else of all. UsageError.
    """
    of = published.SYSTEMS
    if models and not any(name in of for name in names):
        raise UsageError(
            f"--model {models[0]} chooses cells of whole models, and {' and '.join(map(title, names))} would be run for"
            f" all: leave it away, or take one of Tables {', '.join(of)}"
        )
    for system in systems:
        if not any(system in of.get(name, ()) for name in names):
            those = ", ".join(dict.fromkeys(other for name in names for other in of.get(name, ())))
            only = f", only of {those}" if those else ""
            raise UsageError(
                f"{' and '.join(map(title, names))}: no cells of {system}{only}; Tables"
                f" {', '.join(name for name in of if system in of[name])} have them"
            )
    return [
        name
        for name in names
        if given or ((not systems or set(systems) & set(of.get(name, ()))) and (not models or name in of))
    ]


def title(name: str) -> str:
    return f"Table {name}" if name in TABLES else f"Figure {'9, GEMM' if name == 'gemm' else '10, GEMV'}"


def write_files(report: dict[str, Any], csv: str | None, png: str | None) -> list[str]:
    """The rows and curves as files in these folders: their paths."""
    written = []
    if csv and report["rows"]:
        written.append(f"{csv}/tables.csv")
        write_csv(written[-1], report["rows"])
    for name, line in report["curves"].items():
        if csv:
            written.append(f"{csv}/{name}.csv")
            write_csv(written[-1], line)
        if png:
            written.append(f"{png}/{name}.png")
            line_points = [
                ProductPoint(**{key: value for key, value in point.items() if key != "efficiency"}) for point in line
            ]
            draw(written[-1], CURVES[name], line_points, report["device"]["name"])
    return written
