"""Attention as one node, with grouped keys and values, and with the tokens so far as state.

    Attention(q, k, v, cos, sin, mask, past_k, past_v; heads, kv_heads, size, scale) -> y, present_k, present_v

q [1, S, heads * size], k and v [1, S, kv_heads * size] as products make them, y like q. Between those and the softmax
exporters only move numbers, in many ways: split and merge heads, turn keys, repeat them for the queries that share
one. Such a chain is not matched step by step but run, on the numbers 0, 1, 2 .., and must put each where it belongs.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from meshrt.models.onnx.fuse import bare, is_ours
from meshrt.models.onnx.graphs import attribute, is_op, maker, only_user, put, replace, scalar, sizes, users
from meshrt.models.onnx.probe import evaluate
from meshrt.records import dataclass

Array = NDArray[Any]
MOVES = ("Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Identity", "Flatten", "Cast")
MASKED = -1e4  # what is added to scores that do not count, or less


@dataclass(frozen=True)
class MoveChain:
    """A value, `source` moved and multiplied by `scale`."""

    value: ir.Value
    source: ir.Value
    scale: float = 1.0


@dataclass(frozen=True)
class OnnxScores:
    """softmax(q k^T * scale + mask), of which `out` is what meets the values."""

    product: ir.Node
    scale: float
    mask: ir.Value | None
    out: ir.Value


def fuse_attention(graph: ir.Graph) -> None:
    for node in [*graph]:
        if not is_op(node, "Softmax") or attribute(node, "axis", -1) not in (-1, 3):
            continue
        scores = _scores(node)
        mixed = _user_with_values(scores.out) if scores else None
        if scores is None or mixed is None:
            continue
        q, k = (trace(value) for value in scores.product.inputs[:2])
        v = trace(mixed.inputs[1])
        if q and k and v and v.scale == 1:
            _fuse(mixed, scores, q, k, v)


def trace(value: ir.Value | None) -> MoveChain | None:
    """Up to what only moves the numbers, or multiplies them by one number."""
    scale, top = 1.0, value
    while value is not None:
        node = value.producer()
        if is_op(node, *MOVES) and node is not None:
            value = node.inputs[0]
            continue
        factor = None
        if is_op(node, "Mul", "Div") and node is not None:
            for at in (1, 0)[: 2 if node.op_type == "Mul" else 1]:
                factor = scalar(node.inputs[at])
                if factor:
                    scale = scale * factor if node.op_type == "Mul" else scale / factor
                    value = node.inputs[1 - at]
                    break
        if not factor:
            break
    return None if top is None or value is None else MoveChain(top, value, scale)


def _scores(softmax: ir.Node) -> OnnxScores | None:
    """What a softmax is of: scales and one mask on top of a product."""
    value, scale, mask = bare(softmax.inputs[0]), 1.0, None
    while (node := maker(value, "Add", "Mul", "Div", "Where")) is not None:
        if node.op_type in ("Mul", "Div"):
            at = next((at for at in (1, 0) if scalar(node.inputs[at])), None)
            factor = None if at is None else scalar(node.inputs[at])
            if at is None or not factor or (node.op_type == "Div" and at == 0):
                return None
            scale = scale * factor if node.op_type == "Mul" else scale / factor
            value = bare(node.inputs[1 - at])
        elif mask is not None or scale != 1:
            return None
        elif node.op_type == "Add":
            at = 1 if _has_product(node.inputs[0]) else 0
            mask, value = node.inputs[at], bare(node.inputs[1 - at])
        else:
            low = scalar(node.inputs[2])
            if low is None or low > MASKED:
                return None
            mask, value = node.inputs[0], bare(node.inputs[1])
    product = maker(value, "MatMul")
    if product is None:
        return None
    out = softmax.outputs[0]
    for node in users(out):
        if is_op(node, "Where") and scalar(node.inputs[1]) == 0 and node.inputs[2] is out:
            nan = maker(node.inputs[0], "IsNaN")
            if nan is not None and nan.inputs[0] is out:
                out = node.outputs[0]
                break
    return OnnxScores(product, scale, mask, out)


def _has_product(value: ir.Value | None) -> bool:
    """Is it scores, through factors?"""
    value = bare(value)
    while (node := maker(value, "Mul", "Div")) is not None:
        value = bare(node.inputs[1 if scalar(node.inputs[0]) else 0])
    return maker(value, "MatMul") is not None


def _user_with_values(value: ir.Value) -> ir.Node | None:
    node = only_user(value)
    while is_op(node, "Cast") and node is not None:
        value = node.outputs[0]
        node = only_user(value)
    if node is None:  # of the softmax whose NaNs are replaced
        return None
    return node if is_op(node, "MatMul") and node.inputs[0] is value else None


def _fuse(mixed: ir.Node, scores: OnnxScores, q: MoveChain, k: MoveChain, v: MoveChain) -> None:
    own_k, own_v = _with_past(k), _with_past(v)
    turned_q = q.source.producer()
    turned_k = own_k.new.source.producer() if own_k else None
    if own_k is None or own_v is None or (own_k.past is None) != (own_v.past is None):
        return
    if turned_q is None or turned_k is None or not is_ours(turned_q, "Rotary") or not is_ours(turned_k, "Rotary"):
        return
    to_q, to_k = trace(turned_q.inputs[0]), trace(turned_k.inputs[0])
    if to_q is None or to_k is None or turned_q.inputs[1:] != turned_k.inputs[1:]:
        return
    sources = [to_q.source, to_k.source, own_v.new.source]
    layout = _layout(turned_q, sources, own_k.past)
    if layout is None or v.scale != 1 or to_q.scale != 1 or to_k.scale != 1:
        return
    if own_k.past is not None and (own_v.new.scale != 1 or own_k.new.scale != 1):
        return
    heads, kv = layout.heads, layout.kv_heads
    axes_q, axes_k = layout.split(to_q, heads), layout.split(to_k, kv)
    past = own_k.past is not None
    fits = (
        axes_q and layout.moves(q, axes_q, heads, heads)
        and axes_k and layout.moves(k, "heads" if past else axes_k, kv, heads, past, True)
        and layout.moves(v, "heads" if past else "flat", kv, heads, past)
        and (not past or (layout.moves(own_k.new, axes_k, kv, kv) and layout.moves(own_v.new, "flat", kv, kv)))
    )  # fmt: skip
    out = layout.merged(mixed.outputs[0]) if fits else None
    if out is None:
        return
    new = put(
        mixed, "Attention", [*sources, *turned_q.inputs[1:], scores.mask, own_k.past, own_v.past], outputs=3,
        heads=heads, kv_heads=kv, size=layout.size, scale=float(scores.scale * q.scale * k.scale),
    )  # fmt: skip
    new.outputs[0].shape, new.outputs[0].type = out.shape, out.type
    replace(out, new.outputs[0])
    for old, present in zip((k.source, v.source), new.outputs[1:], strict=True) if own_k.past is not None else ():
        present.shape, present.type = old.shape, old.type
        if old.is_graph_output():
            replace(old, present)


@dataclass(frozen=True)
class WithPast:
    """What is new, and what was there before, if that is an input of the graph."""

    new: MoveChain
    past: ir.Value | None


def _with_past(chain: MoveChain) -> WithPast | None:
    node = maker(chain.source, "Concat")
    past = bare(node.inputs[0]) if node is not None else None
    if node is None or past is None or not past.is_graph_input():
        return WithPast(chain, None)
    if len(node.inputs) != 2 or attribute(node, "axis") not in (-2, 2):
        return None
    new = trace(node.inputs[1])
    return None if new is None else WithPast(new, past)


def _layout(turned_q: ir.Node, sources: Sequence[ir.Value], past: ir.Value | None) -> "ProbeLayout | None":
    """Sizes, by the width of the products and of what is turned."""
    shape = sizes(turned_q.inputs[0]) if turned_q.inputs[0] is not None else None
    widths = [sizes(source) for source in sources]
    columns = [width[-1] for width in widths if width and len(width) in (2, 3) and isinstance(width[-1], int)]
    if not shape or len(columns) < 3 or not isinstance(shape[-1], int):
        return None
    size = shape[-1]
    heads, kv_heads = columns[0] // size, columns[1] // size
    if columns != [heads * size, kv_heads * size, kv_heads * size] or not kv_heads or heads % kv_heads:
        return None
    tokens = next((width[-2] for width in widths if width and isinstance(width[-2], int)), 3)
    held = sizes(past) if past is not None else None
    past_tokens = 0 if past is None else held[2] if held and len(held) == 4 and isinstance(held[2], int) else 2
    return ProbeLayout(heads, kv_heads, size, int(tokens), past_tokens)


@dataclass(frozen=True)
class ProbeLayout:
    """Sizes at which chains are run: `tokens` new ones, and `past`.

    Numbers lie as `heads` [1, heads, S, size], `tokens` [1, S, heads, size], or `flat` [1, S, heads * size].
    """

    heads: int
    kv_heads: int
    size: int
    tokens: int
    past: int

    def split(self, chain: MoveChain, heads: int) -> str | None:
        """How heads lie at the end of a chain that starts with them flat."""
        base = self._numbers(heads, False)
        for axes in ("heads", "tokens"):
            if _gives(chain, self._laid(base, "flat", chain), self._laid(base, axes)):
                return axes
        return None

    def moves(self, chain: MoveChain, axes: str, heads: int, to: int, past: bool = False, turned: bool = False) -> bool:
        """Does a chain make heads [1, to, S, size] of what lies so, each repeated for its group; keys turned?"""
        base = self._numbers(heads, past)
        want = np.repeat(base, to // heads, axis=1)
        want = want.swapaxes(2, 3) if turned else want
        return _gives(chain, self._laid(base, axes, chain), want * np.float32(chain.scale))

    def merged(self, value: ir.Value) -> ir.Value | None:
        """Further down, where all heads of a token lie side by side."""
        given = self._numbers(self.heads, False)
        want = self._laid(given, "flat")[0]
        at: ir.Value | None = value
        while at is not None:
            results = evaluate([at], {value: given}) if at is not value else None
            if results and results[0].shape[-2:] == want.shape and np.array_equal(results[0].reshape(want.shape), want):
                return at
            node = only_user(at)
            at = node.outputs[0] if node is not None and is_op(node, *MOVES) and node.inputs[0] is at else None
        return None

    def _numbers(self, heads: int, past: bool) -> Array:
        """[1, heads, S, size], all different."""
        tokens = self.tokens + (self.past if past else 0)
        return np.arange(heads * tokens * self.size, dtype=np.float32).reshape(1, heads, tokens, self.size)

    def _laid(self, base: Array, axes: str, chain: MoveChain | None = None) -> Array:
        if axes == "heads":
            return base
        by_token = base.swapaxes(1, 2)
        if axes == "tokens":
            return by_token
        flat = by_token.reshape(1, by_token.shape[1], -1)
        return flat[0] if chain is not None and len(chain.source.shape or ()) == 2 else flat


def _gives(chain: MoveChain, given: Array, want: Array) -> bool:
    """Is that what the chain makes of these numbers?"""
    if chain.value is chain.source:
        return given.shape == want.shape and bool(np.array_equal(given, want))
    kind = chain.source.dtype.numpy() if chain.source.dtype is not None else np.dtype(np.float32)
    results = evaluate([chain.value], {chain.source: given.astype(kind)})
    return (
        results is not None
        and results[0].shape == want.shape
        and np.allclose(results[0].astype(np.float32), want, 1e-2)
    )
