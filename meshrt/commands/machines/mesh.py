"""`meshrt run` of a program for a mesh of cores."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.errors import UsageError
from meshrt.mesh.device import find_device

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from meshrt.program import Program
    from meshrt.ranks.board import Board

options = shared.together(
    shared.mesh,
    shared.machine,
    click.option("--defects", metavar="RATE|FILE", help="Dead cores and links that the mesh is laid around."),
    click.option("--spares", metavar="CxR", help="Spare columns and rows of the wafer.  [default: an eighth]"),
    click.option("--defects-seed", type=shared.Whole(), help="What is dead at a RATE.  [default: 0]"),
)


def execute(
    comm: Intracomm, board: Board, program: Program, arguments: dict[str, Any], *, mesh: str | None, device: str,
    core_memory: int | None, route_entries: int | None, defects: str | None, spares: str | None,
    defects_seed: int | None, payload: str, json_path: str | None, quiet: bool, tuned: bool = False,
) -> int:  # fmt: skip
    """One rank's part of a run: make its block, run the program, report."""
    from meshrt import report
    from meshrt.mesh.emulate import emulate
    from meshrt.mesh.mesh import parse_mesh

    console = shared.start(comm, json_path, quiet)
    machine = find_device(device, core_memory=core_memory, route_entries=route_entries)
    if tuned:
        from meshrt.studies.tune.answers import apply

        arguments = apply(comm, console, arguments, mesh, machine)
        mesh = arguments.pop("mesh")
    cores = parse_mesh(mesh) if mesh else None
    wafer = None
    if defects is not None:
        from meshrt.mesh.defects import is_rate, make_wafer

        if defects_seed is not None and not is_rate(defects):
            raise UsageError(f"--defects-seed is for a RATE; --defects {defects} is a file, leave the seed away")
        wafer = partial(make_wafer, defects, spares, defects_seed or 0)
    elif spares is not None:
        raise UsageError("--spares are for --defects: say what is dead, or leave them away")
    elif defects_seed is not None:
        raise UsageError(f"--defects-seed is {defects_seed} and nothing is dead: give --defects RATE, or leave it away")
    told = emulate(
        comm, board, program, arguments, mesh=cores, device=machine, payload=payload == "full", console=console,
        wafer=wafer,
    )  # fmt: skip
    if told is not None:
        report.deliver_json(told, json_path)
        if console.loud:
            report.print_result(told)
            report.print_table(told)
    return 0
