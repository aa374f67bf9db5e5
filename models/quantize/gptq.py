"""GPTQ (2022, https://arxiv.org/abs/2210.17323): what rounding an input's weights costs on the features
is taken out of the weights of the inputs that come after it.

It makes the error of the features X W^T small, not that of the weights, which is larger than that of rounding to
nearest: the two are compared by features or by perplexity, never by weights.
"""

import numpy as np

from meshrt.models.errors import ModelError
from meshrt.models.quantize.codes import Array, Codes, check_finite, encode, grid

DAMPING = 0.01  # of the mean of the diagonal


def gptq(w: Array, gram: Array, bits: int, group: int) -> Codes:
    """W [rows, columns] for inputs whose X^T X, times whatever number, is `gram` [columns, columns].

    Columns in their order; each group's grid goes from the least to the largest of what its weights are when their
    turn comes. A weight whose input never occurs is rounded to nearest. Raises ModelError where no input occurs.
    """
    rows, columns = check_finite(w).shape
    inverse = _inverse(gram)
    left = np.array(w, np.float64)
    codes = np.zeros((rows, -(-columns // group), group), np.uint8)
    scales, zeros = [], []
    for number, begin in enumerate(range(0, columns, group)):
        end = min(begin + group, columns)
        part = left[:, begin:end]  # a view: its later columns change as the earlier ones are rounded
        scale, zero, _ = grid(part.min(axis=1), part.max(axis=1), bits)
        wide, shift = scale.astype(np.float64), zero.astype(np.float64)
        errors = np.empty_like(part)
        for at in range(end - begin):
            column = encode(part[:, at : at + 1], scale, zero, bits)[:, 0]
            codes[:, number, at] = column
            row = inverse[begin + at, begin + at : end]
            errors[:, at] = (part[:, at] - (column - shift) * wide) / row[0]
            part[:, at:] -= np.outer(errors[:, at], row)
        left[:, end:] -= errors @ inverse[begin:end, end:]
        scales.append(scale)
        zeros.append(zero)
    return Codes(codes, np.stack(scales, 1), np.stack(zeros, 1), bits, columns)


def _inverse(gram: Array) -> Array:
    """The upper Cholesky factor of the damped Gram matrix's inverse: row i has the weights of what follows input i."""
    diagonal = np.diag(gram)
    if not np.isfinite(gram).all():
        raise ModelError("the calibration's activations are not finite; use another text")
    if not diagonal.any():
        raise ModelError("no input of it occurs in the calibration: use more text, or another method")
    damped = gram + np.diag(np.where(diagonal == 0, 1.0, 0.0) + DAMPING * diagonal.mean())
    factor: Array = np.linalg.cholesky(np.linalg.inv(damped)).T
    return factor
