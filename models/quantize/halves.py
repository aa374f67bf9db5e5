"""Scales as float16, in which all codes here have theirs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshrt.models.errors import ModelError


def halves(name: str, numbers: NDArray[Any]) -> NDArray[np.float16]:
    """The same numbers. ModelError where one would change by more than the rounding of a normal float16."""
    wide = numbers.astype(np.float64)
    with np.errstate(over="ignore"):
        stored: NDArray[np.float16] = wide.astype(np.float16)
    if not np.isfinite(wide).all():
        raise ModelError(f"{name} has scales that are NaN or infinite")
    bad = np.abs(stored.astype(np.float64) - wide) > np.abs(wide) * 2.0**-11
    if bad.any():
        raise ModelError(f"{name} has a scale of {wide[bad].flat[0]:g}, which float16 cannot keep")
    return stored
