"""Memory of all cores as one array of f16, for renderings of published programs in NumPy."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt.csl.machine.wafer import Wafer

HALF = np.float16


@dataclass
class Cores:
    """Memory of P x P cores as f16 [y, x, place], and where in it each core has a variable, [y, x]."""

    memory: Any
    where: dict[str, Any]

    def places(self, base: Any, index: Any) -> Any:
        count = len(base)
        return np.arange(count)[:, None, None], np.arange(count)[None, :, None], base[..., None] + index

    def get(self, base: Any, count: int, step: int = 1) -> Any:
        return self.memory[self.places(base, step * np.arange(count))].copy()

    def put(self, base: Any, values: Any) -> None:
        self.memory[self.places(base, np.arange(values.shape[-1]))] = values


def wide(function: Any, x: Any) -> Any:
    """In double, then rounded."""
    return function(x.astype(np.float64)).astype(HALF)


def fused(total: Any, a: Any, b: Any) -> Any:
    """total + a b, in float, then rounded."""
    return (total.astype(np.float32) + a.astype(np.float32) * b.astype(np.float32)).astype(HALF)


def cores_of(wafer: Wafer) -> Cores:
    """A copy of a square wafer's memory, and where its variables are."""
    side = wafer.program.size[0]
    memory = np.zeros((side, side, 24576), HALF)
    where: dict[str, Any] = {}
    for (x, y), core in wafer.cores.items():
        memory[y, x] = core.m_float16
        for address, _, name in core.image.symbols:
            where.setdefault(name, np.zeros((side, side), int))[y, x] = address // 2
    return Cores(memory, where)
