"""Measuring inside a test: reports and tiles that all ranks have, so that all of them check the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from traceback import format_exc
from typing import Any

import numpy as np
from runs import new_block

from meshrt.mesh.block import Block
from meshrt.mesh.device import Device
from meshrt.mesh.wires.routes import Route
from meshrt.program import load_program
from meshrt.reports import report

STUCK_SECONDS = 3.0  # how long a rank that failed waits for others that may wait for it


def end(block: Block, program: str = "test", arguments: Any = None, result: Any = None) -> dict[str, Any]:
    """End a block's run and free its communicators: the whole report, the same on all ranks."""
    gathered = report.gather_report("mesh", block, program, arguments or {}, result or {}, {"wall_seconds": 0.0})
    whole: dict[str, Any] = block.control.bcast(gathered)
    for comm in (block.comm, block.control.comm, block.scouts.comm):
        comm.Free()  # tests make hundreds of blocks, and MPI cannot hold the communicators of many more
    return whole


def measured(block: Block) -> dict[str, Any]:
    """End a block's run: what was measured, with the host's counters in "host"."""
    whole = end(block)
    return {**whole["measured"], "host": whole["host"]}


def whole(block: Block, tiles: np.ndarray) -> np.ndarray:
    """The tiles of all cores, [H, W, *tile], on every rank."""
    mesh = block.mesh
    parts = block.control.bcast(block.control.gather(np.ascontiguousarray(tiles)))
    rows = [np.concatenate(parts[low : low + mesh.columns], axis=1) for low in range(0, len(parts), mesh.columns)]
    return np.concatenate(rows)


def own(block: Block, tiles: np.ndarray) -> np.ndarray:
    """This block's part, [bh, bw, *tile], of the tiles of all cores."""
    mesh = block.mesh
    return tiles[mesh.y0 : mesh.y0 + mesh.block_height, mesh.x0 : mesh.x0 + mesh.block_width].copy()


def numbered(width: int, height: int, *tile: int) -> np.ndarray:
    """Tiles of all cores, [H, W, *tile] of float32, with different numbers in all places."""
    shape = (height, width, *tile)
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def gossip(n: int) -> tuple[Route, ...]:
    """Every core of a line sends to all others: N routes through every core."""
    return tuple(Route(core, tuple(stop for stop in range(n) if stop != core)) for core in range(n) if n > 1)


def marks(n: int, chosen: Iterable[int]) -> np.ndarray:
    """bool [n], True at the chosen places."""
    mask = np.zeros(n, bool)
    mask[list(chosen)] = True
    return mask


def one_core_each(ranks: int) -> tuple[int, int]:
    """A mesh with as many cores as there are ranks, as square as can be: W x H."""
    height = max(h for h in range(1, int(ranks**0.5) + 1) if ranks % h == 0)
    return ranks // height, height


def run_report(
    comm: Any, name: str, mesh: tuple[int, int], device: Device | str = "ideal", payload: bool = True, **options: Any
) -> dict[str, Any]:
    """The report of a packaged program, run with its default options but for these. The same on all ranks."""
    program = load_program(name)
    block = new_block(comm, mesh, device, payload)
    arguments = program.complete(options)
    return end(block, name, arguments, program.run(block, **arguments))


def meet(comm: Any) -> None:
    """A barrier for which ranks sleep: in MPI they turn round, and take a quarter of what others need of a core."""
    done = comm.Ibarrier()
    while not done.Test():
        time.sleep(0.005)


def on_one_rank(comm: Any, work: Callable[[Any], Any]) -> Any:
    """What `work` returns on a communicator of rank 0 alone, on all ranks; the others sleep meanwhile."""
    from mpi4py import MPI

    result = work(MPI.COMM_SELF) if comm.rank == 0 else None
    meet(comm)
    return comm.bcast(result)


class StuckError(BaseException):
    """A rank has failed and others wait for it. Nothing that catches exceptions holds it up: the test ends here."""


def on_first(comm: Any, ranks: int, work: Callable[[Any], None]) -> None:
    """`work` on the first so many ranks of `comm`, with a communicator of theirs; the others sleep meanwhile.

    A failure is the same on all ranks, raised in one line: hypothesis, which may have drawn how many they are, has to
    draw the same examples next on all.
    """
    from mpi4py import MPI

    part = comm.Split(0 if comm.rank < ranks else MPI.UNDEFINED, comm.rank)
    failure = ""
    if part != MPI.COMM_NULL:
        try:
            work(part)
        except Exception:
            failure = f"on rank {comm.rank} of {ranks}:\n{format_exc()}"
    met, deadline = comm.Ibarrier(), time.monotonic() + STUCK_SECONDS
    while not met.Test():
        if failure and time.monotonic() > deadline:
            raise StuckError(failure)
        time.sleep(0.001)
    failures = [text for text in comm.allgather(failure) if text]
    assert not failures, "\n".join(failures)
    if part != MPI.COMM_NULL:
        part.Free()
