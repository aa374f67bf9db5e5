"""Shapes with names in them, and small whole tensors that are made of shapes: Shape, Gather, Concat and their like.

Exporters compute the shapes of reshapes as the graph runs. Here they are followed for sizes that have only a name, so
that `[Gather(Shape(x), 1), -1, 64]` becomes `[S, 2, 64]`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from meshrt.models.onnx.graphs import OURS, attribute, constant, ints
from meshrt.models.onnx.read import RUNTIME
from meshrt.models.onnx.sizes import Size, product

Shape = tuple[Size, ...]
Content = NDArray[Any]  # of Size, or of bool
MOST = 64  # numbers in a tensor that is followed
SAME = (
    "Abs Cast CastLike Clip Cos CumSum Erf Exp Floor Ceil Gelu HardSwish Identity IsInf IsNaN LayerNormalization LeakyRelu"
    " Log LogSoftmax Neg Not Reciprocal Relu RMSNormalization Round Sigmoid Sign Sin Softmax Softplus Sqrt Swish Tanh Trilu"
    " SimplifiedLayerNormalization DequantizeLinear RMSNorm Rotary SwiGLU Dropout"
).split()
BROADCAST = (
    "Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or Pow Sub Where Xor"
).split()
REDUCE = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare")


class Symbols:
    """What is known of the values of a graph: shapes, and contents of small whole tensors."""

    def __init__(self) -> None:
        self.shapes: dict[ir.Value, Shape] = {}
        self.contents: dict[ir.Value, Content] = {}
        self._fresh = 0

    def name(self) -> Size:
        """A size of which nothing is known."""
        self._fresh += 1
        return Size.of(f"n{self._fresh}")

    def shape(self, value: ir.Value | None) -> Shape | None:
        if value is None:
            return None
        if value not in self.shapes:
            if value.shape is None:
                return None
            self.shapes[value] = tuple(self._size(one) for one in value.shape)
        return self.shapes[value]

    def content(self, value: ir.Value | None) -> Content | None:
        if value is not None and value not in self.contents and value.const_value is not None:
            if value.const_value.size <= MOST and not value.is_graph_input():
                numbers = constant(value)
                if numbers is not None and numbers.dtype.kind in "iu":
                    self.contents[value] = _objects([Size.of(int(one)) for one in numbers.reshape(-1)], numbers.shape)
                elif numbers is not None and numbers.dtype.kind == "b":
                    self.contents[value] = numbers
        return None if value is None else self.contents.get(value)

    def _size(self, one: Any) -> Size:
        known = one if isinstance(one, int) else one.value
        return self.name() if known is None else Size.of(known)


def follow(graph: ir.Graph) -> Symbols:
    """Goes through a graph, inputs first. A node that cannot be followed has what shape inference said of it."""
    found = Symbols()
    for node in graph:
        rule = None if node.domain not in ("", OURS, RUNTIME) else _rule(node.op_type)
        try:
            shapes = rule(found, node) if rule else None
            content = _content(found, node)
        except (ValueError, IndexError, TypeError, OverflowError, KeyError, np.exceptions.AxisError):
            shapes, content = None, None
        for value, shape in zip(node.outputs, shapes or (), strict=False):
            if shape is not None:
                found.shapes[value] = _better(shape, found.shape(value))
        if content is not None and content.size <= MOST:
            found.contents[node.outputs[0]] = content
            found.shapes[node.outputs[0]] = tuple(map(Size.of, content.shape))
    return found


def _better(ours: Shape, theirs: Shape | None) -> Shape:
    """Ours, but where only shape inference knows the number."""
    if theirs is None or len(theirs) != len(ours):
        return ours
    return tuple(b if a.value is None and b.value is not None else a for a, b in zip(ours, theirs, strict=True))


# ------------------------------------------------------------------------------------------------------------- shapes

Rule = Callable[[Symbols, ir.Node], Sequence[Shape | None] | None]


def _rule(op: str) -> Rule | None:
    if op in SAME:
        return lambda s, node: [s.shape(node.inputs[0])]
    if op in BROADCAST:
        return lambda s, node: [broadcast([s.shape(one) for one in node.inputs])]
    if op in REDUCE:
        return _reduce
    return RULES.get(op)


def broadcast(shapes: Sequence[Shape | None]) -> Shape | None:
    """Two names that differ must be equal when the graph runs: the first is taken."""
    known = [one for one in shapes if one is not None]
    if len(known) < len(shapes):
        return None
    rank = max(map(len, known))
    full = [(Size.of(1),) * (rank - len(one)) + one for one in known]
    out = []
    for column in zip(*full, strict=True):
        others = [one for one in column if one.value != 1]
        numbers = [one for one in others if one.value is not None]
        out.append((numbers or others or [Size.of(1)])[0])
    return tuple(out)


def _reduce(s: Symbols, node: ir.Node) -> list[Shape | None]:
    shape, axes = _known(s, node, 0), ints(node, "axes", 1)
    if axes is None:
        axes = [] if attribute(node, "noop_with_empty_axes", 0) else [*range(len(shape))]
    gone = {axis % len(shape) for axis in axes}
    keep = attribute(node, "keepdims", 1)
    return [tuple(Size.of(1) if at in gone else one for at, one in enumerate(shape) if keep or at not in gone)]


def _matmul(s: Symbols, node: ir.Node) -> list[Shape | None]:
    a, b = _known(s, node, 0), _known(s, node, 1)
    if len(a) < 2 or len(b) < 2:
        return [a[:-1] if len(b) == 1 else (*b[:-2], b[-1])]
    front = broadcast([a[:-2], b[:-2]])
    return [None if front is None else (*front, a[-2], b[-1])]


def _gemm(s: Symbols, node: ir.Node) -> list[Shape | None]:
    a, b = _known(s, node, 0), _known(s, node, 1)
    return [(a[1 if attribute(node, "transA", 0) else 0], b[0 if attribute(node, "transB", 0) else 1])]


def _bits(s: Symbols, node: ir.Node) -> list[Shape | None]:
    return [(*_known(s, node, 0)[:-1], Size.of(int(attribute(node, "N"))))]


def _gather(s: Symbols, node: ir.Node) -> list[Shape | None]:
    data, at = _known(s, node, 0), _known(s, node, 1)
    axis = attribute(node, "axis", 0) % len(data)
    return [data[:axis] + at + data[axis + 1 :]]


def _transpose(s: Symbols, node: ir.Node) -> list[Shape | None]:
    shape = _known(s, node, 0)
    return [tuple(shape[axis] for axis in attribute(node, "perm") or range(len(shape))[::-1])]


def _reshape(s: Symbols, node: ir.Node) -> list[Shape | None]:
    shape, wanted = s.shape(node.inputs[0]), s.content(node.inputs[1])
    if wanted is None:
        return [None]
    out = [*wanted]
    for at, one in enumerate(out):
        if one.value == 0 and not attribute(node, "allowzero", 0) and shape is not None:
            out[at] = shape[at]
    for at, one in enumerate(out):
        if one.value == -1:
            rest = product(out[:at] + out[at + 1 :])
            left = None if shape is None else product(shape).over(rest)
            out[at] = left or s.name()
    return [tuple(out)]


def _concat(s: Symbols, node: ir.Node) -> list[Shape | None]:
    shapes = [_known(s, node, at) for at in range(len(node.inputs))]
    axis = attribute(node, "axis") % len(shapes[0])
    total = Size.of(0)
    for one in shapes:
        total = total + one[axis]
    out = broadcast([one[:axis] + one[axis + 1 :] for one in shapes])
    return [None if out is None else (*out[:axis], total, *out[axis:])]


def _slice(s: Symbols, node: ir.Node) -> list[Shape | None]:
    shape = [*_known(s, node, 0)]
    starts, ends = s.content(_input(node, 1)), s.content(_input(node, 2))
    axes, steps = s.content(_input(node, 3)), s.content(_input(node, 4))
    if len(node.inputs) < 3 or starts is None or ends is None:
        return [None]
    of = range(len(starts)) if axes is None else [int(one.value or 0) % len(shape) for one in axes]
    for at, axis in enumerate(of):
        step = 1 if steps is None else steps[at].value
        begin, end = _place(starts[at], shape[axis]), _place(ends[at], shape[axis])
        length = None if step != 1 or begin is None or end is None else end - begin
        shape[axis] = length if length is not None else s.name()
    return [tuple(shape)]


def _place(at: Size, size: Size) -> Size | None:
    """Where a slice begins or ends: negative numbers count from the end, and large ones are the end."""
    if at.value is None:
        return at
    if size.value is not None:
        return Size.of(max(0, min(at.value + size.value if at.value < 0 else at.value, size.value)))
    if at.value >= 1 << 31:
        return size
    return size + at if at.value < 0 else Size.of(0) if at.value == 0 else None


def _unsqueeze(s: Symbols, node: ir.Node) -> list[Shape | None]:
    shape, axes = [*_known(s, node, 0)], ints(node, "axes", 1) or []
    rank = len(shape) + len(axes)
    for axis in sorted(one % rank for one in axes):
        shape.insert(axis, Size.of(1))
    return [tuple(shape)]


def _squeeze(s: Symbols, node: ir.Node) -> list[Shape | None]:
    shape, axes = _known(s, node, 0), ints(node, "axes", 1)
    if axes is None:
        if any(one.value is None for one in shape):
            return [None]
        return [tuple(one for one in shape if one.value != 1)]
    gone = {one % len(shape) for one in axes}
    return [tuple(one for at, one in enumerate(shape) if at not in gone)]


def _expand(s: Symbols, node: ir.Node) -> list[Shape | None]:
    wanted = s.content(node.inputs[1])
    return [None if wanted is None else broadcast([s.shape(node.inputs[0]), tuple(wanted)])]


def _range(s: Symbols, node: ir.Node) -> list[Shape | None]:
    low, high, step = (s.content(one) for one in node.inputs)
    if low is None or high is None or step is None or step.reshape(-1)[0].value != 1:
        return [None]
    return [(high.reshape(-1)[0] - low.reshape(-1)[0],)]


def _split(s: Symbols, node: ir.Node) -> list[Shape | None]:
    shape, parts = _known(s, node, 0), ints(node, "split", 1)
    axis, count = attribute(node, "axis", 0) % len(shape), len(node.outputs)
    whole = shape[axis].value
    if parts is None and whole is not None:
        part = -(-whole // count)
        parts = [min(part, whole - part * at) for at in range(count)]
    return [(*shape[:axis], Size.of(one), *shape[axis + 1 :]) for one in parts or ()]


def _known(s: Symbols, node: ir.Node, at: int) -> Shape:
    """An input's shape. ValueError where it is not known."""
    found = s.shape(node.inputs[at])
    if found is None:
        raise ValueError("not known")
    return found


