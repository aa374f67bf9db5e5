"""Line patterns: which cores of a line send to which, before any router is touched. Pure functions of the length.

A line is one row or one column of N cores, 0 to N-1. A route starts at one core and is taken out (delivered) at one
or more others. How the routes become colours and table entries is the business of `tables`.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.mesh import EAST, NORTH, OPPOSITE, PORT_NAMES, RAMP, SOUTH, STEP, WEST, Mesh
from meshrt.records import dataclass


@dataclass(frozen=True)
class Route:
    """A static route along a line: from `source`, delivered at each of `stops` (either side of it)."""

    source: int
    stops: tuple[int, ...]

    @cached_property
    def low(self) -> int:
        return min(self.source, *self.stops)

    @cached_property
    def high(self) -> int:
        return max(self.source, *self.stops)

    def entries(self, axis: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(positions, ports in, ports out) of the routers on the way; ports are bit masks, int32 and uint8 arrays.

        UsageError for cores that are no whole numbers.
        """
        ahead, back = (EAST, WEST) if axis == "x" else (SOUTH, NORTH)
        if not all(type(core) is int or isinstance(core, np.integer) for core in (self.source, *self.stops)):
            raise UsageError(f"Route({self.source!r}, {self.stops!r}): cores of a line are whole numbers")
        at, source = np.arange(self.low, self.high + 1, dtype=np.int32), self.source - self.low
        enters, leaves = np.full(len(at), 1 << back, np.uint8), np.zeros(len(at), np.uint8)
        enters[:source], enters[source] = 1 << ahead, 1 << RAMP
        leaves[source:-1] = 1 << ahead
        leaves[1 : source + 1] |= 1 << back
        for stop in self.stops:
            leaves[stop - self.low] |= 1 << RAMP
        return at, enters, leaves


Path = tuple[tuple[int, int], ...]  # a static route with turns: (x, y) of every core on the way; delivered at the last


