"""`meshrt score FILE.py`: one line of JSON, for jobs and for programs that search."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any, NoReturn

import click

from meshrt.commands import shared
from meshrt.commands.run import ProgramCommands, machine_options, payload
from meshrt.errors import MeshrtError, UsageError, in_full

if TYPE_CHECKING:
    from meshrt.program import Program


class ScoredPrograms(ProgramCommands):
    """`score FILE.py`: the options of a user's own program, as `run` has them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return []

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        if not cmd_name.endswith(".py"):
            raise click.UsageError(f"{cmd_name!r} is no file of a program of one's own: its name ends in .py", ctx)
        from meshrt.scoring.text import check_text

        try:
            check_text(cmd_name)  # before any of it runs
        except UsageError as error:
            _refuse(error)
        with redirect_stdout(sys.stderr):  # what the program prints; standard output has the score alone
            return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return click.Group.resolve_command(self, ctx, args)  # there is one machine to run on

    def made(self, program: Program, name: str, fixed: dict[str, Any]) -> click.Command:
        return _command(program, name)


@click.group("score", cls=ScoredPrograms, subcommand_metavar="FILE.py [OPTIONS]")
def command() -> None:
    """Run a program of your own on the mesh and print one line of JSON: its score is the cycles of its critical path.

    The same on every machine. Refused, with "ok": false and code 2, is what would make the score worth nothing: arrays
    of all cores that no core was charged for, results that were gathered and used again, a text that reaches clocks
    or counters, a max_abs_error above --tolerance. A limit of the mesh is code 3.

    \b
    Example:
      meshrt score my_program.py --mesh 8x8 --size 64
    """


def _refuse(error: MeshrtError) -> NoReturn:
    click.echo(json.dumps({"ok": False, "score": None, "refused": in_full(error)}))
    sys.exit(error.exit_code)


def _command(program: Program, name: str) -> click.Command:
    own_names = {option.name for option in program.options}
    params = [*shared.own_options(program, ()), *machine_options(program, ())]

    @click.command(name, cls=shared.Sectioned, params=params, help=program.help)
    @click.option("--tolerance", default=1e-3, show_default=True, help="Of max_abs_error in the result.")
    @payload()
    def score(tolerance: float, payload: str, **values: Any) -> None:
        from meshrt.scoring.score import score as scored

        arguments = {key: values.pop(key) for key in [*values] if key in own_names}
        try:
            with redirect_stdout(sys.stderr):
                line = scored(program, name, arguments, values, payload == "full", tolerance)
        except MeshrtError as error:
            _refuse(error)
        click.echo(json.dumps(line))

    score.own = frozenset(own_names)
    return score
