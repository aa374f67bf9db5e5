"""What numbers are kept as (--dtype)."""

from typing import Any

import numpy as np


def storage_type(name: str) -> np.dtype[Any]:
    """What --dtype says, as NumPy's."""
    if name != "bfloat16":
        return np.dtype(name)
    import ml_dtypes  # only bfloat16 needs it, and every rank pays for an import

    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16
