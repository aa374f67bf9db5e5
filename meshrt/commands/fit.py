"""`meshrt fit PROGRAM|MODEL|FILE.py`: does it fit the memory of the cores, and what would?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.commands.run import ProgramCommands, machine_options
from meshrt.machine import machines

if TYPE_CHECKING:
    from meshrt.program import Program


class Fits(ProgramCommands):
    """`fit PROGRAM`: the options of each program, as `run` has them."""

    def made(self, program: Program, name: str, fixed: dict[str, Any]) -> click.Command:
        return _command(program, name, fixed)


@click.group("fit", cls=Fits, subcommand_metavar="PROGRAM|MODEL|FILE.py [OPTIONS]")
@click.option("--on", type=shared.Name(machines()), help="As of `run`.")
def command(on: str | None) -> None:
    """Tell, without a run, whether a program fits the memory of a machine, what fills it, and what would fit.

    Of the mesh's cores, GPUs (--on gpu), NeuronCores (their HBM) and Arm cores (DRAM). Code 3 where it does not fit.

    \b
    Examples:
      meshrt fit llama3-8b --mesh 660x660 --prompt-tokens 2048
      meshrt fit llama3-70b --on gpu --tp 2 --context 4096
      meshrt fit gemm --mesh 8x8 --m 1000 --k 1000 --n 1000 --device wse3 --format json
    """


def _command(program: Program, name: str, fixed: dict[str, Any]) -> click.Command:
    own_names = {option.name for option in program.options}
    params = [*shared.own_options(program, fixed), *machine_options(program, fixed)]

    @click.command(name, cls=shared.Sectioned, params=params, help=program.help)
    @click.option("--search/--no-search", default=True, show_default=True, help="Look for what would fit.")
    @shared.form()
    def fit(search: bool, form: str, **values: Any) -> None:
        from meshrt.fitting.fit import fitted
        from meshrt.studies.grid import print_grid

        arguments = fixed | {key: values.pop(key) for key in [*values] if key in own_names}
        result = fitted(program, arguments, values, None if search else 0)
        if form == "table":
            click.echo(result.line())
        rows = [["holds", name, nbytes] for name, nbytes in result.holders]
        of = "core memory" if result.machine == "mesh" else "memory"
        rows += [["at most", of, result.limit], ["in all", result.place or f"core {result.core}", result.nbytes]]
        print_grid(["", "name", "bytes"], rows, form) if form != "json" else click.echo(result.to_json())
        sys.exit(0 if result.fits else 3)

    fit.own = frozenset(own_names)
    return fit
