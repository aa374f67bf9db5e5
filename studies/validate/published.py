"""`meshrt validate --csl DIR`: MeshGEMM and MeshGEMV as they were published, their CSL run for rows of measurements.

What is timed is what was timed: the mean over all cores of a kernel's own stamps, by repeat. Tiles are all zero, of
which time knows nothing; that a run's numbers are right, the kernels' own launchers show.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from meshrt.csl.errors import MemoryLimit
from meshrt.csl.host.stamps import between
from meshrt.csl.language.program import build
from meshrt.csl.machine.wafer import Wafer
from meshrt.errors import UsageError
from meshrt.studies.validate.kind import BatchRows, Emulated, MeasurementKind, Sizes
from meshrt.studies.validate.meshproducts import GEMM, GEMV

BEGIN, REPEATS = 1, 2  # runs before the first stamp, and between the two
WHOLE = 16  # cores a side up to which all columns of MeshGEMV are run


@dataclass(frozen=True)
class Published:
    """A kernel: its layout in a checkout, its parameters for a row, what its launcher starts and what it stamps."""

    layout: str
    parameters: Callable[[Sizes], dict[str, int]]
    main: str
    columns: int | None = None  # that are run on a mesh of more than WHOLE: they exchange nothing
    begin: str = "init_task"
    stamps: str = "time_memcpy"


def _gemv(row: Sizes) -> dict[str, int]:
    """As its run_sim.sh has them: the roots are in the middle of a group, and in the middle group."""
    rows = row["p"] // row["groups"]
    return {
        "P": row["p"], "Mt": row["mt"], "Nt": row["nt"], "pe_num_group": rows, "root_1st_phase": rows // 2,
        "root_2nd_phase": row["groups"] // 2 * rows + rows // 2,
    }  # fmt: skip


MESHGEMM = Published(
    "MeshGEMM/WSE-3/src/layout.csl",
    lambda row: {"P": row["p"], "Mt": row["mt"], "Kt": row["kt"], "Nt": row["nt"]},
    "meshgemm_host",
)
MESHGEMV = Published("MeshGEMV/WSE-3/src/layout.csl", _gemv, "meshgemv_host", columns=2)


def kinds(folder: Path) -> tuple[MeasurementKind, ...]:
    """Both, emulated by the CSL of a checkout. UsageError."""
    both = []
    for kind, of in ((GEMM, MESHGEMM), (GEMV, MESHGEMV)):
        if not (folder / of.layout).is_file():
            raise UsageError(f"--csl {folder}: there is no {of.layout}; a checkout of MeshInfra/WaferLLM has it")
        both.append(replace(kind, batches=_alone, emulate=partial(_emulate, folder, of)))
    return tuple(both)


def _alone(sizes: Sequence[Sizes]) -> list[tuple[float, BatchRows]]:
    """Each row by itself; time goes with cores, times steps where there is a third axis."""
    return [(float(row["p"] ** (3 if "kt" in row else 2)), (at,)) for at, row in enumerate(sizes)]


def _emulate(folder: Path, of: Published, sizes: Sequence[Sizes]) -> list[Emulated]:
    return [_run(folder, of, row) for row in sizes]


def _run(folder: Path, of: Published, row: Sizes) -> Emulated:
    """A tile that a core has no room for is refused; a text that does not build or run is an error."""
    note = f"{BEGIN} to begin with, {REPEATS} timed"
    try:
        program = build(folder / of.layout, of.parameters(row), "wse3")
        columns = of.columns
        if columns is not None and row["p"] > WHOLE:
            program.keep(lambda x, y: x < columns)
            note += f"; {columns} columns, which exchange nothing with others"
        wafer = Wafer(program)
        wafer.launch(of.begin, ())
        wafer.idle()
        wafer.launch(of.main, (BEGIN, REPEATS))
        wafer.idle()
        cycles = between(wafer, of.stamps)
    except MemoryLimit as error:
        return Emulated(None, str(error))
    return Emulated(sum(cycles) / len(cycles) / REPEATS, note)
