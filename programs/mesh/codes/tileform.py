"""How a core's tile of a quantized matrix lies in memory: as bytes, packed anew for the tile.

    scale, zero     float16 [groups, Nt] of every group along the inputs that the tile's rows touch; or scale, offset
    U, V            its columns of U^T [rank, Nt] and its rows of V^T [Kt, rank]: float16, or codes and the float16
                    scales of every group that they touch (their groups run through the row-major U and V)
    codes           the matrix's own [Kt, Nt], and those of U and V, in slices of 64 rows and 64 ranks, each filled up
                    to 32 codes by itself, so that a slice can be unpacked alone

All tiles of a matrix take the same bytes: a core has room for as many groups as any tile touches, which for chunks that
do not divide groups is often one more than this one does. In front of a tile are its numbers along the inputs and the
outputs, two bytes each: which rows belong to which of its groups follows from these.
"""

from collections.abc import Iterator
from functools import cached_property, lru_cache
from math import prod
from typing import Literal

import numpy as np

from meshrt.models.quantize.form import Quantized
from meshrt.records import dataclass

SLICE = 64  # rows, and ranks, that are rebuilt together
UNIT = 32  # codes: whole words, whatever their bits
OF_GROUPS = ("scale", "zero", "offset")  # arrays with a number for each group of codes
HEADER = 4
MOST_TILES = 1 << 16  # along an axis: what two bytes can number

Letter = Literal["w", "u", "v"]


@dataclass(frozen=True, eq=False)
class ScaleGroups:
    """Of the elements of each of P tiles: which groups they are in.

    `number`, int [P, elements], is that of an element's group among those of the tile, and `which`, int [P, count],
    these groups' numbers in the matrix; -1: the tile touches fewer.
    """

    number: np.ndarray
    which: np.ndarray

    @property
    def count(self) -> int:
        return int(self.which.shape[1])


def find_groups(elements: np.ndarray, group: int) -> ScaleGroups:
    """Elements, int [P, n], are places in an array that is cut into groups; -1: no element."""
    of = np.where(elements < 0, -1, elements // group)
    at = np.argsort(of, axis=1, kind="stable")
    ordered = np.take_along_axis(of, at, axis=1)
    fresh = ordered >= 0
    fresh[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    rank = np.maximum(np.cumsum(fresh, axis=1) - 1, 0)
    number = np.empty_like(rank)
    np.put_along_axis(number, at, rank, axis=1)
    which = np.full((len(elements), int(rank.max()) + 1), -1)
    tile, place = np.nonzero(fresh)
    which[tile, rank[tile, place]] = ordered[tile, place]
    return ScaleGroups(number, which)


def elements(letter: Letter, table: np.ndarray, rank: int, inputs: int) -> np.ndarray:
    """Where the numbers of each tile are in the stored array, [P, n], -1 for padding: of a row of the matrix itself,
    [P, Kt]; of U^T [rank, Nt], U being [outputs, rank]; of V^T [Kt, rank], V being [rank, inputs].
    """
    if letter == "w":
        return table
    ranks = np.arange(rank)
    elements = table[:, None, :] * rank + ranks[:, None] if letter == "u" else table[:, :, None] + ranks * inputs
    padded = table[:, None, :] < 0 if letter == "u" else table[:, :, None] < 0
    return np.where(padded, -1, elements).reshape(len(table), -1)


@lru_cache(maxsize=64)
def _groups(letter: Letter, table: bytes, sides: int, rank: int, inputs: int, group: int) -> ScaleGroups:
    chunks = np.frombuffer(table, np.int64).reshape(sides, -1)
    return find_groups(elements(letter, chunks, rank, inputs), group)


def groups_of(letter: Letter, table: np.ndarray, rank: int, inputs: int, group: int) -> ScaleGroups:
    """Those of the tiles of one matrix or factor; kept, since all layers have the same."""
    key = np.ascontiguousarray(table, np.int64).tobytes()
    return _groups(letter, key, len(table), rank, inputs, group)


@dataclass(frozen=True, eq=False)
class TileForm:
    """Tiles [Kt, Nt] of a quantized matrix with `inputs` rows. `begin`: where a tile's bytes are in those of all
    matrices side by side. `rows` are the groups of a tile's rows, `u` and `v` those of its factors, if these are codes.
    """

    form: Quantized
    kt: int
    nt: int
    begin: int
    rows: ScaleGroups
    u: ScaleGroups | None
    v: ScaleGroups | None

    @property
    def coded_factors(self) -> bool:
        return self.u is not None

    def arrays(self) -> dict[str, tuple[int, ...]]:
        """The float16 arrays of a tile, by name, in the order in which they lie."""
        form, of_rows = self.form, (self.rows.count, self.nt)
        shapes: dict[str, tuple[int, ...]] = {"scale": of_rows}
        if form.shift is not None:
            shapes[form.shift] = of_rows
        if self.u is not None and self.v is not None:
            shapes |= {"u_scale": (self.u.count,), "v_scale": (self.v.count,)}
        elif form.rank:
            shapes |= {"u": (form.rank, self.nt), "v": (self.kt, form.rank)}
        return shapes

    def slices(self) -> Iterator[tuple[Letter, int, int, tuple[int, int], int]]:
        """The slices of codes in the order in which they lie: of what, first row, first column, shape, bytes."""
        rank, bits = self.form.rank, self.form.compensator_bits
        yield from cut("w", (self.kt, self.nt), (SLICE, self.nt), self.form.bits)
        if self.coded_factors:
            yield from cut("u", (rank, self.nt), (SLICE, self.nt), bits)
            yield from cut("v", (self.kt, rank), (SLICE, SLICE), bits)

    @cached_property
    def spans(self) -> dict[str, tuple[int, int]]:
        """Where each array and, by `w 0 0`, each slice of codes begins and ends in a tile's bytes."""
        spans, at = {}, self.begin
        sizes = {name: 2 * prod(shape) for name, shape in self.arrays().items()}
        sizes |= {f"{letter} {row} {column}": size for letter, row, column, _, size in self.slices()}
        for name, size in sizes.items():
            spans[name] = (at, at + size)
            at += size
        return spans

    @property
    def nbytes(self) -> int:
        return 2 * sum(map(prod, self.arrays().values())) + sum(size for *_, size in self.slices())


def cut(
    letter: Letter, shape: tuple[int, int], most: tuple[int, int], bits: int
) -> Iterator[tuple[Letter, int, int, tuple[int, int], int]]:
    for row in range(0, shape[0], most[0]):
        for column in range(0, shape[1], most[1]):
            size = min(most[0], shape[0] - row), min(most[1], shape[1] - column)
            yield letter, row, column, size, -(-prod(size) // UNIT) * UNIT * bits // 8


def tile_form(form: Quantized, inputs: int, rows: np.ndarray, columns: np.ndarray, begin: int) -> TileForm:
    """Of a matrix with so many inputs whose dimensions are cut into these chunks."""
    u = v = None
    if form.rank and form.compensator_bits < 16:
        u = groups_of("u", columns, form.rank, inputs, form.group)
        v = groups_of("v", rows, form.rank, inputs, form.group)
    of_rows = groups_of("w", rows, 0, inputs, form.group)
    return TileForm(form, rows.shape[1], columns.shape[1], begin, of_rows, u, v)
