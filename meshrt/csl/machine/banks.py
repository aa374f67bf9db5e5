"""Banks of a core's memory: in which steps of an operation two vectors are in each other's way, by where they lie.

A WSE-2's memory has eight banks, successive words of 16 bits in successive ones, and reads two operands at once unless
their banks are equal modulo four. Said of addresses: both at a multiple of 32 bits, and src0 % 8 == (src1 + 4) % 8 (SDK
documentation, appendix, SIMD mode). These are bytes: in words the second sentence would ask for what the first forbids.
A step where that does not hold takes two cycles; of a step of one word each the first alone decides, as one word has no
32 bits to be at (docs/decisions/018-banks.md).
"""

from __future__ import annotations

from typing import Any

from meshrt.csl.machine.addresses import SIZES
from meshrt.csl.machine.vectors import Mem, offsets

RULED = frozenset({"wse2"})  # elsewhere no rule is known, and COSTS.bank is the mean
PERIOD, APART, ALIGNED, WORD = 8, 4, 4, 2  # bytes


def conflicts(sources: tuple[Any, ...], kind: Any, begin: int, count: int, lanes: int) -> int:
    """Steps, of `lanes` numbers of a type each, in which the first two vectors in memory meet in a bank."""
    vectors = [vector for vector in sources if isinstance(vector, Mem) and vector.extents][:2]
    if len(vectors) < 2 or count <= 0:
        return 0
    numbers = range(begin, begin + count, lanes)
    steps = turns = len(numbers)
    if all(len(vector.strides) == 1 for vector in vectors):
        turns = min(turns, PERIOD // 2)  # all go on by an even number of bytes: then it begins again
    pairs = zip(*(_addresses(vector, SIZES[kind], numbers[:turns]) for vector in vectors), strict=False)
    meet = _words_meet if SIZES[kind] * lanes == WORD else _meet
    return sum((steps - at + turns - 1) // turns for at, (a, b) in enumerate(pairs) if meet(a, b))


def _meet(a: int, b: int) -> bool:
    return a % ALIGNED != 0 or (a - b) % PERIOD != APART


def _words_meet(a: int, b: int) -> bool:
    return (a - b) % PERIOD == 0


def _addresses(vector: Mem, size: int, numbers: range) -> list[int]:
    """Addresses of these of its numbers, as addresses.py has them."""
    first, width = vector.base // size * size, max(vector.nbytes, size)
    if len(vector.strides) == 1:
        return [first + number * vector.strides[0] * width for number in numbers]
    table = offsets(vector.extents, vector.strides)
    return [first + int(table[number]) * width for number in numbers if number < len(table)]
