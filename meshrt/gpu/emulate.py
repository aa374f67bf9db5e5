"""One run of a program on GPUs: those of this rank, the program on them, the report of all ranks."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from meshrt import __version__
from meshrt.gpu.device import GpuDevice
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.report import gather_report
from meshrt.program import Program
from meshrt.ranks import host
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.ranks.control import Control


def emulate(
    comm: Any,
    board: Board,
    program: Program,
    arguments: Mapping[str, Any],
    *,
    gpus: int | None,
    device: GpuDevice,
    payload: bool = True,
    static: bool = False,
    console: Console | None = None,
) -> dict[str, Any] | None:
    """Run a program on the ranks of `comm`, with its default options but for `arguments`: the report, None off rank 0.

    `gpus` None: as many as the program says. All ranks call it. UsageError, LimitError, what else the program raises.
    """
    start = perf_counter()
    control = Control(comm, board, "control")
    these = Gpus(gpus or program.mesh[0], device, control, payload, static, console or Console())
    given = {option.name: option.default for option in program.options} | dict(arguments)
    result = program.run(these, **given)
    these.console.clear()
    facts = {"wall_seconds": perf_counter() - start, "mpi": host.library(), "version": __version__}
    report: dict[str, Any] | None = gather_report(these, program.name, given, result, facts)
    return report
