"""Requests that the compiled core posts by itself: MPI's functions as it calls them, and how Python waits for one."""

import ctypes
from collections.abc import Callable

from meshrt.mesh.cores import Cores
from meshrt.ranks.board import Board

MPI_CALLS = ("MPI_Isend", "MPI_Irecv", "MPI_Test")


class Posted:
    """One of them, to be waited for: `has_come` asks the core."""

    __slots__ = ("has_come",)

    def __init__(self, has_come: Callable[[], int]) -> None:
        self.has_come = has_come

    def Test(self) -> bool:
        return bool(self.has_come())


def mpi_of(block: Cores) -> tuple[list[int], list[int]] | None:
    """Addresses of those calls, and the handles of the block's communicator and of bytes, as unsigned numbers.

    None where messages are not the compiled core's to send: the run is recorded, or has a fault.
    """
    from mpi4py import MPI

    if type(block.comm) is not MPI.Intracomm or type(block.watch) is not Board:
        return None
    try:
        library = ctypes.CDLL(MPI.__file__)
        functions = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in MPI_CALLS]
        return functions, [MPI._handleof(block.comm), MPI._handleof(MPI.BYTE)]
    except (OSError, AttributeError):
        return None
