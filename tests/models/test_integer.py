"""Products of whole numbers: int64 as the oracle, order, tails, what is refused; onnxruntime as another hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrt.models.eightbits import block_sums, quantize_rows
from meshrt.models.errors import ModelError
from meshrt.models.integer import activation_error, linear, whole_product
from meshrt.models.quantize.codes import Codes, nearest
from meshrt.models.quantize.w4a8 import w4a8

SIZES = [(1, 1, 1), (3, 5, 31), (2, 7, 64), (5, 3, 65), (4, 9, 200)]


def numbers(shape: tuple[int, ...], seed: int, spread: float = 1.0) -> Any:
    return (spread * np.random.default_rng([*shape, seed]).standard_normal(shape)).astype(np.float32)


def slow(x: Any, packed: Codes, activations: str) -> Any:
    """The equation, a product at a time, whole numbers as Python's; the rest in float32, blocks ascending."""
    rows, inputs, group = len(x), x.shape[1], packed.codes.shape[2]
    out = np.zeros((rows, len(packed.codes)), np.float32)
    for t in range(rows):
        scales, a = [], []
        for low in range(0, inputs, inputs if activations == "row" else group):
            part = x[t, low : low + (inputs if activations == "row" else group)]
            scale = np.float32(np.abs(part).max()) / np.float32(127)
            scale = scale if scale else np.float32(1)
            scales.append(scale)
            a += [int(np.rint(number / scale)) for number in part]
        for n in range(len(packed.codes)):
            total = np.float32(0)
            for at, low in enumerate(range(0, inputs, group)):
                own = a[low : low + group]
                dot = sum(code * int(q) for code, q in zip(own, packed.codes[n, at], strict=False))
                part = np.float32(dot) * np.float32(packed.scale[n, at])
                if packed.offset is not None:
                    offset = np.float32(packed.offset[n, at])
                else:
                    zero = 8 if packed.zero is None else packed.zero[n, at]
                    offset = -np.float32(zero) * np.float32(packed.scale[n, at])
                part = part + np.float32(sum(own)) * offset
                total = total + (part * scales[at] if activations == "block" else part)
            out[t, n] = total * scales[0] if activations == "row" else total
    return out


@pytest.mark.parametrize("activations", ["row", "block"])
@pytest.mark.parametrize("form", ["offset", "symmetric", "zero"])
@pytest.mark.parametrize("rows, outputs, inputs", SIZES)
def test_a_product_is_the_equation_to_the_bit(
    rows: int, outputs: int, inputs: int, form: str, activations: Any
) -> None:
    w, x = numbers((outputs, inputs), 1, 0.1), numbers((rows, inputs), 2)
    packed = nearest(w, 4, 32) if form == "zero" else w4a8(w, 32, form == "symmetric")
    np.testing.assert_array_equal(linear(x, packed, activations), slow(x, packed, activations))


