"""Putting tiles where they arrive: each is copied once, from where it left or from the message that it came in.

Large tiles go by the compiled core (tiles.c), where it knows their kind of numbers; else by NumPy.
"""

from typing import TYPE_CHECKING

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.cores import Cores
from meshrt.mesh.wires.lane import MessageBuffer
from meshrt.mesh.wires.lines import View
from meshrt.mesh.wires.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

MANY = 1 << 18  # bytes of tiles for which it pays to ask the compiled core
PIECE = 1 << 16  # bytes that change their place together, where tiles of several lines lie side by side


def packets_of(
    schedule: Schedule, own: np.ndarray, received: list[MessageBuffer], kept: bool = False
) -> list[np.ndarray]:  # fmt: skip
    """Of each part of what arrives, the tiles where they are now. The next messages overwrite those that came in one:
    of these a copy, if they are to be kept.
    """
    packets = [(own if part.message < 0 else received[part.message].tiles)[:, part.source] for part in schedule.parts]
    if kept:
        packets = [
            packet if part.message < 0 else packet.copy() for part, packet in zip(schedule.parts, packets, strict=True)
        ]
    return packets


def deliver(
    block: Cores, schedule: Schedule, view: View, own: np.ndarray, packets: list[np.ndarray], out: np.ndarray,
    combine: "Callable[..., np.ndarray] | None",
) -> None:  # fmt: skip
    """Put the tiles that arrive on the lines of a view where they belong."""
    target, parts = view.of(out), schedule.parts
    # one part alone NumPy copies by itself where it has to
    takes = len(parts) > 1 and any(part.message < 0 for part in parts) and np.may_share_memory(own, target)
    strided = combine is None and target.nbytes > MANY and schedule.strided
    many = strided and block.core is not None and _are_alike(target, own)
    if many and takes and _are_one(block, target, own):
        _move_around(block, schedule, view, target)
        others = [number for number, part in enumerate(parts) if part.message >= 0]
        parts, packets, takes = tuple(parts[number] for number in others), [packets[number] for number in others], False
    if many and not takes:
        arrays = [array for part, packet in zip(parts, packets, strict=True) for array in (target[:, part.to], packet)]
        block.core.deliver(*map(_plain, arrays))
    else:
        if takes:
            packets = [packet.copy() for packet in packets]  # nothing is to be overwritten before it has left
        for part, packet in zip(parts, packets, strict=True):
            own_tiles = target[:, part.to]
            if isinstance(part.to, slice) and isinstance(combine, np.ufunc) and target.dtype.kind == "f":
                combine(own_tiles, packet, out=own_tiles)  # NumPy looks after memory that both share
            else:
                landed = packet if combine is None else combine(own_tiles, packet)
                if landed is None:  # NumPy would make NaN of it
                    raise UsageError("`combine` returned None: it returns what the core has then, such as a + b")
                if combine is not None and np.shape(landed) != own_tiles.shape:  # and would stretch it
                    raise UsageError(
                        f"`combine` returned an array of shape {list(np.shape(landed))} for two of shape"
                        f" {list(own_tiles.shape)}: it returns what the cores have then, such as a + b"
                    )
                target[:, part.to] = landed
    if view.axis is None and not np.may_share_memory(target, out):  # a flat view of scattered memory is a copy
        out[...] = target.reshape(out.shape)


def _are_alike(target: np.ndarray, own: np.ndarray) -> bool:
    """May the compiled core put tiles where they belong? Not where they are to become numbers of another kind."""
    if target.dtype != own.dtype or target.shape[2:] != own.shape[2:]:
        return False
    plain = target.dtype.kind != "V" or target.itemsize <= 2  # NumPy shows others none of what it does not know
    return target.ndim < 9 and plain


def _are_one(block: Cores, target: np.ndarray, own: np.ndarray) -> bool:
    """Is each place in both the same place in memory?"""
    return target.strides == own.strides and bool(block.core.address(target) == block.core.address(own))


def _move_around(block: Cores, schedule: Schedule, view: View, target: np.ndarray) -> None:
    """What comes from these lines themselves changes its place in them, so many lines at a time as lie side by side."""
    tile_bytes = target[:1, :1].nbytes
    lines = max(1, PIECE // tile_bytes) if view.axis == "y" else 1
    room = block.core.address(block.clock.buffer("leaving", lines * tile_bytes))
    block.core.rotate(room, lines, schedule.moves, _plain(target))


def _plain(array: np.ndarray) -> np.ndarray:
    """As the compiled core may see it: of kinds of numbers that NumPy does not know it shows none of their memory."""
    return array.view(f"u{array.itemsize}") if array.dtype.kind == "V" else array
