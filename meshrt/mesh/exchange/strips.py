"""An exchange between any cores in which strips of columns all do the same: groups of heads, each by itself.

The order of its packets is found once, on a grid of one strip, and every hop of it is done for all strips: march.py has
them as lines. Where nothing else is under way, clocks lie so meanwhile that those of a hop are side by side. Columns
may fall into parts, one beside the other, each of strips of its own: behind the groups of heads, single columns.
"""

from math import prod
from typing import Any

import numpy as np

from meshrt.mesh.exchange.convoy import Seats
from meshrt.mesh.exchange.legs import Legs, ways
from meshrt.mesh.exchange.march import HEADER, March
from meshrt.mesh.exchange.marching import MarchingConvoy
from meshrt.mesh.mesh import STEP
from meshrt.records import dataclass

LINE = 64  # bytes of a cache's line


@dataclass(frozen=True)
class ColumnGroup:
    """So many strips of so many columns, from the first column on, which all do the same, each by itself."""

    first: int
    columns: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.columns * self.count


def parts(owners: np.ndarray, width: int, height: int) -> list[ColumnGroup]:
    """The parts of the mesh, from west to east, each by itself; none where no strips do the same.

    The narrowest strips; what is behind them and is no strips of its own is one that does anything. Columns that take
    no part are in none.
    """
    grid = owners.reshape(height, width) - np.arange(width * height).reshape(height, width)
    owner_x, moves = owners.reshape(height, width) % width, grid != 0
    west, east = owner_x.min(axis=0, initial=width, where=moves), owner_x.max(axis=0, initial=-1, where=moves)
    taking_part = moves.any(axis=0)
    taking_part[owner_x[moves]] = True
    used = width - int(taking_part[::-1].argmax()) if taking_part.any() else 0
    groups: list[ColumnGroup] = []
    first = int(taking_part.argmax())
    while first < used:
        part = _strips(grid, west, east, first, used) or ColumnGroup(first, used - first, 1)
        groups.append(part)
        first = part.end + int(np.append(taking_part[part.end :], True).argmax())
    return groups if any(part.count > 1 for part in groups) else []


