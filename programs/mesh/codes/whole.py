"""Products of whole numbers on the mesh: codes of weights times activations in 8 bits, as models/integer.py has them.

    y = s (sum over groups: P scale + S offset),  P = sum of a * code, S = sum of a, both int32

The scale s of a token's activations takes their largest magnitude, which cores know once they have had an allreduce of
it, one number a token (`row`); or a core takes that of its own part of every group, and s is inside the sum (`block`):
no message, and scales that another cut would not have found.

Where a matrix has one group along all its inputs, and a token one scale, P and S are what is added up: whole numbers
have one sum in any order, so that any tree, ring or cut of the inputs gives the bits of the reference. With more groups
a core multiplies its own P and S by their scales, and what is added up is float32.

In MeshGEMM activations go round as bytes: codes and, of `block`, the scales behind them. A core unpacks 16 or 64 rows
of codes at a time to whole numbers of 16 bits, by a shift and an and, and a column of ones beside them makes S. No rate
for whole numbers of 8 bits is known of a WSE-2: they take as long as those of 16.
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.products import Made, product
from meshrt.models.eightbits import round_to, scale_of
from meshrt.models.quantize.form import Activations
from meshrt.programs.mesh.codes.packed import Instructions, Packed, count, lazy, unpacking
from meshrt.programs.mesh.codes.tileform import SLICE, TileForm
from meshrt.programs.mesh.codes.unpacked import array, fresh, numbers, whole_codes
from meshrt.records import dataclass

UNPACKED = np.dtype(np.int16)
ROWS = 16  # that are unpacked at a time where nothing is multiplied by scales before the end
Add = Callable[..., np.ndarray]  # an allreduce: of tiles, and by what function of two


@dataclass(frozen=True)
class WholeCodes(Packed):
    """Matrices in codes that multiply activations in codes. All have groups of one size."""

    activations: Activations = "row"

    @property
    def exact(self) -> bool:
        """Is what is added up whole?"""
        return self.activations == "row" and bool((self.forms[0].rows.which <= 0).all())

    @property
    def sum_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int32 if self.exact else np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """As of tiles of numbers; behind the columns of all matrices is S, where it is added up."""
        return (*self.data.shape[:4], self.forms[0].kt, self.width + self.exact)

    def multiply(
        self, block: Block, a: np.ndarray, total: np.ndarray, over: int | None = None, cores: np.ndarray | None = None
    ) -> np.ndarray:
        """Add to the total what these tiles make of activations, int8 [.., Kt and scales]. LimitError."""
        if self.exact:
            for x, w in self._slices(block, a, ROWS):
                block.matmul(x, w, total, over, cores)
            return total
        share = self._by_groups(block, a, cores)
        if share is not None:
            total += share if over is None else share.sum(axis=over)
        return total

    def _slices(self, block: Block, a: np.ndarray, most: int) -> Iterator[tuple[np.ndarray, np.ndarray | Made]]:
        """At most so many rows of codes, int16 [.., rows, columns and one of ones], and what multiplies them."""
        kt, columns = self.forms[0].kt, self.width + 1
        for begin in range(0, kt, SLICE):
            for low in range(begin, min(begin + SLICE, kt), most):
                rows = min(most, kt - low, begin + SLICE - low)
                with block.memory.hold("rows of codes", UNPACKED.itemsize * rows * columns):
                    for form in self.forms:
                        count(block, self.data, rows * form.nt, whole_numbers(form.form.bits, rows * form.nt), None)
                    make = partial(self._codes, block.core, low, rows)
                    yield a[..., low : low + rows], lazy(block, self.data, (rows, columns), UNPACKED, make)

    def _codes(self, core: Any, low: int, rows: int, data: np.ndarray) -> np.ndarray:
        """Some rows of some tiles, with a column of ones."""
        w = fresh(core, (*data.shape[:-1], rows, self.width + 1), UNPACKED)
        w[..., -1] = 1
        for form, part in zip(self.forms, self._parts(w), strict=True):
            whole_codes(core, data, form, low, part)
        return w

    def _by_groups(self, block: Block, a: np.ndarray, cores: np.ndarray | None) -> np.ndarray | None:
        """This core's share of x W, float32 [.., columns]: its groups in turn; None without payload.

        A core has P and S of one group at a time, for its rows come group by group; and of one token, where all its
        rows are unpacked together.
        """
        form, tokens, groups = self.forms[0], a.shape[-2], self.forms[0].rows.count
        lead = np.broadcast_shapes(a.shape[:-2], self.data.shape[:-1])
        sums = [np.zeros((*lead, tokens, self.width + 1), np.int32) for _ in range(groups if block.payload else 0)]
        of = form.rows.number[numbers(self.data)[0]] if block.payload else None
        held = tokens if form.kt > SLICE else 1
        with block.memory.hold("sums of a group", 4 * held * (self.width + 1)):
            low = 0
            for x, w in self._slices(block, a, SLICE):
                block.multiplied((*lead, tokens, w.shape[-1]), w.shape[-2], UNPACKED.itemsize, cores)
                if of is not None:
                    assert isinstance(w, Made)
                    group_of = of[..., None, low : low + w.shape[-2]]
                    for at, own in w.bands():
                        for group, total in enumerate(sums):
                            if (group_of[at] == group).any():
                                masked = np.where(group_of[at] == group, x[at], 0)
                                total[at] += product(block.core, masked, own).astype(np.int32)
                low += w.shape[-2]
        work = groups * (2 + (self.activations == "block"))
        block.vectors(self.width, work * tokens * prod(lead[2:]), 4)
        if not block.payload:
            return None
        scales = np.ascontiguousarray(a[..., form.kt :]).view(np.float32)  # of `block`
        share = np.zeros((*lead, tokens, self.width), np.float32)
        for group, total in enumerate(sums):
            part = self._scaled(total, self.data, group)
            share += part * scales[..., group : group + 1] if self.activations == "block" else part
        return share

    def _scaled(self, total: np.ndarray, tiles: np.ndarray, group: int) -> np.ndarray:
        """P scale + S offset of a group, float32 [.., columns], by tiles [.., bytes] that have these columns."""
        out: np.ndarray = total[..., :-1].astype(np.float32)
        for form, part in zip(self.forms, self._parts(out), strict=True):
            part *= array(tiles, form, "scale")[..., group : group + 1, :]
            part += total[..., -1:].astype(np.float32) * offsets(tiles, form)[..., group : group + 1, :]
        return out

    def finish_whole(self, block: Block, result: np.ndarray, tiles: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
        """x W of all that `multiply` has made, once it is added up, [.., tokens, columns]: by tiles that have these
        columns and the scale of every token, [.., tokens, 1].
        """
        if self.exact:
            scaled = self._scaled(result, tiles, 0) if block.payload else result[..., :-1].astype(np.float32)
            result = block.memory.keep("products", scaled)
            block.elementwise(result, 2)
        if scale is not None:
            result *= scale
            block.elementwise(result)
        return result


def whole_numbers(bits: int, size: int) -> Instructions:
    """Codes of so many bits to whole numbers: as to float16 (packed.py), without the or and the subtraction."""
    (length, calls, itemsize, operands), *others = unpacking(bits, size)
    return [(length, calls - 2, itemsize, operands), *others]


def offsets(tiles: np.ndarray, form: TileForm) -> np.ndarray:
    """What is added to code * scale, [.., groups, Nt], as `Codes.offsets` has it."""
    kind, scale = form.form, array(tiles, form, "scale")
    if kind.offset:
        return array(tiles, form, "offset")
    zero = np.float32(2 ** (kind.bits - 1)) if kind.shift is None else array(tiles, form, kind.shift)
    return np.asarray(-zero * scale)


def in_codes(
    block: Block, x: np.ndarray, w: WholeCodes, most: np.ndarray | None, chunks: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Activations [.., K chunks, tokens, Kt] as what `multiply` takes, and the scale of every token where it has one.

    `most` [.., 1, tokens, 1]: the largest magnitudes of whole tokens, None of `block`; `chunks` [.., K chunks]: which
    part of the inputs each is.
    """
    if most is not None:
        scale = scale_of(most) if block.payload else np.ones_like(most)
        block.elementwise(x, 2)  # divided, and rounded
        codes = round_to(x, scale) if block.payload else np.zeros(x.shape, np.int8)
        return block.memory.keep("activations in 8 bits", codes), scale
    rows = w.forms[0].rows
    packed = np.zeros((*x.shape[:-1], x.shape[-1] + 4 * rows.count), np.int8)
    block.elementwise(x, 4)  # their magnitudes, and the largest of these
    if block.payload:
        of, sizes = rows.number[chunks][..., None, :], np.abs(x)
        scales = [scale_of(np.where(of == group, sizes, 0).max(axis=-1)) for group in range(rows.count)]
        wide = np.stack(scales, axis=-1)
        each = np.take_along_axis(wide, np.broadcast_to(of, x.shape), axis=-1)
        packed[..., : x.shape[-1]] = round_to(x, each)
        packed[..., x.shape[-1] :] = wide.view(np.int8)
    return block.memory.keep("activations in 8 bits", packed), None


