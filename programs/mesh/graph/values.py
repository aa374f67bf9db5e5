"""Values of a graph of operators on the mesh: cut along an axis, or whole at all cores; how they are brought over."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Literal

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.tiles import gather_parts
from meshrt.records import dataclass

Axis = Literal["x", "y"]
OTHER: Mapping[Axis, Axis] = {"x": "y", "y": "x"}


@dataclass(frozen=True, eq=False)
class Value:
    """tiles [bh, bw, *tile], the last axis, of `size` numbers, cut along `axis`; or [1, 1, *whole], at all cores."""

    tiles: np.ndarray
    axis: Axis | None
    size: int
    constant: str | None = None  # its name, while the host has it: cores get it as they need it

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole."""
        return (*self.tiles.shape[2:-1], self.size) if self.tiles.ndim > 2 else ()


@dataclass(eq=False)
class MeshMachine:
    """The cores, and their sums f(tiles, combine) along x and y."""

    block: Block
    sums: Mapping[Axis, Callable[..., np.ndarray]]
    placed: dict[tuple[str, str], Any] = field(default_factory=dict)  # constants that cores have, and how cut

    def chunk(self, size: int, axis: Axis) -> int:
        return -(-size // self.block.mesh.length(axis))

    def own(self, pieces: np.ndarray, axis: Axis) -> np.ndarray:
        """Of [parts of the axis, ..] those of this block: [1, bw, ..] or [bh, 1, ..]."""
        low, lead = self.block.mesh.offset(axis), self.block.lead
        mine = pieces[low : low + lead[1 if axis == "x" else 0]]
        return mine[None] if axis == "x" else mine[:, None]

    def real(self, size: int, axis: Axis) -> np.ndarray:
        """Which numbers of the chunks are no padding: bool [1 or bh, 1 or bw, chunk]."""
        chunk = self.chunk(size, axis)
        return self.own((np.arange(chunk * self.block.mesh.length(axis)) < size).reshape(-1, chunk), axis)

    def keep(self, name: str, tiles: np.ndarray, axis: Axis | None, size: int) -> Value:
        """As core memory; padding becomes zero."""
        if axis is not None and tiles.ndim > 2 and self.chunk(size, axis) * self.block.mesh.length(axis) != size:
            real = self.real(size, axis)
            tiles = np.where(real.reshape(*real.shape[:2], *(1,) * (tiles.ndim - 3), -1), tiles, tiles.dtype.type(0))
        if axis is not None:
            tiles = np.ascontiguousarray(np.broadcast_to(tiles, (*self.block.lead, *tiles.shape[2:])))
        else:
            tiles = np.ascontiguousarray(tiles[:1, :1])
        return Value(self.block.memory.keep(name, tiles), axis, size)

    def cut(self, name: str, value: Value, axis: Axis) -> Value:
        """What all cores have: each keeps its chunk."""
        whole, chunk, parts = value.tiles[0, 0], self.chunk(value.size, axis), self.block.mesh.length(axis)
        padded = np.pad(whole, [(0, 0)] * (whole.ndim - 1) + [(0, chunk * parts - value.size)])
        pieces = np.moveaxis(padded.reshape(*whole.shape[:-1], parts, chunk), -2, 0)
        return self.keep(name, self.own(pieces, axis), axis, value.size)

    def whole(self, value: Value) -> Value:
        """All numbers at all cores: a sum along the axis of arrays in which each core has its own, and zeros."""
        if value.constant is not None:
            placed: Value = self._place(
                value, "", lambda: self.keep(str(value.constant), value.tiles, None, value.size)
            )
            return placed
        return value if value.axis is None else self._spread(value, None)

    def along(self, value: Value, axis: Axis) -> Value:
        """Cut along that axis."""
        if value.axis == axis:
            return value
        if value.constant is not None:
            placed: Value = self._place(value, axis, lambda: self.cut(str(value.constant), value, axis))
            return placed
        return self.cut("a part", value, axis) if value.axis is None else self._spread(value, axis)

    def _place(self, value: Value, how: str, make: Callable[[], Any]) -> Any:
        """A constant at the cores, from now on."""
        key = str(value.constant), how
        if key not in self.placed:
            self.placed[key] = make()
        return self.placed[key]

    def matrix(self, value: Value, axis: Axis) -> np.ndarray:
        """W [.., K, N] with its rows along that axis and its columns along the other: [bh, bw, .., Kt, Nt]."""
        if value.constant is not None:
            tiles: np.ndarray = self._place(value, f"rows along {axis}", lambda: self._matrix(value, axis))
            return tiles
        return self._matrix(self.whole(value), axis)

    def _matrix(self, value: Value, axis: Axis) -> np.ndarray:
        block, whole, to = self.block, value.tiles[0, 0], OTHER[axis]
        cuts = self.chunk(whole.shape[-2], axis), self.chunk(whole.shape[-1], to)
        parts = block.mesh.length(axis), block.mesh.length(to)
        room = [(0, cuts[at] * parts[at] - whole.shape[at - 2]) for at in range(2)]
        padded = np.pad(whole, [(0, 0)] * (whole.ndim - 2) + room)
        pieces = np.moveaxis(padded.reshape(*whole.shape[:-2], parts[0], cuts[0], parts[1], cuts[1]), (-4, -2), (0, 1))
        low = block.mesh.offset(axis), block.mesh.offset(to)
        count = block.lead if axis == "y" else block.lead[::-1]
        mine = pieces[low[0] : low[0] + count[0], low[1] : low[1] + count[1]]
        tiles = np.ascontiguousarray(mine if axis == "y" else mine.swapaxes(0, 1)).astype(np.float32)
        return block.memory.keep(value.constant or "matrix", tiles)

    def _spread(self, value: Value, to: Axis | None) -> Value:
        """A core puts what it has where it belongs in what is needed here: everything, or the chunk along `to`."""
        block, size, source = self.block, value.size, value.axis
        assert source is not None
        chunk = self.chunk(size, source)
        length = block.mesh.length(source) * chunk
        wide = length if to is None else self.chunk(size, to)
        low_from = self.own(chunk * np.arange(block.mesh.length(source)), source)  # first number of each core's chunk
        low_to = np.zeros((1, 1), int) if to is None else self.own(wide * np.arange(block.mesh.length(to)), to)
        at = low_to[..., None] + np.arange(wide) - low_from[..., None]  # [bh, bw, wide]: which of its own goes there
        at = np.broadcast_to(at, (*block.lead, wide))
        inside = (at >= 0) & (at < chunk) & (low_to[..., None] + np.arange(wide) < size)
        index = np.where(inside, at, 0).reshape(*block.lead, *(1,) * (value.tiles.ndim - 3), wide)
        took = np.take_along_axis(value.tiles, np.broadcast_to(index, (*value.tiles.shape[:-1], wide)), axis=-1)
        mask = inside.reshape(index.shape)
        parts = block.memory.keep("own numbers among zeros", np.where(mask, took, took.dtype.type(0)))
        block.elementwise(parts)
        summed = self.sums[source](parts.astype(np.float32)).astype(value.tiles.dtype)
        return self.keep("numbers brought over", summed[..., :size] if to is None else summed, to, size)


def gathered(machine: MeshMachine, value: Value) -> np.ndarray | None:
    """The whole, at rank 0."""
    block = machine.block
    if value.axis is None:
        return value.tiles[0, 0] if block.control.rank == 0 else None
    mesh = block.mesh
    tiles = gather_parts(block, value.tiles, (mesh.height, mesh.width, *value.tiles.shape[2:]))
    if tiles is None:
        return None
    line = tiles[0] if value.axis == "x" else tiles[:, 0]
    return np.concatenate([*line], axis=-1)[..., : value.size]
