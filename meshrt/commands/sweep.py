"""`meshrt sweep PROGRAM --set m=64,128`: a program for every combination of some options."""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

import click

from meshrt.commands import shared
from meshrt.machine import machines
from meshrt.ranks.failing import failure

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


class Sweep(click.Command):
    """Knows the options of the program, which are varied by --set."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = [*args]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            if name.lstrip("-").replace("-", "_") not in _options(given):
                raise
            values = dict(arg.partition("=")[::2] for arg in given if arg.startswith(name + "="))
            values |= dict(pair for pair in pairwise(given) if not pair[1].startswith("-"))
            message = f"{name} is an option of what runs: --set {name.lstrip('-')}={values.get(name, 'A,B,...')}"
            raise click.NoSuchOption(name, message) from None


def _options(args: list[str]) -> set[str]:
    """Names of the options of the program that is among these arguments, and of its machine."""
    from meshrt.commands.run import taken
    from meshrt.errors import MeshrtError
    from meshrt.program import load_program, named, settings_of

    on, args = taken("--on", args)
    for arg in args:
        with suppress(MeshrtError):
            program = load_program(named(arg)[0], on)
            return {option.name for option in program.options} | {*settings_of(program.machine)}
    return set()


@click.command("sweep", cls=Sweep)
@click.argument("program", metavar="PROGRAM|MODEL|FILE.py")
@click.option("--on", type=shared.Name(machines()), help="The kind of machine, where a program has several.")
@click.option(
    "--set", "choices", multiple=True, metavar="OPTION=A,B,...",
    help="Values of an option, of the program or its machine; with a ; in it that parts them. May be given again.",
)  # fmt: skip
@click.option("--mesh", metavar="WxH,...", help="Short for --set mesh=WxH,...")
@click.option("--payload", type=shared.Name(["full", "none"]), default="none", show_default=True, help="As of `run`.")
@click.option("--show", metavar="NUMBER,...", help="Of each report, as --expect names them.  [default: the machine's]")
@click.option("--png", metavar="FILE", help="Draw the numbers over the option that changes fastest; needs matplotlib.")
@shared.together(shared.form(), shared.json_to("all reports"), shared.quiet)
def command(
    program: str, on: str | None, choices: tuple[str, ...], mesh: str | None, payload: str, show: str | None,
    png: str | None, form: str, json_path: str | None, quiet: bool,
) -> None:  # fmt: skip
    """Run a program for every combination of some options' values, the last changing fastest, and print a table.

    Under mpirun the ranks share the runs out. A run that a limit of the machine refuses is a row that says so.

    \b
    Examples:
      meshrt sweep gemm --set algorithm=meshgemm,summa --set m=64,128 --mesh 4x4,8x8
      meshrt sweep llama-tiny --set kv=shift,concat --payload full --show cycles,memory_bytes.max --format md
      meshrt sweep my_program.py --set size=8,16,32 --png size.png
    """
    if mesh is not None:
        choices = (*choices, f"mesh={mesh}")
    sys.exit(
        failure.run_guarded(
            lambda comm, board: sweep(comm, program, on, choices, payload == "full", show, png, form, json_path, quiet)
        )
    )


def sweep(
    comm: Intracomm, program: str, on: str | None, choices: tuple[str, ...], payload: bool, show: str | None,
    png: str | None, form: str, json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a sweep."""
    from meshrt.reports.report import deliver_json
    from meshrt.studies import combinations

    axes = combinations.axes(program, on, choices)
    if png:
        combinations.check_picture(png, axes)
    shared.start(comm, json_path, quiet)
    reports = combinations.run(program, on, axes, payload, comm)
    if comm.rank == 0:
        deliver_json({"runs": [dict(report.data) | {"refused": report.refused} for report in reports]}, json_path)
        header, rows = combinations.table(axes, reports, show)
        if png:
            combinations.draw(png, header, rows, sum(len(values) > 1 for values in axes.values()))
        if not quiet and json_path != "-":
            from meshrt.studies.grid import print_grid

            print_grid(header, rows, form)
    return 0
