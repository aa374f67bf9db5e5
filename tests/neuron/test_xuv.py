"""The kernels of NeuronMM: numbers against float64 NumPy, and what they move, compute and transpose in closed form."""

import json
from math import ceil
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuron_cores import new_core
from runs import run_on_cores
from tiers import examples

from meshrt.errors import LimitError, UsageError
from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.tile import Tile
from meshrt.programs.neuron.blocks import BlockSizes
from meshrt.programs.neuron.dense import dense, sequential
from meshrt.programs.neuron.fused import fused
from meshrt.programs.neuron.mlp import svd_mlp, up_gate
from meshrt.programs.neuron.naive import naive
from meshrt.reports.report import print_table

KERNELS = ["dense", "sequential", "naive", "fused", "upgate", "mlp"]
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # of rounding to so many bits
SMALLEST = 2.0**-24  # of float16; what is nearer to zero is lost

# ---- numbers
#
# The inputs are exact: they are rounded before. Each product then sums k terms in float32, an error of at most
# k 2^-24 (|x| |u|), give or take a few roundings more, and its result is rounded to the dtype, an error of at most one
# roundoff; where SBUF keeps sums between blocks in the dtype, that is one for each block. Errors of a first product go
# through the second one, times |v|. So all bounds are multiples of products of absolute values. Element by element that
# is generous, as errors mostly cancel; where only results are rounded, norms say more: |e v| <= |e| |v|, the latter
# being the largest singular value, and roundings of y are within a roundoff of |y|.

sizes = st.integers(1, 200)