def _input(node: ir.Node, at: int) -> ir.Value | None:
    return node.inputs[at] if at < len(node.inputs) else None


RULES: dict[str, Rule] = {
    "MatMul": _matmul, "Gemm": _gemm, "Gather": _gather, "Transpose": _transpose, "Reshape": _reshape,
    "Concat": _concat, "Slice": _slice, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Expand": _expand,
    "Range": _range, "Split": _split, "MatMulNBits": _bits,
}  # fmt: skip

# ----------------------------------------------------------------------------------------------------------- contents


def _content(s: Symbols, node: ir.Node) -> Content | None:
    """What a small tensor of whole numbers holds, of sizes."""
    op = node.op_type
    if node.domain != "":
        return None
    if op in ("Shape", "Size"):
        shape = _known(s, node, 0)
        part = shape[attribute(node, "start", 0) : attribute(node, "end", len(shape))]
        return _objects([*part], (len(part),)) if op == "Shape" else _objects([product(shape)], ())
    if op == "ConstantOfShape":
        wanted, value = s.content(node.inputs[0]), attribute(node, "value")
        number = 0 if value is None else value.numpy().reshape(-1)[0]
        if wanted is None or any(one.value is None for one in wanted) or not isinstance(number, np.integer):
            return None
        size = [int(one.value) for one in wanted]
        whole = product(map(Size.of, size)).value
        if whole is None or not 0 <= whole <= MOST:
            return None
        return _objects([Size.of(int(number))] * whole, tuple(size))
    given = [s.content(one) for one in node.inputs]
    if not given or given[0] is None:
        return None
    x, others = given[0], given[1:]
    if op == "Identity" or (op == "Cast" and attribute(node, "to") in (ir.DataType.INT64, ir.DataType.INT32)):
        return x if x.dtype == object else None
    if op in ("Unsqueeze", "Squeeze"):
        axes = ints(node, "axes", 1)
        if op == "Squeeze":
            return np.squeeze(x, None if axes is None else tuple(axes))
        return np.expand_dims(x, tuple(axes or ()))
    if op == "Concat":
        return None if any(one is None for one in given) else np.concatenate(given, attribute(node, "axis"))  # type: ignore[arg-type]
    if op == "Neg":
        return _each(x, lambda one: Size.of(0) - one)
    if op == "ReduceProd" and x.ndim == 1:
        whole_list = [product(x)]
        return _objects(whole_list, (1,) if attribute(node, "keepdims", 1) else ())
    if any(one is None for one in others):
        return None
    if op in ("Gather", "Reshape", "Slice"):
        plain = [[one.value for one in other.reshape(-1)] for other in others]  # type: ignore[union-attr]
        if any(one is None for other in plain for one in other):
            return None
        if op == "Gather":
            return np.asarray(np.take(x, np.array(plain[0]).reshape(others[0].shape), attribute(node, "axis", 0)))  # type: ignore[union-attr]
        if op == "Reshape":
            return x.reshape(plain[0])
        steps = plain[3] if len(plain) > 3 else [1] * len(plain[0])
        return x[slice(plain[0][0], plain[1][0], steps[0])] if x.ndim == 1 and len(plain[0]) == 1 else None
    if op == "Where":
        if x.dtype != bool or any(one.dtype == bool for one in others):  # type: ignore[union-attr]
            return None
        return np.where(x, others[0], others[1])  # type: ignore[arg-type]
    if op in PAIRS and others and x.dtype == object:
        a, b = np.broadcast_arrays(x, others[0])  # type: ignore[arg-type]
        found = [PAIRS[op](one, other) for one, other in zip(a.reshape(-1), b.reshape(-1), strict=True)]
        if any(one is None for one in found):
            return None
        return np.array(found, bool).reshape(a.shape) if op == "Equal" else _objects(found, a.shape)
    return None


def _equal(a: Size, b: Size) -> bool | None:
    return True if a == b else False if (a - b).never_zero() else None


def _divided(a: Size, b: Size) -> Size | None:
    if a.value is not None and b.value:
        return Size.of(int(a.value / b.value)) if abs(a.value) < 1 << 52 else None
    return a.over(b) if b.terms else None


PAIRS: dict[str, Callable[[Size, Size], Any]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Div": _divided, "Equal": _equal,
    "Max": lambda a, b: a if a == b else None, "Min": lambda a, b: a if a == b else None,
}  # fmt: skip


def _each(x: Content, function: Callable[[Size], Size]) -> Content:
    return _objects([function(one) for one in x.reshape(-1)], x.shape)


def _objects(values: Sequence[Any], shape: tuple[int, ...]) -> Content:
    """An array of sizes: NumPy would look into them."""
    out = np.empty(len(values), object)
    out[:] = values
    return out.reshape(shape)
