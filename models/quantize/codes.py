"""A matrix as codes in groups, each with a float16 scale and zero, and rounding to nearest on such a grid.

(code - zero) * scale is equation 3; some codes have an offset instead, code * scale + offset. The codes are always
those of scale and zero as they are stored, in float16.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshrt.models.errors import ModelError
from meshrt.records import dataclass

Array = NDArray[Any]

LEAST_SCALE = float(np.finfo(np.float16).tiny)  # 6.1e-5; the published solver has 1 / 2e4, a subnormal number


@dataclass(frozen=True)
class Codes:
    """A matrix [rows, columns]: `codes` of `bits` bits [rows, groups, group], `scale`, `zero`, `offset` [rows, groups].

    The last group of a row may have more codes than the row has columns left: those mean nothing.
    """

    codes: NDArray[np.uint8]
    scale: NDArray[np.float16]
    zero: NDArray[np.float16] | None  # None: symmetric, half of the codes' number, unless there is an offset
    bits: int
    columns: int
    offset: NDArray[np.float16] | None = None

    def dequantized(self) -> NDArray[np.float64]:
        """[rows, columns]. Nothing is rounded in float64."""
        scale = self.scale[..., None].astype(np.float64)
        if self.offset is None:
            zero = 2.0 ** (self.bits - 1) if self.zero is None else self.zero[..., None].astype(np.float64)
            whole = (self.codes - zero) * scale
        else:
            whole = self.codes * scale + self.offset[..., None].astype(np.float64)
        return np.ascontiguousarray(whole.reshape(len(whole), -1)[:, : self.columns])

    def offsets(self) -> NDArray[np.float32]:
        """What is added to code * scale, [rows, groups]: the offset, or -zero * scale, which float32 has exactly."""
        if self.offset is not None:
            return self.offset.astype(np.float32)
        zero = np.float32(2 ** (self.bits - 1)) if self.zero is None else self.zero.astype(np.float32)
        offsets: NDArray[np.float32] = -zero * self.scale.astype(np.float32)
        return offsets


def in_groups(w: Array, group: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """[rows, columns] as [rows, groups, group], and which of [groups, group] are weights.

    A last group that is not full is filled up with its last weight, which moves neither its least nor its largest.
    """
    rows, columns = w.shape
    padded = np.pad(np.asarray(w, np.float64), ((0, 0), (0, -columns % group)), "edge")
    real = (np.arange(padded.shape[1]) < columns).reshape(-1, group)
    return padded.reshape(rows, -1, group), real


def grid(
    low: Array, high: Array, bits: int
) -> tuple[NDArray[np.float16], NDArray[np.float16], NDArray[np.bool_]]:  # fmt: skip
    """Scale and zero of grids from `low` to `high`, and which of them are flat. Raises ModelError beyond float16.

    A flat group is constant, or so far from zero that float16 has no number for its zero: it is kept as scale 1 and
    zero -value (the published 7 / 0 would become a zero that is infinite in float16 from 3.3 on).
    """
    with np.errstate(over="ignore"):
        scale = np.maximum((high - low) / (2**bits - 1), LEAST_SCALE).astype(np.float16)
        zero = (-low / scale.astype(np.float64)).astype(np.float16)
        flat = (low == high) | ~np.isfinite(zero)
        scale = np.where(flat, np.float16(1), scale)
        zero = np.where(flat, -((low + high) / 2).astype(np.float16), zero)
    if not (np.isfinite(scale).all() and np.isfinite(zero).all()):
        raise ModelError(f"weights from {np.min(low):g} to {np.max(high):g}: their scale is not finite in float16")
    return scale, zero, flat


def encode(padded: Array, scale: Array, zero: Array | float, bits: int) -> NDArray[np.uint8]:
    """Equation 2: the nearest codes of weights in groups. scale and zero have their shape without the last axis."""
    steps = padded / np.asarray(scale, np.float64)[..., None] + np.asarray(zero, np.float64)[..., None]
    return np.clip(np.rint(steps), 0, 2**bits - 1).astype(np.uint8)


def nearest(w: Array, bits: int, group: int) -> Codes:
    """Round to nearest (RTN): of each group, grids from its least to its largest weight."""
    padded, _ = in_groups(check_finite(w), group)
    scale, zero, _ = grid(padded.min(axis=-1), padded.max(axis=-1), bits)
    return Codes(encode(padded, scale, zero, bits), scale, zero, bits, w.shape[1])


def symmetric(w: Array, bits: int, group: int) -> Codes:
    """Equation 15: code 2^(bits - 1) is 0, and 2^bits - 1 steps go from -max to max of each group's |w|.

    The largest |w|, not the largest w as printed: that is 0 or less where no weight is positive. Codes go half a step
    further down than up, so of 3 bits +max comes back as 6/7 of it and -max as 8/7.
    """
    padded, _ = in_groups(check_finite(w), group)
    most = np.abs(padded).max(axis=-1)
    with np.errstate(over="ignore"):
        scale = np.maximum(2 * most / (2**bits - 1), LEAST_SCALE).astype(np.float16)
    if not np.isfinite(scale).all():
        raise ModelError(f"weights of up to {most.max():g}: their scale is not finite in float16")
    return Codes(encode(padded, scale, 2.0 ** (bits - 1), bits), scale, None, bits, w.shape[1])


def check_finite(w: Array) -> Array:
    """The weights; ModelError if one of them is NaN or infinite."""
    if not np.isfinite(w).all():
        raise ModelError("has weights that are NaN or infinite; they cannot be quantized")
    return w
