"""A graph of operators on the mesh, one after the other, as decode has its activations (waferllm, section 4.2).

The last axis of a value is cut along x or y, or at all cores whole; other axes are whole, and along the other axis of
the mesh all cores have the same. A product W[K_y, N_x] takes what is cut along y, ends in a K-tree allreduce along y
and makes what is cut along x: so products alternate the axes, and nothing between them moves. What meets numbers that
are cut along the other axis is brought there by one more sum, of what each core has of them; what goes across the last
axis (a transpose of it, heads that are split) is made whole the same way. Padding is zero after every operator.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshrt.models.errors import ModelError
from meshrt.models.graph import MOVES, REDUCE, Graph, Node, compute
from meshrt.programs.mesh.graph.values import OTHER, MeshMachine, Value


def run_operators(machine: MeshMachine, graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, Value]:
    """The outputs. Values go when nothing needs them any more."""
    last = {name: at for at, node in enumerate(graph.nodes) for name in node.inputs}
    values = {name: _fed(machine, name, array) for name, array in feeds.items()}
    for at, node in enumerate(graph.nodes):
        given = [values[name] if name in values else _constant(machine, graph, name) for name in node.inputs]
        values[node.output] = operate(machine, node, given)
        del given
        for name in {*node.inputs}:
            if last[name] == at and name not in graph.outputs:
                values.pop(name, None)
    return {name: values[name] if name in values else _constant(machine, graph, name) for name in graph.outputs}


def _fed(machine: MeshMachine, name: str, array: np.ndarray) -> Value:
    """An input: floats along y, as decode has them; whole numbers at all cores."""
    value = Value(array[None, None], None, array.shape[-1] if array.ndim else 1)
    if array.dtype.kind == "f" and array.ndim:
        return machine.cut(name, value, "y")
    return machine.keep(name, value.tiles, None, value.size)


def _constant(machine: MeshMachine, graph: Graph, name: str) -> Value:
    """In the hands of the host until it is placed: what is cut takes no room at a core as a whole."""
    array = graph.constants[name]
    return Value(array[None, None], None, array.shape[-1] if array.ndim else 1, name)


def operate(machine: MeshMachine, node: Node, given: list[Value]) -> Value:
    """One operator. LimitError, ModelError naming the node."""
    if node.op == "MatMul":
        return matmul(machine, node, *given)
    if node.op in REDUCE:
        return reduce(machine, node.op, node.attributes["axes"], node.attributes["keepdims"], given[0])
    if node.op == "Softmax" and given[0].axis is not None and node.attributes["axis"] == len(given[0].shape) - 1:
        return softmax(machine, node, given[0])
    if node.op in MOVES:
        return move(machine, node, given)
    return elementwise(machine, node, given)


def matmul(machine: MeshMachine, node: Node, a: Value, b: Value) -> Value:
    """W[K, N] has its rows along the axis of x and its columns along the other: y is cut along that."""
    block, a = machine.block, machine.along(a, a.axis or "y")
    assert a.axis is not None
    axis, to = a.axis, OTHER[a.axis]
    if len(b.shape) < 2 or a.tiles.ndim < 4 or b.shape[-2] != a.size:
        raise ModelError(f"node {node.name} (MatMul) does not go with {list(a.shape)} and {list(b.shape)}")
    tiles, lead = machine.matrix(b, axis), block.lead
    rank = max(a.tiles.ndim, tiles.ndim)
    left, right = (value.reshape(*lead, *(1,) * (rank - value.ndim), *value.shape[2:]) for value in (a.tiles, tiles))
    product = block.matmul(left.astype(np.float32), right.astype(np.float32))
    return machine.keep(node.output, machine.sums[axis](product), to, b.size)


def elementwise(machine: MeshMachine, node: Node, given: list[Value]) -> Value:
    """All operands that have numbers of their own along the last axis are brought to the axis of the first."""
    size = max(value.size for value in given)
    axis = next((value.axis for value in given if value.axis is not None and value.size == size and size > 1), None)
    same = [machine.whole(value) if axis is None or value.size == 1 else machine.along(value, axis) for value in given]
    tiles = compute(node, [value.tiles for value in same], 2)
    machine.block.elementwise(tiles)
    return machine.keep(node.output, tiles, axis, size)


def reduce(machine: MeshMachine, op: str, axes: list[int], keepdims: bool, value: Value) -> Value:
    """Over axes that are whole each core for itself; over the last, when it is cut, with a sum along the mesh."""
    block, rank, tiles = machine.block, len(value.shape), value.tiles
    across = rank - 1 in axes and value.axis is not None
    inner = tuple(axis + 2 for axis in axes)
    block.elementwise(tiles)
    if not across:
        out = REDUCE[op](tiles, axis=inner, keepdims=keepdims)
        gone = rank - 1 in axes
        size = value.size if not gone else 1 if keepdims or out.ndim == 2 else out.shape[-1]
        return machine.keep(op, out.astype(tiles.dtype), value.axis, size)
    assert value.axis is not None
    most = op in ("ReduceMax", "ReduceMin")
    if most:
        real, end = machine.real(value.size, value.axis), np.float32(-np.inf if op == "ReduceMax" else np.inf)
        tiles = np.where(real.reshape(*real.shape[:2], *(1,) * (tiles.ndim - 3), -1), tiles, end)
    share = (REDUCE[op] if most else np.sum)(tiles, axis=inner, keepdims=keepdims)
    share = block.memory.keep("shares", np.ascontiguousarray(share.reshape(*share.shape[:2], -1)).astype(np.float32))
    combine = np.maximum if op == "ReduceMax" else np.minimum if op == "ReduceMin" else np.add
    total = machine.sums[value.axis](share, combine)
    if op == "ReduceMean":
        total = total / np.float32(np.prod([value.shape[axis] for axis in axes]))
    shape = [1 if at in axes else length for at, length in enumerate(value.shape) if keepdims or at not in axes]
    whole = total[:1, :1].reshape(1, 1, *shape)
    return machine.keep(op, whole, None, shape[-1] if shape else 1)


def softmax(machine: MeshMachine, node: Node, value: Value) -> Value:
    """Over the last axis, which is cut: a sum of the largest along the mesh, and one of what they are raised to."""
    axis = [len(value.shape) - 1]
    top = reduce(machine, "ReduceMax", axis, True, value)
    raised = machine.keep("raised", np.exp(value.tiles - top.tiles), value.axis, value.size)
    machine.block.elementwise(raised.tiles, 2)
    total = reduce(machine, "ReduceSum", axis, True, raised)
    machine.block.elementwise(raised.tiles)
    return machine.keep(node.output, raised.tiles / total.tiles, value.axis, value.size)


def move(machine: MeshMachine, node: Node, given: list[Value]) -> Value:
    """What only moves numbers: each core its own where the last axis stays as it is, else all cores everything."""
    axis = next((value.axis for value in given if value.axis is not None), None)
    table = node.op == "Gather" and given[0].axis is None and given[0].tiles.dtype.kind == "f" and given[0].size > 1
    axis = "y" if table else axis
    stays = axis is not None and _stays(node, given)
    if stays and axis is not None:
        of = [
            machine.along(value, axis) if value.tiles.dtype.kind == "f" or node.op != "Gather" else value
            for value in given
        ]
        said: dict[str, Any] = dict(node.attributes)
        if "shape" in said:
            said["shape"] = [*said["shape"][:-1], of[0].tiles.shape[-1]]
        own = Node(node.op, node.name, node.inputs, node.output, said)
        tiles = compute(own, [value.tiles for value in of], 2)
        machine.block.elementwise(tiles)
        return machine.keep(node.output, tiles, axis, given[0].size)
    tiles = compute(node, [machine.whole(value).tiles for value in given], 2)
    machine.block.elementwise(tiles)
    return machine.keep(node.output, tiles, None, tiles.shape[-1] if tiles.ndim > 2 else 1)


def _stays(node: Node, given: list[Value]) -> bool:
    """Is the last axis of the result that of the first operand, number by number?"""
    said, shape = node.attributes, given[0].shape
    last = len(shape) - 1
    if node.op == "Transpose":
        return bool(said["perm"][-1] == last)
    if node.op in ("Concat", "Gather"):
        return bool(said["axis"] != last)
    if node.op == "Slice":
        return all(part[0] != last for part in said["parts"])
    wanted = [*said["shape"]]
    if node.op == "Reshape" and wanted and wanted[-1] in (-1, 0):
        full = np.empty(shape, np.bool_)
        return bool(compute(node, [full]).shape[-1] == shape[-1] and wanted.count(-1) == (0 if wanted[-1] == 0 else 1)
                    and wanted[-1] == 0)  # fmt: skip
    return bool(wanted) and wanted[-1] == shape[-1] and given[0].size > 1
