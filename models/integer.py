"""Products of 4-bit weights and 8-bit activations, exactly: the reference of folders whose config.json says so (W4A8).

    y[t, n] = sum over blocks b of (sum over k in b of a[t, k] q[n, k] * scale[n, b] + sums[t, b] * offset[n, b]) * s[t]

with whole numbers a (-127..127, of the activations) and q (codes, of the weights), sums[t, b] = sum of a[t, k] over the
block, and s the scale of a row of activations, or of each of its blocks. The inner sum is whole and thus has one value
in any order; what follows is float32, in the order in which it is written, blocks ascending. So two programs that keep
to this agree to the bit however they cut tokens and outputs.
"""

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meshrt.models.config import Config
from meshrt.models.eightbits import MOST, block_sums, check_sums, quantize_rows
from meshrt.models.folders.checkpoint import open_checkpoint
from meshrt.models.matrix import Matrix
from meshrt.models.quantize.codes import Codes
from meshrt.models.quantize.folder import read_parts
from meshrt.models.quantize.form import Activations
from meshrt.models.reference import Array, NamedArrays, Project, project

EXACT = 2**24  # below it all whole numbers are float32, so a BLAS adds them up exactly


def whole_product(a: NDArray[np.int8], codes: NDArray[np.uint8], bits: int) -> NDArray[np.int32]:
    """a [rows, k] times codes [n, k] of so many bits, [rows, n]: exact, so of any order. k 127 2^bits < 2^31.

    float32's BLAS adds up as many products as stay below 2^24 (8,806 of 4 bits, 518 of 8); NumPy has none for whole
    numbers, and its loop takes 40 times as long.
    """
    step = (EXACT - 1) // (MOST * (2**bits - 1))
    total = np.zeros((len(a), len(codes)), np.int32)
    for begin in range(0, a.shape[1], step):
        part = a[:, begin : begin + step].astype(np.float32) @ codes[:, begin : begin + step].astype(np.float32).T
        total += part.astype(np.int32)
    return total


def linear(x: Array, packed: Codes, activations: Activations = "row") -> NDArray[np.float32]:
    """x [rows, k] times the matrix [n, k] of these codes, [rows, n]. `activations`: what of x shares a scale, a row or
    the block that shares one of the weights. ModelError.
    """
    group = packed.codes.shape[2]
    check_sums(packed.columns, packed.bits)
    a, row_scale, sums = quantize_rows(x, None if activations == "row" else group)
    if activations == "row":
        sums = block_sums(a, group)
    scale, offset = packed.scale.astype(np.float32), packed.offsets()
    total = np.zeros((len(a), len(packed.codes)), np.float32)
    for at in range(sums.shape[1]):
        own = a[:, at * group : (at + 1) * group]
        part = whole_product(own, packed.codes[:, at, : own.shape[1]], packed.bits).astype(np.float32)
        part *= scale[:, at]
        part += sums[:, at, None].astype(np.float32) * offset[:, at]
        if activations == "block":
            part *= row_scale[:, at, None]
        total += part
    if activations == "row":
        total *= row_scale
    return total


ProjectionErrors: TypeAlias = dict[str, tuple[float, float]]


def projection(folder: str | Path, config: Config, errors: ProjectionErrors | None = None) -> Project:
    """What the reference multiplies with: whole numbers where config.json says that activations are so, else weights as
    they are. To `errors` is added what `activation_error` says of the inputs, by matrix. Raises ModelError.
    """
    forms = {**config.quantized, **({} if config.head is None else {config.head_matrix.name: config.head})}
    ways = {name: (form.activations, form.group) for name, form in forms.items() if form.activations}
    if not ways:
        return project
    matrices, checkpoint = {**config.matrices(), config.head_matrix.name: config.head_matrix}, open_checkpoint(folder)
    packed = {
        name: read_parts(checkpoint, name, forms[name], matrices[name].columns, matrices[name].rows).codes
        for name in ways
    }

    def whole(w: NamedArrays, matrix: Matrix, x: Array) -> Array:
        if matrix.name not in packed:
            return project(w, matrix, x)
        activations, block = ways[matrix.name]
        if errors is not None:
            before, more = errors.get(matrix.name, (0.0, 0.0)), activation_error(x, activations, block)
            errors[matrix.name] = before[0] + more[0], before[1] + more[1]
        y: Array = linear(x, packed[matrix.name], activations).astype(x.dtype)
        return y + w[matrix.name + ".bias"] if matrix.bias else y

    return whole


def activation_error(x: Array, activations: Activations, block: int) -> tuple[float, float]:
    """The squared sums of what rounding to 8 bits changes in x [rows, k], and of x itself."""
    a, scale, _ = quantize_rows(x, None if activations == "row" else block)
    wide = np.repeat(scale, block, axis=1)[:, : x.shape[1]] if activations == "block" else scale
    lost: Any = x - a * wide
    return float(np.sum(np.square(lost, dtype=np.float64))), float(np.sum(np.square(x, dtype=np.float64)))
