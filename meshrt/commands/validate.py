"""`meshrt validate`: public measurements on real machines beside what is emulated of the same work."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.ranks.failing import failure

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

USES = ("check", "fit", "outlier", "lone")


@click.command("validate")
@click.option("--data", "files", multiple=True, metavar="FILE.csv", help="Only the rows of this file; may be repeated.")
@click.option("--only", "kernels", multiple=True, metavar="KERNEL", help="Only rows of this kernel; may be repeated.")
@click.option("--use", "uses", multiple=True, type=shared.Name(USES), help="Only rows of this use; may be repeated.")
@click.option("--largest", type=click.IntRange(1), metavar="P", help="Only rows of at most P x P cores.")
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Only N rows of each kernel, of all its sizes.")
@click.option("--csl", "csl_folder", metavar="DIR", help="By the published CSL of a checkout (docs/csl.md).")
@click.option(
    "--cache",
    metavar="FILE",
    help="Keep rows here as they are emulated, and take those that are here: what was stopped goes on.",
)
@click.option("--rows", "every_row", is_flag=True, help="Print every row, not only the worst of each size.")
@click.option("--png", metavar="FILE", help="Draw it to a .png, .svg or .pdf; needs matplotlib.")
@shared.together(shared.form(), shared.json_to("it"), shared.quiet)
def command(**options: Any) -> None:
    """Public measurements on real machines, beside what is emulated of the same work.

    A file's header tells what was measured, and its column `use` whether constants of a device may come from a row
    (fit) or not (check, and what stands apart as outlier or lone); where it is missing all rows are check. Rows are
    emulated from their sizes alone. Share the rows out with mpirun; each kernel's table is printed as soon as it is
    done.

    \b
    meshrt validate                                  what is shipped (docs/validation.md)
    meshrt validate --data my_gemm.csv --json -      rows of your own, in the columns p,mt,kt,nt,cycles_mean
    meshrt validate --csl WaferLLM --largest 16      the text that ran on the machine, interpreted
    """
    sys.exit(failure.run_guarded(lambda comm, board: validate(comm, **options)))


def validate(
    comm: Intracomm, *, files: tuple[str, ...], kernels: tuple[str, ...], uses: tuple[str, ...], largest: int | None,
    sample: int | None, csl_folder: str | None, cache: str | None, every_row: bool, png: str | None, form: str,
    json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part."""
    from functools import partial
    from pathlib import Path

    from meshrt.reports.report import deliver_json
    from meshrt.studies.pictures.heat import check_file
    from meshrt.studies.validate import published
    from meshrt.studies.validate import validate as study
    from meshrt.studies.validate.kept import open_rows
    from meshrt.studies.validate.kinds import KINDS
    from meshrt.studies.validate.picture import draw
    from meshrt.studies.validate.printed import print_comparison

    began = perf_counter()
    if png:
        check_file("--png", png)
    console = shared.start(comm, json_path, quiet, form=form)
    checkout = None if csl_folder is None else Path(csl_folder)
    kinds = KINDS if checkout is None else published.kinds(checkout)
    kept = open_rows(comm, cache, checkout)
    at_once = console.loud and form == "table"
    compared = study.validate(
        comm, console, files, kernels, uses, largest, sample, kinds,
        partial(print_comparison, every_row=every_row) if at_once else None, kept,
    )  # fmt: skip
    if comm.rank == 0:
        deliver_json(study.document(comm, compared, began), json_path)
        if not (quiet or json_path == "-" or at_once):
            print_comparison(compared, every_row, form)
        if png:
            draw(png, compared)
            console.text(f"written: {png}\n")
    return 0
