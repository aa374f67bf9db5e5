"""A graph of operators on the mesh, one after the other, as decode has its activations (waferllm, section 4.2).

The last axis of a value is cut along x or y, or at all cores whole; other axes are whole, and along the other axis of
the mesh all cores have the same. A product W[K_y, N_x] takes what is cut along y, ends in a K-tree allreduce along y and
makes what is cut along x: so products alternate the axes, and nothing between them moves. What meets numbers that are
cut along the other axis is brought there by one more sum, of what each core has of them; what goes across the last axis
(a transpose of it, heads that are split) is made whole the same way. Padding is zero after every operator.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.tiles import gather_parts
from meshrt.models.errors import ModelError
from meshrt.models.graph import MOVES, REDUCE, Graph, Node, compute

Axis = Literal["x", "y"]
OTHER: Mapping[Axis, Axis] = {"x": "y", "y": "x"}


@dataclass(frozen=True, eq=False)
class Value:
    """tiles [bh, bw, *tile], the last axis `size` numbers, cut along `axis`; or [1, 1, *whole], the same at all cores."""

    tiles: np.ndarray
    axis: Axis | None
    size: int
    constant: str | None = None  # its name, while the host has it: cores get it as they need it

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        return (*self.tiles.shape[2:-1], self.size) if self.tiles.ndim > 2 else ()


@dataclass(eq=False)
class Machine:
    """The cores, and their sums f(tiles, combine) along x and y."""

    block: Block
    sums: Mapping[Axis, Callable[..., np.ndarray]]
    placed: dict[tuple[str, str], Any] = field(default_factory=dict)  # constants that cores have, and how cut

    def chunk(self, size: int, axis: Axis) -> int:
        return -(-size // self.block.mesh.length(axis))

    def own(self, pieces: np.ndarray, axis: Axis) -> np.ndarray:
        """Of [parts of the axis, ..] those of this block: [1, bw, ..] or [bh, 1, ..]."""
        low, lead = self.block.mesh.offset(axis), self.block.lead
        mine = pieces[low : low + lead[1 if axis == "x" else 0]]
        return mine[None] if axis == "x" else mine[:, None]

    def real(self, size: int, axis: Axis) -> np.ndarray:
        """Which numbers of the chunks are no padding: bool [1 or bh, 1 or bw, chunk]."""
        chunk = self.chunk(size, axis)
        return self.own((np.arange(chunk * self.block.mesh.length(axis)) < size).reshape(-1, chunk), axis)

    def keep(self, name: str, tiles: np.ndarray, axis: Axis | None, size: int) -> Value:
        """As core memory; padding becomes zero."""
        if axis is not None and tiles.ndim > 2 and self.chunk(size, axis) * self.block.mesh.length(axis) != size:
            real = self.real(size, axis)
            tiles = np.where(real.reshape(*real.shape[:2], *(1,) * (tiles.ndim - 3), -1), tiles, tiles.dtype.type(0))
        if axis is not None:
            tiles = np.ascontiguousarray(np.broadcast_to(tiles, (*self.block.lead, *tiles.shape[2:])))
        else:
            tiles = np.ascontiguousarray(tiles[:1, :1])
        return Value(self.block.memory.keep(name, tiles), axis, size)

    def cut(self, name: str, value: Value, axis: Axis) -> Value:
        """What all cores have: each keeps its chunk."""
        whole, chunk, parts = value.tiles[0, 0], self.chunk(value.size, axis), self.block.mesh.length(axis)
        padded = np.pad(whole, [(0, 0)] * (whole.ndim - 1) + [(0, chunk * parts - value.size)])
        pieces = np.moveaxis(padded.reshape(*whole.shape[:-1], parts, chunk), -2, 0)
        return self.keep(name, self.own(pieces, axis), axis, value.size)

    def whole(self, value: Value) -> Value:
        """All numbers at all cores: a sum along the axis of arrays in which each core has its own, and zeros."""
        if value.constant is not None:
            return self._place(value, "", lambda: self.keep(str(value.constant), value.tiles, None, value.size))
        return value if value.axis is None else self._spread(value, None)

    def along(self, value: Value, axis: Axis) -> Value:
        """Cut along that axis."""
        if value.axis == axis:
            return value
        if value.constant is not None:
            return self._place(value, axis, lambda: self.cut(str(value.constant), value, axis))
        return self.cut("a part", value, axis) if value.axis is None else self._spread(value, axis)

    def _place(self, value: Value, how: str, make: Callable[[], Any]) -> Any:
        """A constant at the cores, from now on."""
        key = str(value.constant), how
        if key not in self.placed:
            self.placed[key] = make()
        return self.placed[key]

    def matrix(self, value: Value, axis: Axis) -> np.ndarray:
        """W [.., K, N] with its rows along that axis and its columns along the other: [bh, bw, .., Kt, Nt]."""
        if value.constant is not None:
            found: np.ndarray = self._place(value, f"rows along {axis}", lambda: self._matrix(value, axis))
            return found
        return self._matrix(self.whole(value), axis)

    def _matrix(self, value: Value, axis: Axis) -> np.ndarray:
        block, whole, to = self.block, value.tiles[0, 0], OTHER[axis]
        cuts = self.chunk(whole.shape[-2], axis), self.chunk(whole.shape[-1], to)
        parts = block.mesh.length(axis), block.mesh.length(to)
        room = [(0, cuts[at] * parts[at] - whole.shape[at - 2]) for at in range(2)]
        padded = np.pad(whole, [(0, 0)] * (whole.ndim - 2) + room)
        pieces = np.moveaxis(padded.reshape(*whole.shape[:-2], parts[0], cuts[0], parts[1], cuts[1]), (-4, -2), (0, 1))
        low = block.mesh.offset(axis), block.mesh.offset(to)
        count = block.lead if axis == "y" else block.lead[::-1]
        mine = pieces[low[0] : low[0] + count[0], low[1] : low[1] + count[1]]
        tiles = np.ascontiguousarray(mine if axis == "y" else mine.swapaxes(0, 1)).astype(np.float32)
        return block.memory.keep(value.constant or "matrix", tiles)

    def _spread(self, value: Value, to: Axis | None) -> Value:
        """A core puts what it has where it belongs in what is needed here: everything, or the chunk along `to`."""
        block, size, source = self.block, value.size, value.axis
        assert source is not None
        chunk = self.chunk(size, source)
        length = block.mesh.length(source) * chunk
        wide = length if to is None else self.chunk(size, to)
        low_from = self.own(chunk * np.arange(block.mesh.length(source)), source)  # first number of each core's chunk
        low_to = np.zeros((1, 1), int) if to is None else self.own(wide * np.arange(block.mesh.length(to)), to)
        at = low_to[..., None] + np.arange(wide) - low_from[..., None]  # [bh, bw, wide]: which of its own goes there
        at = np.broadcast_to(at, (*block.lead, wide))
        inside = (at >= 0) & (at < chunk) & (low_to[..., None] + np.arange(wide) < size)
        index = np.where(inside, at, 0).reshape(*block.lead, *(1,) * (value.tiles.ndim - 3), wide)
        took = np.take_along_axis(value.tiles, np.broadcast_to(index, (*value.tiles.shape[:-1], wide)), axis=-1)
        mask = inside.reshape(index.shape)
        parts = block.memory.keep("own numbers among zeros", np.where(mask, took, took.dtype.type(0)))
        block.elementwise(parts)
        summed = self.sums[source](parts.astype(np.float32)).astype(value.tiles.dtype)
        return self.keep("numbers brought over", summed[..., :size] if to is None else summed, to, size)


def run_operators(machine: Machine, graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, Value]:
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


def _fed(machine: Machine, name: str, array: np.ndarray) -> Value:
    """An input: floats along y, as decode has them; whole numbers at all cores."""
    value = Value(array[None, None], None, array.shape[-1] if array.ndim else 1)
    if array.dtype.kind == "f" and array.ndim:
        return machine.cut(name, value, "y")
    return machine.keep(name, value.tiles, None, value.size)


def _constant(machine: Machine, graph: Graph, name: str) -> Value:
    """In the hands of the host until it is placed: what is cut takes no room at a core as a whole."""
    array = graph.constants[name]
    return Value(array[None, None], None, array.shape[-1] if array.ndim else 1, name)


def operate(machine: Machine, node: Node, given: list[Value]) -> Value:
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


def matmul(machine: Machine, node: Node, a: Value, b: Value) -> Value:
    """W[K, N] has its rows along the axis of x and its columns along the other: y is cut along that."""
    block, a = machine.block, machine.along(a, a.axis or "y")
    assert a.axis is not None
    axis, to = a.axis, OTHER[a.axis]
    if len(b.shape) < 2 or a.tiles.ndim < 4 or b.shape[-2] != a.size:
        raise ModelError(f"node {node.name} (MatMul) does not go with {list(a.shape)} and {list(b.shape)}")
    tiles, lead = machine.matrix(b, axis), block.lead
    rank = max(a.tiles.ndim, tiles.ndim)
    left, right = (one.reshape(*lead, *(1,) * (rank - one.ndim), *one.shape[2:]) for one in (a.tiles, tiles))
    product = block.matmul(left.astype(np.float32), right.astype(np.float32))
    return machine.keep(node.output, machine.sums[axis](product), to, b.size)


def elementwise(machine: Machine, node: Node, given: list[Value]) -> Value:
    """All operands that have numbers of their own along the last axis are brought to the axis of the first."""
    size = max(one.size for one in given)
    axis = next((one.axis for one in given if one.axis is not None and one.size == size and size > 1), None)
    same = [machine.whole(one) if axis is None or one.size == 1 else machine.along(one, axis) for one in given]
    tiles = compute(node, [one.tiles for one in same], 2)
    machine.block.elementwise(tiles)
    return machine.keep(node.output, tiles, axis, size)


def reduce(machine: Machine, op: str, axes: list[int], keepdims: bool, value: Value) -> Value:
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
    shape = [1 if at in axes else one for at, one in enumerate(value.shape) if keepdims or at not in axes]
    whole = total[:1, :1].reshape(1, 1, *shape)
    return machine.keep(op, whole, None, shape[-1] if shape else 1)


def softmax(machine: Machine, node: Node, value: Value) -> Value:
    """Over the last axis, which is cut: a sum of the largest along the mesh, and one of what they are raised to."""
    axis = [len(value.shape) - 1]
    top = reduce(machine, "ReduceMax", axis, True, value)
    raised = machine.keep("raised", np.exp(value.tiles - top.tiles), value.axis, value.size)
    machine.block.elementwise(raised.tiles, 2)
    total = reduce(machine, "ReduceSum", axis, True, raised)
    machine.block.elementwise(raised.tiles)
    return machine.keep(node.output, raised.tiles / total.tiles, value.axis, value.size)


def move(machine: Machine, node: Node, given: list[Value]) -> Value:
    """What only moves numbers: each core its own where the last axis stays as it is, else all cores everything."""
    axis = next((one.axis for one in given if one.axis is not None), None)
    table = node.op == "Gather" and given[0].axis is None and given[0].tiles.dtype.kind == "f" and given[0].size > 1
    axis = "y" if table else axis
    stays = axis is not None and _stays(node, given)
    if stays and axis is not None:
        of = [machine.along(one, axis) if one.tiles.dtype.kind == "f" or node.op != "Gather" else one for one in given]
        said: dict[str, Any] = dict(node.attributes)
        if "shape" in said:
            said["shape"] = [*said["shape"][:-1], of[0].tiles.shape[-1]]
        own = Node(node.op, node.name, node.inputs, node.output, said)
        tiles = compute(own, [one.tiles for one in of], 2)
        machine.block.elementwise(tiles)
        return machine.keep(node.output, tiles, axis, given[0].size)
    tiles = compute(node, [machine.whole(one).tiles for one in given], 2)
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


def gathered(machine: Machine, value: Value) -> np.ndarray | None:
    """The whole, at rank 0."""
    block = machine.block
    if value.axis is None:
        return value.tiles[0, 0] if block.control.rank == 0 else None
    mesh = block.mesh
    found = gather_parts(block, value.tiles, (mesh.height, mesh.width, *value.tiles.shape[2:]))
    if found is None:
        return None
    line = found[0] if value.axis == "x" else found[:, 0]
    return np.concatenate([*line], axis=-1)[..., : value.size]
