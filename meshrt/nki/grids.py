"""Loops of a kernel, and the grid of its programs."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from meshrt.nki.session import Loop, running, session
from meshrt.nki.tensors.index import whole
from meshrt.records import dataclass


def affine_range(*bounds: Any, **_: Any) -> Iterator[int]:
    """Iterations that do not depend on one another; one that does is noted in the report."""
    return _iterations(bounds, False)


def sequential_range(*bounds: Any, **_: Any) -> Iterator[int]:
    """Iterations in order. Directives are the compiler's."""
    return _iterations(bounds, True)


def static_range(*bounds: Any, **_: Any) -> range:
    """Iterations that are unrolled: Python's own."""
    return range(*(whole("a bound of a loop", bound) for bound in bounds))


def _iterations(bounds: tuple[Any, ...], ordered: bool) -> Iterator[int]:
    launch = running()
    if launch is None:
        yield from static_range(*bounds)
        return
    loop = Loop(launch.steps, launch.steps, ordered)
    launch.loops.append(loop)
    try:
        for index in static_range(*bounds):
            launch.steps += 1
            loop.iteration = launch.steps
            yield index
    finally:
        if loop in launch.loops:
            launch.loops.remove(loop)


def program_id(axis: int) -> int:
    """The running program's number along an axis of the grid; 0 where there is no grid."""
    program = session().program
    return program[axis] if axis < len(program) else 0


def num_programs(axes: Any = None) -> Any:
    """How many programs there are, along an axis or several; 1 where there is no grid."""
    grid = session().grid
    if axes is None:
        return prod(grid)
    if isinstance(axes, int):
        return grid[axes] if axes < len(grid) else 1
    return tuple(num_programs(axis) for axis in axes)


def program_ndim() -> int:
    """How many axes the grid has."""
    return len(session().grid)


@dataclass(frozen=True)
class nc:
    """NeuronCores to deal programs over; times a number it is an axis, whose cores are next to each other or not."""

    count: int

    def __mul__(self, programs: Any) -> spmd_dim:
        return spmd_dim(self, programs)

    def __rmul__(self, programs: Any) -> spmd_dim:
        return spmd_dim(programs, self)


@dataclass(frozen=True)
class spmd_dim:
    """An axis of a grid, made of programs and the cores that they are dealt over."""

    first: Any
    second: Any

    @property
    def sizes(self) -> tuple[int, int]:
        """(programs, cores)."""
        parts = (self.first, self.second)
        counts = [whole("an axis of a grid", part.count if isinstance(part, nc) else part) for part in parts]
        cores = next((count for part, count in zip(parts, counts, strict=True) if isinstance(part, nc)), 1)
        return prod(counts), cores
