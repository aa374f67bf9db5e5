"""`reproduce neuronmm --kernels`: own kernels under the published names, in their style, beside ours."""

from pathlib import Path
from typing import Any

import pytest

from meshrt.errors import UsageError
from meshrt.neuron.device import MIB, TRN1
from meshrt.ranks.console import Console
from meshrt.studies.neuronmm import published, theirs
from meshrt.studies.neuronmm.published import PublishedKernel
from meshrt.studies.neuronmm.reproduce import open_runs, reproduce
from meshrt.studies.store import RunStore

KERNELS = """
import torch
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl
from neuronxcc.nki.language import par_dim

@nki.jit
def nki_matmul_fully_optimized_(lhsT, rhs):
    K, M = lhsT.shape
    N = rhs.shape[1]
    out = nl.ndarray((M, N), dtype=lhsT.dtype, buffer=nl.shared_hbm)
    for m in nl.affine_range(M // 128):
        for n in nl.affine_range(N // 256):
            total = nl.zeros((128, 256), nl.float32, buffer=nl.psum)
            for k in nl.affine_range(K // 128):
                left = nl.load(lhsT[k * 128:(k + 1) * 128, m * 128:(m + 1) * 128])
                right = nl.load(rhs[k * 128:(k + 1) * 128, n * 256:(n + 1) * 256])
                total += nisa.nc_matmul(left, right)
            nl.store(out[m * 128:(m + 1) * 128, n * 256:(n + 1) * 256], nl.copy(total, dtype=out.dtype){WRONG})
    return out

@nki.jit
def fused_three_mm_XTUV(X_ref, U_ref, V_ref, mixed_precision=True, r_tiles_in_block=8, K_tiles_in_block=8,
                        N_tiles_in_block=2, M_tiles_in_block=4):
    M, K = X_ref.shape
    r, N = V_ref.shape
    out = nl.ndarray((K, N), dtype=V_ref.dtype, buffer=nl.hbm)
    p, f = nl.arange(128)[:, None], nl.arange(128)[None, :]
    rows = nl.arange(128 * K_tiles_in_block)[None, :]
    for i in nl.affine_range(K // (128 * K_tiles_in_block)):
        xu = nl.ndarray((r // 128, par_dim(128), 128 * K_tiles_in_block), dtype=X_ref.dtype)
        for j in nl.affine_range(r // 128):
            total = nl.zeros((128, 128 * K_tiles_in_block), nl.float32, buffer=nl.psum)
            for k in nl.affine_range(M // 128):
                x = nl.load(X_ref[k * 128 + p, i * 128 * K_tiles_in_block + rows])
                u = nl.load(U_ref[k * 128 + p, j * 128 + f])
                total[...] += nisa.nc_matmul(stationary=u, moving=x)
            xu[j, p, rows] = nl.copy(total, dtype=X_ref.dtype)
        for b in nl.affine_range(K_tiles_in_block):
            for n in nl.affine_range(N // 128):
                total = nl.zeros((128, 128), nl.float32, buffer=nl.psum)
                for j in nl.affine_range(r // 128):
                    v = nl.load(V_ref[j * 128 + p, n * 128 + f])
                    total[...] += nisa.nc_matmul(stationary=xu[j, p, b * 128 + f], moving=v)
                at = (i * K_tiles_in_block + b) * 128
                nl.store(out[at + p, n * 128 + f], nl.copy(total, dtype=V_ref.dtype))
    return out
"""
SIZES = {"m": 256, "k": 128, "r": 256, "n": 512}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "TABLE1_SIZES", SIZES | {"block_n": 512})
    monkeypatch.setattr(published, "TABLE4_SIZES", SIZES)
    monkeypatch.setattr(published, "TABLE4", {128: PublishedKernel(1e-3, intensity=9.0, sbuf=0.1, reloaded=0, saved=0)})


def lay(folder: Path, **files: str) -> Path:
    for name, wrong in files.items():
        (folder / f"{name}.py").write_text(KERNELS.replace("{WRONG}", wrong))
    return folder


