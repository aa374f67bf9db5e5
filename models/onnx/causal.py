"""Do tokens look at those before them, and at no others? The masks of a graph, run on a few tokens."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from meshrt.models.onnx.attention import MASKED
from meshrt.models.onnx.graphs import constant, sizes
from meshrt.models.onnx.probe import evaluate

Array = NDArray[Any]
TOKENS, PAST = 5, 3  # of a probe, where the graph leaves them open
FAR, WIDE = 1 << 15, 1 << 10  # tokens before two others; tokens, where there are none before


class NoSuchDecoder(Exception):
    """The graph is no such decoder: the message says from where on."""


def name_of(node: ir.Node | None) -> str:
    return "an input" if node is None else f"node {node.name or node.outputs[0].name} ({node.op_type})"


def feeds(graph: ir.Graph, ids: ir.Value | None, tokens: int, past: int) -> dict[ir.Value, Array]:
    """Zeros for what was, ones for a mask that is an input, positions in order; in shapes of so many tokens."""
    arrays: dict[ir.Value, Array] = {}
    for value in graph.inputs:
        shape = sizes(value) or []
        name = str(value.name).lower()
        kind = np.dtype(np.int64) if value.dtype is None else value.dtype.numpy()
        if len(shape) == 4:
            full = [size if isinstance(size, int) else 1 for size in shape]
            full[2] = past if not isinstance(shape[2], int) else full[2]
            arrays[value] = np.broadcast_to(np.zeros((), kind), full)
        elif "mask" in name:
            length = shape[-1] if shape and isinstance(shape[-1], int) else past + tokens
            arrays[value] = np.ones((1, length), kind)
        elif value is ids:
            arrays[value] = np.zeros((1, tokens), kind)
        else:
            arrays[value] = np.arange(past, past + tokens, dtype=kind).reshape((1,) * (len(shape) - 1) + (-1,))
    return arrays


def open_sizes(graph: ir.Graph, ids: ir.Value | None, tokens: int, past: int) -> tuple[int, int]:
    """So many tokens and tokens before them, or what the graph has fixed."""
    shape = sizes(ids) if ids is not None else None
    if shape and isinstance(shape[-1], int):
        tokens = shape[-1]
    before = [sizes(value) for value in graph.inputs]
    held = [axes[2] for axes in before if axes and len(axes) == 4]
    if not held:
        return tokens, 0
    return tokens, held[0] if isinstance(held[0], int) else past


def check_masks(graph: ir.Graph, attentions: Sequence[ir.Node], ids: ir.Value | None) -> None:
    """NoSuchDecoder where a mask is not the causal one: on a few tokens, and far enough for a window to show."""
    masks: dict[int, ir.Value] = {}
    for node in attentions:
        if node.inputs[5] is None:
            raise NoSuchDecoder(f"{name_of(node)} has no mask: tokens would look at those that follow")
        masks[id(node.inputs[5])] = node.inputs[5]
    few, past = open_sizes(graph, ids, TOKENS, PAST)
    far = open_sizes(graph, ids, *((2, FAR) if past else (WIDE, 0)))
    for mask in masks.values():
        for tokens, before in dict.fromkeys(((few, past), far)):
            _check(mask, tokens, before, feeds(graph, ids, tokens, before))


def _check(mask: ir.Value, tokens: int, past: int, given: dict[ir.Value, Array]) -> None:
    numbers = constant(mask)
    run = [numbers] if numbers is not None else evaluate([mask], given)
    if run is None:
        raise NoSuchDecoder(f"{name_of(mask.producer())} makes a mask that cannot be computed of ids and their number")
    seen = run[0] if run[0].dtype == bool else run[0] > MASKED
    want = np.tril(np.ones((tokens, past + tokens), bool), past)
    fits = seen.shape[-2:] == want.shape and seen.size == want.size and np.array_equal(seen.reshape(want.shape), want)
    if not fits or (run[0].dtype != bool and np.abs(run[0][seen]).max(initial=0) > 0):
        raise NoSuchDecoder(f"{name_of(mask.producer())} makes a mask that is not the causal one")
