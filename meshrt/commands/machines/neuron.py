"""`meshrt run` of a program for NeuronCores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.neuron.device import NEURON_PRESETS, find_neuron_device

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from meshrt.program import Program
    from meshrt.ranks.board import Board

options = shared.together(
    click.option(
        "--cores", type=shared.WholeRange(1, 65_536), help="Shared by the ranks.  [default: the program's own]"
    ),
    click.option("--device", type=click.Choice([*NEURON_PRESETS]), default="trn1", show_default=True),
    click.option("--trace", metavar="PATH", help="Write what ran when, for a trace viewer such as Perfetto."),
    click.option("--sbuf-bytes", type=shared.WholeRange(1), help="Of a partition of SBUF.  [default: device's]"),
)


def execute(
    comm: Intracomm, board: Board, program: Program, arguments: dict[str, Any], *, cores: int | None, device: str,
    sbuf_bytes: int | None, trace: str | None, payload: str, json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a run: make its NeuronCores, run the program, report."""
    from meshrt import report
    from meshrt.neuron.emulate import emulate
    from meshrt.neuron.report import print_table

    console = shared.start(comm, json_path, quiet)
    if trace:
        report.check_target("--trace", trace)
    told = emulate(
        comm, board, program, arguments, cores=cores, payload=payload == "full", console=console,
        device=find_neuron_device(device, sbuf_partition_bytes=sbuf_bytes), trace=trace,
    )  # fmt: skip
    if told is not None:
        report.deliver_json(told, json_path)
        if console.loud:
            report.print_result(told)
            print_table(told)
    return 0
