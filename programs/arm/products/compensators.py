"""MiLo's compensators in DRAM: two products of codes beside that of the matrix (models/quantize/compensator.py)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np

from meshrt.arm.soc import Soc
from meshrt.models import matrix as forms
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.models.quantize import codes as grids
from meshrt.models.quantize.codes import Codes
from meshrt.models.quantize.compensator import Factor
from meshrt.models.quantize.folder import read_parts
from meshrt.models.quantize.form import Quantized
from meshrt.programs.arm.parts import ArmFactors
from meshrt.programs.arm.products.weights import PackedWeights, ProductMethod, place

EIGHT = 8  # bits that numbers are rounded to where it has to be near


def compensators(
    soc: Soc, hows: Mapping[int, ProductMethod], source: Checkpoint | None, name: str, several: Sequence[forms.Matrix],
    at: Mapping[str, int], over: Iterator[PackedWeights],
) -> ArmFactors | None:  # fmt: skip
    """Those of matrices that have one input: x V^T of all side by side, and of each that times U^T.

    Codes as the folder has them; float16 is rounded to 8 bits. So are codes of V whose groups span rows: its inputs
    have the sums of the matrix's own groups, and no others.
    """
    own = [(matrix, matrix.form) for matrix in several if isinstance(matrix.form, Quantized) and matrix.form.rank]
    if not own:
        return None
    inner, form = own[0][0].rows, own[0][1]
    group = min(form.group, inner)
    exact = form.compensator_bits < 16 and gcd(inner, form.group) == group
    bits = form.compensator_bits if exact else EIGHT
    how, factors = hows[bits], []
    for matrix, mine in own:
        u = v = None
        if source is not None:
            parts = read_parts(source, matrix.name, mine, matrix.columns, matrix.rows).compensator
            assert parts is not None
            v = rows_of(parts.v, mine.rank, inner, group, exact)
            u = rows_of(parts.u, matrix.columns, mine.rank, gcd(mine.rank, form.group) if exact else mine.rank, exact)
        factors.append((matrix, mine.rank, u, v))
    beside_v = None if source is None else beside([v for *_, v in factors if v is not None])
    ranks = sum(rank for _, rank, *_ in factors)
    first = place(soc, how, f"{name}, compensators", ranks, inner, group, beside_v, next(over, None))
    seconds = tuple(
        place(soc, how, f"{part.name}, compensator", part.columns, rank, gcd(rank, form.group) if exact else rank, u,
              next(over, None), at[part.name])
        for part, rank, u, _ in factors
    )  # fmt: skip
    return ArmFactors(first, seconds, how)


def rows_of(factor: Factor, rows: int, columns: int, group: int, exact: bool) -> Codes:
    """A factor [rows, columns] whose codes lie in groups of all of it, row after row, in groups of each row.

    A `group` that divides a row and the old groups has one of their scales. Not `exact`: rounded to 8 bits, in groups
    of as many, or of a whole row.
    """
    if not exact or not isinstance(factor, Codes):
        numbers = factor.dequantized() if isinstance(factor, Codes) else factor.astype(np.float64)
        return grids.symmetric(numbers.reshape(rows, columns), EIGHT, group)
    count, old = rows * columns, factor.codes.shape[2]
    scale = np.repeat(factor.scale[0], old // group)[: count // group]
    codes = factor.codes.reshape(-1)[:count].reshape(rows, -1, group)
    return Codes(codes, scale.reshape(rows, -1), None, factor.bits, columns)


def beside(several: Sequence[Codes]) -> Codes:
    """Matrices that have one input as one."""
    first = several[0]
    changes: dict[str, Any] = {
        name: np.concatenate([getattr(codes, name) for codes in several])
        for name in ("codes", "scale", "zero", "offset") if getattr(first, name, None) is not None
    }  # fmt: skip
    return replace(first, **changes)
