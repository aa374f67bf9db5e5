"""Products with a constant matrix: MatMul, Gemm, MatMulNBits, with a bias or without, or some columns of one."""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from meshrt.models.onnx.fuse import bare
from meshrt.models.onnx.graphs import attribute, constant, ints, is_op, maker, sizes
from meshrt.models.onnx.packed import codes_of, dequantized_codes
from meshrt.models.onnx.read import RUNTIME
from meshrt.models.quantize.codes import Codes
from meshrt.records import dataclass

Array = NDArray[Any]


@dataclass(frozen=True)
class OnnxLinear:
    """source times a matrix [in, out], or [out, in] where `turned`, plus `bias` [out]; `columns`: of its outputs."""

    source: ir.Value
    matrix: ir.Value | None
    turned: bool = False
    bias: Array | None = None
    codes: Codes | None = None
    columns: tuple[int, int] | None = None

    @property
    def outputs(self) -> int:
        return self.codes.codes.shape[0] if self.codes is not None else len(self.array())

    def array(self) -> Array:
        """[out, in]."""
        numbers = constant(self.matrix)
        assert numbers is not None
        return np.ascontiguousarray((numbers if self.turned else numbers.T)[slice(*self.columns or (None,))])


def linear_of(value: ir.Value | None) -> OnnxLinear | None:
    """What a value is the product of; None where it is none."""
    value = bare(value)
    if value is None:
        return None
    if node := maker(value, "Reshape"):  # of what a Gemm makes of rows
        inner = linear_of(node.inputs[0])
        shape = sizes(value)
        return inner if inner and shape and shape[-1] == inner.outputs else None
    if node := maker(value, "Add"):
        return _biased(node)
    if node := maker(value, "Split", "Slice"):
        return _columns(node, value)
    if node := maker(value, "MatMul", "Gemm"):
        return _product(node)
    node = value.producer()
    if node is not None and is_op(node, "MatMulNBits", domain=RUNTIME):
        codes, bias = codes_of(node)
        source = node.inputs[0]
        return None if source is None else OnnxLinear(_source(source), None, bias=bias, codes=codes)
    return None


def _product(node: ir.Node) -> OnnxLinear | None:
    source, matrix = node.inputs[:2]
    if source is None or matrix is None:
        return None
    turned = bool(attribute(node, "transB", 0))
    if is_op(node, "Gemm") and (
        attribute(node, "transA", 0) or attribute(node, "alpha", 1.0) != 1 or attribute(node, "beta", 1.0) != 1
    ):
        return None
    bias = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if len(node.inputs) > 2 and node.inputs[2] is not None and (bias is None or (bias.ndim > 1 and bias.shape[0] != 1)):
        return None
    bias = None if bias is None else bias.reshape(-1)
    inner: ir.Value | None = matrix
    while (move := maker(inner, "Transpose")) is not None:
        if attribute(move, "perm") not in (None, (1, 0), [1, 0]):
            return None
        inner, turned = move.inputs[0], not turned
    inner = bare(inner)
    if maker(inner, "DequantizeLinear") is not None and inner is not None:
        codes = dequantized_codes(inner, turned)
        return None if codes is None else OnnxLinear(_source(source), None, bias=bias, codes=codes)
    if inner is None or inner.const_value is None or inner.is_graph_input() or len(inner.shape or ()) != 2:
        return None
    return OnnxLinear(_source(source), inner, turned, bias)


def _source(value: ir.Value) -> ir.Value:
    """Without a Reshape that only makes rows of tokens, as Gemm needs them."""
    source = bare(value) or value
    node = maker(source, "Reshape")
    inner = bare(node.inputs[0]) if node else None
    before, after = (sizes(inner) if inner is not None else None), sizes(source)
    if inner is not None and before and after and len(after) == 2 and before[-1] == after[-1] and before[-1]:
        return inner
    return source


def _biased(node: ir.Node) -> OnnxLinear | None:
    for at, other in ((0, 1), (1, 0)):
        numbers = constant(bare(node.inputs[other]))
        inner = linear_of(node.inputs[at]) if numbers is not None else None
        if inner is not None and numbers is not None and inner.bias is None and numbers.size == inner.outputs:
            if numbers.size != numbers.shape[-1]:
                return None
            return OnnxLinear(inner.source, inner.matrix, inner.turned, numbers.reshape(-1), inner.codes, inner.columns)
    return None


def _columns(node: ir.Node, value: ir.Value) -> OnnxLinear | None:
    """A part of a product with several matrices side by side."""
    inner = linear_of(node.inputs[0])
    rank = len(value.shape or ())
    if inner is None or inner.columns is not None:
        return None
    if is_op(node, "Split"):
        parts = ints(node, "split", 1)
        if attribute(node, "axis", 0) not in (-1, rank - 1):
            return None
        at = [*node.outputs].index(value)
        parts = parts or [-(-inner.outputs // len(node.outputs))] * len(node.outputs)
        low, high = sum(parts[:at]), sum(parts[: at + 1])
    else:
        given = [constant(operand) for operand in node.inputs[1:]]
        if len(given) < 3 or any(array is None or array.size != 1 for array in given):
            return None
        low, high, axis, *step = (int(array.reshape(-1)[0]) for array in given if array is not None)
        if axis not in (-1, rank - 1) or step not in ([], [1]):
            return None
        low, high, _ = slice(low, high).indices(inner.outputs)
    part = slice(low, high)
    bias, codes = inner.bias, inner.codes
    if codes is not None:
        shift = [None if array is None else array[part] for array in (codes.zero, codes.offset)]
        codes = Codes(codes.codes[part], codes.scale[part], shift[0], codes.bits, codes.columns, shift[1])
    return OnnxLinear(
        inner.source, inner.matrix, inner.turned, None if bias is None else bias[part], codes,
        None if codes is not None else (low, high),
    )  # fmt: skip
