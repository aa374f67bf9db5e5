"""Matrices on the mesh: cut into tiles, padded, placed, and gathered again.

A matrix is cut into R x C tiles, R a multiple of the mesh's height and C of its width: core (x, y) holds R/H x C/W of
them, as [bh, bw, R/H, C/W, rows of a tile, columns of a tile]; or R = H and C = W, one tile a core, without these two
dimensions. Sizes that do not divide are padded with zeros at the south and east end; the padding takes memory and is
dropped by `gather`.
"""

from collections.abc import Callable, Sequence
from math import lcm
from numbers import Integral
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.mesh import Mesh

Read = Callable[[slice, slice], np.ndarray]  # (rows, columns) of a matrix -> that part of it


def square(mesh: Mesh) -> tuple[int, int]:
    """R = C = lcm(W, H): as many tiles along either axis, for a GEMM on any mesh (waferllm, section 5.4)."""
    side = lcm(mesh.width, mesh.height)
    return side, side


def tile_size(shape: tuple[int, int], cut: tuple[int, int]) -> tuple[int, int]:
    """(rows, columns) of one tile of a matrix of that shape, padding included."""
    return -(-shape[0] // cut[0]), -(-shape[1] // cut[1])


def span(mesh: Mesh, axis: str, tiles: int, size: int) -> slice:
    """The rows (axis y) or columns (x) of the padded matrix that this rank's block holds, of `tiles` tiles in all."""
    each = tiles // mesh.length(axis) * size
    low = mesh.offset(axis) * each
    return slice(low, low + mesh.block_length(axis) * each)


def place(
    block: Block, name: str, matrix: np.ndarray | Read, shape: tuple[int, ...] | None = None,
    cut: tuple[int, int] | None = None, dtype: Any = None,
) -> np.ndarray:  # fmt: skip
    """This rank's tiles of a matrix, in core memory: one a core, [bh, bw, rows, columns]; or as many as `cut` says,
    [bh, bw, rows of tiles, columns of tiles, rows, columns].

    `matrix` is all of it, or a function that gets two slices, of rows and columns, and returns that part, the rank's
    own, unless that is all padding; of which `shape` and `dtype` are to be said. `cut` says into how many rows and
    columns of tiles, multiples of the mesh's height and width. Tiles are alike; where sizes do not divide, the last are
    padded with zeros. LimitError; UsageError for a cut that is no such multiple, for what is no matrix, or, in one's
    own program, for a part of another size, and for complex numbers of which `dtype` has no place.
    """
    if not callable(matrix):
        whole_matrix = np.asarray(matrix)
        shape, dtype = shape or whole_matrix.shape, whole_matrix.dtype if dtype is None else dtype
    if shape is None or dtype is None:
        raise UsageError(f"{name!r} is a function of its parts: give `shape` and `dtype`, too")
    if len(shape) != 2:
        raise UsageError(f"{name!r} of shape {list(shape)}: a matrix has rows and columns")
    numbers = isinstance(cut, Sequence) and len(cut) == 2 and all(isinstance(count, Integral) for count in cut)
    if cut is not None and not numbers:
        raise UsageError(f"{name!r} cut into {cut!r} tiles: give two numbers, (rows of tiles, columns of tiles)")
    cut, single = cut or (block.mesh.height, block.mesh.width), cut is None
    if min(cut) < 1 or cut[0] % block.mesh.height or cut[1] % block.mesh.width:
        raise UsageError(
            f"{name!r} cut into {cut[0]} x {cut[1]} tiles, rows first, on {block.mesh.height} rows and"
            f" {block.mesh.width} columns of cores: give multiples of these"
        )
    mt, nt = tile_size(shape, cut)
    each = cut[0] // block.mesh.height, cut[1] // block.mesh.width
    tiles = block.tiles(name, (mt, nt) if single else (*each, mt, nt), dtype)
    if not block.payload:
        tiles[...] = 0
        return tiles
    rows, columns = span(block.mesh, "y", cut[0], mt), span(block.mesh, "x", cut[1], nt)
    part = slice(rows.start, min(rows.stop, shape[0])), slice(columns.start, min(columns.stop, shape[1]))
    whole = np.zeros((rows.stop - rows.start, columns.stop - columns.start), dtype)
    if min(side.stop - side.start for side in part) > 0:  # else all that this rank has is padding
        inside = matrix(*part) if callable(matrix) else whole_matrix[part]
        if block.audit is not None:
            block.audit.places(f"{name!r} of shape {list(shape)}", inside, part, whole.dtype)
        whole[: inside.shape[0], : inside.shape[1]] = inside
    by_tile = whole.reshape(block.shape[0], each[0], mt, block.shape[1], each[1], nt)
    tiles[...] = by_tile.transpose(0, 3, 1, 4, 2, 5).reshape(tiles.shape)
    return tiles


def gather(block: Block, tiles: np.ndarray, shape: tuple[int, int] | None = None) -> np.ndarray | None:
    """What all cores hold, at rank 0: [H, W, *tile] of tiles [bh, bw, *tile]. Or, with its `shape`, the matrix without
    padding, of tiles as `place` has them, or one a core, [bh, bw, rows, columns]. None elsewhere, and where tiles have
    no numbers (`--payload none`). UsageError for tiles that are not those of all cores; in one's own program also for
    a `shape` that they have not.

    Control traffic: nothing is counted.
    """
    if not block.payload:
        return None
    if shape is None:
        block.check_lead(tiles)
        return gather_parts(block, tiles, (block.mesh.height, block.mesh.width))
    if tiles.ndim == 4:
        tiles = tiles[:, :, None, None]
    if block.audit is not None:
        block.audit.gathers(block.lead, block.mesh, tiles, shape)
    rectangle = tiles.transpose(0, 2, 4, 1, 3, 5).reshape(
        tiles.shape[0] * tiles.shape[2] * tiles.shape[4], tiles.shape[1] * tiles.shape[3] * tiles.shape[5]
    )
    return gather_parts(block, rectangle, shape)


def gather_parts(block: Block, rectangle: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Each rank's [rows, columns, ...] put side by side as the blocks lie, cut to the shape; at rank 0."""
    parts = block.control.gather(np.ascontiguousarray(rectangle))
    if parts is None:
        return None
    columns = block.mesh.columns
    height, width = sum(len(part) for part in parts[::columns]), sum(part.shape[1] for part in parts[:columns])
    whole, y, x = np.empty((height, width, *rectangle.shape[2:]), rectangle.dtype), 0, 0
    while parts:
        part = parts.pop(0)  # there is room for the whole, but none to keep the parts beside it
        whole[y : y + len(part), x : x + part.shape[1]] = part
        x += part.shape[1]
        if x == width:
            y, x = y + len(part), 0
    return whole[tuple(slice(size) for size in shape)]
