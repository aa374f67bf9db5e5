"""What small tensors of whole numbers hold that are made of shapes: Shape, Gather, Concat and their like."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from meshrt.models.onnx.graphs import attribute, ints
from meshrt.models.onnx.known import MOST, Content, Symbols, objects
from meshrt.models.onnx.sizes import SymbolicSize, product


def content_of(s: Symbols, node: ir.Node) -> Content | None:
    """What a small tensor of whole numbers holds, of sizes."""
    op = node.op_type
    if node.domain != "":
        return None
    if op in ("Shape", "Size"):
        shape = s.known(node, 0)
        part = shape[attribute(node, "start", 0) : attribute(node, "end", len(shape))]
        return objects([*part], (len(part),)) if op == "Shape" else objects([product(shape)], ())
    if op == "ConstantOfShape":
        wanted, value = s.content(node.inputs[0]), attribute(node, "value")
        number = 0 if value is None else value.numpy().reshape(-1)[0]
        if wanted is None or any(element.value is None for element in wanted) or not isinstance(number, np.integer):
            return None
        size = [int(element.value) for element in wanted]
        whole = product(map(SymbolicSize.of, size)).value
        if whole is None or not 0 <= whole <= MOST:
            return None
        return objects([SymbolicSize.of(int(number))] * whole, tuple(size))
    given = [s.content(value) for value in node.inputs]
    if not given or given[0] is None:
        return None
    x = given[0]
    if op == "Identity" or (op == "Cast" and attribute(node, "to") in (ir.DataType.INT64, ir.DataType.INT32)):
        return x if x.dtype == object else None
    if op in ("Unsqueeze", "Squeeze"):
        axes = ints(node, "axes", 1)
        if op == "Squeeze":
            return np.asarray(np.squeeze(x, None if axes is None else tuple(axes)))
        return np.expand_dims(x, tuple(axes or ()))
    if op == "Concat":
        return None if any(content is None for content in given) else np.concatenate(given, attribute(node, "axis"))  # type: ignore[arg-type]  # the condition sorts None out
    if op == "Neg":
        return _each(x, lambda size: SymbolicSize.of(0) - size)
    if op == "ReduceProd" and x.ndim == 1:
        whole_list = [product(x)]
        return objects(whole_list, (1,) if attribute(node, "keepdims", 1) else ())
    others = [content for content in given[1:] if content is not None]
    if len(others) < len(given) - 1:
        return None
    if op in ("Gather", "Reshape", "Slice"):
        plain = [[size.value for size in other.reshape(-1)] for other in others]
        if any(number is None for other in plain for number in other):
            return None
        if op == "Gather":
            return np.asarray(np.take(x, np.array(plain[0]).reshape(others[0].shape), attribute(node, "axis", 0)))
        if op == "Reshape":
            return x.reshape(plain[0])
        steps = plain[3] if len(plain) > 3 else [1] * len(plain[0])
        if x.ndim != 1 or len(plain[0]) != 1:
            return None
        return np.asarray(x[slice(plain[0][0], plain[1][0], steps[0])])
    if op == "Where":
        if x.dtype != bool or any(content.dtype == bool for content in others):
            return None
        return np.asarray(np.where(x, *others))
    if op in PAIRS and others and x.dtype == object:
        a, b = np.broadcast_arrays(x, others[0])
        results = [PAIRS[op](size, other) for size, other in zip(a.reshape(-1), b.reshape(-1), strict=True)]
        if any(result is None for result in results):
            return None
        return np.array(results, bool).reshape(a.shape) if op == "Equal" else objects(results, a.shape)
    return None


def _equal(a: SymbolicSize, b: SymbolicSize) -> bool | None:
    return True if a == b else False if (a - b).never_zero() else None


def _divided(a: SymbolicSize, b: SymbolicSize) -> SymbolicSize | None:
    if a.value is not None and b.value:
        return SymbolicSize.of(int(a.value / b.value)) if abs(a.value) < 1 << 52 else None
    return a.over(b) if b.terms else None


PAIRS: dict[str, Callable[[SymbolicSize, SymbolicSize], Any]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Div": _divided, "Equal": _equal,
    "Max": lambda a, b: a if a == b else None, "Min": lambda a, b: a if a == b else None,
}  # fmt: skip


def _each(x: Content, function: Callable[[SymbolicSize], SymbolicSize]) -> Content:
    return objects([function(size) for size in x.reshape(-1)], x.shape)
