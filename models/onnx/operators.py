"""A graph that is no decoder, operator by operator, as a folder (models/graph.py): in one spelling, or refused."""

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from meshrt.models.errors import ModelError
from meshrt.models.folders.writing import write_folder
from meshrt.models.graph import BINARY, FILE, FLOATS, MAX_NODES, MAX_NUMBERS, REDUCE, UNARY
from meshrt.models.onnx.graphs import attribute, constant, ints, sizes

Array = NDArray[Any]
KINDS = {"f": "float32", "i": "int64", "u": "int64", "b": "bool"}
KINDS_OF_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


class Refused(Exception):
    """Why a node cannot be."""


class GraphWriter:
    """Nodes and constants of a folder, as they come."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.constants: dict[str, Array] = {}
        self.node: ir.Node | None = None

    def put(self, op: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """One node more; the name of what it makes."""
        name = str(self.node.name or self.node.outputs[0].name) if self.node is not None else op
        output = output or f"{name}#{len(self.nodes)}"
        self.nodes.append({"op": op, "name": name, "inputs": inputs, "output": output, "attributes": attributes})
        return output

    def number(self, value: Any) -> str:
        """A constant of the writer's own."""
        name = f"#{len(self.constants)}"
        self.constants[name] = np.asarray(value, np.float32)
        return name

    def take(self, value: ir.Value | None) -> str:
        """The name of an input. Refused where there is none."""
        if value is None:
            raise Refused("leaves out an input that is needed")
        numbers = constant(value)
        if numbers is not None and value.name not in self.constants:
            self.constants[str(value.name)] = _kept(numbers)
        return str(value.name)


def _kept(numbers: Array) -> Array:
    """A constant as float32, int64 or bool. Refused for other kinds, and for what float32 or int64 cannot hold."""
    if numbers.dtype.kind not in KINDS and str(numbers.dtype) != "bfloat16":
        raise Refused(f"takes a constant of {numbers.dtype}")
    kind = KINDS.get(numbers.dtype.kind, "float32")
    try:
        with np.errstate(over="raise"):
            kept = numbers.astype(kind)
    except FloatingPointError:
        most = np.abs(numbers[np.isfinite(numbers)]).max()
        raise Refused(f"takes a constant of {most:g}, and numbers are kept in float32, up to 3.4e38") from None
    if numbers.dtype.kind == "u" and (kept < 0).any():
        raise Refused(f"takes a constant of {numbers.max()}, and whole numbers are kept in int64")
    return kept


def write(out: str, graph: ir.Graph, path: Path) -> dict[str, Any]:
    """Writes the folder; what a report says of it. Raises ModelError naming the node that cannot be."""
    writer = GraphWriter()
    if len(graph) > MAX_NODES // 16:
        raise ModelError(f"{path}: {len(graph)} nodes; {MAX_NODES // 16} can be run operator by operator")
    for node in graph:
        writer.node = node
        try:
            if node.domain != "" or node.op_type not in RULES:
                raise Refused("is no operator that runs alone: docs/onnx.md has those that do")
            kinds = [value.dtype for value in node.inputs if value is not None and value.dtype is not None]
            if node.op_type in FLOATS and (others := [kind for kind in kinds if kind not in KINDS_OF_FLOATS]):
                raise Refused(f"is of {others[0].name}; it can be of floats")
            for value in node.outputs:
                if prod(size for size in sizes(value) or () if isinstance(size, int)) > MAX_NUMBERS:
                    raise Refused(f"makes {sizes(value)}; {MAX_NUMBERS} numbers are the limit")
            RULES[node.op_type](writer, node)
        except Refused as refused:
            name = node.name or node.outputs[0].name
            raise ModelError(f"{path}: node {name} ({node.op_type}) {refused}") from None
    inputs = [_input(value, path) for value in graph.inputs]
    made = {entry["output"] for entry in writer.nodes} | {entry["name"] for entry in inputs}
    writer.node = None
    for value in graph.outputs:
        if value.name not in made:
            raise ModelError(f"{path}: its output {value.name} is no number of a node's")
    tensors = {f"t{at}": _stored(array, path) for at, array in enumerate(writer.constants.values())}
    dtypes = {name: str(array.dtype) for name, array in writer.constants.items() if array.dtype != np.float32}
    said = {
        "inputs": inputs, "outputs": [str(value.name) for value in graph.outputs], "nodes": writer.nodes,
        "constants": [*writer.constants], "dtypes": dtypes,
    }  # fmt: skip
    write_folder(out, None, {"model_type": "graph"}, tensors, {FILE: json.dumps(said, indent=1)})
    return {"nodes": len(writer.nodes), "bytes": sum(array.nbytes for array in tensors.values())}


def _stored(array: Array, path: Path) -> Array:
    """Whole numbers as float32, which folders have: ModelError where they are too large to be exact."""
    floats = np.ascontiguousarray(array.astype(np.float32))
    if array.dtype.kind == "i" and ((array > 2**62).any() or not np.array_equal(floats.astype(np.int64), array)):
        raise ModelError(f"{path}: the graph has whole numbers beyond 2^24, which cannot be kept")
    return floats


