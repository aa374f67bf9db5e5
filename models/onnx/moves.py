"""Rewrites of what only moves numbers: shapes that follow from names, slices of slices, moves that change nothing."""

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from meshrt.models.onnx.graphs import add_constant, attribute, constant, is_op, maker, replace, sizes
from meshrt.models.onnx.known import Symbols
from meshrt.models.onnx.sizes import SymbolicSize
from meshrt.models.onnx.symbols import follow

END = (1 << 63) - 1


def name_sizes(graph: ir.Graph) -> None:
    """The first axis of a graph's inputs, where it is a name and an input of ids has it too, is a batch: of 1 here."""
    batch = {
        shape[0] for value in graph.inputs if value.dtype is not None and value.dtype.is_integer()
        for shape in [sizes(value)] if shape and len(shape) == 2 and not isinstance(shape[0], int)
    }  # fmt: skip
    for value in graph.inputs:
        shape = sizes(value)
        if shape is None:
            continue
        new = [1 if not isinstance(size, int) and size is not None and size in batch else size for size in shape]
        if len(shape) > 1 and None in batch and shape[0] is None:
            new[0] = 1
        value.shape = ir.Shape([size or f"{value.name}.{at}" for at, size in enumerate(new)])


def settle_shapes(graph: ir.Graph) -> None:
    """What is known of shapes becomes constant: a tensor of sizes; a Reshape's, with -1 for a name; moves to the same
    shape go.
    """
    symbols = follow(graph)
    outputs = {id(value) for value in graph.outputs}
    for node in [*graph]:
        for value in node.outputs:
            shape = symbols.shapes.get(value)
            if shape is not None and id(value) not in outputs:
                value.shape = ir.Shape([size.value if size.value is not None else str(size) for size in shape])
        value = node.outputs[0]
        shape = symbols.shapes.get(value)
        content = symbols.contents.get(value)
        if content is not None and content.dtype == object and id(value) not in outputs:
            numbers = [size.value for size in content.reshape(-1)]
            if all(number is not None and abs(number) < 1 << 63 for number in numbers):
                kind = value.dtype.numpy() if value.dtype is not None else np.dtype(np.int64)
                replace(value, add_constant(graph, np.array(numbers, kind).reshape(content.shape)))
                continue
        if is_op(node, "Reshape", "Expand", "Slice") and shape is not None:
            if symbols.shape(node.inputs[0]) == shape and node.inputs[0] is not None and not _reorders(node):
                replace(value, node.inputs[0])
            elif not is_op(node, "Slice"):
                _settle(graph, symbols, node, shape)


def _reorders(node: ir.Node) -> bool:
    """A slice of all numbers, but backwards."""
    steps = constant(node.inputs[4]) if is_op(node, "Slice") and len(node.inputs) > 4 else None
    return is_op(node, "Slice") and len(node.inputs) > 4 and (steps is None or bool((steps < 0).any()))


def _settle(graph: ir.Graph, symbols: Symbols, node: ir.Node, shape: tuple[SymbolicSize, ...]) -> None:
    """A Reshape to at most one name that its input does not have at the same place; an Expand of some axes."""
    if constant(node.inputs[1]) is not None or any(size.value == 0 for size in shape):
        return
    before = symbols.shape(node.inputs[0])
    if is_op(node, "Expand"):
        if before is None or len(before) != len(shape):
            return
        wanted = [1 if size == own else size.value for size, own in zip(shape, before, strict=True)]
        if None not in wanted:
            node.replace_input_with(1, add_constant(graph, np.array(wanted, np.int64)))
        return
    new = [-1 if size.value is None else size.value for size in shape]
    if new.count(-1) > 1 and before is not None:
        for at in range(min(len(shape), len(before))):
            if new[at] == -1 and shape[at] == before[at] and new.count(-1) > 1:
                new[at] = 0
    if new.count(-1) > 1:
        return
    node.replace_input_with(1, add_constant(graph, np.array(new, np.int64)))
    node.attributes.pop("allowzero", None)


def merge_slices(graph: ir.Graph) -> None:
    """Slice of a Slice on other axes, with constants: one Slice."""
    for node in [*graph]:
        first = maker(node.inputs[0], "Slice") if is_op(node, "Slice") else None
        if first is None or any(len(cut.inputs) < 3 for cut in (first, node)):
            continue
        parts = [_parts(first), _parts(node)]
        if any(part is None for part in parts):
            continue
        whole = {axis: rest for part in parts for axis, *rest in part or ()}
        if len(whole) < sum(len(part or ()) for part in parts):
            continue  # twice the same axis
        columns = zip(*((low, high, axis, step) for axis, (low, high, step) in whole.items()), strict=True)
        inputs = [first.inputs[0], *(add_constant(graph, np.array(column, np.int64)) for column in columns)]
        for at, value in enumerate(inputs):
            if at < len(node.inputs):
                node.replace_input_with(at, value)
        if len(node.inputs) < 5:
            new = ir.node("Slice", inputs, {}, num_outputs=1)
            new.outputs[0].shape, new.outputs[0].type = node.outputs[0].shape, node.outputs[0].type
            graph.insert_before(node, new)
            replace(node.outputs[0], new.outputs[0])


def _parts(node: ir.Node) -> list[tuple[int, int, int, int]] | None:
    """(axis, start, end, step) of each axis that is cut, axes from the front; None where they are not constant."""
    shape = sizes(node.inputs[0]) if node.inputs[0] is not None else None
    given = [constant(operand) for operand in node.inputs[1:]]
    if shape is None or any(array is None for array in given):
        return None
    lists = [array.reshape(-1).tolist() for array in given if array is not None]
    starts, ends = lists[:2]
    axes = lists[2] if len(lists) > 2 else [*range(len(starts))]
    steps = lists[3] if len(lists) > 3 else [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return None
    return [
        (axis % len(shape), low, high, step) for axis, low, high, step in zip(axes, starts, ends, steps, strict=True)
    ]


def merge_transposes(graph: ir.Graph) -> None:
    """Transpose of a Transpose is one, or none."""
    for node in [*graph]:
        first = maker(node.inputs[0], "Transpose") if is_op(node, "Transpose") else None
        if first is None or first.inputs[0] is None:
            continue
        a, b = attribute(first, "perm"), attribute(node, "perm")
        if a is None or b is None:
            continue
        perm = [a[at] for at in b]
        if perm == [*range(len(perm))]:
            replace(node.outputs[0], first.inputs[0])
            continue
        node.replace_input_with(0, first.inputs[0])
        node.attributes["perm"] = ir.AttrInt64s("perm", perm)


Rewrite = Callable[[ir.Graph], None]
