"""Matrices in a few bits: onnxruntime's MatMulNBits, and ONNX's own DequantizeLinear by blocks, as codes.

MatMulNBits (com.microsoft): B U8 [N, blocks, block bytes], the first code of a pair in the low half; scales
[N * blocks]; zero points U8 [N * ceil(blocks * bits / 8)], packed like codes, or floats [N * blocks]; without them
2^(bits - 1).
DequantizeLinear (opset 21): (x - zero) * scale with a scale for `block_size` neighbours along `axis`.
"""

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from meshrt.models.errors import ModelError
from meshrt.models.onnx.graphs import attribute, constant, maker
from meshrt.models.quantize.codes import Codes
from meshrt.models.quantize.form import check_group
from meshrt.models.quantize.halves import halves

Array = NDArray[Any]
BITS = (4, 8)


def codes_of(node: ir.Node) -> tuple[Codes, Array | None]:
    """Codes [N, K] and bias of a MatMulNBits. Raises ModelError naming the node."""
    name = f"node {node.name or node.outputs[0].name} (MatMulNBits)"
    bits, block = int(attribute(node, "bits", 4)), int(attribute(node, "block_size", 0))
    rows, columns = int(attribute(node, "N", 0)), int(attribute(node, "K", 0))
    if bits not in BITS or rows < 1 or columns < 1:
        raise ModelError(f"{name} has {bits} bits, {rows} x {columns}; 4 and 8 bits can be read")
    try:
        check_group(block)
    except ValueError as error:
        raise ModelError(f"{name}: its block_size {error}") from None
    given = [constant(value) if value is not None else None for value in (*node.inputs, None, None, None)]
    blocks = -(-columns // block)
    packed, scale, zeros = given[1:4]
    order = node.inputs[4] if len(node.inputs) > 4 else None
    if packed is None or scale is None or order is not None:
        raise ModelError(f"{name} has codes or scales that are no constants, or groups out of order")
    if packed.dtype != np.uint8 or packed.size != rows * blocks * block * bits // 8 or scale.size != rows * blocks:
        raise ModelError(
            f"{name} has {packed.size} bytes and {scale.size} scales for {rows} x {columns} in {blocks} blocks"
        )
    codes = unpacked(packed.reshape(rows, -1), bits).reshape(rows, blocks, block)
    zero = None
    if zeros is not None:
        if zeros.dtype == np.uint8:
            per_row = -(-blocks * bits // 8)
            if zeros.size != rows * per_row:
                raise ModelError(f"{name} has {zeros.size} bytes of zero points; {rows * per_row} are needed")
            zero = unpacked(zeros.reshape(rows, per_row), bits)[:, :blocks].astype(np.float16)
        elif zeros.dtype.kind == "f" and zeros.size == rows * blocks:
            zero = halves(name, zeros).reshape(rows, blocks)
        else:
            raise ModelError(f"{name} has zero points of a kind that cannot be read")
    bias = given[5] if len(node.inputs) > 5 and node.inputs[5] is not None else None
    return Codes(codes, halves(name, scale).reshape(rows, blocks), zero, bits, columns), bias


def unpacked(packed: Array, bits: int) -> Array:
    """Bytes [rows, n] as codes: the first of two in the low half."""
    if bits == 8:
        return packed
    pairs = np.stack((packed & 15, packed >> 4), axis=-1)
    return pairs.reshape(len(packed), -1)


def dequantized_codes(value: ir.Value, turned: bool) -> Codes | None:
    """Codes [out, in] of a DequantizeLinear [in, out], or [out, in] where `turned`. None for what is no such matrix."""
    node = maker(value, "DequantizeLinear")
    if node is None:
        return None
    name = f"node {node.name or node.outputs[0].name} (DequantizeLinear)"
    whole, scale = constant(node.inputs[0]), constant(node.inputs[1])
    zeros = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if whole is None or scale is None or whole.ndim != 2 or (len(node.inputs) > 2 and node.inputs[2] and zeros is None):
        return None
    kind = node.inputs[0].dtype if node.inputs[0] is not None else None
    bits = {ir.DataType.INT4: 4, ir.DataType.UINT4: 4, ir.DataType.INT8: 8, ir.DataType.UINT8: 8}.get(kind)  # type: ignore[arg-type]  # None is none of them
    if bits is None or kind is None:
        raise ModelError(f"{name} is of {kind}; codes of 4 and 8 bits can be read")
    inputs = 1 if turned else 0  # the axis of the inputs
    axis, block = attribute(node, "axis", 1) % 2, int(attribute(node, "block_size", 0))
    shift = 2 ** (bits - 1) if kind in (ir.DataType.INT4, ir.DataType.INT8) else 0
    codes = (whole.astype(np.int16) + shift).astype(np.uint8)
    zero = None if zeros is None else zeros.astype(np.int16) + shift
    if not turned:
        codes, scale = codes.T, scale.T if scale.ndim == 2 else scale
        zero = zero.T if zero is not None and zero.ndim == 2 else zero
    rows, columns = codes.shape
    if block == 0 and (scale.size == 1 or (scale.ndim == 1 and axis != inputs and scale.size == rows)):
        block, count = -(-columns // 32) * 32, 1
        scale, zero = (
            None if array is None else np.broadcast_to(array.reshape(-1, 1), (rows, 1)) for array in (scale, zero)
        )
    elif block and axis == inputs:
        count = -(-columns // block)
    else:
        raise ModelError(
            f"{name} has scales that go along the outputs; of rows or blocks of the inputs they can be read"
        )
    try:
        check_group(block)
    except ValueError as error:
        raise ModelError(f"{name}: its block_size {error}") from None
    if scale is None or scale.shape != (rows, count) or (zero is not None and zero.shape != scale.shape):
        raise ModelError(f"{name} has scales of a shape that does not go with {rows} x {columns} in blocks of {block}")
    full = np.zeros((rows, count * block), np.uint8)
    full[:, :columns] = codes
    middle = zero is None and shift
    stored = None if middle else np.zeros(scale.shape, np.float16) if zero is None else zero.astype(np.float16)
    if stored is not None and shift and (stored == shift).all():
        stored = None
    return Codes(full.reshape(rows, count, block), np.ascontiguousarray(halves(name, scale)), stored, bits, columns)
