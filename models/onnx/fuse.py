"""RMSNorm, SwiGLU and rotary embedding as one node each, however an exporter spelled them.

    RMSNorm(x, weight; eps)     x / sqrt(mean(x^2) + eps) * weight, over the last axis
    SwiGLU(gate, up)            gate / (1 + exp(-gate)) * up
    Rotary(x, cos, sin)         x * cos + (-x2, x1) * sin, of the halves x1, x2 of the last axis

Casts between floats are stepped over: a model in float16 computes its norms in float32.
"""

import onnx_ir as ir

from meshrt.models.onnx.graphs import (
    OURS,
    attribute,
    constant,
    ints,
    is_op,
    last_size,
    maker,
    put,
    replace,
    scalar,
    sizes,
)
from meshrt.models.onnx.read import RUNTIME

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)


def bare(value: ir.Value | None) -> ir.Value | None:
    """Without casts from float to float."""
    while value is not None:
        node = maker(value, "Cast")
        if node is None or attribute(node, "to") not in FLOATS or node.inputs[0] is None:
            return value
        if node.inputs[0].dtype is not None and node.inputs[0].dtype not in FLOATS:
            return value
        value = node.inputs[0]
    return value


def pairs(node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """Both orders of what is added or multiplied."""
    a, b = bare(node.inputs[0]), bare(node.inputs[1])
    return [] if a is None or b is None else [(a, b), (b, a)]


# --------------------------------------------------------------------------------------------------------------- norms


def fuse_norms(graph: ir.Graph) -> None:
    """In all spellings; also the operators of others, of which one adds first."""
    for node in [*graph]:
        if is_op(node, "Mul"):
            for weight, rest in pairs(node):
                parts = _normed(rest) if _is_weight(weight) else None
                if parts is not None:
                    _norm(node, parts[0], weight, parts[1], node.outputs[0])
                    break
        elif _is_norm(node):
            _norm(node, node.inputs[0], node.inputs[1], attribute(node, "epsilon", 1e-5), node.outputs[0])
        elif is_op(node, "SkipSimplifiedLayerNormalization", domain=RUNTIME) and len(node.inputs) == 3:
            added = ir.node("Add", node.inputs[:2], {}, num_outputs=1)
            added.outputs[0].shape, added.outputs[0].type = node.outputs[0].shape, node.outputs[0].type
            graph.insert_before(node, added)
            _norm(node, added.outputs[0], node.inputs[2], attribute(node, "epsilon", 1e-5), node.outputs[0])
            if len(node.outputs) > 3:
                replace(node.outputs[3], added.outputs[0])


def _is_norm(node: ir.Node) -> bool:
    own = is_op(node, "RMSNormalization", "SimplifiedLayerNormalization")
    theirs = is_op(node, "SimplifiedLayerNormalization", domain=RUNTIME)
    return (own or theirs) and attribute(node, "axis", -1) in (-1, 2)


def _norm(node: ir.Node, x: ir.Value | None, weight: ir.Value | None, eps: float, out: ir.Value) -> None:
    new = put(node, "RMSNorm", [bare(x), bare(weight)], eps=float(eps))
    _take(out, new.outputs[0])


def _take(old: ir.Value, new: ir.Value) -> None:
    new.shape, new.type = old.shape, old.type
    replace(old, new)


def _is_weight(value: ir.Value) -> bool:
    numbers = value.const_value
    return numbers is not None and not value.is_graph_input() and len([n for n in value.shape or () if n != 1]) <= 1


def _normed(value: ir.Value | None) -> tuple[ir.Value, float] | None:
    """x and eps of x / sqrt(mean(x^2) + eps)."""
    value = bare(value)
    node = maker(value, "Mul", "Div")
    if node is None:
        return None
    for x, factor in pairs(node)[: 1 if node.op_type == "Div" else 2]:
        inside = _root(factor) if node.op_type == "Div" else _inverse_root(factor)
        eps = None if inside is None else _mean_square(inside, x)
        if eps is not None:
            return x, eps
    return None


def _root(value: ir.Value | None) -> ir.Value | None:
    """v of sqrt(v)."""
    value = bare(value)
    if node := maker(value, "Sqrt"):
        return node.inputs[0]
    node = maker(value, "Pow")
    return node.inputs[0] if node and scalar(node.inputs[1]) == 0.5 else None


def _inverse_root(value: ir.Value | None) -> ir.Value | None:
    """v of 1 / sqrt(v)."""
    value = bare(value)
    if node := maker(value, "Reciprocal"):
        return _root(node.inputs[0])
    if (node := maker(value, "Div")) and scalar(node.inputs[0]) == 1:
        return _root(node.inputs[1])
    if (node := maker(value, "Pow")) and scalar(node.inputs[1]) == -0.5:
        return node.inputs[0]
    node = maker(value, "Sqrt")
    inner = maker(bare(node.inputs[0]), "Reciprocal") if node else None
    return inner.inputs[0] if inner else None


def _mean_square(value: ir.Value | None, x: ir.Value) -> float | None:
    """eps of mean(x^2, last axis) + eps."""
    node = maker(bare(value), "Add")
    for mean, number in pairs(node) if node else ():
        eps, over = scalar(number), maker(mean, "ReduceMean")
        axes = ints(over, "axes", 1) if over else None
        if over is None or eps is None or axes is None or not attribute(over, "keepdims", 1):
            continue
        rank = len(x.shape) if x.shape is not None else 0
        if axes != [-1] and axes != [rank - 1]:
            continue
        square = maker(bare(over.inputs[0]), "Pow", "Mul")
        if square is None:
            continue
        by = square.inputs[1] if square.op_type == "Mul" else None
        if bare(square.inputs[0]) is x and (bare(by) is x if by is not None else scalar(square.inputs[1]) == 2):
            return eps
    return None


# -------------------------------------------------------------------------------------------------------------- SwiGLU


def fuse_swiglu(graph: ir.Graph) -> None:
    for node in [*graph]:
        if not is_op(node, "Mul"):
            continue
        for active, up in pairs(node):
            gate = _silu(active)
            if gate is not None and up.const_value is None and up is not gate:
                new = put(node, "SwiGLU", [gate, up])
                _take(node.outputs[0], new.outputs[0])
                break


def _silu(value: ir.Value) -> ir.Value | None:
    """x of x * sigmoid(x), Swish, or x / (1 + exp(-x))."""
    if node := maker(value, "Swish"):
        return bare(node.inputs[0]) if attribute(node, "alpha", 1.0) == 1 else None
    if node := maker(value, "QuickGelu", domain=RUNTIME):
        return bare(node.inputs[0]) if attribute(node, "alpha", 1.702) == 1 else None
    if node := maker(value, "Mul"):
        for x, gate in pairs(node):
            sigmoid = maker(gate, "Sigmoid")
            if sigmoid is not None and bare(sigmoid.inputs[0]) is x:
                return x
        return None
    node = maker(value, "Div")
    total = maker(bare(node.inputs[1]), "Add") if node else None
    top = bare(node.inputs[0]) if node else None
    for exp, other in pairs(total) if total else ():
        power = maker(exp, "Exp") if scalar(other) == 1 else None
        negative = maker(bare(power.inputs[0]), "Neg") if power else None
        if negative is not None and bare(negative.inputs[0]) is top:
            return top
    return None


# -------------------------------------------------------------------------------------------------------------- rotary


def fuse_rotary(graph: ir.Graph) -> None:
    """With the halves turned together, x * cos + (-x2, x1) * sin, or each, (x1 cos - x2 sin, x2 cos + x1 sin)."""
    for node in [*graph]:
        operands = _turned(node) if is_op(node, "Add") else _turned_by_halves(node) if is_op(node, "Concat") else None
        if operands is not None:
            new = put(node, "Rotary", [*operands])
            _take(node.outputs[0], new.outputs[0])


def _turned(node: ir.Node) -> tuple[ir.Value, ...] | None:
    for first, other in pairs(node):
        a, b = maker(first, "Mul"), maker(other, "Mul")
        if a is None or b is None:
            continue
        for x, cos in pairs(a):
            for swapped, sin in pairs(b):
                if _halves_swapped(swapped) is x:
                    return x, cos, sin
    return None


def _halves_swapped(value: ir.Value) -> ir.Value | None:
    """x of (-x2, x1)."""
    node = maker(value, "Concat")
    if node is None or len(node.inputs) != 2 or not _is_last(attribute(node, "axis"), value):
        return None
    negative = maker(bare(node.inputs[0]), "Neg")
    second, first = _half(negative.inputs[0] if negative else None), _half(node.inputs[1])
    return second[0] if second and first and second[0] is first[0] and (second[1], first[1]) == (1, 0) else None


def _turned_by_halves(node: ir.Node) -> tuple[ir.Value, ...] | None:
    if len(node.inputs) != 2 or not _is_last(attribute(node, "axis"), node.outputs[0]):
        return None
    low, high = maker(bare(node.inputs[0]), "Sub"), maker(bare(node.inputs[1]), "Add")
    if low is None or high is None:
        return None
    (a, b), (c, d) = ((maker(bare(term), "Mul") for term in pair.inputs) for pair in (low, high))
    for first, cos in pairs(a) if a else ():
        for second, sin in pairs(b) if b else ():
            own, other = _half(first), _half(second)
            if not own or not other or own[0] is not other[0] or (own[1], other[1]) != (0, 1):
                continue
            products = [{id(factor) for factor in pair} for mul in (c, d) if mul for pair in pairs(mul)[:1]]
            if {id(second), id(cos)} in products and {id(first), id(sin)} in products:
                return own[0], cos, sin
    return None


def _half(value: ir.Value | None) -> tuple[ir.Value, int] | None:
    """x, and which half of its last axis the value is."""
    value = bare(value)
    if node := maker(value, "Split"):
        whole = last_size(node.inputs[0]) if node.inputs[0] is not None else None
        parts = ints(node, "split", 1) or ([whole // 2] * 2 if whole and len(node.outputs) == 2 else None)
        if node.inputs[0] is None or whole is None or parts != [whole // 2] * 2 or whole % 2:
            return None
        at = [*node.outputs].index(value) if value is not None else 0
        return (
            (bare(node.inputs[0]) or node.inputs[0], at)
            if _is_last(attribute(node, "axis", 0), node.inputs[0])
            else None
        )
    node = maker(value, "Slice")
    if node is None or node.inputs[0] is None or len(node.inputs) < 4:
        return None
    given = [constant(operand) for operand in node.inputs[1:]]
    whole = last_size(node.inputs[0])
    if any(array is None or array.size != 1 for array in given) or whole is None or whole % 2:
        return None
    start, end, axis, *step = (int(array.reshape(-1)[0]) for array in given if array is not None)
    if not _is_last(axis, node.inputs[0]) or step not in ([], [1]):
        return None
    low, high = start + whole if start < 0 else start, end + whole if end < 0 else min(end, whole)
    half = {(0, whole // 2): 0, (whole // 2, whole): 1}.get((low, high))
    return None if half is None else (bare(node.inputs[0]) or node.inputs[0], half)


def _is_last(axis: int | None, value: ir.Value) -> bool:
    shape = sizes(value)
    return axis == -1 or (shape is not None and axis == len(shape) - 1)


def is_ours(node: ir.Node | None, *names: str) -> bool:
    return is_op(node, *names, domain=OURS)
