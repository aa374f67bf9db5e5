"""WaferLLM's published kernels, MeshGEMM and MeshGEMV, on a WSE-3: mean cycles of one product (data/README.md)."""

from collections.abc import Sequence
from typing import Any

from meshrt.mesh.device import WSE3
from meshrt.studies.sweep import Job, run_alone
from meshrt.studies.validate.kind import Batch, Emulated, Kind, Sizes, whole

DTYPE = "float16"


def _gemm(sizes: Sequence[Sizes]) -> list[Emulated]:
    return [_emulated("gemm", row, {"m": row["mt"], "k": row["kt"], "n": row["nt"]}) for row in sizes]


def _gemv(sizes: Sequence[Sizes]) -> list[Emulated]:
    """Of [1, N] = [1, M] x [M, N]: mt is what is added up over."""
    return [_emulated("gemv", row, {"k": row["mt"], "n": row["nt"]}, {"groups": str(row["groups"])}) for row in sizes]


def _emulated(program: str, row: Sizes, tiles: dict[str, int], choices: dict[str, Any] | None = None) -> Emulated:
    """The clock of a run by shape on P x P cores."""
    p = row["p"]
    arguments = {name: p * tile for name, tile in tiles.items()} | {"dtype": DTYPE} | (choices or {})
    outcome = run_alone(Job(program, (p, p), WSE3, arguments))
    if outcome.report is None:
        return Emulated(None, outcome.refused or "")
    return Emulated(outcome.report["measured"]["critical_path"]["cycles"])


def _by_cores(sizes: Sequence[Sizes]) -> list[tuple[float, Batch]]:
    """Rows of one number of cores together: they share what is planned."""
    batches: dict[int, list[int]] = {}
    for at, row in enumerate(sizes):
        batches.setdefault(row["p"], []).append(at)
    return [(float(p**3 * len(batch)), tuple(batch)) for p, batch in batches.items()]


GEMM = Kind(
    name="gemm",
    file="wse3_gemm.csv",
    columns=dict.fromkeys(("p", "mt", "kt", "nt"), whole),
    measured="cycles_mean",
    unit="cycles",
    kernel=lambda row: "MeshGEMM",
    size=lambda row: f"P {row['p']}",
    batches=_by_cores,
    emulate=_gemm,
)

GEMV = Kind(
    name="gemv",
    file="wse3_gemv.csv",
    columns=dict.fromkeys(("p", "mt", "nt", "groups"), whole),
    measured="cycles_mean",
    unit="cycles",
    kernel=lambda row: "MeshGEMV",
    size=lambda row: f"P {row['p']}",
    batches=_by_cores,
    emulate=_gemv,
)
