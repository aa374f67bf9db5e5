"""Shapes with names in them, and small whole tensors that are made of shapes: Shape, Gather, Concat and their like.

Exporters compute the shapes of reshapes as the graph runs. Here they are followed for sizes that have only a name, so
that `[Gather(Shape(x), 1), -1, 64]` becomes `[S, 2, 64]`.
"""

import numpy as np
import onnx_ir as ir

from meshrt.models.onnx.contents import content_of
from meshrt.models.onnx.graphs import OURS
from meshrt.models.onnx.known import MOST, SymbolicShape, Symbols
from meshrt.models.onnx.read import RUNTIME
from meshrt.models.onnx.shapes import rule_of
from meshrt.models.onnx.sizes import SymbolicSize


def follow(graph: ir.Graph) -> Symbols:
    """Goes through a graph, inputs first. A node that cannot be followed has what shape inference said of it."""
    symbols = Symbols()
    for node in graph:
        rule = None if node.domain not in ("", OURS, RUNTIME) else rule_of(node.op_type)
        try:
            shapes = rule(symbols, node) if rule else None
            content = content_of(symbols, node)
        except (ValueError, IndexError, TypeError, OverflowError, KeyError, np.exceptions.AxisError):
            shapes, content = None, None
        for value, shape in zip(node.outputs, shapes or (), strict=False):
            if shape is not None:
                symbols.shapes[value] = _better(shape, symbols.shape(value))
        if content is not None and content.size <= MOST:
            symbols.contents[node.outputs[0]] = content
            symbols.shapes[node.outputs[0]] = tuple(map(SymbolicSize.of, content.shape))
    return symbols


def _better(ours: SymbolicShape, theirs: SymbolicShape | None) -> SymbolicShape:
    """Ours, but where only shape inference knows the number."""
    if theirs is None or len(theirs) != len(ours):
        return ours
    return tuple(b if a.value is None and b.value is not None else a for a, b in zip(ours, theirs, strict=True))
