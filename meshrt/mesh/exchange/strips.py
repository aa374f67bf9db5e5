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


def strips(owners: np.ndarray, width: int, height: int) -> tuple[int, int] | None:
    """(columns of a strip, strips) where several strips from column 0 on do the same, each by itself; or None.

    Columns beyond them take no part. The narrowest strips that there are.
    """
    grid = owners.reshape(height, width) - np.arange(width * height).reshape(height, width)
    taking_part = np.flatnonzero(grid.any(axis=0))
    used = int(taking_part[-1]) + 1 if len(taking_part) else 0
    for columns in range(1, used // 2 + 1):
        if used % columns or not np.array_equal(grid[0, columns:used], grid[0, : used - columns]):
            continue
        if not np.array_equal(grid[:, columns:used], grid[:, : used - columns]):
            continue
        if (owners.reshape(height, width)[:, :columns] % width < columns).all():
            return columns, used // columns
    return None


def _aligned(*shape: int) -> np.ndarray:
    """float64 zeros that begin with a line of the processor's caches: eight strips' numbers are then one line."""
    memory = np.zeros(prod(shape) + LINE // 8)
    begin = -memory.ctypes.data % LINE // 8
    return memory[begin : begin + prod(shape)].reshape(shape)


class MarchingStrips(MarchingConvoy):
    """Such a transfer. Its cores and packets are those of a strip; lines are the strips that this block has a part of.

    `alone`: no other transfer is carried out meanwhile.
    """

    def __init__(self, block: Any, transfer: Any, number: int, alike: tuple[int, int], alone: bool) -> None:
        (self.columns, count), self.alone = alike, alone
        mesh = block.mesh
        self.first = min(mesh.x0 // self.columns, count - 1)  # strip of the block
        end = min(-(-(mesh.x0 + block.shape[1]) // self.columns), count)
        self.lines = max(end - self.first, 1)
        super().__init__(block, transfer, number)

    def _open(self) -> None:
        block, mesh, columns, lines = self.block, self.block.mesh, self.columns, self.lines
        (high, wide), west = block.shape, self.first * columns - mesh.x0  # of the first strip, in the block
        y, x = np.divmod(np.arange(mesh.height * columns), columns)
        owner_y, owner_x = np.divmod(self.owners.reshape(mesh.height, -1)[:, :columns].reshape(-1), mesh.width)
        self.legs = ways(columns, mesh.height, owner_y * columns + owner_x, self.transfer.asks)
        self.march = March(block.core, columns, mesh.height, self.legs)
        self.at = (y - mesh.y0) * wide + x + west  # place of each core of the first strip in the block
        inside = (y >= mesh.y0) & (y < mesh.y0 + high)
        ranges = [-((x + west) // columns), -((x + west - wide) // columns)]  # the first line in the block, and beyond
        self.lines_of = np.clip(ranges, 0, lines) * inside
        self.span = slice(-west, max(min(wide - west, lines * columns), -west))  # those of the strips in the block
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
            mesh, columns, cells = self.block.mesh, self.columns, self.block.clock.cells[:, :-1]
            y, x = np.divmod(np.arange(mesh.height * columns), columns)
            self.by_strip = self._of_strips(cells.reshape(-1, *self.block.shape))
            local = ((y - mesh.y0) * columns + x).astype(np.int32)
            steps = {"line_step": 1, "core_step": self.lines * len(cells)}
            self.march.put(cells=self.by_strip, local=local, row=self.lines, **steps)

    def _put_back(self) -> None:
        if len(self.by_strip):
            cells = self.block.clock.cells[:, :-1]
            self._to_block(self.by_strip.transpose(2, 0, 3, 1), cells.reshape(-1, *self.block.shape))
            self.by_strip = np.zeros(0)

    def _of_strips(self, cells: np.ndarray) -> np.ndarray:
        """Rows of cells of the block, [rows, high, wide], by strip: [high, columns, rows, lines]."""
        rows, high, _ = cells.shape
        of_strips = np.zeros((rows, high, self.lines * self.columns))
        of_strips[..., self.span] = cells[..., : self.span.stop - self.span.start]
        by_strip = _aligned(high, self.columns, rows, self.lines)
        by_strip[...] = of_strips.reshape(rows, high, self.lines, self.columns).transpose(1, 3, 0, 2)
        return by_strip

    def _to_block(self, numbers: np.ndarray, block: np.ndarray) -> None:
        """Enter numbers of every core of the strips, [.., high, lines, columns], in an array [.., high, wide]."""
        flat = numbers.reshape(*block.shape[:-1], self.lines * self.columns)
        block[..., : self.span.stop - self.span.start] = flat[..., self.span]

    def _over_edge(self, way: str, port: int) -> tuple[Seats, np.ndarray]:
        seats, legs = self.march.over_edge(way, port)
        cores = self.march.of("core").take(seats)
        step_x, step_y = STEP[port]
        leaves, comes = self._lines_of(cores), self._lines_of(cores + step_x + step_y * self.columns)
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
        y, x = np.divmod(packet, self.columns)
        return np.asarray(y * self.block.mesh.width + (self.first + line) * self.columns + x)

    def land(self) -> np.ndarray:
        block, mesh = self.block, self.block.mesh
        shape, rows = block.shape, slice(mesh.y0, mesh.y0 + block.shape[0])
        self._put_back()
        for counted, of_block in ((self.strip_crossed, self.crossed), (self.strip_entered[None], self.entered[None])):
            by_row = counted.reshape(len(counted), mesh.height, 1, self.columns)[:, rows].repeat(self.lines, axis=2)
            self._to_block(by_row, of_block[:, :-1].reshape(-1, *shape))
        return super().land()

    def _arrived(self, readers: np.ndarray) -> np.ndarray:
        y, x = np.divmod(readers, self.block.mesh.width)
        strip, x = np.divmod(x, self.columns)
        return np.asarray(self.heads[:, y * self.columns + x, strip - self.first])