@pytest.mark.mpi(ranks=[1, 2])
def test_their_kernels_stand_beside_ours(
    comm: Any, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first copy that is right is taken. Traffic, in bfloat16: each tile of the product reads 128 rows of both, x u
    and (x u) v; a block of 128 rows of x is read anew for each 128 columns of u, u and v once a block."""
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        lay(folder, a=" + 1", b="")
        (folder / "d.py").write_text("import nki\ndef (")
    comm.Barrier()
    kept, shown = str(folder / "runs.json"), list[tuple[str, int]]()

    def show(report: dict[str, Any], name: str) -> None:
        shown.append((name, sum("published kernel" in row["system"] for row in report["rows"])))

    reproduced = reproduce(comm, Console(), ["1", "4"], TRN1, open_runs(kept), folder, show)
    if comm.rank == 0:
        assert (shown[0][0], shown[1][0]) == ("1", "4") and 0 < shown[0][1] < shown[1][1]
    assert {name: kernel["file"] for name, kernel in reproduced["kernels"].items()} == {
        "nki_matmul_fully_optimized_": "b.py", "fused_three_mm_XTUV": "a.py",
    }  # fmt: skip
    assert all(0 < kernel["difference"] < 2e-2 for kernel in reproduced["kernels"].values())
    cells = {(row["table"], row["system"], row["column"]): row for row in reproduced["rows"]}
    m, k, r, n = SIZES.values()

    def product(m: int, k: int, n: int) -> int:
        return 2 * (m * k * n // 256 + m * k * n // 128 + m * n)

    theirs_ = cells["1", "NKI XUV, published kernel", "traffic"]
    assert theirs_["emulated"] * MIB == product(m, k, r) + product(m, r, n)
    assert theirs_["published"] == cells["1", "NKI XUV", "traffic"]["published"]
    assert theirs_["note"] == "nki_matmul_fully_optimized_ of b.py"
    fused = cells["4", "NeuronMM, published kernel", "intensity"]
    traffic = 2 * (m * k * r // 128 + m // 128 * (k * r + r * n) + m * n)
    assert fused["emulated"] == pytest.approx(2 * m * (k * r + r * n) / traffic)
    assert cells["4", "NeuronMM, published kernel", "latency"]["emulated"] > 0
    theirs_latency = cells["1", "NKI XUV, published kernel", "latency"]["emulated"]
    ours = [row for row in reproduced["rows"] if "published kernel" not in row["system"] and not row["derived"]]
    for table in reproduced["summary"]:
        assert table["compared"] == sum(row["table"] == table["table"] and bool(row["ratio"]) for row in ours)
    comm.Barrier()  # rank 0 has written
    with monkeypatch.context() as nobody:  # what is kept is run no more
        nobody.setattr(theirs, "_child", None)
        again = reproduce(comm, Console(), ["1", "4"], TRN1, open_runs(kept), folder)
    assert (again["rows"], again["kernels"]) == (reproduced["rows"], reproduced["kernels"])
    freely = reproduce(comm, Console(), ["1"], TRN1, open_runs(kept), folder, reorder=True)
    names = {row["system"] for row in freely["rows"]} - {row["system"] for row in reproduced["rows"]}
    assert names == {"NKI XUV, published kernel, reordered"}
    cells = {(row["system"], row["column"]): row["emulated"] for row in freely["rows"]}
    assert 0 < cells["NKI XUV, published kernel, reordered", "latency"] <= theirs_latency
    alone = reproduce(comm, Console(), ["1", "4"], TRN1, RunStore())
    assert alone["rows"] == [row for row in reproduced["rows"] if "published kernel" not in row["system"]]
    assert "kernels" not in alone


@pytest.mark.mpi(ranks=[1])
def test_what_cannot_be_run_is_said_before_anything_is(comm: Any, tmp_path: Path, small: None) -> None:
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        lay(folder, a=" + 1")
    comm.Barrier()
    for names, where, says in (
        (["1"], folder, r"no nki_matmul_fully_optimized_ that runs and is right \(a.py: differs from NumPy"),
        (["7"], folder, r"no nki_matmul_fully_optimized_ that runs"),
        (["5", "6"], folder, "--kernels are of Tables 1, 3, 4 and 7, and 5 6 has none"),
        (["1"], folder / "none", "is no folder"),
    ):
        with pytest.raises(UsageError, match=says):
            reproduce(comm, Console(), names, TRN1, RunStore(), where)


def test_a_kernel_that_ends_badly_is_told_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import os\nimport neuronxcc.nki as nki\nos._exit(7)\n@nki.jit\ndef XUV_matmul(a): ..."
    )
    with pytest.raises(UsageError, match=r"a.py: ended with 7: nothing was printed"):
        theirs.find_checkout(tmp_path, ["XUV_matmul"], TRN1, RunStore())
