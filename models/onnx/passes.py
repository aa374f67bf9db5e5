"""The passes over a graph, in order, and how many nodes are left after each.

Shape inference is onnx's own, folding of constants onnxscript's, merging of equal nodes onnx_ir's; the others are of
this folder. What is folded is limited, by what the constants ask for, before it is computed.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants

from meshrt.models.errors import ModelError
from meshrt.models.onnx.attention import fuse_attention
from meshrt.models.onnx.fuse import fuse_norms, fuse_rotary, fuse_swiglu
from meshrt.models.onnx.graphs import constant
from meshrt.models.onnx.moves import merge_slices, merge_transposes, name_sizes, settle_shapes
from meshrt.models.onnx.read import MAX_NUMBERS

MAX_FOLDED = 1 << 24  # numbers that a node makes of constants other than weights


@dataclass(frozen=True)
class Pass:
    name: str
    by: str
    run: Callable[[ir.Model], None]


@dataclass(frozen=True)
class Done:
    """A pass that was run, and how many nodes there are after it."""

    name: str
    by: str
    nodes: int


def _ours(name: str, *rewrites: Callable[[ir.Graph], None]) -> Pass:
    def run(model: ir.Model) -> None:
        for rewrite in rewrites:
            rewrite(model.graph)

    return Pass(name, "meshrt", run)


def _constants(model: ir.Model) -> None:
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.RemoveInitializersFromInputsPass()(model)


def _fold(model: ir.Model) -> None:
    fold_constants(
        model, onnx_shape_inference=False, input_size_limit=MAX_NUMBERS, output_size_limit=MAX_NUMBERS,
        should_fold=_small,
    )  # fmt: skip
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.IdentityEliminationPass()(model)


def _small(node: ir.Node) -> bool | None:
    """May a node be folded? Not one that makes more than MAX_FOLDED numbers of a few."""
    given = [constant(value) for value in node.inputs if value is not None and value.const_value is not None]
    if node.op_type in ("Expand", "Tile", "ConstantOfShape", "Range"):
        if any(one is None for one in given) or len(given) < len(node.inputs):
            return False
        counts = [float(np.abs(one.astype(np.float64)).max(initial=0)) for one in given if one is not None]
        if node.op_type == "Range":
            return counts[0] + counts[1] < MAX_FOLDED * abs(float(given[2].reshape(-1)[0]))  # type: ignore[union-attr]
        asked = given[-1]
        whole = prod(abs(int(one)) for one in asked.reshape(-1)) if asked is not None else MAX_FOLDED  # type: ignore[union-attr]
        size = 1 if node.op_type == "ConstantOfShape" or given[0] is None else max(given[0].size, 1)
        return whole * size < MAX_FOLDED
    shapes = [one.shape for one in given if one is not None]
    try:
        return None if prod(np.broadcast_shapes(*shapes)) < MAX_FOLDED else _one_large(shapes)
    except ValueError:  # of products and such
        return None if sum(map(prod, shapes)) < MAX_FOLDED else _one_large(shapes)


def _one_large(shapes: Sequence[tuple[int, ...]]) -> bool | None:
    """A weight that is turned or cast: no more numbers than it has."""
    return None if sum(prod(one) > 64 for one in shapes) == 1 else False


def _merge(model: ir.Model) -> None:
    common.CommonSubexpressionEliminationPass()(model)


@contextmanager
def quiet() -> Iterator[None]:
    """Libraries log what they could not fold, and NumPy warns of it; it is no matter of the user's."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


CLEAN = (
    Pass("constants", "onnx_ir", _constants),
    _ours("batch of 1", name_sizes),
    Pass("fold constants", "onnxscript", _fold),
    Pass("merge equal nodes", "onnx_ir", _merge),
    _ours("shapes by name", settle_shapes),
    Pass("fold constants", "onnxscript", _fold),
    Pass("merge equal nodes", "onnx_ir", _merge),
    _ours("slices and transposes", settle_shapes, merge_slices, merge_transposes),
)
FUSE = (
    _ours("RMSNorm", fuse_norms),
    _ours("SwiGLU", fuse_swiglu),
    _ours("rotary embedding", fuse_rotary),
    _ours("attention", fuse_attention),
)


def run_passes(model: ir.Model, passes: Sequence[Pass], path: Path) -> list[Done]:
    """Raises ModelError."""
    told = []
    for one in passes:
        try:
            with quiet():
                one.run(model)
                common.RemoveUnusedNodesPass()(model)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from None
        except Exception as error:  # of libraries, on a graph that may be anything
            raise ModelError(
                f"{path}: {one.name}: {' '.join(str(error).split())[:200] or type(error).__name__}"
            ) from None
        told.append(Done(one.name, one.by, len(model.graph)))
    return told
