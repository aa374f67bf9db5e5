"""Regions of experts: the mesh is cut into a grid of rectangles of one size; a whole mesh is a grid of one."""

from collections.abc import Iterator
from math import lcm

from meshrt.errors import UsageError
from meshrt.mesh.mesh import Mesh
from meshrt.records import dataclass


@dataclass(frozen=True)
class Overlap:
    """What of a region lies in a rank's block: slices of the block, and its first core's column and row there."""

    rows: slice
    columns: slice
    x: int
    y: int


@dataclass(frozen=True)
class RegionGrid:
    """columns x rows regions of width x height cores, numbered row by row from the north-west."""

    columns: int
    rows: int
    width: int
    height: int

    @property
    def count(self) -> int:
        return self.columns * self.rows

    @property
    def sides(self) -> int:
        """Tiles along either axis of a region, as many along x as along y."""
        return lcm(self.width, self.height)

    @property
    def tile_rows(self) -> int:
        """Of a core."""
        return self.sides // self.height

    @property
    def tile_columns(self) -> int:
        return self.sides // self.width

    def parts(self, mesh: Mesh) -> Iterator[tuple[int, Overlap]]:
        """The regions that this rank's block has cores of, by their numbers."""
        for number in range(self.count):
            row, column = divmod(number, self.columns)
            low_y, high_y = max(mesh.y0, row * self.height), min(mesh.y0 + mesh.block_height, (row + 1) * self.height)
            low_x, high_x = (
                max(mesh.x0, column * self.width),
                min(mesh.x0 + mesh.block_width, (column + 1) * self.width),
            )
            if low_y < high_y and low_x < high_x:
                yield (
                    number,
                    Overlap(
                        slice(low_y - mesh.y0, high_y - mesh.y0), slice(low_x - mesh.x0, high_x - mesh.x0),
                        low_x - column * self.width, low_y - row * self.height,
                    ),
                )  # fmt: skip


def whole(mesh: Mesh) -> RegionGrid:
    return RegionGrid(1, 1, mesh.width, mesh.height)


def parse_grid(size: str | tuple[int, int], mesh: Mesh) -> RegionGrid:
    """What --expert-grid says. UsageError where it is no grid, or does not divide the mesh."""
    text = "x".join(map(str, size)) if isinstance(size, tuple) else size
    try:
        columns, rows = map(int, text.lower().split("x"))
    except ValueError:
        raise UsageError(f"--expert-grid {text}: it is COLUMNSxROWS of regions, such as 4x2") from None
    if columns < 1 or rows < 1 or mesh.width % columns or mesh.height % rows:
        raise UsageError(
            f"--expert-grid {text}: columns have to divide the mesh's width, {mesh.width}, and rows its height,"
            f" {mesh.height}"
        )
    return RegionGrid(columns, rows, mesh.width // columns, mesh.height // rows)


def best_grid(mesh: Mesh, experts: int) -> RegionGrid:
    """Two regions or more if the mesh can be cut so, and at most one an expert: where a core has the fewest tiles of a
    matrix, one in square regions, and of such grids the one with the most regions.
    """
    grids = [
        RegionGrid(columns, rows, mesh.width // columns, mesh.height // rows)
        for columns in range(1, min(experts, mesh.width) + 1) if mesh.width % columns == 0
        for rows in range(1, min(experts // columns, mesh.height) + 1) if mesh.height % rows == 0
    ]  # fmt: skip
    return max(grids, key=lambda grid: (grid.count > 1, -grid.tile_rows * grid.tile_columns, grid.count))
