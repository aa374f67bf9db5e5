"""What host scripts import to make a layout without a layout block: regions of code, their parameters and routes.

Names of an interface alone are repeated here, as public scripts use them. Ports and connections are not here.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshrt.csl.errors import CslError, SourceLocation
from meshrt.csl.language.program import CslProgram
from meshrt.csl.language.types import INT, STRUCT, TYPES
from meshrt.csl.language.values import Val
from meshrt.csl.machine.router import COLORS


@dataclass(frozen=True)
class IntVector:
    """Coordinates of a core."""

    x: int
    y: int


class SdkTarget(enum.Enum):
    WSE2 = "wse2"
    WSE3 = "wse3"


class Route(enum.IntEnum):
    RAMP = 0
    EAST = 1
    NORTH = 2
    WEST = 3
    SOUTH = 4


class SimfabConfig:
    """How the simulator is to run: nothing of it matters here."""

    def __init__(self, **options: Any):
        pass


def get_platform(address: Any, config: Any = None, target: SdkTarget = SdkTarget.WSE3) -> SdkTarget:
    """What a layout is made for. CslError where a system of its own is named."""
    if address:
        raise CslError(f"get_platform({address!r}): there is no system here, leave the address out")
    return target


@dataclass(frozen=True, eq=False)
class Color:
    """A colour by its name; it gets a number when the layout is compiled."""

    name: str


class RoutingPosition:
    """Where a router takes a colour from and where it sends it."""

    def __init__(self) -> None:
        self.rx: list[int] = []
        self.tx: list[int] = []

    def set_input(self, routes: Sequence[Route]) -> RoutingPosition:
        self.rx = [int(route) for route in routes]
        return self

    def set_output(self, routes: Sequence[Route]) -> RoutingPosition:
        self.tx = [int(route) for route in routes]
        return self


@dataclass(eq=False)
class CodeRegion:
    """A rectangle of cores with the code of one file."""

    file: Path
    name: str
    width: int
    height: int
    at: tuple[int, int] = (0, 0)
    of_all: dict[str, Any] = field(default_factory=dict)
    of_one: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    painted: list[tuple[tuple[int, int], Color, RoutingPosition]] = field(default_factory=list)

    def place(self, x: int, y: int) -> None:
        self.at = (x, y)

    def cores(self) -> list[tuple[int, int]]:
        left, top = self.at
        return [(left + x, top + y) for y in range(self.height) for x in range(self.width)]

    def color(self, name: str) -> Color:
        return Color(name)

    def set_param_all(self, name: str | Color, value: Any = None) -> None:
        """A parameter of all cores; a colour is the parameter of its own name."""
        self.of_all |= {name.name: name} if isinstance(name, Color) else {name: value}

    def set_param(self, core: IntVector, name: str | Color, value: Any = None) -> None:
        parameters = self.of_one.setdefault(self._inside(core), {})
        parameters |= {name.name: name} if isinstance(name, Color) else {name: value}

    def paint(self, core: IntVector, color: Color, positions: Sequence[RoutingPosition]) -> None:
        """The routes of a colour at a core of the region. CslError."""
        if len(positions) != 1:
            raise CslError(f"{self.name}: paint with {len(positions)} positions is not here: there is one")
        self.painted.append((self._inside(core), color, positions[0]))

    def paint_all(self, color: Color, positions: Sequence[RoutingPosition]) -> None:
        for y in range(self.height):
            for x in range(self.width):
                self.paint(IntVector(x, y), color, positions)

    def _inside(self, core: IntVector) -> tuple[int, int]:
        if not (0 <= core.x < self.width and 0 <= core.y < self.height):
            raise CslError(f"{self.name}: core ({core.x}, {core.y}) is not in its {self.width} x {self.height}")
        return core.x, core.y

    def __getattr__(self, name: str) -> Any:
        raise _not_here("a region", name)


class SdkLayout:
    """Regions, and the program that they make."""

    def __init__(self, platform: SdkTarget):
        self.arch = platform.value
        self.regions: list[CodeRegion] = []

    def create_code_region(self, path: str, name: str, width: int, height: int) -> CodeRegion:
        self.regions.append(CodeRegion(Path(path).resolve(), name, width, height))
        return self.regions[-1]

    def compile(self, out_prefix: str = "out", **options: Any) -> CslProgram:
        """The program. CslError where regions overlap or there are more colours than routers have."""
        program = CslProgram(self.arch)
        numbers: dict[Color, int] = {}

        def known(value: Any) -> Val:
            if not isinstance(value, Color):
                return Val(INT, int(value))
            return Val(TYPES["color"], numbers.setdefault(value, len(numbers)))

        taken: dict[tuple[int, int], str] = {}
        for region in self.regions:
            for at in region.cores():
                if taken.setdefault(at, region.name) != region.name:
                    raise CslError(f"{region.name}: core {at} has the code of another region, {taken[at]}")
        for region in self.regions:
            tree = program.tree(region.file, None, 0)
            left, top = region.at
            for x, y in region.cores():
                given = region.of_all | region.of_one.get((x - left, y - top), {})
                program.put(x, y, tree, {name: known(value) for name, value in given.items()})
            for (x, y), color, routes in region.painted:
                key = (left + x, top + y, int(known(color).value))
                program.routes[key] = {"routes": Val(STRUCT, {"rx": _ports(routes.rx), "tx": _ports(routes.tx)})}
                program.route_locations[key] = SourceLocation(str(region.file), 1)
        if len(numbers) > COLORS:
            raise CslError(f"{len(numbers)} colours: routers have {COLORS}")
        program.size = (max(x for x, _ in program.tiles) + 1, max(y for _, y in program.tiles) + 1)
        if os.environ.get("MESHRT_CSL_BUILT"):
            Path(os.environ["MESHRT_CSL_BUILT"]).touch()
        return program

    def __getattr__(self, name: str) -> Any:
        raise _not_here("SdkLayout", name)


def _ports(numbers: Sequence[int]) -> Val:
    return Val(STRUCT, {str(at): Val(TYPES["direction"], number) for at, number in enumerate(numbers)})


def _not_here(of: str, name: str) -> Exception:
    if name.startswith("__"):
        return AttributeError(name)
    print(f"error: {of} has no {name} here: the part of SdkLayout that is here is in docs/csl.md", file=sys.stderr)
    return AttributeError(name)
