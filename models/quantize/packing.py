"""Codes of 2 to 8 bits in bytes, none of them wasted.

3 bits: 32 values e0..e31 in three 32-bit words, as MiLo's kernel wants them (section 3.3, figure 6a). In half h of
word i (h = 0: bits 0-15) the low 12 bits hold e(8i + 4h) .. e(8i + 4h + 3), and the upper 4 bits of the three words'
halves h, put together, are 12 bits for e(24 + 4h) .. e(24 + 4h + 3). Other bits: 8 values in `bits` bytes, the first
one in the lowest bits. Both little-endian, on any machine. Four bits are so two values a byte, low one first.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
AT_ONCE = 1 << 13  # words: what is between bytes and codes takes eight times as much memory as these

_FOUR = np.array([0, 3, 6, 9], np.uint16)  # where four values of 3 bits lie in 12
_REST = np.array([0, 4, 8], np.uint16)  # and there, what the three words have of it


def pack(codes: NDArray[Any], bits: int) -> Bytes:
    """Codes below 2^bits, [.., n], to bytes [.., n * bits / 8]. n is a multiple of 32 for 3 bits, of 8 for others."""
    codes = np.ascontiguousarray(codes, np.uint8)
    shape = *codes.shape[:-1], codes.shape[-1] * bits // 8
    if bits == 8:
        return codes
    if bits != 3:
        eights = codes.reshape(-1, 8).astype("<u8")
        words: NDArray[np.uint64] = np.bitwise_or.reduce(eights << _shifts(bits), axis=1)
        return words.view(np.uint8).reshape(-1, 8)[:, :bits].reshape(shape)
    fours = codes.reshape(-1, 4, 2, 4).astype("<u2")  # quarter (the last is what is left over), half, value
    twelve = np.bitwise_or.reduce(fours << _FOUR, axis=3)  # [n, 4, 2]
    halves: NDArray[np.uint16] = twelve[:, :3] | ((twelve[:, 3:] >> _REST[:, None]) & 15) << 12
    return halves.astype("<u2").view(np.uint8).reshape(shape)


def unpack(packed: Bytes, bits: int) -> Bytes:
    """Bytes [.., n * bits / 8] to codes [.., n]."""
    packed = np.ascontiguousarray(packed)
    shape = *packed.shape[:-1], packed.shape[-1] * 8 // bits
    if bits == 8:
        return packed
    size = 12 if bits == 3 else bits
    words = packed.reshape(-1, size)
    codes = np.empty((len(words), size * 8 // bits), np.uint8)
    for low in range(0, len(words), AT_ONCE):
        part = words[low : low + AT_ONCE]
        codes[low : low + AT_ONCE] = _threes(part) if bits == 3 else _eights(part, bits)
    return codes.reshape(shape)


def _eights(packed: Bytes, bits: int) -> Bytes:
    words = np.zeros((len(packed), 8), np.uint8)
    words[:, :bits] = packed
    codes: Bytes = (words.view("<u8") >> _shifts(bits)).astype(np.uint8) & np.uint8(2**bits - 1)
    return codes


def _threes(packed: Bytes) -> Bytes:
    halves = packed.reshape(-1).view("<u2").reshape(-1, 3, 2)
    twelve = np.empty((len(halves), 4, 2), np.uint16)
    twelve[:, :3] = halves
    twelve[:, 3] = np.bitwise_or.reduce(halves >> 12 << _REST[:, None], axis=1)
    # Of the upper bits of the first three nothing is left after & 7.
    return ((twelve[..., None] >> _FOUR) & 7).astype(np.uint8).reshape(len(packed), 32)


def _shifts(bits: int) -> NDArray[np.uint64]:
    return np.arange(0, 8 * bits, bits).astype("<u8")
