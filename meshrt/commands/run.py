"""`meshrt run PROGRAM|MODEL|FILE.py`."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.ranks import failure

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

        on = ctx.params.get("on")
        if cmd_name in packaged():
            return _command(load_program(shared.program_of(cmd_name), on), cmd_name, {"model": cmd_name})
        return _command(load_program(cmd_name, on), cmd_name, {})

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """--on may stand behind the program, among the options, which depend on it."""
        on, args = _taken("--on", args)
        ctx.params["on"] = on or ctx.params.get("on")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Programs and models (`meshrt run NAME --help` has their options)"):
            formatter.write_dl(
                [(name, self.get_command(ctx, name).get_short_help_str(70)) for name in self.list_commands(ctx)]
            )


def _taken(flag: str, args: list[str]) -> tuple[str | None, list[str]]:
    """The value of an option that is wherever in the arguments, and the others."""
    for at, arg in enumerate(args):
        if arg == flag and at + 1 < len(args):
            return args[at + 1], args[:at] + args[at + 2 :]
        if arg.startswith(flag + "="):
            return arg.removeprefix(flag + "="), args[:at] + args[at + 1 :]
    return None, args


@click.group("run", cls=Programs, epilog=shared.EXAMPLES, subcommand_metavar="PROGRAM|MODEL|FILE.py [OPTIONS]")
@click.option("--on", type=click.Choice(["mesh", "neuron"]), help="The kind of machine, where a program has several.")
def command(on: str | None) -> None:
    """Run a program, alone or as one of the ranks that mpirun or srun started."""


payload = click.option(
    "--payload", type=click.Choice(["full", "none"]), default="full", show_default=True,
    help="none: shapes for numbers; same messages, counts and cycles.",
)  # fmt: skip


def _command(program: Program, name: str, fixed: dict[str, Any]) -> click.Command:
    """The click command of a program: its own options, those of its machine, and the shared ones."""
    own = shared.own_options(program, fixed)
    names = [option.name for option in own]
    if (program.name, program.machine) == ("llama", "mesh"):
        own.append(click.Option(["--tuned"], is_flag=True, help="Cores, regions, groups as `meshrt tune` found them."))
    machine = import_module(f"meshrt.commands.machines.{program.machine}")

    @click.command(name, params=own, help=program.help)
    @shared.together(machine.options, payload, shared.json_to("the report"), shared.quiet)
    def run(**values: Any) -> None:
        arguments = fixed | {key: values.pop(key) for key in names if key is not None}
        sys.exit(failure.run_guarded(lambda comm, board: machine.execute(comm, board, program, arguments, **values)))

    return run