def largest(block: Block, x: np.ndarray, axis: tuple[int, ...]) -> np.ndarray:
    """The largest magnitudes of a core's own numbers, over those axes, which stay."""
    block.elementwise(x, 2)
    return block.memory.keep("largest activations", np.abs(x).max(axis=axis, keepdims=True))


def prompt_product(
    block: Block, gemm: Callable[..., np.ndarray], add_x: Add, x: np.ndarray, w: WholeCodes
) -> np.ndarray:
    """x W in prefill: L_y K_x to L_y N_x, [bh, bw, rows, columns, Lt, Nt]."""
    most = add_x(largest(block, x, (3, -1)), np.maximum) if w.activations == "row" else None
    columns = x.shape[3]
    chunks = np.arange(block.mesh.x0 * columns, (block.mesh.x0 + block.lead[1]) * columns).reshape(1, -1, 1, columns)
    codes, scale = in_codes(block, x, w, most, chunks)
    total = gemm(codes, w)
    del codes
    return w.finish_whole(block, total, w.data[:, :, :1], scale)


def token_codes(
    block: Block, x: np.ndarray, w: WholeCodes, turned: bool, most: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """As `in_codes` in decode: x [bh, bw, places, Kt] of K_y, `turned` of K_x; `most` and the scale [bh, bw, 1, 1]."""
    places, mesh = x.shape[2], block.mesh
    low, cores, shape = (
        (mesh.x0, block.lead[1], (1, -1, places)) if turned else (mesh.y0, block.lead[0], (-1, 1, places))
    )
    chunks = np.arange(low * places, (low + cores) * places).reshape(shape)
    codes, scale = in_codes(block, x[..., None, :], w, None if most is None else most[..., None], chunks)
    return codes[..., 0, :], None if scale is None else scale[..., 0]


def finish_token(block: Block, w: WholeCodes, turned: bool, total: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """x W in decode, [bh, bw, places, Nt], of what was added up."""
    tiles = w.data[:, :, :, 0] if turned else w.data[:, :, 0]
    wide = None if scale is None else scale[..., None]
    return w.finish_whole(block, total[..., None, :], tiles, wide)[..., 0, :]
