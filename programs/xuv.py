"""Products with a decomposed matrix on NeuronCores: NeuronMM's fused kernels and what they are compared with."""

from dataclasses import asdict, astuple
from math import prod
from typing import Annotated, Any, Literal

import numpy as np

from meshrt.errors import LimitError, UsageError
from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.cores import Cores
from meshrt.neuron.tile import Tile, new_tile
from meshrt.options import AtLeast
from meshrt.programs.neuron.blocks import BlockSizes
from meshrt.programs.neuron.dense import BASELINE, dense, sequential
from meshrt.programs.neuron.fused import FUSED, fused
from meshrt.programs.neuron.mlp import svd_mlp, up_gate
from meshrt.programs.neuron.naive import NAIVE, naive
from meshrt.ranks import hostmemory
from meshrt.ranks.control import largest
from meshrt.records import dataclass

MACHINE = "neuron"
MESH = (1, 1)
DEFAULTS = {"dense": BASELINE, "sequential": BASELINE, "naive": NAIVE}


@dataclass(frozen=True)
class Variant:
    """A kernel and what is chosen of it. `sums`: the dtype of what SBUF keeps between blocks."""

    kernel: str
    blocks: BlockSizes
    sums: np.dtype[Any]
    transpose: str
    out_transposed: bool


def run(
    cores: Cores,
    *,
    kernel: Annotated[
        Literal["dense", "sequential", "naive", "fused", "upgate", "mlp"],
        "x w, x u v in two kernels, in one without a cache, fused; Algorithms 2 and 3 of NeuronMM",
    ] = "fused",
    m: Annotated[int, "rows of x: tokens", AtLeast(1)] = 512,
    k: Annotated[int, "columns of x", AtLeast(1)] = 512,
    r: Annotated[int | None, "rank: columns of u; not of dense  [default: 256]", AtLeast(1)] = None,
    n: Annotated[int, "columns of v", AtLeast(1)] = 1024,
    block_m: Annotated[int | None, "rows of a block; no size given: the kernel's own", AtLeast(1)] = None,
    block_k: Annotated[int | None, "of the contraction over k", AtLeast(1)] = None,
    block_r: Annotated[int | None, "of the rank", AtLeast(1)] = None,
    block_n: Annotated[int | None, "of the columns", AtLeast(1)] = None,
    dtype: Annotated[Literal["bfloat16", "float16", "float32"], "of tiles and tensors; sums are float32"] = "bfloat16",
    sums: Annotated[
        Literal["float32", "tile"], "what SBUF keeps between blocks; tile: as the published kernels"
    ] = "float32",
    transpose: Annotated[Literal["dma", "tensor"], "who transposes x on its way in, in fused kernels"] = "dma",
    out_transposed: Annotated[bool, "leave the transpose of the result"] = False,
    seed: Annotated[int, "of the random numbers", AtLeast(0)] = 0,
) -> dict[str, Any]:
    """Products x u v with a decomposed matrix on NeuronCores: fused, naive, sequential, dense, and the SwiGLU MLP.

    The kernels of NeuronMM and what it compares them with, of x [m, k], u [k, r] and v [r, n]. The report has what
    crossed between HBM and SBUF, what of it was spilled, operations, transposes, virtual time and MFU; with numbers,
    the largest error against float64, too. Several cores share the rows of x.

    \b
      dense       x w [k, n], in blocks of 1024 as the public product (NKI XW): no rank
      sequential  x u, transposed, times v: two such products (NKI XUV)
      naive       one kernel; x u anew for every block of columns (Algorithm 1)
      fused       a strip of x u is kept in SBUF, transposed (section 4.2.1)
      upgate      SiLU(x u v) * (x u' v'), transposed (Algorithm 2)
      mlp         that, and a fused product of it (Algorithm 3)

    \b
    Examples:
      meshrt run xuv --kernel naive --block-n 256    x u four times, not twice
      meshrt run xuv --m 32768 --k 8192 --r 4096 --n 16384 --payload none
      meshrt run xuv --sbuf-bytes 4000               spills, and their cost
      mpirun -n 4 meshrt run xuv --cores 4 --dtype float16 --json -
    """
    if kernel == "dense" and (r, block_r) != (None, None):
        raise UsageError("--kernel dense multiplies x w, which has no rank: leave --r and --block-r away")
    check_kernel(kernel, sums, transpose, out_transposed)
    blocks = sizes_of(kernel, (block_m, block_k, block_r, block_n))
    variant = Variant(kernel, blocks, nl.DTYPES[dtype if sums == "tile" else "float32"], transpose, out_transposed)
    shapes, storage = operand_shapes(kernel, m, k, 256 if r is None else r, n), nl.DTYPES[dtype]
    large = 4 * sum(map(prod, shapes.values())) > hostmemory.SMALL
    operands: dict[str, np.ndarray] = {}
    worst = most = 0.0
    with cores.phase(kernel):
        for core in cores.mine:
            rows = cores.share(core.index, m, blocks.m)
            if rows.start == rows.stop:
                continue
            if cores.payload and large:
                # Without numbers first: what this core refuses is refused before gigabytes of them are made.
                trial = NeuronCore(core.device, core.index, payload=False)
                multiply(trial, variant, place(trial, shapes, rows, storage))
            tensors = place(core, shapes, rows, storage)
            if cores.payload:
                operands = operands or random_operands(seed, shapes)
                for name, tensor in tensors.items():
                    core.put(tensor, operands[name][rows] if name == "x" else operands[name])
            out = multiply(core, variant, tensors)
            if cores.payload:
                truth = expected(variant, tensors)
                worst = largest([worst, np.abs(out.data - truth).max()])
                most = max(most, float(np.abs(truth).max()))
    if not cores.payload:
        return {}
    worst, most = cores.control.allreduce(worst, largest), cores.control.allreduce(most, max)
    return {"max_abs_error": worst, "max_rel_error": worst / (most or 1.0)}


