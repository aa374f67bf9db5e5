"""Four bits a weight for products of whole numbers (W4A8), as MNN's converter makes them: code * scale + offset.

The scale is rounded to float16 first, and codes are those of scale and offset as they are stored, in float32. Where a
group lies around 0, `symmetric`, there is no offset: 15 of the 16 codes, -7 to 7 about 8, from -max to max.
"""

import numpy as np

from meshrt.models.errors import ModelError
from meshrt.models.quantize.codes import LEAST_SCALE, Array, Codes, check_finite


def w4a8(w: Array, group: int, symmetric: bool, bits: int = 4) -> Codes:
    """W [rows, columns] in groups along the columns; a last one that is not full stands for its own weights alone.

    A group of one value has scale 1 and is kept exactly, if float16 has it. ModelError where float16 has no number for
    a scale: above 65504, or so small that it would lose digits.
    """
    rows, columns = w.shape
    padded = np.pad(check_finite(w).astype(np.float32), ((0, 0), (0, -columns % group)), "edge")
    parts, most = padded.reshape(rows, -1, group), 2**bits - 1
    low, high = parts.min(axis=-1), parts.max(axis=-1)
    if symmetric:
        half = 2 ** (bits - 1)
        scale = _half(np.maximum(-low, high) / np.float32(half - 1))
        codes = np.clip(np.rint(parts / scale.astype(np.float32)[..., None]), 1 - half, half - 1) + half
        return Codes(codes.astype(np.uint8), scale, None, bits, columns)
    scale = _half((high - low) / np.float32(most))
    with np.errstate(over="ignore"):
        offset = low.astype(np.float16)
    if not np.isfinite(offset).all():
        raise ModelError(f"weights down to {low.min():g}: float16 has no such offset")
    steps = (parts - offset.astype(np.float32)[..., None]) / scale.astype(np.float32)[..., None]
    return Codes(np.clip(np.rint(steps), 0, most).astype(np.uint8), scale, None, bits, columns, offset)


def _half(scale: Array) -> np.ndarray:
    """Scales in float16, 1 where they are 0. ModelError."""
    with np.errstate(over="ignore"):
        stored = np.where(scale == 0, 1, scale).astype(np.float16)
    bad = (stored < LEAST_SCALE) | ~np.isfinite(stored)
    if bad.any():
        raise ModelError(
            f"a group's scale is {scale[bad].flat[0]:g}; float16 has {LEAST_SCALE:g} to 65504, so it cannot be kept:"
            " --method rtn and hqq take any range"
        )
    return stored
