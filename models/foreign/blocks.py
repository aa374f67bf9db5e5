"""Blocks of GGUF as the codes of a folder, without a rounding: Q4_0, Q4_1 and Q8_0, of 32 weights each.

    Q4_0    float16 d, 16 bytes                 (q - 8) d       symmetric codes of 4 bits
    Q4_1    float16 d, float16 m, 16 bytes      q d + m         codes of 4 bits with an offset
    Q8_0    float16 d, 32 int8                  q d             symmetric codes of 8 bits, q + 128

Of 16 bytes the low halves are weights 0 to 15, the upper ones 16 to 31. The scale d may be negative: Q4_0's is -1/8 of
the weight of largest magnitude.
"""

import numpy as np
from numpy.typing import NDArray

from meshrt.models.errors import ModelError
from meshrt.models.quantize.codes import Codes

SIZE = 32
BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}


def codes_of(kind: str, rows: NDArray[np.uint8]) -> Codes:
    """Rows of bytes [out, bytes] of one of these kinds. Raises ModelError for scales that are NaN or infinite."""
    blocks = rows.reshape(len(rows), -1, SIZE * BITS[kind] // 8 + (4 if kind == "Q4_1" else 2))
    scale = _halves(blocks[..., :2])
    offset = _halves(blocks[..., 2:4]) if kind == "Q4_1" else None
    if kind == "Q8_0":
        codes = blocks[..., 2:] ^ np.uint8(128)
    else:
        packed = blocks[..., 4 if kind == "Q4_1" else 2 :]
        codes = np.concatenate((packed & 15, packed >> 4), axis=-1)
    return Codes(codes, scale, None, BITS[kind], codes.shape[1] * SIZE, offset)


def with_offset(codes: Codes) -> Codes:
    """The same weights with an offset in place of the codes' middle: -8 d, a float16 if it is not too large."""
    if codes.offset is not None:
        return codes
    with np.errstate(over="ignore"):
        offset = codes.scale * np.float16(-(2 ** (codes.bits - 1)))
    if not np.isfinite(offset).all():
        raise ModelError("its scales are too large for offsets in float16")
    return Codes(codes.codes, codes.scale, None, codes.bits, codes.columns, offset)


def _halves(pairs: NDArray[np.uint8]) -> NDArray[np.float16]:
    halves: NDArray[np.float16] = np.ascontiguousarray(pairs).view("<f2")[..., 0]
    if not np.isfinite(halves).all():
        raise ModelError("has scales that are NaN or infinite")
    return halves
