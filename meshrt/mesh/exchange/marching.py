"""Convoys and porters whose rounds are compiled (march.py): what is left for NumPy are messages, and the tiles."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshrt.mesh.exchange.convoy import Convoy, Seats
from meshrt.mesh.exchange.legs import ways
from meshrt.mesh.exchange.march import HEADER, PORTS, STRETCH, March, reserve, rounds
from meshrt.mesh.exchange.porter import Porter
from meshrt.mesh.exchange.rounds import position_here


class MarchingConvoy(Convoy):
    """A transfer between any cores."""

    marches: list[March]  # one here

    def _open(self) -> None:
        mesh, cells = self.block.mesh, self.block.clock.cells
        self.legs = ways(mesh.width, mesh.height, self.owners, self.transfer.asks)
        march = March(self.block.core, mesh.width, mesh.height, self.legs)
        self.marches = [march]
        self.waiting = np.zeros((HEADER, march.cores))  # headers of those that wait, by packet
        local = np.where(self.local == self.nowhere, -1, self.local)[:-1].astype(np.int32)
        arrays: dict[str, np.ndarray] = {"cells": cells, "crossed": self.crossed, "entered": self.entered}
        march.carry(self.block, self.nbytes, len(cells[0]), local=local, waiting=self.waiting, **arrays)

    def rounds(self, cache: dict[object, Any]) -> Iterator[Any]:
        return rounds(self.marches)

    def depart(self, turn: Any, tag: int, pending: list[Any]) -> None:
        """The packets of a round leave; requests of messages to other ranks are added to `pending`."""
        reserve(self.block, self.name, self.marches)
        self._leave_all()
        if not self.whole:
            for port in range(PORTS):
                self._send(port, *self._over_edge("leaving", port), tag, pending)

    def arrive(self, turn: Any, tag: int) -> None:
        """They come in, from other ranks as well."""
        if not self.whole:
            for port in range(PORTS):
                self._take(port, *self._over_edge("coming", port), tag)
        for march in self.marches:
            march.come_in()

    def goes_on(self, alone: bool) -> bool:
        """Can the compiled core go through all rounds that are left (onward.py)?"""
        return alone and (self.whole or not self.block.payload)

    def _leave_all(self) -> None:
        """The packets of a round leave the cores of the block."""
        self.marches[0].leave(self.block, self.view, self._places)

    def most_over_edge(self) -> int:
        """No more packets than that go over the edge of the block by a port."""
        return self.marches[0].cores

    def lay_out(self) -> None:
        """Put clocks where the compiled core reaches them soonest: nothing else needs them until they are put back.
        Here they stay (strips.py).
        """

    def put_back(self) -> None:
        """Put them where a block has them."""

    def _over_edge(self, way: str, port: int) -> tuple[Seats, np.ndarray]:
        """Of packets that go over the edge of the block by a port: where their headers are, and their legs."""
        self.heads = self.marches[0].of("heads")
        seats, legs = self.marches[0].over_edge(way, port)
        return (seats,), legs

    def _places(self, cores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of these cores are in the block, and where there."""
        at = self.local.take(cores)
        nth = (at != self.nowhere).nonzero()[0]
        return nth, at[nth]

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
        self.marches = [self.march]
        self.inside, at = position_here(block, self.axis, np.arange(self.count))
        self.whole = bool(self.inside.all())  # do no lines go on at other ranks?
        row, cells = block.shape[1], block.clock.cells
        self.bytes_crossed, self.bytes_entered = np.zeros((4, self.count), np.int64), np.zeros(self.count, np.int64)
        arrays: dict[str, np.ndarray] = {"crossed": self.bytes_crossed, "entered": self.bytes_entered, "cells": cells}
        self.march.carry(block, self.nbytes, len(cells[0]), local=at.astype(np.int32), heads=self.header, **arrays)
        steps = *((row, 1) if self.axis == "x" else (1, row)), *(step // 8 for step in self.header.strides)
        self.march.on_lines(np.outer([0, self.lines], self.inside), self.lines, steps)
        if self.axis == "x" and self.whole and not self.number:
            self.march.put(stretches=np.empty((PORTS * self.count, STRETCH), np.int32))
        return rounds(self.marches)

    def depart(self, turn: Any, tag: int, pending: list[Any]) -> None:
        reserve(self.block, self.name, self.marches)
        self.march.leave(self.block, self.view, self._places)
        if not self.whole:
            for port in range(PORTS):
                self._give(port, *self._slots("leaving", port), tag, pending)

    def arrive(self, turn: Any, tag: int) -> None:
        if not self.whole:
            for port in range(PORTS):
                self._get(port, *self._slots("coming", port), tag)
        self.march.come_in()

    def goes_on(self, alone: bool) -> bool:
        """Can the compiled core go through all rounds that are left? Beside others along lines, too."""
        return self.whole or not self.block.payload

    def most_over_edge(self) -> int:
        """No more packets than that go over the edge of the block by a port: one of each line."""
        return self.lines

    def lay_out(self) -> None:
        """Clocks stay as those of a block: lines take them as they lie."""

    def put_back(self) -> None:
        """So there is nothing to put back."""

    def land(self) -> np.ndarray:
        self.crossed, self.entered = self.bytes_crossed[:, self.inside], self.bytes_entered[self.inside]
        return super().land()

    def _places(self, cores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which of these positions are in the block, and where there."""
        at = cores - self.block.mesh.offset(self.axis)
        nth = self.inside.take(cores).nonzero()[0]
        return nth, at[nth]

    def _slots(self, way: str, port: int) -> tuple[np.ndarray, np.ndarray]:
        """Of those that go over the edge of the block: their slots, and whether they bear tiles."""
        seats, legs = self.march.over_edge(way, port)
        legs = legs[self.inside.take(self.march.of("core").take(seats)) == (way == "leaving")]
        return self.legs.packets.take(legs), self.legs.tiles.take(legs)
