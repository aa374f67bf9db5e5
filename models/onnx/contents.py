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
    if op in FROM_SHAPES:
        return FROM_SHAPES[op](s, node)
    given = [s.content(value) for value in node.inputs]
    if not given or given[0] is None:
        return None
    if op in FROM_FIRST:
        return FROM_FIRST[op](node, given[0])
    contents = [content for content in given if content is not None]
    if len(contents) < len(given):
        return None
    if op in FROM_ALL:
        return FROM_ALL[op](node, *contents)
    if op in PAIRS and len(contents) > 1 and contents[0].dtype == object:
        return _paired(PAIRS[op], *contents[:2])
    return None


def _shape(s: Symbols, node: ir.Node) -> Content:
    shape = s.known(node, 0)
    part = shape[attribute(node, "start", 0) : attribute(node, "end", len(shape))]
    return objects([*part], (len(part),))


def _size(s: Symbols, node: ir.Node) -> Content:
    return objects([product(s.known(node, 0))], ())


def _constant(s: Symbols, node: ir.Node) -> Content | None:
    wanted, value = s.content(node.inputs[0]), attribute(node, "value")
    number = 0 if value is None else value.numpy().reshape(-1)[0]
    if wanted is None or any(element.value is None for element in wanted) or not isinstance(number, np.integer):
        return None
    size = [int(element.value) for element in wanted]
    whole = product(map(SymbolicSize.of, size)).value
    if whole is None or not 0 <= whole <= MOST:
        return None
    return objects([SymbolicSize.of(int(number))] * whole, tuple(size))


def _same(node: ir.Node, x: Content) -> Content | None:
    return x if x.dtype == object else None


def _cast(node: ir.Node, x: Content) -> Content | None:
    return _same(node, x) if attribute(node, "to") in (ir.DataType.INT64, ir.DataType.INT32) else None


def _unsqueezed(node: ir.Node, x: Content) -> Content:
    return np.expand_dims(x, tuple(ints(node, "axes", 1) or ()))


def _squeezed(node: ir.Node, x: Content) -> Content:
    axes = ints(node, "axes", 1)
    return np.asarray(np.squeeze(x, None if axes is None else tuple(axes)))


def _negative(node: ir.Node, x: Content) -> Content:
    return objects([SymbolicSize.of(0) - size for size in x.reshape(-1)], x.shape)


def _multiplied(node: ir.Node, x: Content) -> Content | None:
    return objects([product(x)], (1,) if attribute(node, "keepdims", 1) else ()) if x.ndim == 1 else None


def _joined(node: ir.Node, *parts: Content) -> Content:
    return np.concatenate(parts, attribute(node, "axis"))


def _gathered(node: ir.Node, x: Content, indices: Content) -> Content | None:
    plain = _plain(indices)
    if plain is None:
        return None
    return np.asarray(np.take(x, np.array(plain).reshape(indices.shape), attribute(node, "axis", 0)))


def _reshaped(node: ir.Node, x: Content, shape: Content) -> Content | None:
    plain = _plain(shape)
    return None if plain is None else x.reshape(plain)


def _sliced(node: ir.Node, x: Content, starts: Content, stops: Content, *axes_and_steps: Content) -> Content | None:
    """Of one axis."""
    numbers = [_plain(content) for content in (starts, stops, *axes_and_steps)]
    if any(plain is None for plain in numbers) or x.ndim != 1 or starts.size != 1:
        return None
    begin, end, step = (plain[0] for plain in (*numbers[:2], numbers[3] if len(numbers) > 3 else [1]))  # type: ignore[index]  # the condition sorts None out
    return np.asarray(x[slice(begin, end, step)])


def _plain(content: Content) -> list[Any] | None:
    """The numbers of a content that has no names."""
    numbers = [size.value for size in content.reshape(-1)]
    return None if any(number is None for number in numbers) else numbers


def _chosen(node: ir.Node, x: Content, *others: Content) -> Content | None:
    if x.dtype != bool or any(content.dtype == bool for content in others):
        return None
    return np.asarray(np.where(x, *others))


def _paired(function: Callable[[SymbolicSize, SymbolicSize], Any], x: Content, other: Content) -> Content | None:
    """A result for each pair of sizes."""
    a, b = np.broadcast_arrays(x, other)
    results = [function(size, other_size) for size, other_size in zip(a.reshape(-1), b.reshape(-1), strict=True)]
    if any(result is None for result in results):
        return None
    return np.array(results, bool).reshape(a.shape) if function is _equal else objects(results, a.shape)


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


FROM_SHAPES: dict[str, Callable[[Symbols, ir.Node], Content | None]] = {
    "Shape": _shape, "Size": _size, "ConstantOfShape": _constant,
}  # fmt: skip
FROM_FIRST: dict[str, Callable[[ir.Node, Content], Content | None]] = {
    "Identity": _same, "Cast": _cast, "Unsqueeze": _unsqueezed, "Squeeze": _squeezed, "Neg": _negative,
    "ReduceProd": _multiplied,
}  # fmt: skip
FROM_ALL: dict[str, Callable[..., Content | None]] = {
    "Concat": _joined, "Gather": _gathered, "Reshape": _reshaped, "Slice": _sliced, "Where": _chosen,
}  # fmt: skip
