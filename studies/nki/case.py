"""What a kernel is tried on: inputs, the call, and what NumPy says should come out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

ResultPairs = list[tuple[Any, Any]]  # what came out and what should have
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class KernelCase:
    """run(kernel, module, rng) launches the kernel; what it gives is right within `tolerance` of the largest number."""

    path: str  # how the file's path ends
    name: str
    run: Callable[[Any, Any, np.random.Generator], ResultPairs]
    tolerance: float
    parts: tuple[str, ...]  # functions with nki's decorator that run as parts of it, as FILE:NAME or NAME of its file


CASES: list[KernelCase] = []


def case(path: str, *names: str, tolerance: float = 1e-5, parts: tuple[str, ...] = ()) -> Callable[..., Any]:
    """Register a function for kernels of a file."""

    def add(run: Callable[[Any, Any, np.random.Generator], ResultPairs]) -> Callable[..., Any]:
        CASES.extend(KernelCase(path, name, run, tolerance, parts) for name in names)
        return run

    return add


def find_case(path: str, name: str) -> KernelCase | None:
    """The case of a kernel: that of its own file before one of any file, as kernels of the same name differ."""
    cases = [case for case in CASES if case.name == name and path.endswith(case.path)]
    return max(cases, key=lambda case: len(case.path), default=None)


def normal(rng: np.random.Generator, *shape: int, dtype: Any = np.float32, scale: float = 1.0) -> np.ndarray:
    """Random numbers of a dtype."""
    return (scale * rng.standard_normal(shape)).astype(dtype)


def softmax(x: np.ndarray) -> np.ndarray:
    """Along the last axis."""
    up = np.exp(x - x.max(axis=-1, keepdims=True))
    result: np.ndarray = up / up.sum(axis=-1, keepdims=True)
    return result


def worst(pairs: ResultPairs) -> float:
    """The largest difference, as a share of the largest number there should be. Infinite for another shape."""
    largest = 0.0
    for got, wanted in pairs:
        have, want = np.asarray(got).astype(np.float64), np.asarray(wanted, np.float64)
        if have.shape != want.shape:
            return float("inf")
        gap = float(np.abs(have - want).max()) / max(float(np.abs(want).max()), 1e-30)
        largest = max(largest, gap if np.isfinite(gap) else float("inf"))
    return largest
