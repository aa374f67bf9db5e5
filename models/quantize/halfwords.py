"""How MiLo's kernel makes float16 of codes of 3 bits (section 3.3), instruction by instruction: for teaching, and the
oracle of the fused kernel that GPUs have here.

A float16 of exponent bits 0x6400 is 1024 + its mantissa. So one `and` and one `or` make two of them of two codes in
the halves of a word: of (q & 0x00070007) | 0x64006400 each is 1024 + e, of (q & 0x00380038) | 0x64006400 1024 + 8 e.
One operation takes that back, and one more gives the weight: a product with s where codes are symmetric, else a fused
multiply and add with s and z' = -z s. As z' is rounded to float16, that is not (e - z) s to the bit.
"""

import numpy as np
from numpy.typing import NDArray

Half = NDArray[np.float16]
LOW, HIGH, EXPONENT = 0x00070007, 0x00380038, 0x64006400
REST = 0xF000F000  # of each of three words, 4 of the 12 bits with the last eight codes


def codes_as_halves(packed: NDArray[np.uint8], symmetric: bool = False) -> Half:
    """Bytes [.., n * 12] of packing.py, three words to 32 codes, to the codes [.., n * 32] in float16, or code - 4."""
    words = packed.reshape(*packed.shape[:-1], -1, 3, 4).view("<u4")[..., 0]
    first = words & REST
    last = first[..., 0] >> 12 | first[..., 1] >> 8 | first[..., 2] >> 4
    quarters = np.concatenate([words, last[..., None]], axis=-1)  # [.., n, 4], of 8 codes each
    codes = np.empty((*quarters.shape, 2, 4), np.float16)  # half of the word, place in it
    for pair in range(2):
        shifted = quarters >> (6 * pair)
        low, high = ((shifted & mask | EXPONENT).astype("<u4") for mask in (LOW, HIGH))
        codes[..., 2 * pair] = _two(low) - np.float16(1028 if symmetric else 1024)
        codes[..., 2 * pair + 1] = _fma(_two(high), np.float16(1 / 8), np.float16(-132 if symmetric else -128))
    return codes.reshape(*packed.shape[:-1], -1)


def weights_as_halves(packed: NDArray[np.uint8], scale: Half, zero: Half | None) -> Half:
    """Groups [rows, groups, bytes] and their scale and zero [rows, groups] to weights [rows, groups, group]."""
    codes = codes_as_halves(packed, zero is None)
    if zero is None:
        return codes * scale[..., None]
    return _fma(codes, scale[..., None], (-zero * scale)[..., None])


def _two(words: NDArray[np.uint32]) -> Half:
    """The two float16 in each word, that of the lower bits first: [.., 2]."""
    return words[..., None].view("<f2")


def _fma(a: Half, b: Half | np.float16, c: Half | np.float16) -> Half:
    """a b + c, rounded once: in float64 nothing of it is."""
    rounded: Half = (a.astype(np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64)).astype(np.float16)
    return rounded
