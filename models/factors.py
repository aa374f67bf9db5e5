"""Matrices kept as two factors: their names in a model folder, their ranks in its config.json, their product.

In place of `..mlp.gate_proj.weight` [out, in] a folder has `..mlp.gate_u_proj.weight` [r, in] and
`..mlp.gate_v_proj.weight` [out, r], named as in Table 6 of NeuronMM; likewise the other six matrices of a layer, each
with a rank of its own. A bias keeps its name. As x W^T = (x U) V in Hugging Face's orientation, U is the transposed
`u_proj` and V the transposed `v_proj`. config.json says so in one key more:

    "low_rank": {"ranks": {"model.layers.0.mlp.gate_proj": 1280, ...}, ...how they were chosen...}
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def factor_names(matrix: str) -> tuple[str, str]:
    """`..mlp.gate_proj` to the names of its factors u, v: `..mlp.gate_u_proj`, `..mlp.gate_v_proj`."""
    stem = matrix.removesuffix("_proj")
    return stem + "_u_proj", stem + "_v_proj"


def read_ranks(low_rank: Mapping[str, Any], shapes: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """The ranks of config.json's `low_rank`, by matrix. `shapes` has all matrices that may be there, [out, in].

    Raises ValueError saying what is wrong with the key.
    """
    ranks = low_rank.get("ranks")
    if not isinstance(ranks, dict) or not ranks:
        raise ValueError(f"has no 'ranks', an object such as {{{next(iter(shapes))!r}: 16}}")
    for name, rank in ranks.items():
        if name not in shapes:
            raise ValueError(f"has a rank for {name!r}, which is no matrix of this model's layers")
        if type(rank) is not int or not 1 <= rank <= min(shapes[name]):
            raise ValueError(f"has rank {rank!r} for {name}; it must be 1..{min(shapes[name])}, the matrix's own limit")
    return dict(ranks)


def product(left: NDArray[Any], right: NDArray[Any]) -> NDArray[np.float64]:
    """left [m, r] @ right [r, n] in float64, every element the same bits whatever other rows and columns are there.

    Ranks read slices of one matrix, and the matrix must not depend on how it is sliced; but a BLAS adds up in an order
    that depends on the shapes. So each row of `left` and each column of `right` is rounded to multiples of a power of
    two, few enough bits (21 at r = 2048) that the sum of r products has no rounding in any order. Float16 and bfloat16
    have fewer bits: of them, only elements far below the largest of their row or column are rounded at all.
    """
    bits = (53 - (left.shape[1] - 1).bit_length()) // 2

    def on_grid(x: NDArray[Any], axis: int) -> NDArray[np.float64]:
        largest = np.abs(x.astype(np.float64)).max(axis=axis, keepdims=True, initial=0)
        unit = np.ldexp(1.0, np.frexp(largest)[1] - bits)
        grid: NDArray[np.float64] = np.rint(x / unit) * unit
        return grid

    found: NDArray[np.float64] = on_grid(left, 1) @ on_grid(right, 0)
    return found
