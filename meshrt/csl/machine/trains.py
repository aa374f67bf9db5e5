"""Wavelets that come to a core on one colour, and wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class CausalChain(NamedTuple):
    """What a time comes from: messages one after the other, and the hops of each."""

    hops: int = 0
    stages: int = 0


NO_CHAIN = CausalChain()


@dataclass(slots=True, eq=False)
class Train:
    """Wavelets one behind the other."""

    head: float  # when the first is there
    gap: float
    data: Any  # uint32
    control: bool
    chain: CausalChain = NO_CHAIN  # with its own message
    at: int = 0


def available(trains: Iterable[Train]) -> int:
    """Data that have come, or are on their way, before a control wavelet."""
    total = 0
    for train in trains:
        if train.control:
            break
        total += len(train.data) - train.at
    return total


def waiting(trains: Iterable[Train]) -> int:
    """All that have come, or are on their way."""
    return sum(len(train.data) - train.at for train in trains)


def take(trains: deque[Train], count: int) -> tuple[Any, float, float, CausalChain, CausalChain]:
    """The next wavelets: raw, when the first and the last of them are there, and what these come from."""
    parts, first, final = [], None, 0.0
    begins = ends = trains[0].chain
    while count:
        train = trains[0]
        taken = min(count, len(train.data) - train.at)
        if first is None:
            first = train.head + train.gap * train.at
        final, ends = train.head + train.gap * (train.at + taken - 1), train.chain
        parts.append(train.data[train.at : train.at + taken])
        train.at += taken
        count -= taken
        if train.at == len(train.data):
            trains.popleft()
    assert first is not None
    return parts[0] if len(parts) == 1 else np.concatenate(parts), first, final, begins, ends


def insert(trains: deque[Train], train: Train) -> None:
    """By when they come, but behind one of which a part is taken."""
    at = len(trains)
    while at and trains[at - 1].head > train.head and not trains[at - 1].at:
        at -= 1
    trains.insert(at, train)