def path_entries(path: Path, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As Route.entries; a position is y * width + x. UsageError where two cores of the path do not touch."""
    ports = []
    for (x, y), (nx, ny) in pairwise(path):
        if (nx - x, ny - y) not in STEP:
            raise UsageError(f"a path goes from core ({x}, {y}) to ({nx}, {ny}), which is not its neighbour")
        ports.append(STEP.index((nx - x, ny - y)))
    if not ports or len(set(path)) != len(path):
        raise UsageError(f"a path needs two or more cores, each once; got {path}")
    enters = [RAMP, *(OPPOSITE[port] for port in ports)]
    leaves = [*ports, RAMP]
    at = np.array([y * width + x for x, y in path], np.int32)
    return at, _masks(enters), _masks(leaves)


LinePattern = Callable[..., Sequence[Route]]  # of the length of a line, and of what else it takes


def along_lines(
    mesh: Mesh, axis: str, routes: Sequence[Any] | LinePattern, more: Sequence[Any], lines: np.ndarray | None
) -> list[Route]:
    """Routes on lines of the axis, a pattern's made for their length, with `more`.

    UsageError where they do not lie there, or `lines` is not a choice of lines.
    """
    if axis not in ("x", "y"):
        raise UsageError(f"routes along axis {axis!r}: lines of the mesh are rows, axis 'x', and columns, axis 'y'")
    n, across = mesh.length(axis), mesh.length("y" if axis == "x" else "x")
    if callable(routes):
        routes = routes(n, *more)
    elif more:
        raise UsageError(
            "only a pattern, a function of a line's length, takes more than routes; `lines=` chooses lines"
        )
    routes = [routes] if isinstance(routes, Route) else routes
    on_lines = [route for route in routes if isinstance(route, Route)]
    if len(on_lines) < len(routes):
        raise UsageError(f"a line along {axis} has routes of Route; for a path, which may turn, the axis is None")
    for route in on_lines:
        _check_route(route)
        if not route.stops or route.low < 0 or route.high >= n:
            raise UsageError(
                f"a route from core {route.source} to {list(route.stops)} of a line along {axis}, which has cores 0 to"
                f" {n - 1}"
            )
    if lines is not None and (lines.dtype != bool or lines.shape != (across,)):
        raise UsageError(
            f"lines along {axis} are chosen by {across} bools, one a line, not by {lines.dtype} {list(lines.shape)}"
        )
    return on_lines


def _check_route(route: Route) -> None:
    """UsageError for stops that are no tuple of several, and for a way from a core to itself."""
    source, stops = route.source, route.stops
    if not isinstance(stops, Sequence) or isinstance(stops, str):
        raise UsageError(f"Route({source!r}, {stops!r}): the stops are a tuple, of one core as well: (1,)")
    if source in stops:
        raise UsageError(
            f"a route from core {source} to {list(stops)}: what a core has does not go over its router to itself"
        )


def over_mesh(
    mesh: Mesh, routes: Iterable[Any] | LinePattern, more: Sequence[Any], lines: np.ndarray | None
) -> list[Path]:
    """Paths over the mesh. UsageError where one leaves it, and for what lies on lines."""
    wrong = UsageError(
        "routes along axis None are paths, each the (x, y) of all cores on its way: rows are axis 'x', columns 'y'"
    )
    if callable(routes) or more or lines is not None:
        raise wrong
    try:
        paths = [tuple((index(x), index(y)) for x, y in path) for path in routes]
    except (TypeError, ValueError):
        raise wrong from None
    for path in paths:
        for x, y in path:
            if not (0 <= x < mesh.width and 0 <= y < mesh.height):
                raise UsageError(f"a path goes over core ({x}, {y}), outside the mesh of {mesh.width} x {mesh.height}")
    return paths


def _masks(ports: Iterable[int]) -> np.ndarray:
    return np.array([1 << port for port in ports], np.uint8)


def ports(mask: int) -> str:
    """The names of the ports in a bit mask, for messages."""
    return "+".join(name for port, name in enumerate(PORT_NAMES) if mask >> port & 1) or "nowhere"


# ---------------------------------------------------------------------------------------------- line patterns

# Of what a caller says besides the length: 1.0 is equal to 1, and would be what every chain of 1 gets from then on.
typed_cache = lru_cache(maxsize=None, typed=True)


def interleave(index: int, n: int) -> tuple[int, int]:
    """(send to, receive from) of a core on the interleaved ring; waferllm, Algorithm 1, defined for N = 1 and 2 too.

    N = 7:   0 - 2 - 4 - 6
             |           |        up the even cores and back down the odd ones: one cycle over all N cores,
             1 --- 3 --- 5        and no two neighbours on it are more than two hops apart
    """
    order = ring_order(n)
    place = ring_place(n)[index]
    return order[(place + 1) % n], order[(place - 1) % n]


@cache
def ring_order(n: int) -> tuple[int, ...]:
    """The cores in the order of the interleaved ring: 0, 2, 4, ... 5, 3, 1."""
    evens = range(0, n, 2)
    odds = range(n - 1 - n % 2, 0, -2)
    return (*evens, *odds)


@cache
def ring_place(n: int) -> tuple[int, ...]:
    """The place of every core on the interleaved ring: the inverse of ring_order."""
    place = [0] * n
    for at, core in enumerate(ring_order(n)):
        place[core] = at
    return tuple(place)


@cache
def interleaved_ring(n: int, reverse: bool = False) -> tuple[Route, ...]:
    """Every core sends to the next on the interleaved ring, or to the one before: at most two hops."""
    pairs = ((core, interleave(core, n)[1 if reverse else 0]) for core in range(n))
    return tuple(Route(core, (to,)) for core, to in pairs if to != core)


@cache
def ring(n: int, reverse: bool = False) -> tuple[Route, ...]:
    """Cannon's ring: every core sends to the next, the last to the first, N - 1 hops back along the line."""
    step = -1 if reverse else 1
    return tuple(Route(core, ((core + step) % n,)) for core in range(n) if n > 1)


@typed_cache
def chain(n: int, step: int = 1) -> tuple[Route, ...]:
    """Every core sends `step` cores on (negative: back); the ends send nothing."""
    return tuple(Route(core, (core + step,)) for core in range(n) if 0 <= core + step < n)


@typed_cache
def multicast(n: int, root: int) -> tuple[Route, ...]:
    """One core sends to all others, both ways along the line; its own tile does not come back to it."""
    return (Route(root, tuple(core for core in range(n) if core != root)),) if n > 1 else ()


def side_by_side(pattern: Sequence[Route], width: int, copies: int) -> tuple[Route, ...]:
    """A pattern of `width` cores on each of so many stretches of a line."""
    starts = range(0, copies * width, width)
    return tuple(
        Route(route.source + at, tuple(stop + at for stop in route.stops)) for at in starts for route in pattern
    )
