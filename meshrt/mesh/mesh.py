"""The mesh of cores, and how ranks share it out: each hosts one block.

W x H cores, x to the east, y to the south. C x R ranks cut it into blocks along straight lines, so that every
edge of a block is shared with at most one other rank:

    rank 0 | rank 1 | rank 2          3 ranks on 8 x 4: blocks of 2, 3 and 3 columns
"""

from collections.abc import Iterable
from functools import cached_property

from meshrt.errors import UsageError
from meshrt.records import dataclass
from meshrt.whole import whole

LONGEST = 1_000_000  # cores along a side: far above any machine, and no more than plans of ranks can be made for
NORTH, EAST, SOUTH, WEST, RAMP = range(5)  # a router's ports
PORT_NAMES = ("north", "east", "south", "west", "ramp")
OPPOSITE = (SOUTH, WEST, NORTH, EAST)
STEP = ((0, -1), (1, 0), (0, 1), (-1, 0))  # (dx, dy) of a hop out of each port


def cuts(length: int, parts: int) -> tuple[int, ...]:
    """Where to cut a length into parts that differ by one at most: parts + 1 positions, 0 and length included."""
    return tuple(length * part // parts for part in range(parts + 1))


def parse_mesh(size: str | tuple[int, int]) -> tuple[int, int]:
    """'8x4', or (8, 4) itself -> (8, 4). UsageError where it is not two positive numbers up to LONGEST."""
    text = "x".join(map(str, size)) if isinstance(size, tuple) else size
    try:
        width, height = map(whole, text.lower().split("x"))
    except ValueError:
        width = height = 0
    if not (0 < width <= LONGEST and 0 < height <= LONGEST):
        raise UsageError(f"mesh {text!r} is not WIDTHxHEIGHT, such as 8x8, with sides of 1 to {LONGEST}")
    return width, height


def rank_counts(width: int, height: int) -> list[int]:
    """All numbers of ranks that can tile a mesh."""
    return sorted({columns * rows for columns in range(1, width + 1) for rows in range(1, height + 1)})


def tile_ranks(width: int, height: int, ranks: int, option: str = "--mesh") -> tuple[int, int]:
    """The C x R grid of ranks with the squarest blocks. UsageError lists the counts that do where this one does not.

    `option` is what sets the mesh.
    """
    grids = [(c, ranks // c) for c in range(1, width + 1) if ranks % c == 0 and ranks // c <= height]
    if not grids:
        counts = rank_counts(width, height) if width * height <= 4096 else []
        near = sorted(sorted(counts, key=lambda count: (abs(count - ranks), count))[:8])
        hint = f"; {', '.join(map(str, near))} do" if near else ""
        raise UsageError(f"{ranks} ranks do not tile a {width} x {height} mesh{hint}: start that many, or set {option}")
    return min(grids, key=lambda grid: (-(-width // grid[0]) + -(-height // grid[1]), grid))


@dataclass(frozen=True)
class Mesh:
    """W x H cores on C x R ranks, seen from one of them."""

    width: int
    height: int
    columns: int = 1  # of ranks
    rows: int = 1
    rank: int = 0

    @cached_property
    def column_cuts(self) -> tuple[int, ...]:
        return cuts(self.width, self.columns)

    @cached_property
    def row_cuts(self) -> tuple[int, ...]:
        return cuts(self.height, self.rows)

    @cached_property
    def x0(self) -> int:
        """West end of this rank's block; y0 is its north end."""
        return self.column_cuts[self.rank % self.columns]

    @cached_property
    def y0(self) -> int:
        return self.row_cuts[self.rank // self.columns]

    @cached_property
    def block_width(self) -> int:
        return self.column_cuts[self.rank % self.columns + 1] - self.x0

    @cached_property
    def block_height(self) -> int:
        return self.row_cuts[self.rank // self.columns + 1] - self.y0

    @property
    def cores_here(self) -> str:
        """This rank's cores, in words."""
        return f"cores ({self.x0}, {self.y0}) to ({self.x0 + self.block_width - 1}, {self.y0 + self.block_height - 1})"

    def neighbour(self, port: int) -> int | None:
        """The rank whose block lies behind that edge of this one's; None at the edge of the mesh."""
        dx, dy = STEP[port]
        column, row = self.rank % self.columns + dx, self.rank // self.columns + dy
        inside = 0 <= column < self.columns and 0 <= row < self.rows
        return row * self.columns + column if inside else None

    def neighbours(self, ports: Iterable[int]) -> list[tuple[int, int, int]]:
        """(rank, tag of what leaves by the port, tag of what comes in by it) behind each of these edges."""
        return [(rank, port, OPPOSITE[port]) for port in ports if (rank := self.neighbour(port)) is not None]

    def length(self, axis: str) -> int:
        """Cores on a line along the axis."""
        return self.width if axis == "x" else self.height

    def offset(self, axis: str) -> int:
        """Where this rank's block begins along the axis."""
        return self.x0 if axis == "x" else self.y0

    def block_length(self, axis: str) -> int:
        """Cores of this rank's block along the axis."""
        return self.block_width if axis == "x" else self.block_height
