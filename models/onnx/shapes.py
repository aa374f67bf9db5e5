"""Shapes of what operators make, in sizes that may be names. Rules raise ValueError and such where they do not know."""

from collections.abc import Callable, Sequence

import onnx_ir as ir

from meshrt.models.onnx.graphs import attribute, ints
from meshrt.models.onnx.known import SymbolicShape, Symbols
from meshrt.models.onnx.sizes import SymbolicSize, product

SAME = frozenset((
    "Abs", "Cast", "CastLike", "Clip", "Cos", "CumSum", "Erf", "Exp", "Floor", "Ceil", "Gelu", "Identity", "IsInf",
    "IsNaN", "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "Neg", "Not", "Reciprocal", "Relu",
    "RMSNormalization", "Round", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Sqrt", "Swish", "Tanh", "Trilu",
    "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "QuickGelu", "DequantizeLinear", "RMSNorm",
    "Rotary", "SwiGLU",
))  # fmt: skip
BROADCAST = frozenset((
    "Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod",
    "Mul", "Or", "Pow", "Sub", "Where", "Xor",
))  # fmt: skip
REDUCE = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare")


Rule = Callable[[Symbols, ir.Node], Sequence[SymbolicShape | None] | None]


def rule_of(op: str) -> Rule | None:
    if op in SAME:
        return lambda s, node: [s.shape(node.inputs[0])]
    if op in BROADCAST:
        return lambda s, node: [broadcast([s.shape(value) for value in node.inputs])]
    if op in REDUCE:
        return _reduce
    return RULES.get(op)


def broadcast(shapes: Sequence[SymbolicShape | None]) -> SymbolicShape | None:
    """Two names that differ must be equal when the graph runs: the first is taken."""
    given = [shape for shape in shapes if shape is not None]
    if len(given) < len(shapes):
        return None
    rank = max(map(len, given))
    full = [(SymbolicSize.of(1),) * (rank - len(shape)) + shape for shape in given]
    out = []
    for column in zip(*full, strict=True):
        others = [size for size in column if size.value != 1]
        numbers = [size for size in others if size.value is not None]
        out.append((numbers or others or [SymbolicSize.of(1)])[0])
    return tuple(out)