def _input(value: ir.Value, path: Path) -> dict[str, Any]:
    shape, kind = sizes(value), value.dtype
    if shape is None or kind is None:
        raise ModelError(f"{path}: input {value.name} has no shape or type")
    dtype = "float32" if kind in KINDS_OF_FLOATS else KINDS.get(kind.numpy().kind)
    if dtype is None or any(size == 0 for size in shape):
        raise ModelError(f"{path}: input {value.name} is {shape} of {kind.name}, which cannot be")
    return {
        "name": value.name,
        "dtype": dtype,
        "shape": [size if isinstance(size, int) else str(size) for size in shape],
    }


# -------------------------------------------------------------------------------------------------------------- rules


def _same(op: str, count: int) -> Callable[[GraphWriter, ir.Node], None]:
    def rule(w: GraphWriter, node: ir.Node) -> None:
        if len(node.inputs) < count:
            raise Refused(f"has {len(node.inputs)} inputs of {count}")
        out = w.take(node.inputs[0])
        for at, value in enumerate(node.inputs[1:] or [None]):  # Max and Min take any number of them
            last = at >= len(node.inputs) - 2
            names = [out] if value is None else [out, w.take(value)]
            if count == 3:
                w.put(op, [w.take(operand) for operand in node.inputs], node.outputs[0].name)
                return
            out = w.put(op if count == len(names) else "Identity", names, node.outputs[0].name if last else None)

    return rule


def _cast(w: GraphWriter, node: ir.Node) -> None:
    target, source = attribute(node, "to"), node.inputs[0].dtype if node.inputs[0] is not None else None
    if source not in KINDS_OF_FLOATS or target not in KINDS_OF_FLOATS:
        raise Refused("casts other numbers than floats")
    w.put("Identity", [w.take(node.inputs[0])], node.outputs[0].name)


def _rank(value: ir.Value | None) -> int:
    if value is None or value.shape is None:
        raise Refused("has an input whose shape is not known")
    return len(value.shape)


def _reduce(w: GraphWriter, node: ir.Node) -> None:
    rank, axes = _rank(node.inputs[0]), ints(node, "axes", 1)
    if axes is None and len(node.inputs) > 1 and node.inputs[1] is not None:
        raise Refused("has axes that are not constant")
    axes = [*range(rank)] if axes is None else sorted({axis % rank for axis in axes})
    keep = bool(attribute(node, "keepdims", 1))
    w.put(node.op_type, [w.take(node.inputs[0])], node.outputs[0].name, axes=axes, keepdims=keep)


def _softmax(w: GraphWriter, node: ir.Node) -> None:
    axis = attribute(node, "axis", -1) % _rank(node.inputs[0])
    w.put("Softmax", [w.take(node.inputs[0])], node.outputs[0].name, axis=axis)


def _numbers(node: ir.Node, at: int, label: str) -> list[int]:
    numbers = constant(node.inputs[at]) if at < len(node.inputs) else None
    if numbers is None:
        raise Refused(f"has {label} that are not constant")
    return [int(n) for n in numbers.reshape(-1)]


def _reshape(w: GraphWriter, node: ir.Node) -> None:
    shape = _numbers(node, 1, "sizes")
    if attribute(node, "allowzero", 0) and 0 in shape:
        raise Refused("makes an array of no numbers")
    w.put("Reshape", [w.take(node.inputs[0])], node.outputs[0].name, shape=shape)


def _by_axes(w: GraphWriter, node: ir.Node) -> None:
    """Squeeze, Unsqueeze and Flatten, to the shape that is known: at most one name."""
    shape = sizes(node.outputs[0])
    new = [-1 if not isinstance(size, int) else size for size in shape or [None, None]]
    if shape is None or new.count(-1) > 1:
        raise Refused("has a result with several sizes that are not known")
    w.put("Reshape", [w.take(node.inputs[0])], node.outputs[0].name, shape=new)


def _transpose(w: GraphWriter, node: ir.Node) -> None:
    perm = attribute(node, "perm") or range(_rank(node.inputs[0]))[::-1]
    w.put("Transpose", [w.take(node.inputs[0])], node.outputs[0].name, perm=[int(axis) for axis in perm])


def _concat(w: GraphWriter, node: ir.Node) -> None:
    axis = attribute(node, "axis") % _rank(node.inputs[0])
    w.put("Concat", [w.take(value) for value in node.inputs], node.outputs[0].name, axis=axis)


def _slice(w: GraphWriter, node: ir.Node) -> None:
    rank, (starts, ends) = _rank(node.inputs[0]), (_numbers(node, at, "bounds") for at in (1, 2))
    axes = _numbers(node, 3, "axes") if len(node.inputs) > 3 else [*range(len(starts))]
    steps = _numbers(node, 4, "steps") if len(node.inputs) > 4 else [1] * len(starts)
    if min(steps, default=1) < 1:
        raise Refused("goes backwards")
    parts = [[axis % rank, low, min(high, 1 << 53), step] for axis, low, high, step in zip(axes, starts, ends, steps,
                                                                                        strict=True)]  # fmt: skip
    w.put("Slice", [w.take(node.inputs[0])], node.outputs[0].name, parts=parts)


