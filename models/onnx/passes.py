"""The passes over a graph, in order, and how many nodes are left after each.

Shape inference is onnx's own, folding of constants onnxscript's, merging of equal nodes onnx_ir's; the others are of
this folder. What is folded is limited, by what the constants ask for, before it is computed.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from meshrt.records import dataclass

MAX_FOLDED = 1 << 24  # numbers that a node makes of constants
MAX_SMALL = 64  # numbers of a shape, of bounds and such
MAKERS = ("Expand", "Tile", "ConstantOfShape", "Range")  # they make as many numbers as a constant says
KEEPERS = ("Transpose", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Slice", "Split", "Identity", "Gather", "Flatten")


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
    """May a node be folded? Not one that makes more than MAX_FOLDED numbers; None: as the library decides.

    A large constant may be turned or cast: that makes no more numbers than it has.
    """
    given = [array for array in map(constant, node.inputs) if array is not None]
    if len(given) < len(node.inputs):
        return False if node.op_type in MAKERS else None
    if node.op_type == "Range":
        low, high, step = (float(array.reshape(-1)[0]) for array in given)
        return abs(high - low) < MAX_FOLDED * abs(step)
    if node.op_type in MAKERS:
        count = prod(max(abs(int(n)), 1) for n in given[-1].reshape(-1))
        return count * (max(given[0].size, 1) if len(given) > 1 else 1) < MAX_FOLDED
    large = sum(array.size > MAX_SMALL for array in given)
    if sum(array.size for array in given) < MAX_FOLDED**0.5 or (large == 1 and node.op_type in KEEPERS):
        return None
    return False


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
    done = []
    for pass_ in passes:
        try:
            with quiet():
                pass_.run(model)
                common.RemoveUnusedNodesPass()(model)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from None
        except Exception as error:  # of libraries, on a graph that may be anything
            raise ModelError(
                f"{path}: {pass_.name}: {' '.join(str(error).split())[:200] or type(error).__name__}"
            ) from None
        done.append(Done(pass_.name, pass_.by, len(model.graph)))
    return done
