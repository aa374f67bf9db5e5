"""Doorbells: how ranks that outnumber the cores wait for a neighbour's message without holding a core up.

A rank that waits inside the MPI library keeps asking whether a message is there. With as many ranks as cores that is
the fastest way; with 64 ranks on two cores, 62 of them ask while the one that everybody waits for has no core. So on
such nodes the sender of a message also writes one byte into a pipe of the receiver, who sleeps on that until it comes,
and receives then. Every message has its byte, read before the receive or after it; the data goes by MPI alone.
"""

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshrt import host
from meshrt.mesh import OPPOSITE, Mesh

Bells = tuple[int | None, int | None, int | None, int | None]  # by port; None: no neighbour, or one on another node


@dataclass(frozen=True)
class Doorbells:
    """File descriptors of the pipes: a neighbour behind a port rings `own`, and is rung by `theirs`."""

    own: Bells = (None,) * 4
    theirs: Bells = (None,) * 4


def ring(bell: int | None) -> None:
    """Say that a message has been sent."""
    if bell is not None:
        os.write(bell, b"\1")


def answer(bell: int | None) -> None:
    """Sleep until the bell rings, or has rung: once for every message."""
    if bell is not None:
        os.read(bell, 1)


def make_doorbells(comm: Any, mesh: Mesh) -> Doorbells:
    """Pipes between neighbouring blocks on this node; none where every rank has a core of its own."""
    if comm.size == 1 or host.ranks_on_node() <= host.cores():
        return Doorbells()
    from mpi4py import MPI

    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    folder = Path(node.bcast(tempfile.mkdtemp(prefix="meshrt-bells-") if node.rank == 0 else None))
    neighbours = [(port, rank) for port in range(4) if (rank := mesh.neighbour(port)) is not None]
    own: list[int | None] = [None] * 4
    theirs: list[int | None] = [None] * 4
    for port, _ in neighbours:
        path = folder / f"{mesh.rank}.{port}"
        os.mkfifo(path)
        own[port] = os.open(path, os.O_RDWR)  # to write as well, so that opening does not wait for the neighbour
    node.Barrier()
    for port, rank in neighbours:
        path = folder / f"{rank}.{OPPOSITE[port]}"
        if path.exists():
            theirs[port] = os.open(path, os.O_WRONLY)
        else:
            own[port] = None
    node.Barrier()
    if node.rank == 0:
        shutil.rmtree(folder)
    node.Free()
    return Doorbells(tuple(own), tuple(theirs))  # type: ignore[arg-type]