@given(st.data())
def test_whole_products_are_those_of_int64(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from([2, 4, 8]))
    rows, outputs = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    inputs = data.draw(st.sampled_from([1, 2, 63, 518, 519, 1037, 8806, 8807, 20000]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a = rng.integers(-127, 128, (rows, inputs)).astype(np.int8)
    q = rng.integers(0, 2**bits, (outputs, inputs)).astype(np.uint8)
    if data.draw(st.booleans()):  # as large as can be
        a[...], q[...] = rng.choice([-127, 127]), 2**bits - 1
    product = whole_product(a, q, bits)
    assert product.dtype == np.int32
    np.testing.assert_array_equal(product, a.astype(np.int64) @ q.astype(np.int64).T)


def test_sums_that_may_not_fit_are_refused() -> None:
    codes = np.zeros((1, 1, 66336), np.uint8)  # 66,336 * 127 * 255 > 2^31
    scale = np.ones((1, 1), np.float16)
    with pytest.raises(ModelError, match="66336 inputs of 8 bits"):
        linear(np.zeros((1, 66336), np.float32), Codes(codes, scale, None, 8, 66336))


def test_cutting_rows_and_outputs_changes_no_bit() -> None:
    """What a split over cores or ranks does. Cutting inputs would: that is an order of its own."""
    w, x = numbers((37, 300), 3), numbers((23, 300), 4)
    packed = w4a8(w, 64, False)
    for activations in ("row", "block"):
        whole = linear(x, packed, activations)
        part = Codes(packed.codes[5:20], packed.scale[5:20], None, 4, 300, packed.offset[5:20])
        np.testing.assert_array_equal(linear(x[7:9], part, activations), whole[7:9, 5:20])


@given(st.data())
def test_activations_are_half_a_step_away_at_most(data: st.DataObject) -> None:
    rows, inputs = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 150))
    block = data.draw(st.sampled_from([None, 1, 32, 64]))
    x = numbers((rows, inputs), data.draw(st.integers(0, 9)), data.draw(st.sampled_from([1e-30, 1.0, 1e30])))
    a, scale, sums = quantize_rows(x, block)
    size = block or inputs
    blocks = -(-inputs // size)
    assert (a.shape, a.dtype) == (x.shape, np.int8) and scale.shape == sums.shape == (rows, blocks)
    assert (scale.dtype, sums.dtype) == (np.float32, np.int32)
    wide = np.repeat(scale, size, axis=1)[:, :inputs].astype(float)
    assert np.all(np.abs(x - a * wide) <= wide * (0.5 + 1e-5)) and a.min(initial=0) >= -127
    for at in range(blocks):
        np.testing.assert_array_equal(sums[:, at], a[:, at * size : (at + 1) * size].astype(int).sum(axis=1))
    np.testing.assert_array_equal(block_sums(a, size), sums)


def test_halves_go_to_even_and_zeros_have_scale_1() -> None:
    a, scale, _ = quantize_rows(np.array([[127, 0.5, 1.5, -2.5, -127], [0, 0, 0, 0, -0.0]], np.float32), None)
    assert a.tolist() == [[127, 0, 2, -2, -127], [0, 0, 0, 0, 0]] and scale.tolist() == [[1], [1]]
    tiny, scale, _ = quantize_rows(np.array([[1e-45, 0]], np.float32), None)  # a scale that float32 does not have
    assert np.abs(tiny).max() <= 127 and scale.min() > 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_activations_that_are_no_numbers_are_refused(bad: float) -> None:
    x = numbers((3, 40), 1)
    x[1, 3] = bad
    with pytest.raises(ModelError, match="NaN or infinite"):
        quantize_rows(x, 32)


def test_the_error_of_activations_is_that_of_a_normal_distribution() -> None:
    """mean(absmax / rms) / (127 sqrt 12): 0.00782 of 256 rows of 1,024 numbers."""
    x = numbers((256, 1024), 0)
    lost, whole = activation_error(x, "row", 64)
    assert np.sqrt(lost / whole) == pytest.approx(0.0078, rel=0.01)
    assert activation_error(x, "block", 64)[0] < lost


# ------------------------------------------------------------------------------------------------------ four bits


@pytest.mark.parametrize("group, asymmetric, symmetric", [
    (32, 0.0783, 0.0973), (64, 0.0898, 0.1080), (128, 0.1000, 0.1177), (256, 0.1095, 0.1269), (1024, 0.1254, 0.1427),
])  # fmt: skip
def test_the_error_of_weights(group: int, asymmetric: float, symmetric: float) -> None:
    """N(0, 1), 256 x 1024, against prototypes of another hand."""
    w = np.random.default_rng(0).standard_normal((256, 1024))
    for of_all, want in ((False, asymmetric), (True, symmetric)):
        coded = w4a8(w, group, of_all).dequantized()
        assert np.linalg.norm(w - coded) / np.linalg.norm(w) == pytest.approx(want, abs=1.5e-4)


@given(st.data())
def test_weights_are_half_a_step_away_at_most(data: st.DataObject) -> None:
    group = data.draw(st.sampled_from([32, 64, 96]))
    shape = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 150))
    symmetric, shift = data.draw(st.booleans()), data.draw(st.sampled_from([0.0, -0.5, 0.5]))
    w = numbers(shape, data.draw(st.integers(0, 9)), 0.05) + np.float32(shift)
    coded = w4a8(w, group, symmetric)
    assert coded.codes.shape == (shape[0], -(-shape[1] // group), group) and coded.codes.max() <= 15
    assert (coded.offset is None) == symmetric and coded.zero is None
    step = np.repeat(coded.scale.astype(float), group, axis=1)[:, : shape[1]]
    slack = np.abs(w).max() * 2.0**-10 + 16 * step * 2.0**-11  # of an offset and a scale in float16
    assert np.all(np.abs(w - coded.dequantized()) <= 0.5 * step + slack)
    if symmetric:
        assert coded.codes.min() >= 1


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, -60000.0])
def test_groups_of_one_value_are_kept(value: float) -> None:
    coded = w4a8(np.full((1, 40), value), 32, False)
    assert coded.scale.tolist() == [[1, 1]]
    np.testing.assert_array_equal(coded.dequantized(), np.full((1, 40), value))


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_short_last_group_is_as_if_it_were_alone(symmetric: bool) -> None:
    w = numbers((3, 70), 1)
    whole, tail = w4a8(w, 64, symmetric), w4a8(w[:, 64:], 64, symmetric)
    np.testing.assert_array_equal(whole.dequantized()[:, 64:], tail.dequantized())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("spread, message", [(1e-5, "cannot be kept"), (1e6, "cannot be kept"), (np.nan, "NaN")])