@st.composite
def problems(draw: st.DrawFn) -> tuple[tuple[int, int, int, int], BlockSizes]:
    """M, K, r, N around the edges of tiles, and blocks that mostly divide none of them."""
    shape = draw(sizes), draw(sizes), draw(sizes), draw(sizes)
    return shape, BlockSizes(*(draw(st.integers(max(1, size // 3), size + 9)) for size in shape))


def operands(core: NeuronCore, dtype: str, *shapes: tuple[int, int]) -> list[Tile]:
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [core.tensor_of(rng.standard_normal(shape, np.float32) / np.sqrt(shape[0]), dtype) for shape in shapes]


def product_bound(terms: int, roundings: int, dtype: str) -> float:
    """Of a product of so many terms that is rounded so often, relative to the product of absolute values."""
    return 1.01 * ((terms + 8) * 2.0**-24 + roundings * ROUNDOFF[dtype])


def chain(result: np.ndarray, x: Any, u: Any, v: Any, dtype: str, roundings: tuple[int, int]) -> None:
    """The result is x u v, up to the bounds."""
    a, b, c = (np.abs(operand) for operand in (x, u, v))
    y, exact = x @ u, x @ u @ v
    first, second = (product_bound(operand.shape[1], n, dtype) for operand, n in zip((x, u), roundings, strict=True))
    assert (np.abs(result - exact) <= (first + second) * (a @ b @ c) + SMALLEST).all()
    if roundings == (1, 1):
        sums = [
            product_bound(operand.shape[1], 0, dtype) * np.linalg.norm(s) for operand, s in ((x, a @ b), (u, a @ b @ c))
        ]
        error = sums[0] + 1.01 * ROUNDOFF[dtype] * np.linalg.norm(y)
        bound = error * np.linalg.norm(v, 2) + sums[1] + 1.01 * ROUNDOFF[dtype] * np.linalg.norm(exact)
        assert np.linalg.norm(result - exact) <= bound + SMALLEST * result.size


def float64(*tensors: Tile) -> list[np.ndarray]:
    return [tensor.data.astype(np.float64) for tensor in tensors]


@pytest.mark.parametrize("dtype", ROUNDOFF)
@given(problem=problems(), is_xt=st.booleans(), req_ot=st.booleans(), tensor=st.booleans(), tile=st.booleans())
@settings(max_examples=examples(25))
def test_fused_in_all_layouts(problem: Any, is_xt: bool, req_ot: bool, tensor: bool, tile: bool, dtype: str) -> None:
    (m, k, r, n), blocks = problem
    core = new_core()
    x, u, v = operands(core, dtype, (k, m) if is_xt else (m, k), (k, r), (r, n))
    identity = nl.shared_identity(core, dtype) if tensor else None
    out = fused(x, u, v, blocks, dtype if tile else nl.float32, is_xt=is_xt, req_ot=req_ot, identity=identity)
    x64, u64, v64 = float64(x, u, v)
    roundings = (ceil(k / blocks.k) + 1, ceil(r / blocks.r) + 1) if tile else (1, 1)
    chain(out.data.T if req_ot else out.data, x64.T if is_xt else x64, u64, v64, dtype, roundings)


@pytest.mark.parametrize("dtype", ROUNDOFF)
@given(problem=problems(), turned=st.booleans())
@settings(max_examples=examples(15))
def test_dense_and_sequential_and_naive(problem: Any, turned: bool, dtype: str) -> None:
    (m, k, r, n), blocks = problem
    core = new_core()
    x, u, v = operands(core, dtype, (m, k), (k, r), (r, n))
    x64, u64, v64 = float64(x, u, v)
    out = sequential(x, u, v, blocks, nl.float32, turned)
    chain(out.data.T if turned else out.data, x64, u64, v64, dtype, (1, 1))
    chain(naive(x, u, v, blocks).data, x64, u64, v64, dtype, (1, 1))
    xu = dense(x, u, blocks, nl.float32, turned)
    bound = product_bound(k, 1, dtype) * (np.abs(x64) @ np.abs(u64)) + SMALLEST
    assert (np.abs((xu.data.T if turned else xu.data) - x64 @ u64) <= bound).all()


@pytest.mark.parametrize("dtype", ROUNDOFF)
@given(problem=problems())
@settings(max_examples=examples(15))
def test_up_gate_and_mlp(problem: Any, dtype: str) -> None:
    """SiLU turns an error e of its argument into less than 1.1 e, its slope; computing it takes some roundings."""
    (m, k, r, n), blocks = problem
    core = new_core()
    x, *factors = operands(core, dtype, (m, k), (k, r), (r, n), (k, r), (r, n), (n, r), (r, k))
    x64, ug, vg, uu, vu, ud, vd = float64(x, *factors)
    gate, up = x64 @ ug @ vg, x64 @ uu @ vu
    per = product_bound(k, 1, dtype) + product_bound(r, 0, dtype)  # the second sum stays in float32
    gate_error, up_error = (per * (np.abs(x64) @ np.abs(a) @ np.abs(b)) for a, b in ((ug, vg), (uu, vu)))
    inner = gate / (1 + np.exp(-gate)) * up
    error = 1.1 * gate_error * (np.abs(up) + up_error) + (np.abs(gate) + gate_error) * up_error
    error += (16 * 2.0**-24 + ROUNDOFF[dtype]) * (np.abs(inner) + error) + 16 * 2.0**-24 * np.abs(gate * up) + SMALLEST

    y = up_gate(x, *factors[:4], blocks, nl.float32)
    assert (np.abs(y.data.T - inner) <= error).all()

    z = svd_mlp(x, (factors[0], factors[1]), (factors[2], factors[3]), (factors[4], factors[5]), blocks, nl.float32)
    per = product_bound(n, 1, dtype) + product_bound(r, 1, dtype)
    bound = (error + per * (np.abs(inner) + error)) @ np.abs(ud) @ np.abs(vd) + 2 * SMALLEST
    assert (np.abs(z.data - inner @ ud @ vd) <= bound).all()


# ---- what is moved, computed and transposed

Closed = dict[str, int]


def squares(size: int, block: int = 1024) -> int:
    """The sum of p^2 over the tiles of p <= 128 rows that blocks are cut into: what transposing a column takes."""
    return sum(
        min(128, edge - at) ** 2
        for start in range(0, size, block)
        for edge in [min(start + block, size)]
        for at in range(start, edge, 128)
    )


def product(m: int, k: int, n: int, block_n: int) -> Closed:
    """A product as the public kernel does it: the right side once, the left one once for each block of columns."""
    return {"read": k * n + ceil(n / block_n) * m * k, "written": m * n, "macs": m * k * n, "transpose": 0}


def turn(rows: int, columns: int) -> Closed:
    """A transposing kernel between two others."""
    size = rows * columns
    return {"read": size, "written": size, "macs": 0, "transpose": squares(rows) * columns}


def ranked(kernel: str, **given: Any) -> dict[str, Any]:
    """The sizes that a kernel has: dense has no rank."""
    return {name: size for name, size in given.items() if kernel != "dense" or name not in ("r", "block_r")}


def add(*parts: Closed) -> Closed:
    return {key: sum(part[key] for part in parts) for key in parts[0]}


def expected(kernel: str, m: int, k: int, r: int, n: int, b: BlockSizes, turned: bool, tensor: bool) -> Closed:
    """Elements read and written, multiplications, and those that transpose."""
    strips = ceil(m / b.m)
    if kernel == "dense":
        return add(turn(m, k), product(m, k, n, b.n), *([turn(m, n)] if turned else []))
    if kernel == "sequential":
        first = add(turn(m, k), product(m, k, r, b.n))
        return add(first, turn(m, r), product(m, r, n, b.n), *([turn(m, n)] if turned else []))
    if kernel == "naive":  # section 3.2: x u anew for each block of columns, and its operands read anew
        again = ceil(n / b.n)
        read = again * ceil(r / b.r) * m * k + again * strips * k * r + strips * r * n
        return {"read": read, "written": m * n, "macs": again * m * k * r + m * r * n, "transpose": 0}
    pairs = 1 if kernel == "fused" else 2  # eq. 10: x once, the result once, u and v once for each strip
    counts = {
        "read": m * k + pairs * strips * r * (k + n),
        "written": m * n,
        "macs": pairs * m * r * (k + n),
        "transpose": squares(m, b.m) * k if tensor else 0,  # of x alone, never of x u
    }
    down = {"read": m * n + strips * r * (n + k), "written": m * k, "macs": m * r * (n + k), "transpose": 0}
    return add(counts, down) if kernel == "mlp" else counts


def blocks_of(b: BlockSizes) -> dict[str, int]:
    return {f"block_{axis}": getattr(b, axis) for axis in "mkrn"}


CASES = [
    (256, 256, 128, 512, BlockSizes(128, 128, 128, 256)),
    (300, 200, 150, 700, BlockSizes(130, 90, 100, 300)),  # divides nothing
    (1, 1, 1, 1, BlockSizes()),
    (129, 513, 300, 1025, BlockSizes(512, 512, 256, 512)),
]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(24)
@pytest.mark.parametrize("turned, tensor", [(False, False), (True, True)])
@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("kernel", KERNELS)
def test_traffic_and_operations(kernel: str, case: int, turned: bool, tensor: bool, comm: Any) -> None:
    m, k, r, n, b = CASES[case]
    turned = turned and kernel in ("dense", "sequential", "fused")
    tensor = tensor and kernel in ("fused", "upgate", "mlp")
    given = {"out_transposed": turned, "transpose": "tensor" if tensor else "dma", **blocks_of(b)}
    report = run_on_cores(comm, "xuv", kernel=kernel, payload=False, **ranked(kernel, m=m, k=k, r=r, n=n, **given))
    closed = expected(kernel, m, k, r, n, b, turned, tensor)
    for part in (report["measured"], report["phases"][0]):
        assert part["spill_bytes"] == {"saved": 0, "reloaded": 0}
        read, written = 2 * closed["read"], 2 * closed["written"]
        assert part["hbm_bytes"] == {"read": read, "written": written, "total": read + written}
        assert (part["flops"], part["macs"]) == (2 * closed["macs"], closed["macs"])
        assert part["transpose_flops"] == 2 * closed["transpose"]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.all
def test_the_operations_of_table_1(comm: Any) -> None:
    """X [2048, 2048], U [2048, 2048], V [2048, 8192], B_N = 512: 85.90 and 343.60 GFLOP (NeuronMM, Table 1)."""
    given = {"m": 2048, "k": 2048, "r": 2048, "n": 8192, "payload": False}
    flops = {
        name: run_on_cores(comm, "xuv", kernel=name, **given)["measured"]["flops"] for name in ("sequential", "naive")
    }
    assert flops == {"sequential": 85_899_345_920, "naive": 343_597_383_680}


@pytest.mark.mpi(ranks=[1])
@pytest.mark.all
def test_fused_moves_what_equation_10_says_at_the_size_of_table_4(comm: Any) -> None:
    """s (M (K + N) + M / B_M r (K + N)): the published intensity without spills, 819.17 at B_M = 1024, follows."""
    m, k, r, n, block = 4096, 7168, 4096, 18432, 1024
    report = run_on_cores(comm, "xuv", kernel="fused", m=m, k=k, r=r, n=n, block_m=block, payload=False, sums="tile")
    traffic = report["measured"]["hbm_bytes"]["total"]
    assert traffic == 2 * (m * (k + n) + m // block * r * (k + n))
    assert report["measured"]["flops"] / traffic == pytest.approx(2 * r / ((1 + r / block) * 2)) == pytest.approx(819.2)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("limits", [{}, {"sbuf_partition_bytes": 10_000}])
def test_each_partition_of_a_transfer_has_a_descriptor(limits: dict[str, int], comm: Any) -> None:
    """All tiles here have 128 partitions, those that are spilled too."""
    given = {"kernel": "dense", "payload": False, "limits": limits, "m": 256, "k": 512, "n": 1024}
    measured = run_on_cores(comm, "xuv", **given)["measured"]
    assert bool(measured["spill_bytes"]["saved"]) == bool(limits)
    assert measured["dma_descriptors"] == 128 * measured["engines"]["dma"]["instructions"] > 0


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("kernel", ["dense", "fused", "mlp"])
def test_spills_are_traffic_beside_the_kernels_own_and_change_no_number(kernel: str, comm: Any) -> None:
    m, k, r, n, b = 300, 200, 150, 700, BlockSizes(300, 200, 150, 700)
    given = {"kernel": kernel, **ranked(kernel, m=m, k=k, r=r, n=n, **blocks_of(b))}
    tight = run_on_cores(comm, "xuv", limits={"sbuf_partition_bytes": 5000}, **given)
    ample = run_on_cores(comm, "xuv", **given)
    assert tight["result"] == ample["result"]
    closed, moved = expected(kernel, m, k, r, n, b, False, False), tight["measured"]
    assert moved["spill_bytes"]["saved"] > 0 and moved["spill_bytes"]["reloaded"] > 0
    assert moved["hbm_bytes"]["read"] == 2 * closed["read"] + moved["spill_bytes"]["reloaded"]
    assert moved["hbm_bytes"]["written"] == 2 * closed["written"] + moved["spill_bytes"]["saved"]
    assert moved["sbuf_bytes"] == {"max": moved["sbuf_bytes"]["max"], "limit": 128 * 5000}
    assert moved["sbuf_bytes"]["max"] <= 128 * 5000 < ample["measured"]["sbuf_bytes"]["max"]
    assert moved["critical_path"]["seconds"] > ample["measured"]["critical_path"]["seconds"]


# ---- the program


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "kernel, transpose",
    [*((kernel, "dma") for kernel in KERNELS), *((kernel, "tensor") for kernel in ("fused", "upgate", "mlp"))],
)
def test_shapes_alone_count_and_take_the_same(kernel: str, dtype: str, transpose: str, comm: Any) -> None:
    given = {"dtype": dtype, "transpose": transpose, "limits": {"sbuf_partition_bytes": 9000}}
    given |= {"kernel": kernel, **ranked(kernel, m=150, k=140, r=70, n=530)}
    full, none = (run_on_cores(comm, "xuv", 2, payload=payload, **given) for payload in (True, False))
    assert (full["measured"], full["phases"]) == (none["measured"], none["phases"]) and none["result"] == {}
    assert 0 < full["result"]["max_rel_error"] < 8 * ROUNDOFF[dtype] + 1e-6


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((kernel, {}) for kernel in KERNELS),
    *((kernel, {"out_transposed": True}) for kernel in ("dense", "sequential", "fused")),
    *((kernel, {"transpose": "tensor", "sums": "tile"}) for kernel in ("fused", "upgate", "mlp")),
]


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_four_cores_on_any_ranks_tell_the_same(dtype: str, comm: Any) -> None:
    """All kernels, at sizes that neither tiles nor blocks divide: float64 NumPy's numbers, and one JSON to the byte.

    The bound is on the largest error over the largest number. What is rounded, each time by one roundoff at most: x u
    and the result, for the MLP what goes between its kernels as well, and with sums in 16 bits each of 3 blocks. Those
    errors go through the factors as the numbers themselves do, and mostly cancel.
    """
    from mpi4py import MPI

    for kernel, kind in VARIANTS:
        given = {"kernel": kernel, "dtype": dtype, "m": 130, "k": 140, "r": 70, "n": 150, **kind}
        given = ranked(**given, block_m=40, block_k=60, block_r=50, block_n=55) | {"kernel": kernel}
        several = run_on_cores(comm, "xuv", 4, **given)
        if comm.rank == 0:
            alone = run_on_cores(MPI.COMM_SELF, "xuv", 4, **given)
            for report in (several, alone):
                report.pop("host")
            assert json.dumps(several) == json.dumps(alone)
            assert several["mesh"] == [4, 1]
            roundings = 2 + (kernel == "mlp") + 3 * ("sums" in kind)
            assert 0 < several["result"]["max_rel_error"] < roundings * ROUNDOFF[dtype]


@pytest.mark.mpi(ranks=[1, 2])
def test_a_product_that_one_core_lacks_is_no_small_error(comm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nothing has written is NaN, on whichever core."""

    def forgetful(x: Tile, *rest: Any, **more: Any) -> Tile:
        out = fused(x, *rest, **more)
        if x.core.index == 1:
            out.data[-1, -1] = np.nan
        return out

    monkeypatch.setattr("meshrt.programs.xuv.fused", forgetful)
    report = run_on_cores(comm, "xuv", 2, m=200, k=32, r=16, n=32, block_m=64)
    if report is not None:
        assert np.isnan([report["result"][name] for name in ("max_abs_error", "max_rel_error")]).all()


@pytest.mark.mpi(ranks=[1])
def test_cores_share_whole_strips_of_x(comm: Any) -> None:
    """230 rows are 4 blocks of 64: one each. 3 cores read u and v for 1, 1 and 2 strips: as often as one core does."""
    given = {"m": 230, "k": 140, "r": 70, "n": 130, "block_m": 64, "payload": False}
    single, three, many = (run_on_cores(comm, "xuv", cores, **given)["measured"] for cores in (1, 3, 7))
    assert single["hbm_bytes"] == three["hbm_bytes"] == many["hbm_bytes"] and single["macs"] == many["macs"]
    assert many["critical_path"]["seconds"] < three["critical_path"]["seconds"] < single["critical_path"]["seconds"]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    "given, message",
    [
        ({"kernel": "naive", "n": 8192, "block_n": 8192}, "PSUM: all 8 banks are in use.*--block-n 8192"),
        ({"limits": {"sbuf_partition_bytes": 700}}, "a tile of SBUF asks for 2048.*of fused here: take smaller blocks"),
    ],
)
def test_what_a_core_has_no_room_for_names_the_options(given: dict[str, Any], message: str, comm: Any) -> None:
    with pytest.raises(LimitError, match=f"(?i){message}"):
        run_on_cores(comm, "xuv", **given)


@pytest.mark.mpi(ranks=[1])
def test_no_number_of_a_table_in_a_log_is_cut_off(comm: Any, capsys: pytest.CaptureFixture[str]) -> None:
    report = run_on_cores(comm, "xuv", m=8, k=8, r=8, n=8)
    phases = [report["phases"][0] | {"name": f"of phase {at}"} for at in range(9)]
    print_table(report | {"phases": phases})
    text = capsys.readouterr().out
    assert "of phase 8" in text and "\N{HORIZONTAL ELLIPSIS}" not in text
    (mfu,) = (line for line in text.splitlines() if line.startswith("MFU"))
    assert mfu.count("%") == 10


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    "given, message",
    [
        ({"m": 0}, "--m is 0; it starts at 1"),
        ({"block_k": 0}, "--block-k is 0"),
        ({"seed": -1}, "--seed is -1"),
        ({"kernel": "naive", "out_transposed": True}, "naive has its one layout"),
        ({"kernel": "naive", "transpose": "tensor"}, "--transpose tensor is for fused, upgate and mlp; naive"),
    ],
)
def test_wrong_options_are_refused(given: dict[str, Any], message: str, comm: Any) -> None:
    with pytest.raises(UsageError, match=message):
        run_on_cores(comm, "xuv", **given)
