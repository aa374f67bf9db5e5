"""An exchange between any cores in which strips of columns all do the same: groups of heads, each by itself.

The order of its packets is found once, on a grid of one strip, and every hop of it is done for all strips: march.py has
them as lines. Where nothing else is under way, clocks lie so meanwhile that those of a hop are side by side.
"""

from math import prod
from typing import Any

import numpy as np

from meshrt.mesh.exchange.convoy import Seats
from meshrt.mesh.exchange.legs import ways
from meshrt.mesh.exchange.march import HEADER, March
from meshrt.mesh.exchange.marching import MarchingConvoy
from meshrt.mesh.mesh import STEP

LINE = 64  # bytes of a cache's line


def strips(owners: np.ndarray, width: int, height: int) -> tuple[int, int, int] | None:
    """(columns of a strip, strips, more) where several strips from column 0 on do the same, each by itself; or None.

    So many more columns behind them do anything among themselves, and those beyond take no part. The narrowest strips.
    """
    grid = owners.reshape(height, width) - np.arange(width * height).reshape(height, width)
    taking_part = np.flatnonzero(grid.any(axis=0))
    used = int(taking_part[-1]) + 1 if len(taking_part) else 0
    owner_x = owners.reshape(height, width) % width
    for columns in range(1, used // 2 + 1):
        same = int(np.append(grid[0, columns:used] == grid[0, : used - columns], False).argmin()) // columns
        if not same or not np.array_equal(grid[:, columns : 2 * columns], grid[:, :columns]):
            continue
        alike = (grid[:, columns:used] == grid[:, : used - columns]).all(axis=0)
        count = 1 + int(np.append(alike, False).argmin()) // columns
        inside = count * columns
        if count > 1 and (owner_x[:, :columns] < columns).all() and (owner_x[:, inside:used] >= inside).all():
            return (columns, count, used - inside) if grid[:, :columns].any() else None
    return None


def _aligned(*shape: int) -> np.ndarray:
    """float64 zeros that begin with a line of the processor's caches: eight strips' numbers are then one line."""
    memory = np.zeros(prod(shape) + LINE // 8)
    begin = -memory.ctypes.data % LINE // 8
    return memory[begin : begin + prod(shape)].reshape(shape)


class MarchingStrips(MarchingConvoy):
    """Such a transfer. Its cores and packets are those of a strip, and of the columns behind; lines are the strips that
    this block has a part of. What is behind is on the first line only.

    `alone`: no other transfer is carried out meanwhile.
    """

    def __init__(self, block: Any, transfer: Any, number: int, alike: tuple[int, int, int], alone: bool) -> None:
        (self.columns, count, more), self.alone = alike, alone
        mesh = block.mesh
        self.behind, self.wide = self.columns * count, self.columns + more  # the first column behind; of the grid
        self.first = min(mesh.x0 // self.columns, count - 1)  # strip of the block
        end = min(-(-(mesh.x0 + block.shape[1]) // self.columns), count)
        self.lines = max(end - self.first, 1)
        super().__init__(block, transfer, number)

    def _open(self) -> None:
        block, mesh, columns, lines = self.block, self.block.mesh, self.columns, self.lines
        high, wide = block.shape
        y, x = np.divmod(np.arange(mesh.height * self.wide), self.wide)
        more = self.behind - columns  # how far the columns behind are from where they are in the grid
        at_x = np.where(x < columns, x, x + more)
        owner_y, owner_x = np.divmod(self.owners.take(y * mesh.width + at_x), mesh.width)
        owner_x = np.where(x < columns, owner_x, owner_x - more)
        self.legs = ways(self.wide, mesh.height, owner_y * self.wide + owner_x, self.transfer.asks)
        self.march = March(block.core, self.wide, mesh.height, self.legs)
        west = np.where(x < columns, at_x + self.first * columns, at_x) - mesh.x0  # of the first line, in the block
        self.at = (y - mesh.y0) * wide + west  # its place
        inside = (y >= mesh.y0) & (y < mesh.y0 + high)
        ranges = [-(west // columns), -((west - wide) // columns)]  # the first line in the block, and beyond
        self.lines_of = np.clip(ranges, 0, np.where(x < columns, lines, 1)) * inside
        self.lines_of[:, (x >= columns) & ((west < 0) | (west >= wide))] = 0
        by_packet = _aligned(len(x), HEADER, lines)
        self.heads = by_packet.transpose(1, 0, 2)
        self.strip_crossed, self.strip_entered = np.zeros((4, len(x)), np.int64), np.zeros(len(x), np.int64)
        arrays = {"heads": by_packet, "crossed": self.strip_crossed, "entered": self.strip_entered}
        cells, self.by_strip = block.clock.cells, np.zeros(0)
        local = self.at.astype(np.int32)
        self.march.carry(block, self.nbytes, cells.shape[1], cells=cells, local=local, **arrays)
        self.march.on_lines(self.lines_of, lines, (columns, 1, lines, 1, HEADER * lines))
        if self.alone:
            self._lay_out()

    # ---------------------------------------------------------------------------------------- strips and the block

    def _lay_out(self) -> None:
        """Clocks lie by strip, so that those of a hop are side by side."""
        if not len(self.by_strip):
            cells = self.block.clock.cells[:, :-1]
            self.by_strip = _aligned(self.block.shape[0], self.wide, len(cells), self.lines)
            self._copy(cells.reshape(-1, *self.block.shape), self.by_strip.transpose(2, 0, 1, 3), True)
            y, x = np.divmod(np.arange(self.march.cores), self.wide)
            local = ((y - self.block.mesh.y0) * self.wide + x).astype(np.int32)
            steps = {"line_step": 1, "core_step": self.lines * len(cells)}
            self.march.put(cells=self.by_strip, local=local, row=self.lines, **steps)

    def _put_back(self) -> None:
        if len(self.by_strip):
            cells = self.block.clock.cells[:, :-1]
            self._copy(cells.reshape(-1, *self.block.shape), self.by_strip.transpose(2, 0, 1, 3), False)
            self.by_strip = np.zeros(0)

    def _copy(self, block: np.ndarray, grid: np.ndarray, in_grid: bool) -> None:
        """Numbers of the cores of the block, [.., high, wide], go to the grid, [.., high, wide, lines], or back."""
        x0, wide = self.block.mesh.x0, block.shape[-1]
        parts = [((self.first + line) * self.columns, 0, self.columns, line) for line in range(self.lines)]
        for begin, at, count, line in (*parts, (self.behind, self.columns, self.wide - self.columns, 0)):
            low, high = max(begin, x0), min(begin + count, x0 + wide)
            if low < high:
                in_block = block[..., low - x0 : high - x0]
                on_grid = grid[..., at + low - begin : at + high - begin, line]
                source, target = (in_block, on_grid) if in_grid else (on_grid, in_block)
                target[...] = source

    def _over_edge(self, way: str, port: int) -> tuple[Seats, np.ndarray]:
        seats, legs = self.march.over_edge(way, port)
        cores = self.march.of("core").take(seats)
        step_x, step_y = STEP[port]
        leaves, comes = self._lines_of(cores), self._lines_of(cores + step_x + step_y * self.wide)
        nth, line = np.nonzero(leaves & ~comes if way == "leaving" else comes & ~leaves)
        legs = legs[nth]
        return (self.legs.packets.take(legs), line), legs

    def _lines_of(self, cores: np.ndarray) -> np.ndarray:
        """Is this core of each line in the block? bool [cores, lines]."""
        low, high = self.lines_of[:, cores, None]
        line = np.arange(self.lines)
        return np.asarray((line >= low) & (line < high))

    def _places(self, cores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nth, line = np.nonzero(self._lines_of(cores))
        return nth, self.at[cores[nth]] + line * self.columns

    def _with_tiles(self, seats: Seats, legs: np.ndarray) -> np.ndarray:
        packet, line = (each[self.legs.tiles.take(legs)] for each in seats)
        y, x = np.divmod(packet, self.wide)
        at_x = np.where(x < self.columns, (self.first + line) * self.columns + x, x + self.behind - self.columns)
        return np.asarray(y * self.block.mesh.width + at_x)

    def land(self) -> np.ndarray:
        block, mesh = self.block, self.block.mesh
        shape, rows = block.shape, slice(mesh.y0, mesh.y0 + block.shape[0])
        self._put_back()
        for counted, of_block in ((self.strip_crossed, self.crossed), (self.strip_entered[None], self.entered[None])):
            by_row = counted.reshape(len(counted), mesh.height, self.wide, 1)[:, rows].repeat(self.lines, axis=3)
            self._copy(of_block[:, :-1].reshape(-1, *shape), by_row, False)
        return super().land()

    def _arrived(self, readers: np.ndarray) -> np.ndarray:
        y, x = np.divmod(readers, self.block.mesh.width)
        strip, at = np.divmod(x, self.columns)
        behind = x >= self.behind
        at = np.where(behind, x - self.behind + self.columns, at)
        return np.asarray(self.heads[:, y * self.wide + at, np.where(behind, 0, strip - self.first)])