def _strips(grid: np.ndarray, west: np.ndarray, east: np.ndarray, first: int, used: int) -> ColumnGroup | None:
    """Several strips from that column on, whose packets stay in them as those of all columns behind stay there.

    `west`, `east`: of each column, the columns of its owners that are farthest.
    """
    for columns in range(1, (used - first) // 2 + 1):
        second = first + columns
        same = int(np.append(grid[0, second:used] == grid[0, first : used - columns], False).argmin()) // columns
        if not same or not np.array_equal(grid[:, second : second + columns], grid[:, first:second]):
            continue
        alike = (grid[:, second:used] == grid[:, first : used - columns]).all(axis=0)
        count = 1 + int(np.append(alike, False).argmin()) // columns
        part = ColumnGroup(first, columns, count)
        inside = west[first:second].min() >= first and east[first:second].max() < second
        if count > 1 and inside and (west[part.end : used] >= part.end).all():
            return part
    return None


def _aligned(*shape: int) -> np.ndarray:
    """float64 zeros that begin with a line of the processor's caches: eight strips' numbers are then one line."""
    memory = np.zeros(prod(shape) + LINE // 8)
    begin = -memory.ctypes.data % LINE // 8
    return memory[begin : begin + prod(shape)].reshape(shape)


class Strips:
    """A part under way at this rank: its cores and packets are those of one strip, lines the strips in this block."""

    def __init__(self, block: Any, owners: np.ndarray, part: ColumnGroup, asks: bool, nbytes: int) -> None:
        self.block, self.part, mesh = block, part, block.mesh
        columns = part.columns
        high, wide = block.shape
        y, x = np.divmod(np.arange(mesh.height * columns), columns)
        owner_y, owner_x = np.divmod(owners.reshape(mesh.height, mesh.width)[:, part.first :][:, :columns], mesh.width)
        self.legs: Legs = ways(columns, mesh.height, (owner_y * columns + owner_x - part.first).ravel(), asks)
        self.line = min(max(mesh.x0 - part.first, 0) // columns, part.count - 1)  # the first that may be in the block
        end = min(max(-(-(mesh.x0 + wide - part.first) // columns), 0), part.count)
        self.lines = max(end - self.line, 1)
        self.march = March(block.core, columns, mesh.height, self.legs)
        west = part.first + self.line * columns + x - mesh.x0  # of the first line, in the block
        self.at = (y - mesh.y0) * wide + west  # its place
        inside = (y >= mesh.y0) & (y < mesh.y0 + high)
        ranges = [-(west // columns), -((west - wide) // columns)]  # the first line in the block, and beyond
        self.lines_of = np.clip(ranges, 0, self.lines) * inside
        self.by_packet = _aligned(len(x), HEADER, self.lines)  # headers
        self.crossed, self.entered = np.zeros((4, len(x)), np.int64), np.zeros(len(x), np.int64)
        arrays = {"heads": self.by_packet, "crossed": self.crossed, "entered": self.entered}
        cells, self.by_strip = block.clock.cells, np.zeros(0)
        local = self.at.astype(np.int32)
        self.march.carry(block, nbytes, cells.shape[1], cells=cells, local=local, **arrays)
        self.march.on_lines(self.lines_of, self.lines, (columns, 1, self.lines, 1, HEADER * self.lines))

    def lay_out(self) -> None:
        """Clocks lie by strip, so that those of a hop are side by side."""
        if not len(self.by_strip):
            cells, columns = self.block.clock.cells[:, :-1], self.part.columns
            self.by_strip = _aligned(self.block.shape[0], columns, len(cells), self.lines)
            self._copy(cells.reshape(-1, *self.block.shape), self.by_strip.transpose(2, 0, 1, 3), True)
            y, x = np.divmod(np.arange(self.march.cores), columns)
            local = ((y - self.block.mesh.y0) * columns + x).astype(np.int32)
            steps = {"line_step": 1, "core_step": self.lines * len(cells)}
            self.march.put(cells=self.by_strip, local=local, row=self.lines, **steps)

    def put_back(self) -> None:
        if len(self.by_strip):
            cells = self.block.clock.cells[:, :-1]
            self._copy(cells.reshape(-1, *self.block.shape), self.by_strip.transpose(2, 0, 1, 3), False)
            self.by_strip = np.zeros(0)

    def _copy(self, block: np.ndarray, grid: np.ndarray, in_grid: bool) -> None:
        """Numbers of the cores of the block, [.., high, wide], go to the grid, [.., high, columns, lines], or back."""
        x0, wide, columns = self.block.mesh.x0, block.shape[-1], self.part.columns
        for line in range(self.lines):
            begin = self.part.first + (self.line + line) * columns
            low, high = max(begin, x0), min(begin + columns, x0 + wide)
            if low < high:
                in_block, on_grid = block[..., low - x0 : high - x0], grid[..., low - begin : high - begin, line]
                source, target = (in_block, on_grid) if in_grid else (on_grid, in_block)
                target[...] = source

    def over_edge(self, way: str, port: int) -> tuple[tuple[np.ndarray, np.ndarray], np.ndarray]:
        """Of packets that go over the edge of the block by a port: (packet, line), and do they carry tiles?"""
        seats, legs = self.march.over_edge(way, port)
        cores = self.march.of("core").take(seats)
        step_x, step_y = STEP[port]
        leaves, comes = self._lines_of(cores), self._lines_of(cores + step_x + step_y * self.part.columns)
        nth, line = np.nonzero(leaves & ~comes if way == "leaving" else comes & ~leaves)
        legs = legs[nth]
        return (self.legs.packets.take(legs), line), self.legs.tiles.take(legs)

    def _lines_of(self, cores: np.ndarray) -> np.ndarray:
        """Is this core of each line in the block? bool [cores, lines]."""
        low, high = self.lines_of[:, cores, None]
        line = np.arange(self.lines)
        return np.asarray((line >= low) & (line < high))

    def places(self, cores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nth, line = np.nonzero(self._lines_of(cores))
        return nth, self.at[cores[nth]] + line * self.part.columns

    def readers(self, packet: np.ndarray, line: np.ndarray) -> np.ndarray:
        """The cores of the mesh that packets are for."""
        y, x = np.divmod(packet, self.part.columns)
        x += self.part.first + (self.line + line) * self.part.columns
        return np.asarray(y * self.block.mesh.width + x)

    def count(self, crossed: np.ndarray, entered: np.ndarray) -> None:
        """Enter what crossed the links of the block's cores, and their ramps."""
        block, mesh = self.block, self.block.mesh
        rows = slice(mesh.y0, mesh.y0 + block.shape[0])
        for counted, of_block in ((self.crossed, crossed), (self.entered[None], entered[None])):
            by_row = counted.reshape(len(counted), mesh.height, self.part.columns, 1)[:, rows]
            self._copy(of_block[:, :-1].reshape(-1, *block.shape), by_row.repeat(self.lines, axis=3), False)

    def arrived(self, y: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The headers of the packets for these cores of the mesh, all of this part."""
        strip, at = np.divmod(x - self.part.first, self.part.columns)
        return np.asarray(self.by_packet[y * self.part.columns + at, :, strip - self.line])


class MarchingStrips(MarchingConvoy):
    """Such a transfer. `alone`: no other is carried out meanwhile."""

    def __init__(self, block: Any, transfer: Any, number: int, groups: list[ColumnGroup], alone: bool) -> None:
        self.groups, self.alone = groups, alone
        super().__init__(block, transfer, number)

    def _open(self) -> None:
        asks = self.transfer.asks
        self.parts = [Strips(self.block, self.owners, part, asks, self.nbytes) for part in self.groups]
        self.marches = [part.march for part in self.parts]
        if self.alone:
            self.lay_out()

    def _leave_all(self) -> None:
        for part in self.parts:
            part.march.leave(self.block, self.view, part.places)

    def most_over_edge(self) -> int:
        return sum(part.march.cores * part.lines for part in self.parts)

    def lay_out(self) -> None:
        for part in self.parts:
            part.lay_out()

    def put_back(self) -> None:
        for part in self.parts:
            part.put_back()

    # ------------------------------------------------------------------------------------------------ other ranks

    def _over_edge(self, way: str, port: int) -> tuple[Seats, np.ndarray]:
        by_part = [part.over_edge(way, port) for part in self.parts]
        return tuple(seats for seats, _ in by_part), np.concatenate([tiles for _, tiles in by_part])

    def _headers(self, seats: Seats) -> np.ndarray:
        by_part = zip(self.parts, seats, strict=True)
        return np.concatenate([part.by_packet[packet, :, line] for part, (packet, line) in by_part]).T

    def _put_headers(self, seats: Seats, heads: np.ndarray) -> None:
        begin = 0
        for part, (packet, line) in zip(self.parts, seats, strict=True):
            part.by_packet[packet, :, line] = heads[:, begin : begin + len(packet)].T
            begin += len(packet)

    def _bear_tiles(self, legs: np.ndarray) -> np.ndarray:
        return legs  # as _over_edge says them

    def _with_tiles(self, seats: Seats, legs: np.ndarray) -> np.ndarray:
        by_part = zip(self.parts, seats, strict=True)
        return np.asarray(np.concatenate([part.readers(packet, line) for part, (packet, line) in by_part])[legs])

    def land(self) -> np.ndarray:
        self.put_back()
        for part in self.parts:
            part.count(self.crossed, self.entered)
        return super().land()

    def _arrived(self, readers: np.ndarray) -> np.ndarray:
        y, x = np.divmod(readers, self.block.mesh.width)
        heads = np.zeros((HEADER, len(readers)))
        for part in self.parts:
            mine = np.flatnonzero((x >= part.part.first) & (x < part.part.end))
            heads[:, mine] = part.arrived(y[mine], x[mine]).T
        return heads
