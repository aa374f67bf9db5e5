"""A rank's part of tensors, read straight from the checkpoint: what weights.py lays out is read here."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.wires.routes import ring_place
from meshrt.models import matrix as forms
from meshrt.models.folders.checkpoint import Checkpoint
from meshrt.models.quantize.form import Quantized
from meshrt.programs.mesh.chunks import Chunks, plain
from meshrt.programs.mesh.experts.grid import RegionGrid
from meshrt.programs.mesh.linear import Linear, Member
from meshrt.programs.mesh.published.kernels import aligned_rows
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class WeightReader:
    """Reads into core memory, in the storage type; zeros without a checkpoint. `turned` is decode's layout, and `grid`
    what matrices are cut over.
    """

    block: Block
    chunks: Chunks
    checkpoint: Checkpoint | None
    dtype: np.dtype[Any]
    turned: bool
    grid: RegionGrid
    apart: bool = False  # compensators of quantized matrices have products of their own
    aligned: bool = False  # a layer's matrices lie as the published programs have them (published/kernels.py)

    def linear(
        self, matrices: Sequence[tuple[Sequence[forms.Matrix], np.ndarray]], rows: np.ndarray, turned: tuple[bool, bool]
    ) -> Linear:
        """Matrices with an input of these rows, each with its columns; `turned` is that of Linear.

        Each is one for every region of the grid, of one form; regions that are left over have none.
        """
        if isinstance(matrices[0][0][0].form, Quantized):  # where one matrix of a model is, all are
            from meshrt.programs.mesh.codes.packing import pack_matrices
            from meshrt.programs.mesh.codes.whole import WholeCodes

            packed = pack_matrices(
                self.block,
                self.checkpoint,
                self.grid,
                matrices,
                rows,
                self.dtype,
                self.turned and turned[0],
                self.apart,
            )
            activations = matrices[0][0][0].form.activations
            if activations is not None:
                packed = WholeCodes(packed.data, packed.forms, packed.dtype, activations=activations)
            return Linear(packed, tuple(Member(columns.shape[1]) for _, columns in matrices), turned)
        first: list[tuple[Sequence[str], np.ndarray]] = []
        parts = []
        for same, columns in matrices:
            if isinstance(same[0].form, forms.LowRank):
                between = plain(same[0].form.rank, self.grid.sides)
                us, vs = zip(*(matrix.factors() for matrix in same), strict=True)
                first.append(([u.name for u in us], between))
                second = self.matrix([([v.name for v in vs], columns)], between, self.turned and turned[1])
                parts.append(Member(between.shape[1], same[0].form.rank, second))
            else:
                first.append(([matrix.name for matrix in same], columns))
                parts.append(Member(columns.shape[1]))
        tiles = self.matrix(first, rows, self.turned and turned[0], self.aligned)
        return Linear(tiles, tuple(parts), turned, self.aligned)

    def matrix(
        self, names: Sequence[tuple[Sequence[str], np.ndarray]], rows: np.ndarray, turned: bool = False,
        aligned: bool = False,
    ) -> np.ndarray:  # fmt: skip
        """W[rows_y, columns_x] of matrices that the checkpoint has as [out, in]; several of them side by side.

        Turned, it is W[rows_x, columns_y]: the same tiles, at other cores. Names are those of the regions. Aligned,
        columns of tiles are turned back, each by its own place.
        """
        size = sum(out.shape[1] for _, out in names)
        each = (self.grid.tile_rows, self.grid.tile_columns)
        tiles = self.block.tiles(f"{names[0][0][0]}.weight", (*each, rows.shape[1], size), self.dtype)
        if self.checkpoint is None:
            tiles[...] = 0
            return tiles
        low = 0
        if aligned:
            self._fill_aligned(tiles, names, rows)
            return tiles
        for same, out in names:
            for number, region in self.grid.parts(self.block.mesh):
                part = tiles[region.rows, region.columns, ..., low : low + out.shape[1]]
                if number >= len(same):
                    part[...] = 0
                    continue
                bh, bw = part.shape[:2]
                along_y, along_x = (rows, out)[::-1] if turned else (rows, out)
                chunks_y = along_y[region.y * each[0] : (region.y + bh) * each[0]]
                chunks_x = along_x[region.x * each[1] : (region.x + bw) * each[1]]
                columns, down = (chunks_y, chunks_x) if turned else (chunks_x, chunks_y)
                numbers = self._read(f"{same[number]}.weight", columns, down)  # [columns, their sizes, rows, ..]
                along, across = ((bh, each[0]), (bw, each[1])) if turned else ((bw, each[1]), (bh, each[0]))
                by_core = numbers.reshape(*along, out.shape[1], *across, rows.shape[1])
                part[...] = by_core.transpose((0, 3, 1, 4, 5, 2) if turned else (3, 0, 4, 1, 5, 2))
            low += out.shape[1]
        return tiles

    def _fill_aligned(
        self, tiles: np.ndarray, names: Sequence[tuple[Sequence[str], np.ndarray]], rows: np.ndarray
    ) -> None:
        mesh, low = self.block.mesh, 0
        chosen = aligned_rows(ring_place(mesh.height))[mesh.y0 :, mesh.x0 :][: tiles.shape[0], : tiles.shape[1]]
        for (name,), out in names:
            for x in range(tiles.shape[1]):
                numbers = self._read(f"{name}.weight", out[mesh.x0 + x], rows[chosen[:, x]])  # [Nt, bh, Kt]
                tiles[:, x, 0, 0, :, low : low + out.shape[1]] = numbers.transpose(1, 2, 0)
            low += out.shape[1]

    def routing(self, matrices: Sequence[forms.Matrix], axis: str) -> np.ndarray:
        """What decides and weighs, whole at every line across the axis: [bh, bw, 1, columns, Et, n]; [.., rows, 1]."""
        table, each = self.chunks.embedding, self.chunks.sides // self.block.mesh.length(axis)
        shape = (1, each) if axis == "x" else (each, 1)
        size = sum(matrix.columns for matrix in matrices)
        tiles = self.block.tiles(f"{matrices[0].name}.weight along {axis}", (*shape, table.shape[1], size), self.dtype)
        if self.checkpoint is None:
            tiles[...] = 0
            return tiles
        rows = self._here(table, axis)
        numbers = [self._read(f"{matrix.name}.weight", np.arange(matrix.columns), rows) for matrix in matrices]
        by_core = np.concatenate(numbers).transpose(1, 2, 0).reshape(-1, each, table.shape[1], size)
        tiles[...] = by_core[None, :, None] if axis == "x" else by_core[:, None, :, None]
        return tiles

    def routing_cut(self, matrices: Sequence[forms.Matrix]) -> np.ndarray:
        """The same, side by side as one matrix W[E_y, n_x]: [bh, bw, rows, columns, Et, nt]."""
        chunks, mesh = self.chunks, self.block.mesh
        table = plain(sum(matrix.columns for matrix in matrices), chunks.sides)
        shape = chunks.rows, chunks.columns, chunks.embedding.shape[1], table.shape[1]
        tiles = self.block.tiles(f"{matrices[0].name}.weight", shape, self.dtype)
        if self.checkpoint is None:
            tiles[...] = 0
            return tiles
        rows, columns = self._here(chunks.embedding, "y"), self._here(table, "x")
        numbers = np.concatenate(
            [self._read(f"{matrix.name}.weight", np.arange(matrix.columns), rows) for matrix in matrices]
        )
        own = np.where(columns[..., None, None] >= 0, numbers[columns], 0)  # [columns, nt, rows, Et]
        by_core = own.reshape(mesh.block_width, shape[1], shape[3], mesh.block_height, shape[0], shape[2])
        tiles[...] = by_core.transpose(3, 0, 4, 1, 5, 2)
        return tiles

    def vector(self, tensors: list[tuple[str, np.ndarray]], axis: str) -> np.ndarray:
        """A vector cut along the axis, repeated along the other: [bh, bw, 1, columns, size] or [.., rows, 1, size]."""
        chunks, block = self.chunks, self.block
        each = (1, chunks.columns) if axis == "x" else (chunks.rows, 1)
        size = sum(table.shape[1] for _, table in tensors)
        tiles = block.tiles(f"{tensors[0][0]} along {axis}", (*each, size), self.dtype)
        if self.checkpoint is None:
            tiles[...] = 0
            return tiles
        parts = [self._read(name, self._here(table, axis)) for name, table in tensors]
        whole = np.concatenate(parts, axis=1).reshape(-1, max(each), size)  # by core of the line
        tiles[...] = whole[None, :, None] if axis == "x" else whole[:, None, :, None]
        return tiles

    def _here(self, table: np.ndarray, axis: str) -> np.ndarray:
        """The chunks of this rank's block along the axis."""
        mesh = self.block.mesh
        each = self.chunks.sides // mesh.length(axis)
        low = mesh.offset(axis) * each
        return table[low : low + mesh.block_length(axis) * each]

    def _read(self, name: str, *tables: np.ndarray) -> np.ndarray:
        """The elements of a tensor that the tables name, zero where they name none: [*table 1, *table 2]."""
        assert self.checkpoint is not None
        flat = [table.reshape(-1) for table in tables]
        filled = [np.flatnonzero(index >= 0) for index in flat]
        numbers = self.checkpoint.read(name, *(index[at] for index, at in zip(flat, filled, strict=True)))
        whole = np.zeros([len(index) for index in flat], self.dtype)
        whole[np.ix_(*filled)] = numbers.astype(self.dtype)
        return whole.reshape([size for table in tables for size in table.shape])
