"""Codes in bytes: nothing lost, nothing wasted, and three bits where MiLo's kernel looks for them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrt.models.quantize.packing import pack, unpack


@given(st.data())
def test_what_is_packed_comes_back_in_exactly_its_bits(data: st.DataObject) -> None:
    bits = data.draw(st.integers(2, 8))
    shape = [*data.draw(st.lists(st.integers(0, 3), max_size=2)), 32 * data.draw(st.integers(0, 4))]
    seed = data.draw(st.integers(0, 2**32 - 1))
    codes = np.random.default_rng(seed).integers(0, 2**bits, shape, dtype=np.uint8)
    packed = pack(codes, bits)
    assert packed.dtype == np.uint8 and packed.shape == (*shape[:-1], shape[-1] * bits // 8)
    np.testing.assert_array_equal(unpack(packed, bits), codes)


@pytest.mark.parametrize("bits", range(2, 9))
def test_every_value_at_every_place(bits: int) -> None:
    """One value alone: it comes back, and sets its own bits only."""
    seen = 0
    for place in range(32):
        codes = np.zeros((2**bits, 32), np.uint8)
        codes[:, place] = np.arange(2**bits)
        packed = pack(codes, bits)
        np.testing.assert_array_equal(unpack(packed, bits), codes)
        full = int.from_bytes(packed[-1].tobytes(), "little")
        assert full.bit_count() == bits and full & seen == 0
        seen |= full
    assert seen == 2 ** (32 * bits) - 1


def test_three_bits_lie_as_in_figure_6() -> None:
    """32 values in three words, bit by bit: the list is the kernel's."""
    places = [
        [(i, 16 * half + 3 * k + bit) for bit in range(3)] for i in range(3) for half in (0, 1) for k in range(4)
    ]  # e0 .. e23: e(8i) .. e(8i + 3) at bits 0, 3, 6, 9 of word i, e(8i + 4) .. e(8i + 7) at 16, 19, 22, 25
    for high in (0, 16):
        places += [
            [(0, high + 12), (0, high + 13), (0, high + 14)],  # e24, and e28 in the upper half
            [(0, high + 15), (1, high + 12), (1, high + 13)],
            [(1, high + 14), (1, high + 15), (2, high + 12)],
            [(2, high + 13), (2, high + 14), (2, high + 15)],
        ]
    codes = np.random.default_rng(0).integers(0, 8, (50, 32))
    for row, packed in zip(codes, pack(codes, 3), strict=True):
        words = [int.from_bytes(packed[at : at + 4].tobytes(), "little") for at in (0, 4, 8)]
        unpacked = [sum((words[word] >> at & 1) << bit for bit, (word, at) in enumerate(place)) for place in places]
        assert unpacked == list(row)


@pytest.mark.parametrize("bits", [2, 4, 5, 6, 7, 8])
def test_other_bits_are_one_little_endian_number(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, 32)
    number = sum(int(code) << bits * at for at, code in enumerate(codes))
    assert pack(codes, bits).tobytes() == number.to_bytes(4 * bits, "little")
