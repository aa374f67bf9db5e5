"""Bit masks of ports in routers' tables: read by all and written in one place, so that no schedule outlives them."""

from typing import Any

import numpy as np

from meshrt.errors import RouteError


class Masks(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bit masks of ports, to be read by all: schedules rest on them, so that `set_entries` alone writes them."""

    def __setitem__(self, key: Any, value: Any) -> None:
        if not self.flags.writeable:
            raise RouteError(
                "a router's table is not to be written behind the fabric's back, where no packet would notice:"
                " change entries by tables.overwrite, on all ranks"
            )
        super().__setitem__(key, value)


def new_masks(shape: tuple[int, int, int]) -> Masks:
    """Those of empty tables [colours, bh, bw]."""
    return _closed(np.zeros(shape, np.uint8))


def grown(masks: Masks) -> Masks:
    """The same, with room for as many colours more."""
    return _closed(np.concatenate([np.asarray(masks), np.zeros_like(masks)]))


def set_entries(tables: tuple[Masks, Masks], at: tuple[Any, Any, Any], enters: Any, leaves: Any) -> None:
    """Write the entries (ports in, ports out) at (colours, y, x) of this block."""
    for masks, new in zip(tables, (enters, leaves), strict=True):
        masks.flags.writeable = True
        np.ndarray.__setitem__(masks, at, new)
        masks.flags.writeable = False


def _closed(array: np.ndarray) -> Masks:
    masks = array.view(Masks)
    masks.flags.writeable = False
    return masks
