"""One run of a program: a block for this rank, the program on it, the report of all ranks."""

import os
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

from meshrt import __version__
from meshrt.mesh.block import make_block
from meshrt.mesh.defects import Wafer
from meshrt.mesh.device import Device
from meshrt.program import Program
from meshrt.ranks import host
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.report import gather_report


def emulate(
    comm: Any,
    board: Board,
    program: Program,
    arguments: Mapping[str, Any],
    *,
    mesh: tuple[int, int] | None,
    device: Device,
    payload: bool = True,
    wafer: Callable[[int, int], Wafer] | None = None,
    console: Console | None = None,
) -> dict[str, Any] | None:
    """Run a program on the ranks of `comm`, with its default options but for `arguments`: the report, None off rank 0.

    `wafer` lays a mesh of that width and height on a wafer with defects.

    All ranks call it. UsageError, LimitError and what else the program raises.
    """
    start = perf_counter()
    width, height = mesh or program.mesh
    block = make_block(comm, device, width, height, board, payload, wafer(width, height) if wafer else None)
    block.console = console or Console()
    board.owned_by(os.getpid(), block.mesh.cores_here)
    given = {option.name: option.default for option in program.options} | dict(arguments)
    try:
        result = program.run(block, **given)
        block.console.clear()
        facts = {"wall_seconds": perf_counter() - start, "mpi": host.library(), "version": __version__}
        told = {option.name: given[option.name] for option in program.options if option.reported}
        return gather_report(block, program.name, told, result, facts)
    finally:
        if comm.size == 1:  # elsewhere a rank that fails must not wait for the others
            block.close()
