"""Matrices in a few bits as a GPU holds them: packed codes, a scale and a zero a group, and thin factors beside them.

32 codes of any number of bits are whole bytes (three words of 3 bits): a unit. A part of a matrix is the units that it
touches, and the scale and zero of every group that these touch; that is what counts as memory, and what kernels read.
The bits are those of the folders (models/quantize/packing.py), which the tests compare. Kernels rebuild a block of rows
at a time in scratch of their own, so that a recorded one allocates nothing.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import numpy as np

from meshrt.gpu.gpu import Gpu
from meshrt.records import dataclass

UNIT = 32
BLOCK = 1 << 17  # numbers that are rebuilt together

ProductWay = Literal["fused", "apart", "unfused"]  # how a product is computed (operations.py, coded_matmuls)


@dataclass(frozen=True)
class GpuCodes:
    """A matrix [rows, columns] that is (code - zero) * scale, or code * scale + zero where these are `offsets`.

    Lines are its rows, or all of them one after the other. Of a line there are codes uint8 [lines, bytes], from number
    `begin` of its first group on, and scale and zero float16 [lines, groups]; zero None: half of the codes' number. Its
    numbers are those from number `first` on.
    """

    codes: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    bits: int
    group: int
    begin: int
    first: int
    rows: int
    columns: int
    offsets: bool = False

    @property
    def nbytes(self) -> int:
        zeros = 0 if self.zero is None else self.zero.size
        return int(self.codes.size + 2 * (self.scale.size + zeros))

    @property
    def flat(self) -> bool:
        """Is all of it one line?"""
        return len(self.codes) != self.rows


GpuFactor: TypeAlias = np.ndarray | tuple[GpuCodes, ...]  # float16 in value, or codes of parts on top of each other


@dataclass(frozen=True)
class Thin:
    """U [rows, rank] V [rank, columns], which is added to these rows of a matrix."""

    rows: slice
    u: GpuFactor
    v: GpuFactor
    rank: int

    @property
    def nbytes(self) -> int:
        return factor_bytes(self.u) + factor_bytes(self.v)


@dataclass(frozen=True)
class GpuMatrix:
    """W^T [out, in] on a GPU: codes, and compensators of some of its rows. `way`: how products with it are computed."""

    codes: GpuCodes
    thin: tuple[Thin, ...]
    way: ProductWay

    @property
    def shape(self) -> tuple[int, int]:
        """As of W: what goes in, what comes out."""
        return self.codes.columns, self.codes.rows


def factor_bytes(factor: GpuFactor) -> int:
    """Of its codes, scales and zeros, or of its numbers in 16 bits."""
    return 2 * factor.size if isinstance(factor, np.ndarray) else sum(part.nbytes for part in factor)


def side_by_side(gpu: Gpu, parts: Sequence[GpuMatrix]) -> GpuMatrix:
    """Matrices with one input as one; they are the same memory."""
    ends = np.cumsum([part.codes.rows for part in parts]).tolist()
    codes = parts[0].codes
    zeros = [part.codes.zero for part in parts if part.codes.zero is not None]

    def on_top(arrays: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(arrays) if gpu.payload else gpu.shaped((ends[-1], arrays[0].shape[1]), arrays[0].dtype)

    whole = GpuCodes(
        on_top([part.codes.codes for part in parts]), on_top([part.codes.scale for part in parts]),
        on_top(zeros) if zeros else None, codes.bits, codes.group, codes.begin, codes.first, ends[-1], codes.columns,
        codes.offsets,
    )  # fmt: skip
    thin = [
        Thin(slice(end - part.codes.rows + each.rows.start, end - part.codes.rows + each.rows.stop), each.u, each.v,
             each.rank)
        for part, end in zip(parts, ends, strict=True) for each in part.thin
    ]  # fmt: skip
    return GpuMatrix(whole, tuple(thin), parts[0].way)


@dataclass(frozen=True)
class Rebuilt:
    """Room for some lines of a matrix as `numbers` [lines, groups, group]; `wide`, of the same shape, is for scales and
    zeros, `words` and `more` for unpacking.
    """

    source: GpuCodes
    numbers: np.ndarray
    wide: np.ndarray
    words: np.ndarray
    more: np.ndarray

    def lines(self, begin: int, end: int) -> np.ndarray:
        """These lines' numbers, float32, until the next call."""
        codes, count = self.source, end - begin
        numbers, wide = self.numbers[:count], self.wide[:count]
        whole = numbers.reshape(count, -1)
        stop = codes.begin + codes.codes.shape[1] * 8 // codes.bits
        whole[:, : codes.begin] = 0
        whole[:, stop:] = 0
        self._unpack(codes.codes[begin:end], whole[:, codes.begin : stop])
        if codes.zero is None:
            np.subtract(numbers, float(1 << codes.bits - 1), numbers)
        elif not codes.offsets:
            np.copyto(wide, codes.zero[begin:end, :, None])
            np.subtract(numbers, wide, numbers)
        np.copyto(wide, codes.scale[begin:end, :, None])
        np.multiply(numbers, wide, numbers)
        if codes.zero is not None and codes.offsets:
            np.copyto(wide, codes.zero[begin:end, :, None])
            np.add(numbers, wide, numbers)
        return whole

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """All of the matrix: rows, and their numbers [rows, columns]."""
        codes = self.source
        if codes.flat:
            line = self.lines(0, 1)[0, codes.first : codes.first + codes.rows * codes.columns]
            yield slice(0, codes.rows), line.reshape(codes.rows, codes.columns)
            return
        for begin in range(0, codes.rows, len(self.numbers)):
            end = min(begin + len(self.numbers), codes.rows)
            yield slice(begin, end), self.lines(begin, end)[:, codes.first : codes.first + codes.columns]

    def _unpack(self, packed: np.ndarray, target: np.ndarray) -> None:
        """Codes of some lines, uint8 [count, bytes], as numbers [count, numbers]; the layout is that of packing.py."""
        words, more = self.words[: len(packed)], self.more[: len(packed)]
        if self.source.bits == 3:
            _unpack_threes(packed, words, more, target)
        else:
            _unpack_eights(packed, self.source.bits, words, more, target)


