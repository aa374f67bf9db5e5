"""`meshrt reproduce PAPER`: its tables and figures, published and emulated."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from meshrt import failure
from meshrt.commands import shared
from meshrt.device import find_device

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


@click.command("reproduce")
@click.argument("paper", type=click.Choice(["waferllm"]))
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@shared.device
@click.option("--call-cycles", type=click.IntRange(0), help="Cost of a vector instruction.  [default: device's]")
@click.option(
    "--system",
    "systems",
    multiple=True,
    type=click.Choice(["waferllm", "t10", "ladder"]),
    help="Only this one's cells; may be given again.",
)
@click.option("--model", "models", multiple=True, metavar="NAME", help="Only this one's cells; may be given again.")
@click.option("--cache", metavar="FILE", help="Keep the runs here, and take those that are here already.")
@click.option("--csv", "csv_folder", metavar="FOLDER", help="Write tables.csv, gemm.csv and gemv.csv.")
@click.option("--png", "png_folder", metavar="FOLDER", help="Draw gemm.png and gemv.png; needs matplotlib.")
@shared.together(shared.json_to("it"), shared.quiet)
def command(paper: str, tables: tuple[str, ...], **options: Any) -> None:
    """Run what a paper's tables and figures describe, and print published, emulated and their ratio.

    TABLE is 2 to 8, or gemm or gemv for the curves over core counts of Figures 9 and 10; without any, all of them. That
    takes long: share it out with mpirun, and keep what is done with --cache.
    """
    sys.exit(failure.run_guarded(lambda comm, board: reproduce(comm, tables, **options)))


def reproduce(
    comm: Intracomm, tables: tuple[str, ...], *, device: str, call_cycles: int | None, systems: tuple[str, ...],
    models: tuple[str, ...], cache: str | None, csv_folder: str | None, png_folder: str | None,
    json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a reproduction."""
    from meshrt import report
    from meshrt.errors import UsageError
    from meshrt.studies import reproduce as study
    from meshrt.studies import reproduce_files as files
    from meshrt.studies.published import MODELS
    from meshrt.studies.reproduce_print import print_reproduction
    from meshrt.studies.reproduce_store import open_store

    for what, given, there in (("table or figure", tables, study.NAMES), ("model", models, MODELS)):
        if wrong := [name for name in given if name not in there]:
            raise UsageError(f"no {what} {wrong[0]!r}; there are {', '.join(there)}")
    if png_folder:
        files.check_matplotlib()
    for option, folder in (("--csv", csv_folder), ("--png", png_folder)):
        if folder:
            files.check_folder(option, folder)
    console = shared.start(comm, json_path, quiet)
    if cache and cache != "-":
        report.check_target("--cache", cache)
    machine = find_device(device, call_cycles=call_cycles)
    names = tuple(dict.fromkeys(tables)) or study.NAMES
    told = study.reproduce(comm, console, names, machine, open_store(cache), systems=systems, models=models)
    if comm.rank == 0:
        written = study.write_files(told, csv_folder, png_folder)
        report.deliver_json(told, json_path)
        if console.loud:
            print_reproduction(told)
            for path in written:
                click.echo(f"written: {path}")
    return 0
