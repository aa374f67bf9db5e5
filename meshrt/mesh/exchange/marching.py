"""Convoys and porters whose rounds are compiled (march.py): what is left for NumPy are messages, and the tiles."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshrt.mesh.exchange.convoy import Convoy
from meshrt.mesh.exchange.legs import ways
from meshrt.mesh.exchange.march import HEADER, PORTS, March
from meshrt.mesh.exchange.porter import Porter
from meshrt.mesh.exchange.rounds import position_here


class MarchingConvoy(Convoy):
    """A transfer between any cores."""

    def _open(self) -> None:
        mesh = self.block.mesh
        self.march = March(self.block.core, mesh.width, mesh.height, self.legs)
        self.waiting = np.zeros((HEADER, self.march.cores))  # headers of those that wait, by packet
        local = np.where(self.local == self.nowhere, -1, self.local)[:-1].astype(np.int32)
        bytes_of = {"crossed": self.crossed, "entered": self.entered}
        steps = 0, 1, 0, 0, 0
        self.march.carry(self.block, self.nbytes, 1, steps, local=local, waiting=self.waiting, **bytes_of)

    def rounds(self, cache: dict[object, Any]) -> Iterator[Any]:
        return self.march.rounds()

    def depart(self, turn: Any, tag: int, pending: list[Any]) -> None:
        self.march.leave(self.block, self.view, self.name)
        if not self.whole:
            self.heads = self.march.of("heads")
            for port in range(PORTS):
                self._send(port, *self.march.over_edge("leaving", port), tag, pending)

    def arrive(self, turn: Any, tag: int) -> None:
        if not self.whole:
            for port in range(PORTS):
                self._take(port, *self.march.over_edge("coming", port), tag)
        self.march.come_in()

    def _arrived(self, readers: np.ndarray) -> np.ndarray:
        return self.waiting[:, readers]


class MarchingPorter(Porter):
    """A transfer along an axis: all lines do the same."""

    def rounds(self, cache: dict[object, Any]) -> Iterator[Any]:
        block, owners, asks = self.block, np.asarray(self.transfer.owners), self.transfer.asks
        width, height = (self.count, 1) if self.axis == "x" else (1, self.count)
        key = self.axis, owners.tobytes(), asks
        if key not in cache:
            cache[key] = ways(width, height, owners, asks)
        self.legs = cache[key]
        self.march = March(block.core, width, height, self.legs)
        inside, at = position_here(block, self.axis, np.arange(self.count))
        self.cut = not inside.all()  # do lines go on at other ranks?
        local = np.where(inside, at, -1).astype(np.int32)
        row = block.shape[1]
        steps = *((row, 1) if self.axis == "x" else (1, row)), *(step // 8 for step in self.header.strides)
        bytes_of = {"crossed": self.crossed, "entered": self.entered}
        self.march.carry(block, self.nbytes, self.lines, steps, local=local, heads=self.header, **bytes_of)
        return self.march.rounds()

    def depart(self, turn: Any, tag: int, pending: list[Any]) -> None:
        self.march.leave(self.block, self.view, self.name)
        if self.cut:
            for port in range(PORTS):
                self._give(port, *self._slots("leaving", port), tag, pending)

    def arrive(self, turn: Any, tag: int) -> None:
        if self.cut:
            for port in range(PORTS):
                self._get(port, *self._slots("coming", port), tag)
        self.march.come_in()

    def _slots(self, way: str, port: int) -> tuple[np.ndarray, np.ndarray]:
        """Of those that go over the edge of the block: their slots, and whether they bear tiles."""
        _, legs = self.march.over_edge(way, port)
        return self.legs.packets.take(legs), self.legs.tiles.take(legs)