def check_kernel(kernel: str, sums: str, transpose: str, out_transposed: bool) -> None:
    """UsageError for options that a kernel has no use for."""
    if out_transposed and kernel in ("naive", "upgate", "mlp"):
        raise UsageError(f"--out-transposed is for dense, sequential and fused; {kernel} has its one layout")
    if sums == "tile" and kernel == "naive":
        raise UsageError("--sums tile is for what SBUF keeps between blocks: naive keeps its sums in PSUM, as float32")
    if transpose == "tensor" and kernel in DEFAULTS:
        raise UsageError(f"--transpose tensor is for fused, upgate and mlp; {kernel} transposes in its one way")


def sizes_of(kernel: str, given: tuple[int | None, ...]) -> BlockSizes:
    """Sizes of blocks along M, K, r and N: those that are given, for others the kernel's own."""
    own = astuple(DEFAULTS.get(kernel, FUSED))
    return BlockSizes(*(default if size is None else size for size, default in zip(given, own, strict=True)))


def operand_shapes(kernel: str, m: int, k: int, r: int, n: int) -> dict[str, tuple[int, int]]:
    """The operands of a kernel by name, x [m, k] first."""
    if kernel == "dense":
        return {"x": (m, k), "w": (k, n)}
    if kernel in ("upgate", "mlp"):
        shapes = {"x": (m, k), "u_gate": (k, r), "v_gate": (r, n), "u_up": (k, r), "v_up": (r, n)}
        return shapes | ({"u_down": (n, r), "v_down": (r, k)} if kernel == "mlp" else {})
    return {"x": (m, k), "u": (k, r), "v": (r, n)}


def random_operands(seed: int, shapes: dict[str, tuple[int, int]]) -> dict[str, np.ndarray]:
    """Normal numbers, scaled so that products stay near one; the same on every rank."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape, np.float32) / np.float32(1 if name == "x" else np.sqrt(shape[0]))
        for name, shape in shapes.items()
    }


def place(core: NeuronCore, shapes: dict[str, tuple[int, int]], rows: slice, dtype: np.dtype[Any]) -> dict[str, Tile]:
    """The operands in a core's HBM, to be filled: its rows of x, and all of the matrices. LimitError."""
    return {
        name: new_tile(core.hbm, (rows.stop - rows.start, shape[1]) if name == "x" else shape, dtype, full=True)
        for name, shape in shapes.items()
    }


def multiply(core: NeuronCore, variant: Variant, t: dict[str, Tile]) -> Tile:
    """Run a kernel on its operands: the result in HBM. LimitError, with the blocks that were too large."""
    try:
        return compute(core, variant, t)
    except LimitError as error:
        sizes = ", ".join(f"--block-{axis} {size}" for axis, size in asdict(variant.blocks).items())
        raise LimitError(f"{error}. Of {variant.kernel} here: take smaller blocks than {sizes}") from error


def compute(core: NeuronCore, variant: Variant, t: dict[str, Tile]) -> Tile:
    """The same. LimitError."""
    x, blocks, sums, out_t = t["x"], variant.blocks, variant.sums, variant.out_transposed
    identity = nl.shared_identity(core, x.dtype) if variant.transpose == "tensor" else None
    if variant.kernel == "dense":
        return dense(x, t["w"], blocks, sums, out_t)
    if variant.kernel == "sequential":
        return sequential(x, t["u"], t["v"], blocks, sums, out_t)
    if variant.kernel == "naive":
        return naive(x, t["u"], t["v"], blocks)
    if variant.kernel == "fused":
        return fused(x, t["u"], t["v"], blocks, sums, req_ot=out_t, identity=identity)
    gate, up = (t["u_gate"], t["v_gate"]), (t["u_up"], t["v_up"])
    if variant.kernel == "upgate":
        return up_gate(x, *gate, *up, blocks, sums, identity)
    return svd_mlp(x, gate, up, (t["u_down"], t["v_down"]), blocks, sums, identity)


def expected(variant: Variant, tensors: dict[str, Tile]) -> np.ndarray:
    """The same by NumPy in float64, transposed where the kernel leaves it so."""
    t = {name: tensor.data.astype(np.float64) for name, tensor in tensors.items()}
    x = t["x"]
    if variant.kernel == "dense":
        result: np.ndarray = x @ t["w"]
    elif variant.kernel in ("upgate", "mlp"):
        gate, up = x @ t["u_gate"] @ t["v_gate"], x @ t["u_up"] @ t["v_up"]
        result = gate / (1 + np.exp(-gate)) * up
        if variant.kernel == "mlp":
            result = result @ t["u_down"] @ t["v_down"]
    else:
        result = x @ t["u"] @ t["v"]
    return result.T if variant.out_transposed or variant.kernel == "upgate" else result