def _split(w: GraphWriter, node: ir.Node) -> None:
    rank, axis = _rank(node.inputs[0]), attribute(node, "axis", 0)
    shapes, low = [sizes(value) for value in node.outputs], 0
    for value, shape in zip(node.outputs, shapes, strict=True):
        size = shape[axis % rank] if shape else None
        if not isinstance(size, int):
            raise Refused("makes parts whose sizes are not known")
        w.put("Slice", [w.take(node.inputs[0])], value.name, parts=[[axis % rank, low, low + size, 1]])
        low += size


def _gather(w: GraphWriter, node: ir.Node) -> None:
    axis = attribute(node, "axis", 0) % _rank(node.inputs[0])
    w.put("Gather", [w.take(value) for value in node.inputs], node.outputs[0].name, axis=axis)


def _expand(w: GraphWriter, node: ir.Node) -> None:
    w.put("Expand", [w.take(node.inputs[0])], node.outputs[0].name, shape=_numbers(node, 1, "sizes"))


def _gemm(w: GraphWriter, node: ir.Node) -> None:
    a, b = (w.take(value) for value in node.inputs[:2])
    for at, key in enumerate(("transA", "transB")):
        if attribute(node, key, 0):
            turned = w.put("Transpose", [(a, b)[at]], perm=[1, 0])
            a, b = (turned, b) if at == 0 else (a, turned)
    more = node.inputs[2] if len(node.inputs) > 2 else None
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    last = more is None and alpha == 1
    out = w.put("MatMul", [a, b], node.outputs[0].name if last else None)
    if alpha != 1:
        out = w.put("Mul", [out, w.number(alpha)], node.outputs[0].name if more is None else None)
    if more is not None:
        c = w.take(more) if beta == 1 else w.put("Mul", [w.take(more), w.number(beta)])
        w.put("Add", [out, c], node.outputs[0].name)


def _norm(w: GraphWriter, node: ir.Node) -> None:
    """LayerNormalization and RMSNormalization, in their parts."""
    rank = _rank(node.inputs[0])
    if attribute(node, "axis", -1) % rank != rank - 1 or len([value for value in node.outputs if value.uses()]) > 1:
        raise Refused("goes over other axes than the last, or its mean is used")
    x = w.take(node.inputs[0])
    axes: dict[str, Any] = {"axes": [rank - 1], "keepdims": True}
    if node.op_type == "LayerNormalization":
        x = w.put("Sub", [x, w.put("ReduceMean", [x], **axes)])
    mean = w.put("ReduceMean", [w.put("Mul", [x, x])], **axes)
    root = w.put("Sqrt", [w.put("Add", [mean, w.number(attribute(node, "epsilon", 1e-5))])])
    biased = len(node.inputs) > 2 and node.inputs[2] is not None
    out = w.put("Mul", [w.put("Div", [x, root]), w.take(node.inputs[1])], None if biased else node.outputs[0].name)
    if biased:
        w.put("Add", [out, w.take(node.inputs[2])], node.outputs[0].name)


def _gelu(w: GraphWriter, node: ir.Node) -> None:
    if attribute(node, "approximate", "none") != "none":
        raise Refused("is approximated by tanh")
    x = w.take(node.inputs[0])
    half = w.put("Mul", [x, w.number(0.5)])
    erf = w.put("Erf", [w.put("Mul", [x, w.number(0.5**0.5)])])
    w.put("Mul", [half, w.put("Add", [erf, w.number(1.0)])], node.outputs[0].name)


def _swish(w: GraphWriter, node: ir.Node) -> None:
    x = w.take(node.inputs[0])
    inner = x if attribute(node, "alpha", 1.0) == 1 else w.put("Mul", [x, w.number(attribute(node, "alpha"))])
    w.put("Mul", [x, w.put("Sigmoid", [inner])], node.outputs[0].name)


RULES: dict[str, Callable[[GraphWriter, ir.Node], None]] = {
    **{op: _same(op, 1) for op in UNARY}, **{op: _same(op, 2) for op in BINARY}, **dict.fromkeys(REDUCE, _reduce),
    "Where": _same("Where", 3), "MatMul": _same("MatMul", 2), "Cast": _cast, "Softmax": _softmax, "Reshape": _reshape,
    "Squeeze": _by_axes, "Unsqueeze": _by_axes, "Flatten": _by_axes, "Transpose": _transpose, "Concat": _concat,
    "Slice": _slice, "Split": _split, "Gather": _gather, "Expand": _expand, "Gemm": _gemm,
    "LayerNormalization": _norm, "RMSNormalization": _norm, "Gelu": _gelu, "Swish": _swish,
}  # fmt: skip
