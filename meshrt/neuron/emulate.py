"""One run of a program on NeuronCores: the cores of this rank, the program on them, the report of all ranks."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from meshrt import __version__
from meshrt.neuron.cores import Cores
from meshrt.neuron.device import NeuronDevice
from meshrt.neuron.report import gather_report
from meshrt.neuron.trace import begin_trace, write_trace
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
    cores: int | None,
    device: NeuronDevice,
    payload: bool = True,
    console: Console | None = None,
    trace: str | None = None,
) -> dict[str, Any] | None:
    """Run a program on the ranks of `comm`, with its default options but for `arguments`: the report, None off rank 0.

    `trace`: a file for what ran when. `cores` None: as many as the program says. All ranks call it. UsageError,
    LimitError, what else the program raises.
    """
    start = perf_counter()
    control = Control(comm, board, "control")
    these = Cores(cores or program.mesh[0], device, control, payload, console or Console())
    if trace:
        begin_trace(these)
    given = {option.name: option.default for option in program.options} | dict(arguments)
    result = program.run(these, **given)
    these.console.clear()
    if trace:
        write_trace(these, trace)
    facts = {"wall_seconds": perf_counter() - start, "mpi": host.library(), "version": __version__}
    report: dict[str, Any] | None = gather_report(these, program.name, given, result, facts)
    return report
