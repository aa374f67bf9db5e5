"""What an instruction is given besides tiles: which engine can run it, which functions it can compute."""

from collections.abc import Callable
from inspect import signature
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.engines import Core
from meshrt.neuron.timeline import ComputeEngine


def check_engine(name: str, core: Core, engine: ComputeEngine | None) -> ComputeEngine:
    """The engine that an instruction was given, or the vector engine. UsageError for one that cannot run it."""
    if engine is None:
        return core.vector
    if not any(engine is allowed for allowed in (core.vector, core.scalar, core.gpsimd)):
        shown = f"the {engine.name} engine" if isinstance(engine, ComputeEngine) else repr(engine)
        raise UsageError(
            f"{name} cannot run on {shown}: engine= takes core.vector, core.scalar or core.gpsimd of the tile's core"
        )
    return engine


def check_op(name: str, op: Any, inputs: int) -> None:
    """UsageError unless op can be called with so many arrays. NumPy takes one too many for the place to write to."""
    if not _takes(op, inputs, *range(inputs)):
        arrays = "1 array" if inputs == 1 else f"{inputs} arrays"
        raise UsageError(f"{name} takes a function of {arrays}, such as those of nl, not {_named(op)}")


def check_reduction(name: str, op: Any) -> None:
    """UsageError unless op reduces an array along an axis."""
    if not _takes(op, 2, 0, axis=-1, keepdims=True):
        raise UsageError(f"{name} takes nl.add, nl.maximum, nl.max and their like, not {_named(op)}")


def _takes(op: Any, inputs: int, *args: Any, **options: Any) -> bool:
    """Is it a ufunc of so many inputs, or a function that can be called with these arguments?"""
    return op.nin == inputs if isinstance(op, np.ufunc) else callable(op) and _binds(op, *args, **options)


def _binds(function: Callable[..., Any], *args: Any, **options: Any) -> bool:
    try:
        signature(function).bind(*args, **options)
    except TypeError:
        return False
    except ValueError:  # it does not say what it takes
        return True
    return True


def _named(op: Any) -> str:
    return str(getattr(op, "__name__", repr(op)))
