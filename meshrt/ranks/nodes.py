"""The ranks that are on one node, and files that they share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from meshrt.ranks import launcher
from meshrt.ranks.asleep import asleep

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

_LONGEST = 4096  # bytes of a path, as Linux has it


def of_this_node(comm: Intracomm) -> tuple[Intracomm, Sequence[int]]:
    """A communicator of the ranks of `comm` that are on this node, and their numbers in `comm`."""
    if launcher.on_one_node() and launcher.launched_size() == comm.size:
        return comm, range(comm.size)  # MPI would take messages between all of them to see that
    from mpi4py import MPI

    node = cast("Intracomm", comm.Split_type(MPI.COMM_TYPE_SHARED, key=comm.rank))
    return node, node.allgather(comm.rank)


def file_of_node(node: Intracomm, size: int) -> tuple[int, str]:
    """A new file of `size` zero bytes, open at all ranks of a node, and its name, which one of them removes once all
    have come here. OSError where neither /dev/shm nor the directory for temporary files can be written.
    """
    file, path = -1, ""
    if node.rank == 0:
        import tempfile  # only one rank of a node needs it

        directory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        file, path = tempfile.mkstemp(prefix="meshrt-", dir=directory)
        os.ftruncate(file, size)
    message = bytearray(path.encode().ljust(_LONGEST, b"\0"))
    asleep(node.Ibcast(message))
    path = message.rstrip(b"\0").decode()
    return file if node.rank == 0 else os.open(path, os.O_RDWR), path