def _reduce(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    shape, axes = s.known(node, 0), ints(node, "axes", 1)
    if axes is None:
        axes = [] if attribute(node, "noop_with_empty_axes", 0) else [*range(len(shape))]
    gone = {axis % len(shape) for axis in axes}
    keep = attribute(node, "keepdims", 1)
    return [
        tuple(SymbolicSize.of(1) if at in gone else size for at, size in enumerate(shape) if keep or at not in gone)
    ]


def _matmul(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    a, b = s.known(node, 0), s.known(node, 1)
    if len(a) < 2 or len(b) < 2:
        return [a[:-1] if len(b) == 1 else (*b[:-2], b[-1])]
    front = broadcast([a[:-2], b[:-2]])
    return [None if front is None else (*front, a[-2], b[-1])]


def _gemm(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    a, b = s.known(node, 0), s.known(node, 1)
    return [(a[1 if attribute(node, "transA", 0) else 0], b[0 if attribute(node, "transB", 0) else 1])]


def _bits(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    return [(*s.known(node, 0)[:-1], SymbolicSize.of(int(attribute(node, "N"))))]


def _gather(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    data, at = s.known(node, 0), s.known(node, 1)
    axis = attribute(node, "axis", 0) % len(data)
    return [data[:axis] + at + data[axis + 1 :]]


def _transpose(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    shape = s.known(node, 0)
    return [tuple(shape[axis] for axis in attribute(node, "perm") or range(len(shape))[::-1])]


def _reshape(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    shape, wanted = s.shape(node.inputs[0]), s.content(node.inputs[1])
    if wanted is None:
        return [None]
    out = [*wanted]
    for at, size in enumerate(out):
        if size.value == 0 and not attribute(node, "allowzero", 0) and shape is not None:
            out[at] = shape[at]
    for at, size in enumerate(out):
        if size.value == -1:
            rest = product(out[:at] + out[at + 1 :])
            left = None if shape is None else product(shape).over(rest)
            out[at] = left or s.name()
    return [tuple(out)]


def _concat(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    shapes = [s.known(node, at) for at in range(len(node.inputs))]
    axis = attribute(node, "axis") % len(shapes[0])
    total = SymbolicSize.of(0)
    for shape in shapes:
        total = total + shape[axis]
    out = broadcast([shape[:axis] + shape[axis + 1 :] for shape in shapes])
    return [None if out is None else (*out[:axis], total, *out[axis:])]


def _slice(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    shape = [*s.known(node, 0)]
    starts, ends = s.content(_input(node, 1)), s.content(_input(node, 2))
    axes, steps = s.content(_input(node, 3)), s.content(_input(node, 4))
    if len(node.inputs) < 3 or starts is None or ends is None:
        return [None]
    of = range(len(starts)) if axes is None else [int(axis.value or 0) % len(shape) for axis in axes]
    for at, axis in enumerate(of):
        step = 1 if steps is None else steps[at].value
        begin, end = _bound(starts[at], shape[axis]), _bound(ends[at], shape[axis])
        length = None if step != 1 or begin is None or end is None else end - begin
        shape[axis] = length if length is not None else s.name()
    return [tuple(shape)]


def _bound(at: SymbolicSize, size: SymbolicSize) -> SymbolicSize | None:
    """Where a slice begins or ends: negative numbers count from the end, and large ones are the end."""
    if at.value is None:
        return at
    if size.value is not None:
        return SymbolicSize.of(max(0, min(at.value + size.value if at.value < 0 else at.value, size.value)))
    if at.value >= 1 << 31:
        return size
    return size + at if at.value < 0 else SymbolicSize.of(0) if at.value == 0 else None


def _unsqueeze(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    shape, axes = [*s.known(node, 0)], ints(node, "axes", 1) or []
    rank = len(shape) + len(axes)
    for axis in sorted(n % rank for n in axes):
        shape.insert(axis, SymbolicSize.of(1))
    return [tuple(shape)]


def _squeeze(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    shape, axes = s.known(node, 0), ints(node, "axes", 1)
    if axes is None:
        if any(size.value is None for size in shape):
            return [None]
        return [tuple(size for size in shape if size.value != 1)]
    gone = {axis % len(shape) for axis in axes}
    return [tuple(size for at, size in enumerate(shape) if at not in gone)]


def _expand(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    wanted = s.content(node.inputs[1])
    return [None if wanted is None else broadcast([s.shape(node.inputs[0]), tuple(wanted)])]


def _range(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    low, high, step = (s.content(value) for value in node.inputs)
    if low is None or high is None or step is None or step.reshape(-1)[0].value != 1:
        return [None]
    return [(high.reshape(-1)[0] - low.reshape(-1)[0],)]


def _split(s: Symbols, node: ir.Node) -> list[SymbolicShape | None]:
    shape, parts = s.known(node, 0), ints(node, "split", 1)
    axis, count = attribute(node, "axis", 0) % len(shape), len(node.outputs)
    whole = shape[axis].value
    if parts is None and whole is not None:
        part = -(-whole // count)
        parts = [min(part, whole - part * at) for at in range(count)]
    return [(*shape[:axis], SymbolicSize.of(size), *shape[axis + 1 :]) for size in parts or ()]


def _input(node: ir.Node, at: int) -> ir.Value | None:
    return node.inputs[at] if at < len(node.inputs) else None


RULES: dict[str, Rule] = {
    "MatMul": _matmul, "Gemm": _gemm, "Gather": _gather, "Transpose": _transpose, "Reshape": _reshape,
    "Concat": _concat, "Slice": _slice, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Expand": _expand,
    "Range": _range, "Split": _split, "MatMulNBits": _bits,
}  # fmt: skip
