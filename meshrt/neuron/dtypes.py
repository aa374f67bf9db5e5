"""The dtypes of tiles."""

from typing import Any

import ml_dtypes
import numpy as np

from meshrt.errors import UsageError

float32 = np.dtype(np.float32)
float16 = np.dtype(np.float16)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
uint8 = np.dtype(np.uint8)
DTYPES: dict[str, np.dtype[Any]] = {"float32": float32, "float16": float16, "bfloat16": bfloat16, "uint8": uint8}


def known(dtype: Any) -> np.dtype[Any]:
    """A dtype by itself or by name. UsageError."""
    if dtype is float32 or dtype is bfloat16:  # as nearly always
        return dtype
    try:
        return DTYPES[dtype if isinstance(dtype, str) else np.dtype(dtype).name]
    except (KeyError, TypeError) as error:
        raise UsageError(f"tiles are {', '.join(DTYPES)}, not {dtype}") from error


def rounded(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """float32 numbers that `dtype` can hold."""
    if dtype == float32:
        return values if values.dtype == float32 else values.astype(float32)
    if dtype == uint8:  # to the nearest, and no further than its ends
        return np.asarray(np.clip(np.rint(values), 0, 255), float32)
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        return values.astype(dtype).astype(float32)
