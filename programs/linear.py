"""y = x W^T in W4A8 on Arm cores: int8 rows times packed 4-bit weights, by real SIMD instructions."""

from typing import Annotated, Any, Literal

import numpy as np

from meshrt.arm.soc import Soc
from meshrt.errors import UsageError
from meshrt.models.quantize import codes as grids
from meshrt.models.quantize.codes import Codes
from meshrt.options import AtLeast, Shown
from meshrt.programs.arm.products.inputs import CodedRows, RowSource, quantized, span_of
from meshrt.programs.arm.products.kernels import KernelForm, Shift
from meshrt.programs.arm.products.linear import product, shares_of
from meshrt.programs.arm.products.weights import choose, place
from meshrt.ranks import hostmemory

MACHINE = "arm"


def run(
    soc: Soc,
    *,
    m: Annotated[int, "rows of x: tokens", AtLeast(1)] = 20,
    k: Annotated[int, "columns of x", AtLeast(1)] = 256,
    n: Annotated[int, "columns of the result", AtLeast(1)] = 128,
    bits: Annotated[Literal["4", "8"], "of a weight"] = "4",
    group: Annotated[
        int | Literal["row"], "weights of a row that share a scale and zero; row, or 0: all", AtLeast(0)
    ] = 64,
    activations: Annotated[Literal["row", "block"], "of x: what shares a scale, a row or a group of it"] = "row",
    symmetric: Annotated[bool, "weights without zeros: half of the codes is 0"] = False,
    unit: Annotated[Literal["smmla", "sdot"] | None, "what multiplies  [default: the best that the cores have]"] = None,
    tile: Annotated[
        str | tuple[int, int] | None, "rows x columns of a micro-tile  [default: what registers allow]", Shown("RxC")
    ] = None,
    layout: Annotated[Literal["planes", "pairs"], "of 4-bit weights; pairs need zip instructions"] = "planes",
    signed: Annotated[bool, "weights are unpacked to -8..7, by a subtraction in the loop"] = False,
    order: Annotated[Literal["columns", "rows"], "the outer loop over micro-tiles"] = "columns",
    split: Annotated[Literal["equal", "rate", "paper", "steal"], "how cores share panels of columns"] = "equal",
    seed: Annotated[int, "of the random numbers", AtLeast(0)] = 0,
) -> dict[str, Any]:
    """A W4A8 product on Arm cores: 8-bit rows times packed 4-bit weights, by SIMD instructions that really run.

    The micro-kernel is the W4A8 paper's listing for any tile; cores share panels of columns. The report has all
    instructions by name, what spilled, and bytes by level of cache; with numbers, the largest error against float64 of
    the same codes, which is float32's rounding, for sums of integers are exact.

    \b
    Examples:
      meshrt run linear --m 560 --k 2048 --n 6144 --payload none
      meshrt run linear --unit sdot --device phone --split rate
      meshrt run linear --tile 12x8 --spill          37 registers where there are 32
    """
    if signed and not symmetric:
        raise UsageError("--signed takes half of the codes off in the loop, so weights have no zeros: add --symmetric")
    if bits == "8" and (signed or layout == "pairs"):
        raise UsageError(f"--{'signed' if signed else 'layout pairs'} is for 4-bit weights, which are unpacked")
    shared = k if group == "row" else min(group or k, k)
    shift: Shift = "none" if signed else "half" if symmetric else "zero"
    how = choose(soc, KernelForm(int(bits), layout, shift, activations == "block"), unit, tile, order)
    x, codes = (None, None)
    weights = place(soc, how, "weights", n, k, shared, None)  # room first: what DRAM refuses is not made
    source, target, y = soc.buffer("x", 4 * m * k), soc.buffer("codes", m * k), soc.buffer("y", 4 * m * n)
    if soc.payload:
        hostmemory.require(f"weights of {n} x {k} in float64", 16 * n * k)
        x, codes = random_operands(seed, m, k, n, int(bits), shared, symmetric)
        weights = place(soc, how, "weights", n, k, shared, codes, over=weights)
    with soc.phase("quantize", m):
        inputs = RowSource(lambda team: (None, None if x is None else x[span_of(team)]), ((source, range(k)),))
        rows, _ = quantized(soc, inputs, (m, k), shared, how.rows, target, how.form.blocks)
    with soc.phase("linear", m):
        out = product(soc, rows, weights, how, shares_of(soc, rows, weights, how, split), y)
    report = {"unit": how.unit.name, "tile": f"{how.rows}x{how.columns}"}
    return report if out is None or codes is None else report | errors(out, rows, codes)


def random_operands(seed: int, m: int, k: int, n: int, bits: int, group: int, even: bool) -> tuple[np.ndarray, Codes]:
    """x float32 [m, k] and W [n, k] in codes, of normal numbers; the same on every rank."""
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k)) / np.sqrt(k)
    return x, (grids.symmetric if even else grids.nearest)(w, bits, group)


def errors(y: np.ndarray, rows: CodedRows, codes: Codes) -> dict[str, float]:
    """Errors against float64 on the same codes: the largest, and the largest over the largest true value."""
    assert rows.codes is not None and rows.scale is not None
    group = rows.inner if rows.scale.shape[1] == 1 else codes.codes.shape[2]
    wide = np.repeat(rows.scale, group, axis=1)[:, : rows.inner].astype(np.float64)
    truth = rows.codes * wide @ codes.dequantized().T
    worst = float(np.abs(y - truth).max())
    return {"max_abs_error": worst, "max_rel_error": worst / (float(np.abs(truth).max()) or 1.0)}
