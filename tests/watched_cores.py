"""A NeuronCore that knows of every byte until when it is in use, and checks when each instruction may run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from meshrt.neuron.core import NeuronCore
from meshrt.neuron.store import Store, StoreView
from meshrt.nki.tensors.patternview import PatternView


def touched(view: StoreView) -> np.ndarray:
    """The bytes of its store that a view is, each once or more."""
    if isinstance(view, PatternView):
        width = view.as_dtype.itemsize
        return np.asarray(view.pattern.listed()[..., None] * width + np.arange(width))
    return np.asarray(_elements(view)[..., None] * view.store.itemsize + np.arange(view.store.itemsize))


def _elements(view: StoreView) -> np.ndarray:
    if view.parent is None:
        return np.arange(view.store.size).reshape(view.store.shape)
    whole = _elements(view.parent)
    return np.asarray(view.key(whole) if callable(view.key) else whole[view.key])


class WatchedCore(NeuronCore):
    """`seen` instructions began at the second at which the last byte that they touch was free. Nothing is spilled."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.times = WeakKeyDictionary[Store, tuple[np.ndarray, np.ndarray]]()  # last write and last read of each byte
        self.seen = 0

    def of(self, store: Store) -> tuple[np.ndarray, np.ndarray]:
        if store not in self.times:
            self.times[store] = np.full(store.nbytes, store.ready), np.full(store.nbytes, store.idle)
        return self.times[store]

    def touch(self, reads: Sequence[StoreView], write: StoreView, start: float) -> float:
        waits = [self.of(view.store)[0][touched(view)].max() for view in (*reads, write)]
        waits.append(self.of(write.store)[1][touched(write)].max())
        begins = super().touch(reads, write, start)
        assert begins == max(start, *waits)
        self.seen += 1
        return begins

    def done(self, end: float, reads: Sequence[StoreView], write: StoreView) -> None:
        super().done(end, reads, write)
        for view in reads:
            read = self.of(view.store)[1]
            read[touched(view)] = np.maximum(read[touched(view)], end)
        self.of(write.store)[0][touched(write)] = end
        for store in {view.store for view in (*reads, write)}:
            written, read = self.of(store)
            assert store.ready == written.max() and store.idle == read.max()
