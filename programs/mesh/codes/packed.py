"""Quantized matrices at the cores: tiles of packed codes, of which a product rebuilds 64 rows at a time.

    W = (codes - zero) * scale + V^T U^T, or codes * scale + offset + V^T U^T
      [Kt, Nt], into a workspace of [64, Nt of all side by side] in the storage
                                              type, as matrices that are not quantized have

U and V of a compensator are unpacked 64 ranks at a time, into a workspace beside it, and multiplied; in float16 they
are multiplied as they lie. `apart`, the compensator is not added to W: x V^T are `rank` numbers more that the product
makes of x, which are summed up with the others, and then each core multiplies them by its own columns of U^T.

What a core does for each number that it rebuilds, as vector instructions (clock.py):

    16 bits   shift; and; or with the bits of 1024 in float16, so that it is 1024 + code; minus 1024, exactly
    32 bits   minus zero, times scale; each on a row, whose numbers have scales of their own. Where zero is the same for
              all, it goes with the 1024. With offsets: times scale, plus offset
    3 bits    the upper bits of three words are eight codes more: for each 16 codes 7 instructions put them together,
              3 shifts, 2 ands, and 2 ors of two vectors
    5, 6, 7   codes lie across two halves of a word: one more shift, and one more or, of two vectors

Where nothing is said of two, an instruction of 16 bits reads one vector: what it shifts by, or masks with, is a number.
Zeros, scales and offsets are vectors of their own.

Rows that fill a tile up have codes 0, which are no zeros: what multiplies them is 0, as all padding of activations is.
Columns that do have scales of 0.

That is after MiLo's kernel (section 3.3), where one instruction does the and and the or.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, TypeAlias

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.products import Made
from meshrt.programs.mesh.codes.tileform import SLICE, Letter, TileForm
from meshrt.programs.mesh.codes.unpacked import compensate, factor, fresh, rebuild
from meshrt.records import dataclass

Instructions = list[tuple[int, int, int, int]]  # of each kind: length, how many, bytes of a number, vectors read


@dataclass(frozen=True)
class Packed:
    """Matrices side by side as tiles of bytes, uint8 [bh, bw, rows, columns, bytes]."""

    data: np.ndarray
    forms: tuple[TileForm, ...]
    dtype: np.dtype[Any]  # of rows that are rebuilt
    apart: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """As of tiles of numbers: [bh, bw, rows, columns, Kt, what comes out]."""
        return (*self.data.shape[:4], self.forms[0].kt, self.width + sum(form.form.rank for form in self.latent))

    @property
    def sum_dtype(self) -> np.dtype[Any]:
        """Of what products are added up in."""
        return np.dtype(np.float32)

    @property
    def width(self) -> int:
        """Columns of all matrices."""
        return sum(form.nt for form in self.forms)

    @property
    def latent(self) -> tuple[TileForm, ...]:
        """The matrices whose compensators have products of their own."""
        return tuple(form for form in self.forms if self.apart and form.form.rank)

    def moved(self, data: np.ndarray) -> "Packed":
        """The same matrices, other tiles of theirs."""
        return replace(self, data=data)

    def multiply(
        self, block: Block, a: np.ndarray, total: np.ndarray, over: int | None = None, cores: np.ndarray | None = None
    ) -> np.ndarray:
        """Add a W to the total, as `block.matmul` does. LimitError where there is no room for the workspace."""
        kt = self.forms[0].kt
        for low in range(0, kt, SLICE):
            x, rows = a[..., low : low + SLICE], min(SLICE, kt - low)
            with block.memory.hold("rows rebuilt from codes", self.dtype.itemsize * rows * self.width):
                for form in self.forms:
                    count_rows(block, self.data, form, rows, cores)
                    if form.form.rank and not self.apart:
                        count_compensator(block, self.data, form, low, cores)
                make = partial(self._rebuilt, block.core, low, rows)
                w = lazy(block, self.data, (rows, self.width), self.dtype, make)
                block.matmul(x, w, total[..., : self.width], over, cores)
            at = self.width
            for form in self.latent:
                for first, v in factors(block, self.data, form, "v", low, cores):
                    block.matmul(x, v, total[..., at + first : at + first + v.shape[-1]], over, cores)
                at += form.form.rank
        return total

    def _rebuilt(self, core: Any, low: int, rows: int, data: np.ndarray) -> np.ndarray:
        """A slice of rows of some tiles, [.., rows, width]."""
        w = fresh(core, (*data.shape[:-1], rows, self.width), self.dtype)
        for form, part in zip(self.forms, self._parts(w), strict=True):
            rebuild(core, data, form, low, part, self.dtype)
            if form.form.rank and not self.apart:
                compensate(core, data, form, low, part, self.dtype)
        return w

    def multiply_tiles(self, block: Block, a: np.ndarray, data: np.ndarray, total: np.ndarray) -> None:
        """The same with other tiles of these matrices."""
        self.moved(data).multiply(block, a, total)

    def finish(self, block: Block, result: np.ndarray, tiles: np.ndarray) -> np.ndarray:
        """x W, [.., columns of all matrices], of what `multiply` has made, once it is summed up: apart, the latent
        numbers are multiplied by U^T. `tiles` are those with these columns, [.., bytes].
        """
        if not self.latent:
            return result
        out = block.memory.keep("products with compensators", result[..., : self.width].copy())
        at = self.width
        for form, part in zip(self.forms, self._parts(out), strict=True):
            if not form.form.rank:
                continue
            for first, u in factors(block, tiles, form, "u", 0):
                block.matmul(result[..., at + first : at + first + u.shape[-2]], u, part)
            at += form.form.rank
        return out

    def _parts(self, tiles: np.ndarray) -> Iterator[np.ndarray]:
        """[.., Nt] of each matrix; views."""
        at = 0
        for form in self.forms:
            yield tiles[..., at : at + form.nt]
            at += form.nt


Tiles: TypeAlias = np.ndarray | Packed  # of one matrix, or of several side by side


def lazy(
    block: Block,
    data: np.ndarray,
    tile: tuple[int, int],
    dtype: np.dtype[Any],
    make: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray | Made:
    """Tiles that `make` has of some of the data, [.., bytes], as they are multiplied; zeros without payload."""
    shape = *data.shape[:-1], *tile
    if not block.payload:
        return np.zeros(shape, dtype)
    return Made(shape, dtype, lambda cores: make(data[cores]))


def count_rows(block: Block, data: np.ndarray, form: TileForm, rows: int, cores: np.ndarray | None) -> None:
    """Cores rebuild so many rows."""
    size, kind = rows * form.nt, form.form
    work = [*unpacking(kind.bits, size), (form.nt, rows * (1 if kind.symmetric else 2), 4, 2)]
    count(block, data, size, work, cores)


def count_compensator(block: Block, data: np.ndarray, form: TileForm, low: int, cores: np.ndarray | None) -> None:
    """Cores add V^T U^T to a slice of rows, from row `low` on."""
    us, vs = factors(block, data, form, "u", 0, cores), factors(block, data, form, "v", low, cores)
    for (_, v), (_, u) in zip(vs, us, strict=True):
        block.multiplied((*v.shape[:-1], u.shape[-1]), v.shape[-1], v.dtype.itemsize, cores)


def factors(
    block: Block, data: np.ndarray, form: TileForm, letter: Letter, low: int, cores: np.ndarray | None = None
) -> Iterator[tuple[int, np.ndarray | Made]]:
    """The first of 64 ranks, and these of U^T [.., ranks, Nt] or, of the rows from `low` on, of V^T [.., rows, ranks].

    Codes are unpacked, into memory that is held until the next are asked for.
    """
    rank, kind = form.form.rank, form.form
    for first in range(0, rank, SLICE):
        ranks, rows = min(SLICE, rank - first), min(SLICE, form.kt - low)
        start, shape = ((first, 0), (ranks, form.nt)) if letter == "u" else ((low, first), (rows, ranks))
        make = partial(factor, block.core, form=form, letter=letter, start=start, shape=shape)
        if not form.coded_factors:
            yield first, lazy(block, data, shape, np.dtype(np.float16), make)
            continue
        size = shape[0] * shape[1]
        count(block, data, size, [*unpacking(kind.compensator_bits, size), (shape[1], shape[0], 4, 2)], cores)
        with block.memory.hold(f"{letter.upper()} unpacked", 4 * size):
            yield first, lazy(block, data, shape, np.dtype(np.float32), make)


def unpacking(bits: int, size: int) -> Instructions:
    """Codes of so many bits to whole numbers in float16."""
    if bits == 3:
        sixteenth = -(-size // 16)
        return [(size, 4, 2, 1), (sixteenth, 5, 2, 1), (sixteenth, 2, 2, 2)]
    if bits in (5, 6, 7):
        return [(size, 5, 2, 1), (size, 1, 2, 2)]
    return [(size, 4, 2, 1)]


def count(block: Block, data: np.ndarray, size: int, work: Instructions, cores: np.ndarray | None) -> None:
    """Every core rebuilds so many numbers of each of its tiles."""
    tiles = prod(data.shape[2:-1])
    block.rebuild(tiles * size, [(length, tiles * calls, size, reads) for length, calls, size, reads in work], cores)
