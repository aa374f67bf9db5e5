"""Dead cores and links of a wafer, and the healthy mesh that is laid around them with the help of spare cores.

Makers of wafers build spare rows and columns in and route around what is dead, so that software sees a whole mesh
(waferllm, section 8). Here: a dead core computes nothing and its router passes nothing on. Each row of the mesh is put
on a row of the wafer with enough healthy cores, from west to east; where two neighbours of the mesh are no neighbours
on the wafer, packets between them take the shortest way through healthy routers.
"""

import json
from collections import deque
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

from meshrt.errors import LimitError, UsageError
from meshrt.mesh.mesh import EAST, OPPOSITE, PORT_NAMES, SOUTH, STEP, Mesh, parse_mesh
from meshrt.mesh.meter import Links
from meshrt.ranks import hostmemory
from meshrt.records import dataclass

Coordinates = tuple[int, int]  # (x, y)
MOST_BYTES = 64 << 20  # of a file of defects: all cores of a wafer, and their links


@dataclass(frozen=True, eq=False)
class Defects:
    """What is dead of a wafer of W x H cores: `cores`, bool [H, W], and `links`, bool [4, H, W] by port of departure.

    A link is dead both ways.
    """

    cores: np.ndarray
    links: np.ndarray

    @property
    def size(self) -> Coordinates:
        height, width = self.cores.shape
        return width, height

    def passable(self, x: int, y: int, port: int) -> bool:
        """Can a packet go from a healthy core by that port to the next one?"""
        width, height = self.size
        to_x, to_y = x + STEP[port][0], y + STEP[port][1]
        return 0 <= to_x < width and 0 <= to_y < height and not self.cores[to_y, to_x] and not self.links[port, y, x]


def no_defects(width: int, height: int) -> Defects:
    return Defects(np.zeros((height, width), np.bool_), np.zeros((4, height, width), np.bool_))


def draw(width: int, height: int, rate: float, seed: int) -> Defects:
    """A wafer on which each core and each link is dead with probability `rate`. UsageError."""
    if not 0 <= rate < 1:
        raise UsageError(f"--defects {rate}: a rate is at least 0 and less than 1")
    rng = np.random.default_rng(seed)
    dead = Defects(rng.random((height, width)) < rate, np.zeros((4, height, width), np.bool_))
    for port in (EAST, SOUTH):
        for y, x in np.argwhere(rng.random((height, width)) < rate):
            kill_link(dead, int(x), int(y), port)
    return dead


def kill_link(defects: Defects, x: int, y: int, port: int) -> None:
    """Both ways of a link; one that leads off the wafer is none."""
    width, height = defects.size
    to_x, to_y = x + STEP[port][0], y + STEP[port][1]
    if 0 <= to_x < width and 0 <= to_y < height:
        defects.links[port, y, x] = defects.links[OPPOSITE[port], to_y, to_x] = True


