"""Numbers of codes: the compiled core's and products with them are those of NumPy's way, to the bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from compiled import compiled
from runs import new_block

from meshrt.mesh import products
from meshrt.mesh.wires import core
from meshrt.models.quantize.form import Quantized
from meshrt.programs.mesh.chunks import plain
from meshrt.programs.mesh.codes.packed import Packed
from meshrt.programs.mesh.codes.tileform import HEADER, SLICE, TileForm, tile_form
from meshrt.programs.mesh.codes.unpacked import ROUNDINGS, fresh, whole_codes
from meshrt.programs.mesh.codes.whole import WholeCodes
from meshrt.programs.mesh.linear import along
from meshrt.ranks.alone import Alone

BITS = range(2, 9)
DTYPES = [np.dtype(kind) for kind in (np.float32, np.float16, ml_dtypes.bfloat16)]
SIDES = 3
FORMS = {
    "symmetric": Quantized(4, 32, True),
    "zeros": Quantized(3, 64),
    "offsets": Quantized(5, 96, offset=True),
    "whole rows": Quantized(8, 416),
    "factors": Quantized(4, 64, rank=5),
    "factors in 3 bits": Quantized(3, 32, rank=70, compensator_bits=3),
    "factors in 8 bits": Quantized(2, 64, True, rank=9, compensator_bits=8),
}


def forms_of(form: Quantized, inputs: int, outputs: tuple[int, ...]) -> tuple[TileForm, ...]:
    """Matrices side by side, of so many inputs and outputs each."""
    forms, begin = [], HEADER
    for columns in outputs:
        forms.append(tile_form(form, inputs, plain(inputs, SIDES), plain(columns, SIDES), begin))
        begin += forms[-1].nbytes
    return tuple(forms)


def tiles_of(forms: tuple[TileForm, ...], shape: tuple[int, ...], seed: int = 1) -> np.ndarray:
    """Any codes, and float16 of many sizes: of both signs, zeros, and such as float16 rounds away."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (*shape, forms[-1].begin + forms[-1].nbytes), np.uint8)
    data[..., :HEADER] = rng.integers(0, SIDES, (*shape, 2)).astype("<u2").view(np.uint8)
    for form in forms:
        for name in form.arrays():
            begin, end = form.spans[name]
            count = (end - begin) // 2
            sizes = rng.standard_normal((*shape, count)) * np.exp2(rng.integers(-24, 1, (*shape, count)))
            sizes[..., ::13] = 0
            data[..., begin:end] = sizes.astype("<f2").view(np.uint8)
    return data


def both(monkeypatch: pytest.MonkeyPatch, made: Any) -> list[bytes]:
    """What is made with the compiled core, then with NumPy, a core, some and all at a time; the counters with it."""
    results = []
    for name in ("compiled", "numpy"):
        monkeypatch.setenv("MESHRT_CORE", name)
        for band in (1, 2000, 10**7):
            monkeypatch.setattr(products, "BAND_MADE", band)
            block = new_block(Alone(), (SIDES, SIDES))
            out = made(block)
            counters = block.ledger.counters
            counts = counters.macs, counters.rebuilt, counters.adds, block.memory.peak, block.clock.last()
            results.append(out.tobytes() + repr(counts).encode())
    return results


