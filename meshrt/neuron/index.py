"""What may stand in the brackets of a tile: slices, numbers, and NKI's index arrays, which are slices here."""

from typing import Any

import numpy as np

from meshrt.errors import UsageError


def plain(key: Any, shape: tuple[int, ...]) -> Any:
    """An index with NKI's index arrays (`nl.arange(n)[:, None]`, `nl.mgrid`) as slices, the rest as it is. UsageError.

    Slices end where the tile ends, as in NumPy; index arrays that reach beyond it are refused.
    """
    if key.__class__ is not tuple:
        if key.__class__ is slice or key is Ellipsis:
            return key
        key = (key,)
    for item in key:
        if item.__class__ is not slice and item.__class__ is not int:
            return _looked_at(key, shape)
    return key


def _looked_at(key: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    arrays = [array for array in key if isinstance(array, np.ndarray)]
    rank = max((array.ndim for array in arrays), default=0)
    axes = [rank - array.ndim + int(np.argmax(array.shape)) for array in arrays if array.size > 1]
    if axes != sorted(set(axes)):
        raise UsageError("index arrays vary along an axis each, in the order of the axes: i[:, None], j[None, :]")
    return tuple(_part(item, at, key, shape) for at, item in enumerate(key))


def _part(item: Any, at: int, key: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
    if isinstance(item, np.ndarray):
        part = _as_slice(item)
        aligned = not any(before is None or before is Ellipsis for before in key[:at])
        if aligned and at < len(shape) and part.stop > shape[at]:
            raise UsageError(
                f"an index array reaches {part.stop - 1} on an axis of {shape[at]}; there are no masks here: let the "
                "last tile be smaller"
            )
        return part
    if item is None or item is Ellipsis or (isinstance(item, slice | int | np.integer) and not isinstance(item, bool)):
        return item
    raise UsageError(f"a tile is indexed by numbers, slices and index arrays, not by {type(item).__name__}")


def _as_slice(index: np.ndarray) -> slice:
    flat = index.reshape(-1)
    if index.dtype.kind not in "iu" or flat.size == 0 or flat[0] < 0 or not (np.diff(flat) == 1).all():
        raise UsageError("an index array counts up by one from 0 or more; strides, masks and gathers are not supported")
    return slice(int(flat[0]), int(flat[-1]) + 1)
