"""Tiles in rows and columns."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.neuron.tile import Tile


class Grid:
    """Tiles in rows and columns: what `nl.ndarray` gives where axes precede the partition axis."""

    def __init__(self, axes: tuple[int, ...], make: Callable[[], Tile]) -> None:
        self.axes = axes
        self.tiles = {at: make() for at in np.ndindex(*axes)}
        first = next(iter(self))
        self.shape = (*axes, *first.shape)
        self.dtype = first.dtype

    def __iter__(self) -> Iterator[Tile]:
        return iter(self.tiles.values())

    def _find(self, key: Any) -> tuple[Tile, tuple[Any, ...]]:
        key = key if isinstance(key, tuple) else (key,)
        at = key[: len(self.axes)]
        if not all(isinstance(one, int | np.integer) for one in at) or at not in self.tiles:
            raise UsageError(
                f"an array of {list(self.axes)} tiles needs {len(self.axes)} numbers in range before the tile's own "
                f"indices, not {', '.join(map(str, at))}"
            )
        return self.tiles[at], key[len(self.axes) :]

    def __getitem__(self, key: Any) -> Tile:
        tile, rest = self._find(key)
        return tile[rest] if rest else tile

    def __setitem__(self, key: Any, value: Any) -> None:
        tile, rest = self._find(key)
        tile[rest or ...] = value
