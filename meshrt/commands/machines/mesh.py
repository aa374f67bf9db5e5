"""`meshrt run` of a program for a mesh of cores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshrt.commands import shared
from meshrt.device import find_device

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from meshrt.board import Board
    from meshrt.program import Program

options = shared.together(shared.mesh, shared.machine)


def execute(
    comm: Intracomm, board: Board, program: Program, arguments: dict[str, Any], *, mesh: str | None, device: str,
    core_memory: int | None, route_entries: int | None, payload: str, json_path: str | None, quiet: bool,
    tuned: bool = False,
) -> int:  # fmt: skip
    """One rank's part of a run: make its block, run the program, report."""
    from meshrt import report
    from meshrt.emulate import emulate
    from meshrt.mesh import parse_mesh

    console = shared.start(comm, json_path, quiet)
    machine = find_device(device, core_memory=core_memory, route_entries=route_entries)
    if tuned:
        from meshrt.studies.tuned import apply

        arguments = apply(comm, console, arguments, mesh, machine)
        mesh = arguments.pop("mesh")
    cores = parse_mesh(mesh) if mesh else None
    told = emulate(
        comm, board, program, arguments, mesh=cores, device=machine, payload=payload == "full", console=console
    )
    if told is not None:
        report.deliver_json(told, json_path)
        if console.loud:
            report.print_result(told)
            report.print_table(told)
    return 0