def _unpack_eights(packed: np.ndarray, bits: int, words: np.ndarray, more: np.ndarray, target: np.ndarray) -> None:
    """8 codes in `bits` bytes, the first in the lowest bits. `words`, `more`: room, uint64 [count, eights]."""
    bytes_of = words.view(np.uint8).reshape(*words.shape, 8)
    words.fill(0)
    np.copyto(bytes_of[..., :bits], packed.reshape(*words.shape, bits))
    eights = target.reshape(*words.shape, 8)
    for number in range(8):
        np.right_shift(words, bits * number, more)
        np.bitwise_and(more, (1 << bits) - 1, more)
        np.copyto(eights[..., number], more)


def _unpack_threes(packed: np.ndarray, words: np.ndarray, more: np.ndarray, target: np.ndarray) -> None:
    """32 codes of 3 bits in three words of two halves. `words`, `more`: room, uint16 [count, units, 3, 2].

    The low 12 bits of each half are four codes; the upper 4 of the three words are together four more for that half.
    """
    halves = packed.view("<u2").reshape(words.shape)
    fours = target.reshape(len(packed), -1, 4, 2, 4)  # [.., word and what is left over, half, code]
    for number in range(4):
        np.right_shift(halves, 3 * number, words)
        np.bitwise_and(words, 7, words)
        np.copyto(fours[:, :, :3, :, number], words)
    np.right_shift(halves, 12, words)
    rest, part = more[:, :, 0], more[:, :, 1]  # [count, units, 2]
    np.left_shift(words[:, :, 1], 4, rest)
    np.bitwise_or(rest, words[:, :, 0], rest)
    np.left_shift(words[:, :, 2], 8, part)
    np.bitwise_or(rest, part, rest)
    for number in range(4):
        np.right_shift(rest, 3 * number, part)
        np.bitwise_and(part, 7, part)
        np.copyto(fours[:, :, 3, :, number], part)


def room_for(codes: GpuCodes) -> Rebuilt:
    """For the lines of a block, or all of one line."""
    groups, units = codes.scale.shape[1], codes.codes.shape[1] // (4 * codes.bits)
    lines = min(len(codes.codes), max(1, BLOCK // (groups * codes.group)))
    numbers = np.zeros((lines, groups, codes.group), np.float32)
    shape, kind = ((lines, units, 3, 2), "<u2") if codes.bits == 3 else ((lines, 4 * units), "<u8")
    return Rebuilt(codes, numbers, np.empty_like(numbers), np.empty(shape, kind), np.empty(shape, kind))


@dataclass(frozen=True)
class Factored:
    """Room for a factor as numbers, float32 [rows, columns], made of parts on top of each other."""

    numbers: np.ndarray
    parts: tuple[Rebuilt, ...]

    def whole(self) -> np.ndarray:
        """[rows, columns], float32, until the next call."""
        at = 0
        for part in self.parts:
            for rows, block in part.blocks():
                np.copyto(self.numbers[at + rows.start : at + rows.stop], block)
            at += part.source.rows
        return self.numbers


def room_for_factor(factor: GpuFactor) -> Factored:
    if isinstance(factor, np.ndarray):
        return Factored(factor, ())
    rows, columns = sum(part.rows for part in factor), factor[0].columns
    return Factored(np.empty((rows, columns), np.float32), tuple(map(room_for, factor)))
