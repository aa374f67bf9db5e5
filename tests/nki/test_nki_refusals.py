"""What NKI or its compiler would refuse, in one line that names the kernel's own."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import meshrt.nki as nki
import meshrt.nki.isa as nisa_module
import meshrt.nki.language as nl_module
from meshrt.errors import LimitError, MeshrtError, UsageError

nl: Any = nl_module
nisa: Any = nisa_module
X = np.ones((128, 256), np.float32)


def launched(function: Callable[..., Any], *args: Any) -> Any:
    return nki.simulate(nki.jit(function), show=False)(*args)


def _half_written(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out[:, 0:100], nl.load(x[:, 0:100]))
    return out


def _mixed(x):
    nisa.nc_matmul(nl.load(x[:, 0:128]), nl.load(x, dtype=nl.bfloat16))


def _start(x):
    tile = nl.load(x)
    nisa.nc_matmul(tile[5:40, 0:128], tile[5:40])


def _wide(x):
    nisa.nc_matmul(nl.load(x), nl.load(x))


def _strange(x):
    nisa.tensor_scan(nl.load(x))


def _argument(x):
    nisa.tensor_copy(nl.load(x), dtyp=nl.bfloat16)


def _beyond(x):
    nl.load(x[nl.arange(128)[:, None], nl.arange(300)[None, :]])


def _unwritten(x):
    tile = nl.ndarray((128, 10), dtype=nl.float32)
    nl.exp(tile).settle()


def _partitions(x):
    nl.ndarray((129, 4), dtype=nl.float32, buffer=nl.sbuf)


def _branch(x):
    if nl.load(x) > 0:
        pass


def _two_in_psum(x):
    tile = nl.load(x[:, 0:128])
    a, b = nisa.nc_transpose(tile).settle(), nisa.nc_transpose(tile).settle()
    nisa.tensor_tensor(a, b, nl.add)


def _memory(x):
    nl.ndarray((128, 4), dtype=nl.float32, buffer="sbuf")


def _start_of_another(x):
    return nl.copy(nl.exp(nl.load(x)[16:32])).settle()


def _every_other(x):
    return nl.exp(nl.load(x)[0:64:2]).settle()


def _bits_of_floats(x):
    tile = nl.load(x)
    nl.bitwise_and(tile, tile).settle()


def _bits_and_sums(x):
    nisa.tensor_scalar(nl.load(x, dtype=nl.int32), op0=nl.bitwise_and, operand0=3, op1=nl.add, operand1=1)


def _middle(x):
    total = nl.ndarray((128, 64), nl.float32, nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=nl.load(x).reshape((128, 4, 64)), axis=1)


def _before_the_first(x):
    nl.copy(nl.load(x)[:, -1]).settle()


def _behind_the_last(x):
    nl.copy(nl.load(x)[:, 256]).settle()


def _pattern_behind_a_slice(x):
    nl.load(x)[64:128, 128:256].ap([[256, 64], [1, 129]])


def _pattern_backwards(x):
    nl.load(x).ap([[256, 128], [-1, 2]])


def _onto_nothing(x):
    tile, total = nl.load(x[:, 0:128]), nl.ndarray((128, 128), nl.float32, nl.psum)
    nisa.nc_matmul(total, tile, tile, accumulate=True)


def _triangle(x):
    i, j = nl.mgrid[0:128, 0:256]
    nl.sum(nl.load(x), axis=1, mask=j <= i).settle()


def _down_to_across(x):
    row = nl.ndarray((1, 128), nl.float32, nl.sbuf)
    row[...] = nl.sum(nl.load(x), axis=1)


def _scan_of_two_lengths(x):
    tile = nl.load(x)
    nisa.tensor_tensor_scan(tile[:, 0:8], tile, initial=0, op0=nl.add, op1=nl.add).settle()


def _four_values(x):
    tile = nl.load(x)
    nisa.nc_find_index8(data=tile, vals=tile[:, 0:4]).settle()


def _added_to_nothing(x):
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(dst=out, src=x, dst_rmw_op=nl.add)


def _sum_half_there(x):
    tile, total = nl.load(x[:, 0:128]), nl.ndarray((128, 128), nl.float32, nl.psum)
    nisa.nc_matmul(total[:, 0:32], tile, tile[:, 0:32])
    nisa.nc_matmul(total, tile, tile)


def _narrow_sum(x):
    tile, total = nl.load(x[:, 0:128]), nl.ndarray((128, 128), nl.bfloat16, nl.psum)
    nisa.nc_matmul(total, tile, tile)


def _other_axes(x):
    nisa.dma_transpose(x.reshape((128, 16, 16)), axes=(0, 2, 1))


def _short_pattern(x):
    nisa.iota(dst=nl.ndarray((4, 8), nl.int32, nl.sbuf), pattern=[[1, 7]], offset=0)


def _narrow_condition(x):
    tile = nl.load(x)
    nl.where(tile[:, 0:1] > 0, tile, 0.0).settle()


def _times_an_array(x):
    (nl.load(x) * np.ones(256, np.float32)).settle()


def _used_later(x):
    tall = nl.load(x.reshape((256, 128)))
    for _ in range(20):
        pass
    nl.exp(tall)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_start_of_another, "activation: an operand has 16 partitions from 16 on; so many start at 0 or 32 or 64 or"),
        (_every_other, "activation: an operand takes one partition in 2"),
        (_bits_of_floats, "operators of bits take and give whole numbers, not float32"),
        (_bits_and_sums, "one operator is of bits, the other arithmetic"),
        (
            _triangle,
            "tensor_reduce: its mask leaves no rectangle, and its result has another shape: set what it leaves",
        ),
        (_before_the_first, "an index reaches -1 on an axis of 256"),
        (_behind_the_last, "an index reaches 256 on an axis of 256"),
        (_pattern_behind_a_slice, "from 16512 on reaches elements 16512 to 32768 of 32768"),
        (_pattern_backwards, "from 0 on reaches elements -1 to 32512 of 32768"),
        (_onto_nothing, "nc_matmul, with accumulate=True, reads [128, 128] of psum that was never written"),
        (_down_to_across, "a result of shape [128, 1] does not fit a tile of shape [1, 128]"),
        (_scan_of_two_lengths, "tensor_tensor_scan: shapes [128, 8] and [128, 256] differ"),
        (_four_values, "nc_find_index8: vals has shape [128, 4]; it takes [128, 8]"),
        (_added_to_nothing, "a DMA with dst_rmw_op reads [128, 256] of hbm that was never written"),
        (_sum_half_there, "matmul, which adds, reads [128, 128] of psum that was never written (12288 of 16384 "),
        (_narrow_sum, "nc_matmul: sums in PSUM are float32, not bfloat16: copy the sum"),
        (_other_axes, "dma_transpose: axes is (0, 2, 1); it is (1, 0), (2, 1, 0) or (3, 1, 2, 0)"),
        (_short_pattern, "iota: the pattern [[1, 7]] has 7 elements, a partition of dst 8"),
        (_narrow_condition, "x of nl.where has shape [128, 256], its condition [128, 1]: repeat the condition"),
        (_times_an_array, "it is a number or a tile [128, 1]"),
        (_middle, "tensor_reduce: axis 1 of [128, 4, 64]; it reduces the last axes"),
        (_used_later, "has 256 partitions, 128 at most"),
        (_half_written, "was not written: 12800 of 32768 elements"),
        (_mixed, "stationary is float32, moving bfloat16"),
        (_start, "stationary has 35 partitions from 5 on; so many start at 0 or 64"),
        (_wide, "the free axis of stationary is 256 long, 128 is the limit"),
        (_strange, "nisa has no 'tensor_scan' here: did you mean tensor_"),
        (_argument, "tensor_copy has no argument dtyp=: did you mean dtype?"),
        (_beyond, "an index reaches 299 on an axis of 256"),
        (_unwritten, "reads [128, 10] of sbuf that was never written"),
        (_partitions, "has 129 partitions, 128 at most"),
        (_branch, "no `if` on a tile"),
        (_two_in_psum, "both operands are in PSUM"),
        (_memory, "buffer is 'sbuf'; say nl.sbuf"),
    ],
)
def test_a_refusal_names_the_line_and_the_way_out(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        launched(function, X)
    text = str(caught.value)
    assert message in text and "\n" not in text
    first = function.__code__.co_firstlineno
    name, line = text.split(":")[:2]
    last = first + (1 if function is _used_later else 6)  # the line that asked, not that which used it
    assert name == "test_nki_refusals.py" and first <= int(line) <= last


def test_more_banks_of_psum_than_there_are() -> None:
    def kernel(x: Any) -> None:
        tile = nl.load(x[:, 0:128])
        kept = [nisa.nc_transpose(tile).settle() for _ in range(9)]
        nl.copy(kept[0]).settle()

    with pytest.raises(LimitError, match="more than 8 tiles are in use at once"):
        launched(kernel, X)


def test_a_bank_is_free_as_soon_as_its_tile_is_named_no_more() -> None:
    def kernel(x: Any) -> Any:
        tile = nl.load(x[:, 0:128])
        first = nisa.nc_transpose(tile).settle()
        for _ in range(9):
            nl.copy(nisa.nc_transpose(tile)).settle()
        out = nl.ndarray((128, 128), x.dtype, nl.shared_hbm)
        nl.store(out, nl.copy(first))
        return out

    gc.disable()  # which would find circles, but later
    try:
        assert (launched(kernel, X) == 1).all()
    finally:
        gc.enable()


def test_a_device_that_is_not_there_is_told_with_the_kernels_line() -> None:
    jitted = nki.jit(platform_target="trn3")(_half_written)
    line = _half_written.__code__.co_firstlineno
    with pytest.raises(UsageError, match=rf"^test_nki_refusals.py:{line}: no NeuronCore 'trn3'; there are trn1, trn2"):
        jitted(X)


def test_outside_of_a_kernel_and_wide_numbers() -> None:
    with pytest.raises(UsageError, match="inside a kernel only"):
        nl.ndarray((128, 4), dtype=nl.float32)
    with pytest.raises(MeshrtError, match="float64"):
        launched(_half_written, X.astype(np.float64))
    with pytest.raises(UsageError, match=r"shape \[2, 2\] is int64, and 8589934597 is beyond int32"):
        launched(_half_written, np.full((2, 2), 2**33 + 5))
    with pytest.raises(UsageError, match=r"shape \[0, 4\] has no elements"):
        launched(_half_written, X[:0, :4])


def _carried(loop: Any) -> Callable[..., Any]:
    def kernel(x: Any) -> Any:
        out = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x[:, 0:8])
        for i in loop(7):
            tile[:, i + 1] = nl.add(tile[:, i], 1.0)
        nl.store(out, tile)
        return out

    return nki.jit(kernel)


def test_what_a_loop_carries_is_noted_for_affine_range_alone() -> None:
    for loop, noted in ((nl.affine_range, True), (nl.sequential_range, False), (nl.static_range, False)):
        kernel = _carried(loop)
        got = nki.simulate(kernel, show=False)(X)
        assert (got == 1 + np.arange(8)).all()
        assert any("earlier iteration" in note for note in kernel.report["notes"]) is noted


def test_sums_over_an_affine_range_carry_nothing() -> None:
    def kernel(x: Any) -> Any:
        out = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        total = nl.zeros((128, 8), dtype=nl.float32)
        for i in nl.affine_range(4):
            total[...] += nl.load(x[:, nl.ds(8 * i, 8)])
        nl.store(out, total)
        return out

    jitted = nki.jit(kernel)
    assert (nki.simulate(jitted, show=False)(X) == 4).all()
    assert jitted.report["notes"] == []


@pytest.mark.parametrize(
    ("step", "noted"),
    [
        (lambda t, x: nl.maximum(x, t), False),
        (lambda t, x: nl.subtract(t, x), False),
        (lambda t, x: nl.subtract(x, t), True),
        (lambda t, x: nl.exp(t), True),
        (lambda t, x: nisa.tensor_scalar(t, np.multiply, 2.0), False),
        (lambda t, x: nisa.tensor_scalar(t, np.multiply, 2.0, op1=np.add, operand1=1.0), True),
        (lambda t, x: nisa.scalar_tensor_tensor(data=x, op0=np.add, operand0=1, op1=np.add, operand1=t), False),
        (lambda t, x: nisa.scalar_tensor_tensor(data=t, op0=np.multiply, operand0=2, op1=np.add, operand1=x), True),
    ],
)
def test_what_is_written_over_itself_carries_nothing_if_the_order_is_no_matter(step: Any, noted: bool) -> None:
    def kernel(x: Any) -> Any:
        out = nl.ndarray((128, 8), dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.zeros((128, 8), dtype=nl.float32)
        for i in nl.affine_range(4):
            tile[...] = step(tile, nl.load(x[:, nl.ds(8 * i, 8)]))
        nl.store(out, tile)
        return out

    jitted = nki.jit(kernel)
    nki.simulate(jitted, show=False)(X)
    assert any("earlier iteration" in note for note in jitted.report["notes"]) is noted


def _half_a_loop(x):
    for _ in nl.affine_range(300 / 128):
        nl.load(x)


def _fraction(x):
    nl.load(x[:, nl.ds(0, 256 / 3)])


def _add_nothing(x):
    (nl.load(x) + None).settle()


def _where_none(x):
    tile = nl.load(x)
    nl.where(tile > 0, tile, None).settle()


def _keep_none(x):
    nisa.affine_select(nl.arange(128)[:, None] > nl.arange(256)[None, :], nl.load(x), None).settle()


def _add_one(x):
    nl.add(nl.load(x)).settle()


def _no_such_axis(x):
    nl.sum(nl.load(x), axis=2).settle()


def _third_operand(x):
    tile = nl.load(x)
    nl.add(tile, tile, tile).settle()


def _python_number(x):
    float(nl.load(x)[0:1, 0:1])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_half_a_loop, "a bound of a loop is 2.34375; it is a whole number: divide with //"),
        (_fraction, "the size of a ds is 85.33333333333333; it is a whole number"),
        (_add_nothing, r"operand0 is None; it is a number or a tile \[128, 1\]"),
        (_add_one, "operand0 is None"),
        (_where_none, "y of nl.where is None; it is a number or a tile"),
        (_keep_none, "on_false_value of affine_select is None; it is a number or a tile"),
        (_no_such_axis, r"axis 2 of \[128, 256\], whose axes are 0 to 1"),
        (_third_operand, "a tile stands where a dtype is wanted"),
        (_python_number, "a tile is no number of Python's"),
    ],
)
def test_what_would_come_to_other_numbers_unseen_is_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(UsageError, match=r"test_nki_refusals\.py:\d+: .*" + message):
        launched(function, X)


def test_tiles_are_compared_by_their_numbers() -> None:
    def compared(x):
        assert nl.load(x) != None  # noqa: E711  # as kernels ask for an argument left out
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        tile = nl.load(x)
        nl.store(out, nl.where(tile == 1, 5.0, 0.0) + (tile != 1) * tile)
        return out

    x = np.arange(128 * 256, dtype=np.float32).reshape(128, 256) % 3
    assert (launched(compared, x) == np.where(x == 1, 5, x)).all()


def _same(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, nl.load(x))
    return out


def _added(x):
    nl.store(x, nl.load(x) + 1)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (0, r"a grid of \[0\] over \[1\] cores: each axis has at least one program"),
        (-1, r"a grid of \[-1\]"),
        (1.5, "an axis of a grid is 1.5; it is a whole number"),
        ("2", "an axis of a grid is '2'"),
    ],
)
def test_a_grid_has_whole_numbers_of_programs(grid: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        nki.jit(_same)[grid](X)
    with pytest.raises(UsageError, match="cores= is 0; it starts at 1"):
        nki.simulate(_same, cores=0)(X)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reorder": "no"}, "reorder= is 'no'; it is True or False"),
        ({"show": "no"}, "show= is 'no'; it is True or False"),
        ({"trace": 5}, "trace= is 5; it names a file"),
        ({"trace": "/nowhere/at/all.json"}, "trace= /nowhere/at/all.json: there is no folder"),
    ],
)
def test_options_of_another_kind_are_told_before_anything_runs(options: dict[str, Any], message: str) -> None:
    def ran(x):
        raise AssertionError

    with pytest.raises(UsageError, match=message):
        nki.simulate(nki.jit(ran), **options)(X)


def test_a_grid_in_a_kernel_is_refused() -> None:
    inner = nki.jit(_same)
    assert (launched(lambda x: inner(x), X) == X).all()
    with pytest.raises(UsageError, match=r"_same has a grid, \(2,\), and is called in a kernel"):
        launched(lambda x: inner[2](x), X)


def test_cores_alone_are_an_axis_and_simulate_keeps_a_kernels_grid(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = nki.jit(_same)
    kernel[nl.nc(2)](X)
    nki.simulate(kernel[nl.nc(2)])(X)
    assert capsys.readouterr().err.count("on 2 NeuronCores of trn1, grid [2]") == 2
    nki.simulate(kernel[3])(X)
    assert "on 1 NeuronCore of trn1, grid [3]" in capsys.readouterr().err
    assert kernel.report is not None and kernel.report["hbm_bytes"]["read"] == 3 * X.nbytes


def test_arguments_that_are_no_arrays() -> None:
    with pytest.raises(UsageError, match=r"test_nki_refusals\.py:\d+: an argument is a list, which is no tensor"):
        launched(_same, X.tolist())
    with pytest.raises(UsageError, match="simulate takes a kernel"):
        nki.simulate(X)

    class Shape:
        shape, dtype = X.shape, X.dtype

    kernel = nki.jit(lambda x, y: _same(x))
    assert kernel(X, Shape()) is None and kernel.report is not None  # by shape, though one has numbers


def test_arrays_go_in_and_out_in_tuples_and_dictionaries() -> None:
    class Pair(NamedTuple):
        left: Any
        right: Any

    def kernel(pair, weights):
        return {"pair": Pair(_same(pair.left), 3), "weight": _same(weights["w"])}

    got = launched(kernel, Pair(X, None), {"w": 2 * X})
    assert (got["pair"].left == X).all() and got["pair"].right == 3 and (got["weight"] == 2 * X).all()


def test_what_a_kernel_writes_to_its_argument_reaches_the_caller_or_is_refused() -> None:
    class Wrapped:  # as tensors of torch are, whose memory NumPy shares
        def __init__(self, array: np.ndarray) -> None:
            self.array, self.shape, self.dtype = array, array.shape, array.dtype

        def __array__(self, *_: Any, **__: Any) -> np.ndarray:
            return self.array

    mine = Wrapped(X.copy())
    launched(_added, mine)
    assert (mine.array == X + 1).all()
    fixed = X.copy()
    fixed.flags.writeable = False
    with pytest.raises(UsageError, match=r"argument of shape \[128, 256\], which is read-only"):
        launched(_added, fixed)


def test_a_return_that_was_forgotten_is_noted() -> None:
    def forgotten(x):
        _same(x)

    for function, noted in ((forgotten, True), (_same, False), (_added, False)):
        kernel = nki.jit(function)
        kernel(X.copy())
        assert kernel.report is not None
        assert any("nothing is returned" in note for note in kernel.report["notes"]) == noted
