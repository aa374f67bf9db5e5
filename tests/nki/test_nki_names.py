"""What kernels name: views of tensors, arguments that are refused, the nearest thing to what is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meshrt.nki as nki_module
import meshrt.nki.isa as nisa_module
import meshrt.nki.language as nl_module
from meshrt.errors import UsageError

nki: Any = nki_module
nl: Any = nl_module
nisa: Any = nisa_module
typing: Any = nki_module.typing
X = np.random.default_rng(0).standard_normal((64, 4, 8)).astype(np.float32)


def launched(function: Callable[..., Any], *args: Any) -> Any:
    return nki.simulate(nki.jit(function), show=False)(*args)


def test_views_are_the_same_elements_under_other_axes() -> None:
    def kernel(x: Any) -> Any:
        tile = nl.ndarray(x.shape, nl.float32, nl.sbuf)
        nisa.dma_copy(tile, x)
        views = [
            tile.flatten_dims(1, 2).rearrange(("p", ("a", "b")), ("p", "b", "a"), {"a": 4}),
            tile.permute((0, 2, 1)), tile.slice(2, 1, 7, 2), tile.select(1, 2), tile.reshape_dim(2, (2, -1)),
            tile.expand_dim(1).broadcast(1, 3), tile.expand_dim(2).squeeze_dim(2),
        ]  # fmt: skip
        assert tile.is_contiguous() and not views[1].is_contiguous() and not tile.is_indirect()
        assert tile.get_pattern() == [[32, 64], [8, 4], [1, 8]]
        outs = [nl.ndarray(view.shape, nl.float32, nl.shared_hbm) for view in views]
        for view, out in zip(views, outs, strict=True):
            copied = nl.ndarray(view.shape, nl.float32, nl.sbuf)
            nisa.tensor_copy(dst=copied, src=view)
            nisa.dma_copy(dst=out, src=copied)
        return outs

    turned = X.transpose(0, 2, 1)
    wanted = [turned, turned, X[:, :, 1:7:2], X[:, 2], X.reshape(64, 4, 2, 4), np.stack([X] * 3, 1), X]
    for got, want in zip(launched(kernel, X), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_rows_that_a_tile_names_and_those_beyond_the_tensor_that_are_skipped() -> None:
    def kernel(table: Any, places: Any, old: Any) -> Any:
        out = nl.ndarray((4, 4), nl.float32, nl.shared_hbm)
        back = nl.ndarray(table.shape, nl.float32, nl.shared_hbm)
        index, tile = nl.load(places), nl.full((4, 4), -1.0, nl.float32, nl.sbuf)
        if old:
            tile[...] = nl.load(table[index, nl.arange(4)[None, :]], mode=nisa.oob_mode.skip)
        else:
            nisa.dma_copy(dst=tile, src=table.vector_select(0, index), oob_mode=nisa.oob_mode.skip)
        nl.store(out, tile)
        nl.store(back, nl.zeros(table.shape, nl.float32))
        nisa.dma_copy(dst=back[index, nl.arange(4)[None, :]], src=tile, oob_mode=nisa.oob_mode.skip)
        return out, back

    table, places = X[:20, :, 0].copy(), np.array([[3], [19], [25], [0]], np.int32)
    for old in (False, True):
        out, back = launched(kernel, table, places, old)
        np.testing.assert_array_equal(out, [table[3], table[19], [-1] * 4, table[0]])
        wanted = np.zeros_like(table)
        wanted[[3, 19, 0]] = table[[3, 19, 0]]
        np.testing.assert_array_equal(back, wanted)
    with pytest.raises(UsageError, match="reaches beyond its tensor"):
        launched(lambda table, places: nl.store(table, nl.load(table[nl.load(places), 0:4])), table, places)


def test_a_generation_is_told_by_masks_and_index_arrays_too() -> None:
    def kernel(x: Any, way: str) -> None:
        mask = None if way != "mask" else x.shape[0] > nl.program_id(0)
        if way == "arange":
            nl.load(x[nl.arange(64)[:, None], nl.arange(8)[None, :]]).settle()
        elif way == "nisa":
            nisa.tensor_copy(dst=nl.ndarray((64, 8), nl.float32, nl.sbuf), src=nl.load(x))
        else:
            nl.exp(nl.load(x, mask=mask)).settle()

    for way, api in (("mask", "old"), ("arange", "old"), ("nisa", "new"), ("neither", "either")):
        jitted = nki.jit(kernel)
        nki.simulate(jitted, show=False)(X[:, 0].copy(), way)
        assert jitted.report["api"] == api


def test_a_tensor_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    launched(lambda x: nl.device_print("x", nl.load(x)[0:1, 0:2, 0]), X)
    shown = capsys.readouterr().out
    assert "x <float32 [1, 2] in sbuf>" in shown and str(X[0, 0, 0])[:6] in shown


def test_cores_times_programs_is_an_axis() -> None:
    assert (nl.nc(2) * 3).sizes == (3 * nl.nc(2)).sizes == (6, 2)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda t: t.permut((0, 1)), "a tensor has no 'permut' here: did you mean permute?"),
        (lambda t: t.mean(), "a tensor has no 'mean': say nl.mean(tile)"),
        (lambda t: t.astype(nl.bfloat16), "say nl.copy(tile, dtype=...)"),
        (lambda t: t.permute((1, 0, 2)), "the first axis of a tile of sbuf is its partitions"),
        (lambda t: nl.tile_size.pmaxx, "nl.tile_size has no 'pmaxx' here: did you mean pmax?"),
        (lambda t: nisa.engine.vectr, "nisa.engine has no 'vectr' here: did you mean vector? It has unknown, tensor"),
        (lambda t: nki.collectives, "nki has no 'collectives' here: the nearest is nl.shared_hbm"),
        (lambda t: nl.rand((4, 4)), "random numbers of the hardware are not emulated"),
        (lambda t: nisa.local_gather(t, t), "the nearest is a DMA by a tile of indices"),
        (lambda t: nisa.tensor_tensor(t, t, op=nl.exp), "an operator of two, not exp: there are add, subtract"),
        (lambda t: nisa.activation(op=nl.add, data=t), "activation takes an operator of one tile, not add"),
        (lambda t: nl.ndarray((4, 4), bufer=nl.psum), "ndarray has no argument bufer=: did you mean buffer?"),
        (lambda t: nl.sum(t, axes=1), "nl.sum has no argument axes=: did you mean axis?"),
        (lambda t: nl.mean(t, axes=1), "mean has no argument axes=: did you mean axis?"),
        (lambda t: nl.load(t, masks=1), "load has no argument masks=: did you mean mask?"),
        (
            lambda t: nisa.dma_copy(t, t, dst_rmw=1),
            "dma_copy has no argument dst_rmw=: did you mean dst_rmw_op or dst?",
        ),
        (lambda t: nl.softmax(t, axis=2, compute_dtype=nl.bfloat16), "softmax computes in float32, not in bfloat16"),
        (lambda t: nl.load(t, mode="skip"), "an oob_mode is nisa.oob_mode.error or"),
    ],
)
def test_what_is_not_there_says_what_is(use: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        launched(lambda x: use(nl.load(x)), X)
    text = str(caught.value)
    assert message in text and text.startswith("test_nki_names.py:") and "\n" not in text


def test_an_option_that_simulate_does_not_have_is_named() -> None:
    with pytest.raises(UsageError, match=r"trace and reorder, not core$"):
        nki.simulate(nki.jit(lambda x: None), core=2, show=False)


def test_kernels_may_ask_what_a_tensor_has() -> None:
    def kernel(x: Any) -> None:
        assert hasattr(x, "reshape") and not hasattr(x, "devices") and getattr(nisa.engine, "quick", None) is None

    launched(kernel, X)


def test_a_view_of_other_bytes_is_written_and_marked_as_written() -> None:
    def kernel(x: Any, words: Any) -> Any:
        out = nl.ndarray((64, 8), nl.float32, nl.shared_hbm)
        four = nl.ndarray((8, 64), nl.uint32, nl.shared_hbm)
        tile, bits = nl.ndarray((64, 8), nl.float32, nl.sbuf), nl.load(words)
        nisa.tensor_copy(dst=tile.view(nl.uint32), src=nl.load(x).view(nl.uint32))
        nl.store(out, tile)
        turned = nl.ndarray((8, 64), nl.uint32, nl.sbuf)
        for at in nl.affine_range(4):  # as the tensor engine turns whole numbers: byte by byte
            part = nl.copy(nisa.nc_transpose(bits.view(nl.uint8)[:, at:32:4]), dtype=nl.uint8)
            turned.view(nl.uint8)[:, at:256:4] = part
        nl.store(four, turned)
        return out, four

    x, words = X[:, 0].copy(), np.random.default_rng(1).integers(0, 2**24, (64, 8), np.uint32)
    out, four = launched(kernel, x, words)
    np.testing.assert_array_equal(out, x)
    np.testing.assert_array_equal(four, words.T)


def test_a_loop_as_long_as_a_tile_says_and_operands_that_are_repeated() -> None:
    """As the paged attention of nki-samples has them."""

    def kernel(x: Any, steps: Any, chosen: Any) -> Any:
        out = nl.ndarray(x.shape, nl.float32, nl.shared_hbm)
        total, tile = nl.zeros((64, 4, 8), nl.float32), nl.load(x)
        for _ in range(typing.scalar(nl.load(steps))):
            total[...] = nisa.tensor_tensor(total, tile[:, 0:1], op=np.add)
        nisa.tensor_copy_predicated(src=tile, dst=total, predicate=nl.load(chosen))
        nl.store(out, total)
        return out

    chosen = np.random.default_rng(2).integers(0, 2, (64, 4), np.uint8)
    for predicate in (chosen, chosen[:, :1]):
        got = launched(kernel, X, np.full((1, 1), 3, np.int32), predicate.copy())
        np.testing.assert_allclose(got, np.where(predicate[:, :, None], X, 3 * X[:, :1]), rtol=1e-6)