def test_scales_beyond_float16_are_refused(spread: float, message: str, symmetric: bool) -> None:
    with pytest.raises(ModelError, match=message):
        w4a8(spread * numbers((2, 64), 1), 32, symmetric)


def test_an_offset_beyond_float16_is_refused() -> None:
    with pytest.raises(ModelError, match="no such offset"):
        w4a8(np.linspace(-70000, -69000, 64)[None], 32, False)


# ---------------------------------------------------------------------------------------------------- another hand


@pytest.mark.parametrize("group", [32, 64, 128])
def test_onnxruntime_computes_the_same(group: int) -> None:
    """MatMulNBits at accuracy level 4, whose activations are in 8 bits by blocks, with zero points that are whole."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    rows, outputs, inputs = 7, 96, 256
    rng = np.random.default_rng(group)
    w, x = 0.1 * rng.standard_normal((outputs, inputs)), numbers((rows, inputs), 5)
    low, high = (end(w.reshape(outputs, -1, group), axis=-1) for end in (np.min, np.max))
    scale = ((high - low) / 15).astype(np.float32)
    zero = np.clip(np.rint(-low / scale), 0, 15).astype(np.uint8)
    codes = np.clip(np.rint(w.reshape(outputs, -1, group) / scale[..., None] + zero[..., None]), 0, 15).astype(np.uint8)
    scale = scale.astype(np.float16)
    packed = codes[..., ::2] | codes[..., 1::2] << 4
    padded = np.pad(zero, ((0, 0), (0, zero.shape[1] % 2)))
    zeros = padded[:, ::2] | padded[:, 1::2] << 4
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s", "z"], ["y"], domain="com.microsoft", K=inputs, N=outputs, bits=4,
        block_size=group, accuracy_level=4,
    )  # fmt: skip
    tensors = [
        numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scale.astype(np.float32).reshape(-1), "s"),
        numpy_helper.from_array(zeros.reshape(-1), "z"),
    ]  # fmt: skip
    graph = helper.make_graph(
        [node], "product", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, outputs])], tensors,
    )  # fmt: skip
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=domains, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    want = session.run(None, {"x": x})[0]
    product = linear(x, Codes(codes, scale, zero.astype(np.float16), 4, inputs), "block")
    assert np.linalg.norm(product - want) / np.linalg.norm(want) < 1e-6
    assert np.linalg.norm(linear(x, Codes(codes, scale, zero.astype(np.float16), 4, inputs)) - want) > 1e-3