def read_defects(path: str, width: int, height: int) -> Defects:
    """A file {"cores": [[x, y], ...], "links": [[x, y, "east"], ...]}. UsageError names what is wrong in it."""
    try:
        with open(path, "rb") as stream:
            text = stream.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES} bytes")
        data = json.loads(text.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--defects {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(data, dict) or set(data) - {"cores", "links"}:
        raise UsageError(f'--defects {path}: expected {{"cores": [[x, y], ...], "links": [[x, y, "east"], ...]}}')
    defects = no_defects(width, height)
    for kind, length in (("cores", 2), ("links", 3)):
        entries = data.get(kind, [])
        if not isinstance(entries, list):
            raise UsageError(f"--defects {path}: {kind} is no list")
        for entry in entries:
            x, y = _coordinates(path, kind, entry, length, width, height)
            if kind == "cores":
                defects.cores[y, x] = True
                continue
            if entry[2] not in PORT_NAMES[:4]:
                raise UsageError(
                    f"--defects {path}: {entry[2]!r} is no direction; there are {', '.join(PORT_NAMES[:4])}"
                )
            port = PORT_NAMES.index(entry[2])
            if not (0 <= x + STEP[port][0] < width and 0 <= y + STEP[port][1] < height):
                raise UsageError(
                    f"--defects {path}: core ({x}, {y}) has no link to the {entry[2]} on the wafer of"
                    f" {width} x {height} cores, spares included"
                )
            kill_link(defects, x, y, port)
    return defects


def _coordinates(path: str, kind: str, entry: Any, length: int, width: int, height: int) -> Coordinates:
    if not (isinstance(entry, list) and len(entry) == length and all(type(number) is int for number in entry[:2])):
        form = "[x, y]" if length == 2 else "[x, y, port]"
        raise UsageError(f"--defects {path}: {entry!r} in {kind} is not of the form {form}")
    x, y = entry[:2]
    if not (0 <= x < width and 0 <= y < height):
        raise UsageError(
            f"--defects {path}: core ({x}, {y}) is not on the wafer of {width} x {height} cores, spares included"
        )
    return x, y


@dataclass(frozen=True, eq=False)
class WaferMap:
    """A healthy mesh on a wafer with defects. `coordinates`, [h, w, 2]: each core's (x, y) on the wafer."""

    defects: Defects
    coordinates: np.ndarray

    @cached_property
    def paths(self) -> dict[tuple[int, int, int], tuple[tuple[int, int, int], ...]]:
        """The links of the wafer (x, y, port) that a link of the mesh (x, y, port) consists of. LimitError."""
        return dict(self._paths())

    def _paths(self) -> Iterator[tuple[tuple[int, int, int], tuple[tuple[int, int, int], ...]]]:
        height, width = self.coordinates.shape[:2]
        for y in range(height):
            for x in range(width):
                for port in (EAST, SOUTH):
                    to_x, to_y = x + STEP[port][0], y + STEP[port][1]
                    if to_x < width and to_y < height:
                        way = shortest(self.defects, tuple(self.coordinates[y, x]), tuple(self.coordinates[to_y, to_x]))
                        if way is None:
                            raise LimitError(
                                f"cores ({x}, {y}) and ({to_x}, {to_y}) of the mesh cannot reach each other past the"
                                " dead cores and links: more spares (--spares), or fewer defects"
                            )
                        yield (x, y, port), way
                        yield (to_x, to_y, OPPOSITE[port]), tuple(map(reverse, reversed(way)))

    def facts(self) -> dict[str, Any]:
        """What a report says of it. `longest_link`: hops on the wafer between two neighbours of the mesh."""
        dead = self.defects
        return {
            "size": list(dead.size),
            "dead_cores": int(dead.cores.sum()),
            "dead_links": int(dead.links[[EAST, SOUTH]].sum()),
            "longest_link": int(self.lengths.max()),
        }

    @cached_property
    def lengths(self) -> np.ndarray:
        """Hops on the wafer for each link of the mesh, int [4, h, w] by port of departure; 1 where there is no link."""
        hops = np.ones((4, *self.coordinates.shape[:2]), np.int64)
        for (x, y, port), way in self.paths.items():
            hops[port, y, x] = len(way)
        return hops


def links_of(wafer: WaferMap, mesh: Mesh) -> Links:
    """The links out of a rank's cores, one by one, as links of the wafer."""
    width, height = wafer.defects.size
    at, to = list[int](), list[int]()
    for port in range(4):
        for y in range(mesh.block_height):
            for x in range(mesh.block_width):
                for wafer_x, wafer_y, way in wafer.paths.get((mesh.x0 + x, mesh.y0 + y, port), ()):
                    at.append((port * mesh.block_height + y) * mesh.block_width + x)
                    to.append((way * height + wafer_y) * width + wafer_x)
    return Links(4 * width * height, np.array(at, np.int64), np.array(to, np.int64))


def make_wafer(
    defects: str, spares: str | tuple[int, int] | None, seed: int, width: int, height: int
) -> WaferMap:  # fmt: skip
    """The wafer of a run: `defects` is a rate or a file, `spares` is CxR, columns and rows beyond those of the mesh.

    Without `spares` there is one for every eight, and one at least. UsageError, LimitError.
    """
    columns, rows = parse_mesh(spares) if spares is not None else (-(-width // 8), -(-height // 8))
    size = width + columns, height + rows
    hostmemory.require(f"a wafer of {size[0]} x {size[1]} cores", 13 * size[0] * size[1])  # of `draw`
    dead = draw(*size, float(defects), seed) if is_rate(defects) else read_defects(defects, *size)
    return embed(dead, width, height)


def is_rate(text: str) -> bool:
    """Is it a number, and so no file?"""
    try:
        float(text)
    except ValueError:
        return False
    return True


def embed(defects: Defects, width: int, height: int) -> WaferMap:
    """Lay a W x H mesh on a wafer. LimitError where too few of its rows have enough healthy cores."""
    healthy = (~defects.cores).sum(axis=1)
    rows = np.flatnonzero(healthy >= width)[:height]
    if len(rows) < height:
        columns = defects.size[0]
        raise LimitError(
            f"{len(rows)} of the {defects.size[1]} rows of the wafer have {width} healthy cores of {columns}, the mesh"
            f" needs {height} rows: more spares (--spares), or fewer defects"
        )
    coordinates = np.empty((height, width, 2), np.int64)
    for at, row in enumerate(rows):
        coordinates[at, :, 0] = np.flatnonzero(~defects.cores[row])[:width]
        coordinates[at, :, 1] = row
    return WaferMap(defects, coordinates)


def reverse(link: tuple[int, int, int]) -> tuple[int, int, int]:
    """The same link the other way."""
    x, y, port = link
    return x + STEP[port][0], y + STEP[port][1], OPPOSITE[port]


def shortest(defects: Defects, start: Any, goal: Any) -> tuple[tuple[int, int, int], ...] | None:
    """The links of a shortest way through healthy routers, None where there is none. Ports are tried in their order."""
    start, goal = (int(start[0]), int(start[1])), (int(goal[0]), int(goal[1]))
    link_to: dict[Coordinates, tuple[int, int, int]] = {}
    queue = deque([start])
    while queue:
        x, y = queue.popleft()
        if (x, y) == goal:
            way = []
            while (x, y) != start:
                link = link_to[x, y]
                way.append(link)
                x, y = link[:2]
            return tuple(reversed(way))
        for port in range(4):
            neighbour = x + STEP[port][0], y + STEP[port][1]
            if defects.passable(x, y, port) and neighbour not in link_to and neighbour != start:
                link_to[neighbour] = (x, y, port)
                queue.append(neighbour)
    return None
