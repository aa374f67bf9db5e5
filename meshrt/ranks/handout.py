"""Pieces of work, such as whole runs, that ranks share out: whoever is free takes the next.

Dealt out in turn, one rank would get all that is long where long pieces and short ones take turns, as the systems of a
table do.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from meshrt.ranks.asleep import asleep
from meshrt.ranks.nodes import file_of_node, of_this_node

Gathered = TypeVar("Gathered")

_NEXT = struct.Struct("<q")


def handed_out(comm: Any, count: int) -> Iterator[int]:
    """The numbers below `count` that fall to this rank, each as it asks for the next. All ranks of `comm` call it.

    The ranks of a node take from one row, in a file that all of them have open. No node waits for another: the numbers
    that are its own are those that its ranks would have if all were dealt out in turn. OSError where a node's file
    cannot be made.
    """
    if comm.size == 1:
        return iter(range(count))
    node, ranks = of_this_node(comm)
    file, path = file_of_node(node, _NEXT.size)
    asleep(node.Ibarrier())
    if node.rank == 0:
        os.unlink(path)
    if node is not comm:
        node.Free()
    return _taken(file, [number for number in range(count) if number % comm.size in ranks])


def _taken(file: int, own: Sequence[int]) -> Iterator[int]:
    try:
        while (at := _take(file)) < len(own):
            yield own[at]
    finally:
        os.close(file)


def _take(file: int) -> int:
    fcntl.lockf(file, fcntl.LOCK_EX)
    try:
        at: int = _NEXT.unpack(os.pread(file, _NEXT.size, 0))[0]
        os.pwrite(file, _NEXT.pack(at + 1), 0)
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)
    return at


def gathered(comm: Any, own: Gathered) -> list[Gathered]:
    """What every rank has made of its pieces, on all ranks. Those that have no more to do sleep until all have come."""
    if comm.size > 1:
        asleep(comm.Ibarrier())
    parts: list[Gathered] = comm.allgather(own)
    return parts
