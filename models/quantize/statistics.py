"""What is told of a matrix, and what rank policies go by: how heavy its tails are, and how flat its residual is."""

import numpy as np

from meshrt.models.quantize.codes import Array

TAU = 0.5  # of Table 2


def kurtosis(w: Array) -> float:
    """The excess kurtosis of all weights, 0 for a normal distribution and for a constant matrix.

    Section 3.1.1 prints the fourth moment without the - 3, but Table 2 has negative values: it is the excess.
    """
    squares = (np.asarray(w, np.float64) - np.mean(w, dtype=np.float64)) ** 2
    variance = float(np.mean(squares))
    fourth = float(np.mean(squares**2))  # NumPy takes ten times as long for x**4
    return fourth / variance**2 - 3 if variance**2 > 0 else 0.0


def residual_rank(residual: Array) -> tuple[int, int]:
    """Of W - W_dq, how many singular values are smaller than TAU of the largest, and how many are not.

    The first is Table 2's "rank", as printed; it is the larger, the faster the singular values fall, so the second is
    closer to what the word means. Both add up to the shorter side.
    """
    wide = np.asarray(residual, np.float64)
    squares = np.linalg.eigvalsh(wide @ wide.T if len(wide) <= wide.shape[1] else wide.T @ wide)
    small = int(np.sum(squares < TAU**2 * squares[-1]))
    return small, len(squares) - small
