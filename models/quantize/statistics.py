"""What rank policies go by: how heavy the tails of a matrix are."""

import numpy as np

from meshrt.models.quantize.codes import Array


def kurtosis(w: Array) -> float:
    """The excess kurtosis of all weights, 0 for a normal distribution and for a constant matrix.

    Section 3.1.1 prints the fourth moment without the - 3, but Table 2 has negative values: it is the excess.
    """
    centred = np.asarray(w, np.float64) - np.mean(w, dtype=np.float64)
    variance = float(np.mean(centred**2))
    return float(np.mean(centred**4)) / variance**2 - 3 if variance**2 > 0 else 0.0
