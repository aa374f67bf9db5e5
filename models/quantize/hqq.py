"""HQQ: half-quadratic quantization (2023), as MiLo's first subproblem uses it (section 3.2.2).

The scale stays that of the least and largest weight; the zero moves, so that a norm with p < 1 of the errors falls.

On weights of a language model the norm does nothing. The shrinkage (equation 7) is 0 for every |x| below
beta^(-1 / (2 - p)), 0.170 in the first step and 0.147 in the 20th, and errors of weights with a spread of 0.02 are far
below: M of equation 6 is 0, and equation 8 is the mean of W_q - W / s, plain least squares. p, beta and kappa then
change no bit; from a spread of 0.1 on they do. They are kept as published.
"""

import numpy as np

from meshrt.models.quantize.codes import Array, Codes, check_finite, encode, grid, in_groups

P, BETA, KAPPA, STEPS = 0.7, 10.0, 1.01, 20


def hqq(w: Array, bits: int, group: int, p: float = P, beta: float = BETA, kappa: float = KAPPA) -> Codes:
    """W [rows, columns] in groups along the columns, on grids whose zero follows equations 6, 8 and 9.

    At most STEPS steps; it stops when the mean of |W - W_dq| over the matrix falls no more. Flat groups (codes.grid)
    keep their zero. Raises ModelError.
    """
    padded, real = in_groups(check_finite(w), group)
    first, second, flat = grid(padded.min(axis=-1), padded.max(axis=-1), bits)
    scale, zero = (part.astype(np.float64)[..., None] for part in (first, second))
    count, most, best = real.sum(axis=-1, keepdims=True), 2**bits - 1, np.inf
    for _ in range(STEPS):
        codes = np.clip(np.rint(padded / scale + zero), 0, most)
        error = padded - (codes - zero) * scale
        moved = np.sum(np.where(real, codes - (padded - shrink(error, p, beta)) / scale, 0), -1, keepdims=True) / count
        zero = np.where(flat[..., None], zero, moved)
        beta *= kappa
        now = float(np.mean(np.abs(error[:, real])))
        if now >= best:
            break
        best = now
    stored = zero[..., 0].astype(np.float16)
    return Codes(encode(padded, first, stored, bits), first, stored, bits, w.shape[1])


def shrink(x: Array, p: float, beta: float) -> Array:
    """Equation 7: sign(x) relu(|x| - |x|^(p - 1) / beta), 0 where x is."""
    size = np.abs(x)
    if np.max(size, initial=0) < 0.999 * beta ** (-1 / (2 - p)):  # so is all of it; powers take longer than the rest
        return np.zeros_like(x)
    with np.errstate(divide="ignore"):
        kept: Array = np.sign(x) * np.maximum(size - size ** (p - 1) / beta, 0)
    return kept
