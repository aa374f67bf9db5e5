"""Allocations as kernels' tensors have them, and the banks of PSUM that they give up."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.neuron.store import Buffer, Store
from meshrt.nki.session import Session, here


class Home:
    """An allocation, when it was made, and which step wrote each element, if a loop asks for that."""

    __slots__ = ("__weakref__", "born", "line", "lost", "stamps", "store")

    def __init__(self, launch: Session, buffer: Buffer, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        if buffer.name == "psum" and not buffer.idle:  # type: ignore[attr-defined]  # PSUM has them
            _make_room(launch)
        self.line = here()
        self.store = Store(buffer, shape, dtype, full=False)
        self.born = launch.steps
        self.stamps: np.ndarray | None = None
        self.lost: str | None = None  # the line whose tile took this one's bank
        if buffer.name == "psum":
            launch.banks.add(self)


def _make_room(launch: Session) -> None:
    """Give up the bank of PSUM that was not used for longest: its tile must not be used again.

    A kernel's names keep tiles alive that its program is done with; which ones, is told when they are used after all.
    """
    homes = [home for home in launch.banks if home.lost is None and home.store.core is launch.core]
    if homes:
        oldest = min(homes, key=lambda home: home.store.used)
        oldest.store.owned = False
        oldest.store.buffer.release(oldest.store)
        oldest.lost = here()
