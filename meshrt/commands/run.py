"""`meshrt run PROGRAM|MODEL|FILE.py`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from meshrt import failure
from meshrt.commands import shared

if TYPE_CHECKING:
    from meshrt.program import Program


class Programs(click.Group):
    """`run PROGRAM`: each program is a command, made from its signature when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from meshrt.models.catalogue import packaged
        from meshrt.program import packaged_programs

        return [*packaged_programs(), *packaged()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        from meshrt.models.catalogue import packaged
        from meshrt.program import load_program

        if cmd_name in packaged():
            return _command(load_program("llama"), cmd_name, {"model": cmd_name}, tunable=True)
        return _command(load_program(cmd_name), cmd_name, {}, tunable=cmd_name == "llama")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Programs and models (`meshrt run NAME --help` has their options)"):
            formatter.write_dl(
                [(name, self.get_command(ctx, name).get_short_help_str(70)) for name in self.list_commands(ctx)]
            )


@click.group("run", cls=Programs, epilog=shared.EXAMPLES, subcommand_metavar="PROGRAM|MODEL|FILE.py [OPTIONS]")
def command() -> None:
    """Run a program, alone or as one of the ranks that mpirun or srun started."""


payload = click.option(
    "--payload", type=click.Choice(["full", "none"]), default="full", show_default=True,
    help="none: shapes for numbers; same messages, counts and cycles.",
)  # fmt: skip


def _command(program: Program, name: str, fixed: dict[str, Any], tunable: bool = False) -> click.Command:
    """The click command of a program: its own options, those of its machine, and the shared ones."""
    own = shared.own_options(program, fixed)
    names = [option.name for option in own]
    if tunable:
        own.append(click.Option(["--tuned"], is_flag=True, help="Cores, regions, groups as `meshrt tune` found them."))
    machine = import_module(f"meshrt.commands.machines.{program.machine}")

    @click.command(name, params=own, help=program.summary)
    @shared.together(machine.options, payload, shared.json_to("the report"), shared.quiet)
    def run(**values: Any) -> None:
        arguments = fixed | {key: values.pop(key) for key in names if key is not None}
        sys.exit(failure.run_guarded(lambda comm, board: machine.execute(comm, board, program, arguments, **values)))

    return run
