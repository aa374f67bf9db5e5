"""`meshrt run` of a program for tensor-parallel GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.gpu.device import GPU_PRESETS, LINKS, find_gpu

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from meshrt.program import Program
    from meshrt.ranks.board import Board

device = shared.together(
    click.option("--device", type=click.Choice([*GPU_PRESETS]), default="a800", show_default=True, help="The machine."),
    click.option("--link", type=click.Choice(LINKS), help="What joins the GPUs.  [default: device's]"),
    click.option("--link-rate", type=float, metavar="BYTES/S", help="Of it, one way, as 10e9.  [default: device's]"),
    click.option("--gpu-memory", type=shared.WholeRange(1), metavar="BYTES", help="Of a GPU.  [default: device's]"),
)
options = shared.together(
    click.option("--tp", type=shared.WholeRange(1), help="GPUs, shared by the ranks.  [default: the program's own]"),
    device,
    click.option("--static/--eager", default=False, help="Record what repeats, and replay it.  [default: eager]"),
)


def execute(
    comm: Intracomm, board: Board, program: Program, arguments: dict[str, Any], *, tp: int | None, device: str,
    link: str | None, link_rate: float | None, gpu_memory: int | None, static: bool, payload: str,
    json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a run: make its GPUs, run the program, report."""
    from meshrt import report
    from meshrt.gpu.emulate import emulate
    from meshrt.gpu.report import print_table

    console = shared.start(comm, json_path, quiet)
    told = emulate(
        comm, board, program, arguments, gpus=tp, payload=payload == "full", static=static, console=console,
        device=find_gpu(device, link_rate, link=link, memory_bytes=gpu_memory),
    )  # fmt: skip
    if told is not None:
        report.deliver_json(told, json_path)
        if console.loud:
            report.print_result(told)
            print_table(told)
    return 0
