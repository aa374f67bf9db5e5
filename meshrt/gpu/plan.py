"""What CUDA Graphs are on a GPU: operations recorded once, with their buffers, and replayed without any planning."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

KernelTurn = tuple[Any, str]  # the Cost of a kernel (gpu.py), and its name for a trace


class StaticPlan:
    """Calls in order, with arguments that are fixed: arrays, views, requests. `name` is that of their memory."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self.taken: dict[int, int] = {}  # bytes of buffers, by GPU
        self.closing: list[Callable[[], object]] = []  # to be called when the plan is given up
        self._free: dict[tuple[Any, ...], list[np.ndarray]] = {}
        self._turns: dict[int, list[KernelTurn]] = {}  # to which more may come, by GPU

    def add(self, function: Callable[..., object], *args: Any) -> None:
        """Something that may look at clocks and counters of GPUs, or change them."""
        self._turns.clear()
        self.compute(function, *args)

    def compute(self, function: Callable[..., object], *args: Any) -> None:
        """What a kernel does to arrays."""
        self.calls.append((function, args))

    def count(self, gpu: int, function: Callable[[list[KernelTurn]], object], turn: KernelTurn) -> None:
        """What a kernel of a GPU takes and counts: until something is added, one call of `function` for all of them."""
        turns = self._turns.get(gpu)
        if turns is None:
            turns = self._turns[gpu] = []
            self.compute(function, turns)
        turns.append(turn)

    def replay(self) -> None:
        """Do it again. What has changed in the arrays since is what it works on."""
        for function, args in self.calls:
            function(*args)

    def buffer(self, gpu: int, shape: tuple[int, ...], dtype: Any) -> np.ndarray | None:
        """A buffer of an earlier scope, counted in that dtype (None: the GPU's), that nobody needs any more."""
        free = self._free.get((gpu, shape, dtype))
        return free.pop() if free else None

    def release(self, gpu: int, buffers: Iterable[tuple[np.ndarray, Any, int]]) -> None:
        for buffer, dtype, _ in buffers:
            self._free.setdefault((gpu, buffer.shape, dtype), []).append(buffer)

    def close(self) -> None:
        """Free what MPI keeps for it."""
        for function in self.closing:
            function()
