"""What each core and each link did, where somebody wants to look at it: each map adds up to its counter, exactly.

They are raised beside the counters, at the same places, and only if the run was asked for them.
"""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class Maps:
    """Of a rank's cores at one site, in one segment: int64 [bh, bw], and of links [4, bh, bw] by port of departure.

    Cycles are float64: `busy` those in which a core computed or its software touched a packet, `link_busy` those for
    which packets kept a link busy. The bytes of links are counted anyway (`Counters.links`). `handed` are packets of
    exchanges over each link, which software hands on from core to core.
    """

    messages: np.ndarray
    stages: np.ndarray
    macs: np.ndarray
    rebuilt: np.ndarray
    busy: np.ndarray
    link_packets: np.ndarray
    link_busy: np.ndarray
    handed: np.ndarray
    handed_bytes: np.ndarray

    def add(self, name: str, amount: int | np.ndarray, cores: np.ndarray | None = None) -> None:
        """At every core, or at those `cores` (bool [bh, bw])."""
        if cores is None:
            getattr(self, name)[...] += amount
        else:
            getattr(self, name)[cores] += amount

    def copy(self) -> "Maps":
        return Maps(*(getattr(self, field.name).copy() for field in fields(self)))

    def repeat(self, before: "Maps | None", more: int) -> None:
        """Count what has been added since `before` so many times more."""
        for field in fields(self):
            now = getattr(self, field.name)
            now += more * (now - (0 if before is None else getattr(before, field.name)))


NAMES = tuple(field.name for field in fields(Maps))


def new_maps(shape: tuple[int, int]) -> Maps:
    """Nothing so far."""
    links = (4, *shape)
    messages, stages, macs, rebuilt = np.zeros((4, *shape), np.int64)
    packets, handed, handed_bytes = np.zeros((3, *links), np.int64)
    return Maps(messages, stages, macs, rebuilt, np.zeros(shape), packets, np.zeros(links), handed, handed_bytes)


def total(maps: Sequence[Maps]) -> Maps:
    """Of several segments, one or more, one after the other: the sums."""
    return Maps(*(sum(getattr(segment, name) for segment in maps) for name in NAMES))
