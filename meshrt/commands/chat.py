"""`meshrt chat MODEL`: a dialogue with a model on any machine, line by line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.commands.run import Programs, machine_options
from meshrt.machine import machines
from meshrt.ranks import failure

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from meshrt.program import Program
    from meshrt.programs.generation.dialogue import Dialogue
    from meshrt.ranks.board import Board
    from meshrt.ranks.console import Console
    from meshrt.ranks.standardinput import StandardInput

# Options of llama that a dialogue answers itself, or has no use for.
OWN = (
    "model", "prompt", "prompt_ids", "prompt_tokens", "context", "layers_run", "logits", "checkpoint", "every",
    "resume",
)  # fmt: skip


class Models(Programs):
    """`chat MODEL`: a packaged model, or a folder, with the options of `run llama` on that machine."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from meshrt.models.catalogue import packaged

        return [*packaged()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        from meshrt.models.catalogue import find_model
        from meshrt.program import load_program

        find_model(cmd_name)
        return _command(load_program("llama", ctx.params.get("on")), cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Models (`meshrt chat MODEL --help` has the options)"):
            formatter.write_text(", ".join(self.list_commands(ctx)))


@click.group("chat", cls=Models, subcommand_metavar="MODEL|FOLDER [OPTIONS]")
@click.option("--on", type=shared.Name(machines()), help="The kind of machine.")
def command(on: str | None) -> None:
    """Talk with a model, alone or as one of the ranks that mpirun or srun started.

    Each line of standard input is added to the text so far, and the model goes on from there; an empty line lets it go
    on. The dialogue ends with the input (Ctrl-D). Answers are on standard output, and on standard error what each
    took: the whole text is a prompt again for every answer, and counted as such.
    """


def _command(program: Program, model: str) -> click.Command:
    """The click command of a model: the options of its program and of the machine."""
    params = [*shared.own_options(program, OWN), *machine_options(program, OWN)]
    names = [option.name for option in program.options if option.name not in OWN]

    @click.command(model, cls=shared.Sectioned, params=params, help=command.help)
    def chat(**values: Any) -> None:
        arguments = {"model": model} | {name: values.pop(name) for name in names}
        sys.exit(failure.run_guarded(lambda comm, board: talk(comm, board, program, arguments, values)))

    return chat


def talk(
    comm: Intracomm, board: Board, program: Program, arguments: dict[str, Any], settings: dict[str, Any]
) -> int:  # fmt: skip
    """One rank's part of a dialogue. Rank 0 reads the lines and has the text; every answer is a run of all ranks."""
    from meshrt.emulate import emulate
    from meshrt.errors import UsageError
    from meshrt.models.catalogue import find_model
    from meshrt.models.family import read_family
    from meshrt.models.tokenizer import load_tokenizer
    from meshrt.programs.generation.dialogue import Dialogue
    from meshrt.ranks.console import make_console
    from meshrt.ranks.control import Control
    from meshrt.ranks.standardinput import StandardInput

    console = make_console(comm.rank, comm.size, quiet=False, alone=True)
    control = Control(comm, board, "dialogue")
    folder, limit = find_model(arguments["model"]), program.complete(arguments)["max_new_tokens"]
    positions = read_family(folder, quantized=True).max_positions
    if limit >= positions:
        raise UsageError(f"--max-new-tokens {limit} leaves no room for a line: the model has {positions} positions")
    dialogue = Dialogue(load_tokenizer(folder), positions - limit) if comm.rank == 0 else None
    source = StandardInput(board)
    while prompt := control.bcast(None if dialogue is None else _prompt(source, dialogue, console)):
        ids = ",".join(map(str, prompt))
        document = emulate(comm, board, program, arguments | {"prompt_ids": ids}, console=console, **settings)
        if dialogue is not None and document is not None:
            new, seconds = document["result"]["token_ids"], document["measured"]["critical_path"]["seconds"]
            dialogue.answered(prompt, new)
            console.note(f"[{len(prompt)} tokens read, {len(new)} written: {1e3 * seconds:,.3f} ms of virtual time]")
    return 0


def _prompt(source: StandardInput, dialogue: Dialogue, console: Console) -> list[int] | None:
    """The ids that the next answer follows, from the next line that can be taken; None at the end of the input."""
    from meshrt.programs.generation.dialogue import read_line

    while (line := read_line(source)) is not None:
        problem = dialogue.hear(line)
        if problem is None:
            return dialogue.ids()
        console.note(f"({problem})")
    return None
