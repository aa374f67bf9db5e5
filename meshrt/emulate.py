"""One run of a program: a block for this rank, the program on it, the report of all ranks."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from meshrt import __version__, host
from meshrt.block import make_block
from meshrt.board import Board
from meshrt.console import Console
from meshrt.device import Device
from meshrt.program import Program
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
    console: Console | None = None,
) -> dict[str, Any] | None:
    """Run a program on the ranks of `comm`, with its default options but for `arguments`: the report, None off rank 0.

    All ranks call it. UsageError, LimitError and what else the program raises.
    """
    start = perf_counter()
    block = make_block(comm, device, *(mesh or program.mesh), board, payload)
    block.console = console or Console()
    given = {option.name: option.default for option in program.options} | dict(arguments)
    try:
        result = program.run(block, **given)
        block.console.clear()
        facts = {"wall_seconds": perf_counter() - start, "mpi": host.library(), "version": __version__}
        return gather_report(block, program.name, given, result, facts)
    finally:
        if comm.size == 1:  # elsewhere a rank that fails must not wait for the others
            block.close()
