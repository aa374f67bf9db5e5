"""Kernels on numbers that lie in a row, as between products: how they run on rows, and the small ones.

Each takes so many neighbouring numbers a step. A row begins at a register and is filled up with zeros.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np

from meshrt.arm.core import Team, run
from meshrt.arm.isa import Instruction, ld1, of, st1
from meshrt.arm.kernel import MicroKernel

Array = np.ndarray
Streams = dict[str, Array]
F16, F32 = np.dtype(np.float16), np.dtype(np.float32)


def sweep(
    team: Team, kernel: MicroKernel, grid: Sequence[int], steps: int, inputs: Mapping[str, Array | None],
    outputs: Mapping[str, int], results: Mapping[str, int] | None = None, times: int = 1,
) -> Streams | None:  # fmt: skip
    """A kernel on a grid of rows, whose first axis is the team's units: what it stores, None by shape.

    `inputs`: bytes [*grid, steps, bytes of a step], as `laid` makes them; axes in front may lack, and one has length 1
    where all along it take the same. `outputs` and `results`: bytes stored at each step, and after all of them.
    `times`: how often all of it is done, to the same numbers.
    """
    streams: Streams = {}
    stored: Streams = {}
    whole = all(array is not None for array in inputs.values())
    if whole and team[0][0].payload:
        stored = {name: np.empty((*grid, steps, nbytes), np.uint8) for name, nbytes in outputs.items()}
        stored |= {name: np.empty((*grid, 1, nbytes), np.uint8) for name, nbytes in (results or {}).items()}
        streams = {name: _on(grid, array) for name, array in {**inputs, **stored}.items() if array is not None}
    run(team, kernel, (*grid, times), 0, steps, streams, [0] * len(team))
    return stored if streams else None


def _on(grid: Sequence[int], array: Array) -> Array:
    """As a stream: with axes of 1 for those of the grid that it lacks, and for `times`."""
    lacking = len(grid) + 2 - array.ndim
    return array.reshape(*(1 for _ in range(lacking)), *array.shape[:-2], 1, *array.shape[-2:])


def laid(rows: Array | None, lanes: int) -> Array | None:
    """Numbers [.., k] as bytes [.., steps, bytes of so many numbers], filled up with zeros."""
    if rows is None:
        return None
    missing = -rows.shape[-1] % lanes
    full = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)]) if missing else np.ascontiguousarray(rows)
    return full.view(np.uint8).reshape(*rows.shape[:-1], -1, lanes * rows.itemsize)


def taken(stored: Array, kind: Any, k: int) -> Array:
    """What `laid` lays, back: numbers [.., k] of bytes [.., steps, bytes of a step]."""
    numbers: Array = stored.reshape(*stored.shape[:-2], -1).view(kind)[..., :k]
    return numbers


def same(*numbers: float, kind: Any = F32) -> Array:
    """Constants in memory, each in all lanes of a register."""
    registers = [np.full(16 // np.dtype(kind).itemsize, number, kind) for number in numbers]
    return np.concatenate(registers).view(np.uint8)[None]


def units_of(team: Team) -> list[int]:
    return [unit for _, units in team for unit in units]


# ---- conversions and sums

WIDER = MicroKernel(
    "widen", (), (ld1(("h",), "x"), of("fcvtl", "a", "h"), of("fcvtl2", "b", "h"), st1(("a", "b"), "y")), ()
)  # fmt: skip
NARROWER = MicroKernel(
    "narrow", (), (ld1(("a", "b"), "x"), of("fcvtn", "h", "a"), of("fcvtn2", "h", "b"), st1(("h",), "y")), ()
)  # fmt: skip


def widened(team: Team, grid: Sequence[int], k: int, x: Array | None) -> Array | None:
    """float16 [*grid, k] as float32."""
    stored = sweep(team, WIDER, grid, ceil(k / 8), {"x": laid(x, 8)}, {"y": 32})
    return None if stored is None else taken(stored["y"], F32, k)


def narrowed(team: Team, grid: Sequence[int], k: int, x: Array | None) -> Array | None:
    """float32 [*grid, k] as float16."""
    stored = sweep(team, NARROWER, grid, ceil(k / 8), {"x": laid(x, 8)}, {"y": 16})
    return None if stored is None else taken(stored["y"], F16, k)


@lru_cache
def adding(count: int) -> MicroKernel:
    """x + (a + b), of which there are so many beside x."""
    return MicroKernel("add", (), (*add_lines(count), st1(("x",), "y")), ())


def add_lines(count: int) -> list[Instruction]:
    """To register x: what the streams x, a and b give, of which so many are there beside x."""
    lines = [ld1(("x",), "x")] + [ld1((name,), name) for name in "ab"[:count]]
    lines += [of("fadd", "a", "a", "b")] if count == 2 else []
    return lines + ([of("fadd", "x", "x", "a")] if count else [])


def added(team: Team, grid: Sequence[int], k: int, x: Array | None, a: Array | None) -> Array | None:
    """x + a in float32, of which a may be the same for all along an axis of the grid."""
    stored = sweep(team, adding(1), grid, ceil(k / 4), {"x": laid(x, 4), "a": laid(a, 4)}, {"y": 16})
    return None if stored is None else taken(stored["y"], F32, k)