@compiled
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_products_are_those_of_numpy(
    form: Quantized, apart: bool, dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are no whole slice, columns that are no whole words, groups that tiles cut; some cores alone."""
    forms = forms_of(form, 400, (50, 7))
    w = Packed(tiles_of(forms, (SIDES, SIDES, 1, 1)), forms, dtype, apart)
    x = np.random.default_rng(2).standard_normal((SIDES, SIDES, 1, 1, 2, forms[0].kt)).astype(np.float32)
    diagonal = np.eye(SIDES, dtype=bool)

    def made(block: Any) -> np.ndarray:
        totals = [np.ones((SIDES, SIDES, 1, 1, 2, w.shape[-1]), np.float32) for _ in range(2)]
        w.multiply(block, x, totals[0])
        w.multiply(block, x, totals[1], cores=diagonal)
        result = w.finish(block, totals[0], w.data)
        assert (totals[1][~diagonal] == 1).all() and not (totals[1][diagonal] == 1).all()
        return np.concatenate([result.reshape(-1), totals[1].reshape(-1)])

    assert len(set(both(monkeypatch, made))) == 1


@compiled
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_every_width_is_multiplied_in_decode(bits: int, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles at a core, added up."""
    forms = forms_of(Quantized(bits, 32), 200, (31,))
    w = Packed(tiles_of(forms, (SIDES, SIDES, 2, 3), bits), forms, np.dtype(np.float16))
    x = np.random.default_rng(3).standard_normal((SIDES, SIDES, 3 if turned else 2, forms[0].kt)).astype(np.float32)
    assert len(set(both(monkeypatch, lambda block: along(block, x, w, turned)))) == 1


@compiled
@pytest.mark.parametrize("group", [32, 416])
@pytest.mark.parametrize("activations", ["row", "block"])
@pytest.mark.parametrize("bits", BITS)
def test_whole_numbers_are_multiplied_so_too(
    bits: int, activations: Any, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms, rng = forms_of(Quantized(bits, group), 400, (21, 6)), np.random.default_rng(4)
    w = WholeCodes(tiles_of(forms, (SIDES, SIDES, 1, 1)), forms, np.dtype(np.float16), activations=activations)
    x = rng.integers(-128, 128, (SIDES, SIDES, 1, 1, 2, forms[0].kt)).astype(np.int8)
    scales = rng.random((*x.shape[:-1], forms[0].rows.count)).astype(np.float32).view(np.int8)
    a = np.concatenate([x, scales], axis=-1)

    def made(block: Any) -> np.ndarray:
        total = np.ones((SIDES, SIDES, 1, 1, 2, w.shape[-1]), w.sum_dtype)
        return w.multiply(block, a, total)

    assert w.exact == (activations == "row" and group > 400)
    assert len(set(both(monkeypatch, made))) == 1


@compiled
@pytest.mark.parametrize("columns", [1, 5, 33, 3000])
@pytest.mark.parametrize("bits", BITS)
def test_codes_from_any_row_on(bits: int, columns: int) -> None:
    """Some of a slice, as they were put in; 3000: more than are unpacked at a time."""
    forms = forms_of(Quantized(bits, 32), 80 * SIDES, (columns * SIDES,))
    data = tiles_of(forms, (2, 1))
    for low, rows in ((0, 16), (16, 16), (48, 16), (64, 16), (3, 7), (0, SLICE)):
        shape = 2, 1, rows, columns
        codes = [fresh(built, shape, np.dtype(np.int16)) for built in (core.built, None)]
        for built, out in zip((core.built, None), codes, strict=True):
            whole_codes(built, data, forms[0], low, out)
        np.testing.assert_array_equal(*codes)


@compiled
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_numbers_are_rounded_as_numpy_does(dtype: np.dtype[Any]) -> None:
    """Every number of 16 bits, what is halfway to the next, and the float32 on both sides of that; any float32."""
    every = np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float32)
    bits = np.sort(every[np.isfinite(every) & (every >= 0)]).view(np.uint32).astype(np.int64)
    half = (bits[1:] + bits[:-1]) // 2
    few = np.random.default_rng(5).integers(0, 0x7F800000, 20_000)
    sizes = np.concatenate([bits, half - 1, half, half + 1, few, [0x477FEFFF, 0x477FF000, 0x7F7FFFFF]])
    more = np.concatenate([sizes, sizes | 1 << 31]).astype(np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        others = np.roll(more, 1).astype(dtype).astype(np.float32)
    for to in (np.zeros_like(more), others):
        with np.errstate(over="ignore", invalid="ignore"):
            expected = (to.astype(dtype) + more.astype(dtype)).astype(np.float32)
        numbers = ~np.isnan(expected)  # infinities of both signs
        out = to.copy()
        core.built.add_rounded(out, more, ROUNDINGS[dtype.name])
        np.testing.assert_array_equal(out[numbers].view(np.uint32), expected[numbers].view(np.uint32))


@compiled
def test_arrays_that_do_not_go_together_are_refused() -> None:
    tiles, groups, out = np.zeros((2, 40), np.uint8), np.zeros((1, 4), np.int64), np.zeros((2, 4, 4), np.float32)
    wanted = np.zeros(12, np.int64).tobytes()
    for given in ((tiles[:1], groups, out), (tiles, groups.astype(np.int32), out), (tiles, groups, out.astype(float))):
        with pytest.raises(ValueError, match="rebuild"):
            core.built.rebuild(*given, wanted)
    with pytest.raises(ValueError, match="wanted"):
        core.built.rebuild(tiles, groups, out, wanted[8:])
    tiles[1, 0] = 1
    with pytest.raises(ValueError, match="tile"):
        core.built.rebuild(tiles, groups, out, wanted)
    for more, rounding in ((out[:1], 1), (out.astype(float), 1), (out, 0), (out, 3)):
        with pytest.raises(ValueError, match="add_rounded"):
            core.built.add_rounded(out, more, rounding)
