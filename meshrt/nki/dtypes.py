"""Dtypes under NKI's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.errors import UsageError, nearest
from meshrt.neuron.dtypes import DTYPES, WIDER, float32

NAMES = {**DTYPES, **WIDER, "tfloat32": float32, "bool_": WIDER["bool"]}


def tile_dtype(dtype: Any, otherwise: Any = None) -> np.dtype[Any]:
    """A tile's dtype from what a kernel says. UsageError."""
    if dtype is None:
        dtype = otherwise
    if isinstance(dtype, np.dtype) and dtype.name in NAMES:
        return dtype
    if hasattr(dtype, "settle"):  # NumPy would take the tile's own
        raise UsageError("a tile stands where a dtype is wanted: give the operands of an operator of two, then dtype=")
    try:
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
        return NAMES[name]
    except (KeyError, TypeError):
        shown = getattr(dtype, "name", dtype)
        choices = "there are " + ", ".join(NAMES)
        raise UsageError(f"no tile of {shown}: {nearest(str(shown), NAMES, choices)}") from None


def promoted(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of what several are combined to: the same, a float before whole numbers, float32 for two floats."""
    kinds = set(dtypes)
    if len(kinds) == 1:
        return dtypes[0]
    floats = [dtype for dtype in kinds if dtype.kind not in "iub"]
    if len(floats) == 1:
        return floats[0]
    if floats:
        return max(floats, key=lambda dtype: dtype.itemsize) if len({d.itemsize for d in floats}) > 1 else float32
    return np.result_type(*kinds)
