"""The dtypes of tiles."""

from typing import Any

import ml_dtypes
import numpy as np

from meshrt.errors import UsageError

float32 = np.dtype(np.float32)
float16 = np.dtype(np.float16)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
uint8 = np.dtype(np.uint8)
int8 = np.dtype(np.int8)
DTYPES: dict[str, np.dtype[Any]] = {
    "float32": float32, "float16": float16, "bfloat16": bfloat16, "uint8": uint8, "int8": int8,
}  # fmt: skip
# What tiles of `meshrt.nki` can be beyond these: 8-bit floats, whole numbers, truth values.
WIDER: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "float8_e4m3": ml_dtypes.float8_e4m3, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
        "float8_e5m2": ml_dtypes.float8_e5m2, "int16": np.int16,
        "uint16": np.uint16, "int32": np.int32, "uint32": np.uint32, "bool": np.bool_,
    }.items()
}  # fmt: skip


def known(dtype: Any) -> np.dtype[Any]:
    """A dtype by itself or by name. UsageError."""
    if dtype is float32 or dtype is float16 or dtype is bfloat16:  # as nearly always; NumPy makes a name anew each time
        return dtype
    try:
        return DTYPES[dtype if isinstance(dtype, str) else np.dtype(dtype).name]
    except (KeyError, TypeError) as error:
        raise UsageError(f"tiles are {', '.join(DTYPES)}, not {dtype}") from error


def held(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What a store keeps numbers of this dtype as: floats of any width and uint8 as float32, others as they are."""
    return dtype if dtype.kind in "iub" and dtype != uint8 else float32


def rounded(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Numbers that `dtype` can hold, as a store keeps them; whole numbers to the nearest, saturated."""
    if dtype == float32:
        return values if values.dtype == float32 else values.astype(float32)
    if dtype == uint8:  # to the nearest, and no further than its ends
        return np.asarray(np.clip(np.rint(values), 0, 255), float32)
    if dtype.kind in "iu":
        return values if values.dtype == dtype else _whole(values, dtype)
    if dtype.kind == "b":
        return values.astype(np.bool_)
    with np.errstate(over="ignore"):  # what is too large becomes infinite
        return values.astype(dtype).astype(float32)


def to_raw(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """What a store keeps, as numbers of `dtype` itself; an 8-bit NaN that `from_raw` has made gets its bits back."""
    raw = values.astype(dtype)
    if dtype.itemsize == 1 and dtype.kind not in "iub":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        kept = np.isnan(values) & (bits & _KEPT != 0)
        raw.view(np.uint8)[kept] = (bits[kept] & 0xFF).astype(np.uint8)
    return raw


def from_raw(raw: np.ndarray) -> np.ndarray:
    """Numbers as a store keeps them. 8-bit floats have several NaN: which one it was stays in the bits of the NaN."""
    values = raw.astype(held(raw.dtype))
    if raw.itemsize == 1 and raw.dtype.kind not in "iub":
        lost = np.isnan(values)
        values.view(np.uint32)[lost] = 0x7FC00000 | _KEPT | raw.view(np.uint8)[lost].astype(np.uint32)
    return values


_KEPT = 0x100


def _whole(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    limits = np.iinfo(dtype)
    exact = values.astype(np.int64) if values.dtype.kind in "iub" else np.rint(np.nan_to_num(values.astype(np.float64)))
    whole: np.ndarray = np.clip(exact, limits.min, limits.max).astype(dtype)
    return whole
