"""`meshrt chat MODEL`: a dialogue with a model on any machine, line by line."""

from __future__ import annotations

import sys
from dataclasses import field
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.commands.run import ProgramCommands, machine_options
from meshrt.machine import machines
from meshrt.ranks.failing import failure
from meshrt.records import dataclass

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from meshrt.program import Program
    from meshrt.programs.generation.dialogue import Dialogue
    from meshrt.ranks.board import Board
    from meshrt.ranks.console import Console
    from meshrt.ranks.control import Control
    from meshrt.ranks.standardinput import StandardInput

# Options of llama that a dialogue answers itself, or has no use for.
OWN = (
    "model", "prompt", "prompts", "prompt_ids", "prompt_tokens", "context", "layers_run", "logits", "checkpoint",
    "every", "resume",
)  # fmt: skip
LONGER = 4  # times its prompt and first answer: what a run has room for, up to the model's positions


class Models(ProgramCommands):
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
    took. What was said stays in the cache, and a token is computed once; where a run has no room for more, another one
    reads all again, and where the model has none, the oldest turns are forgotten.
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
    from meshrt.models.tokenizer import FOR_TEXT, load_tokenizer
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
    dialogue = Dialogue(load_tokenizer(folder, FOR_TEXT), positions - limit) if comm.rank == 0 else None
    turns = Talk(control, console, dialogue, StandardInput(board), limit)
    console.turns = turns
    turns.ask()
    while turns.prompt:
        turns.room = min(positions, LONGER * (len(turns.prompt) + limit))
        request = {"prompt_ids": ",".join(map(str, turns.prompt)), "max_new_tokens": turns.room - len(turns.prompt)}
        document = emulate(comm, board, program, arguments | request, console=console, **settings)
        if document is not None:
            seconds = document["measured"]["critical_path"]["seconds"]
            console.note(f"[{1e3 * seconds:,.3f} ms of virtual time since all was read]")
    return 0


@dataclass(eq=False)
class Talk:
    """The turns of a dialogue: rank 0 reads lines, and prints what each answer took. `prompt` is what a run begins
    with, and empty at the end of the input; a run has room for so many tokens."""

    control: Control
    console: Console
    dialogue: Dialogue | None  # at rank 0
    source: StandardInput
    limit: int
    room: int = 0
    prompt: list[int] = field(default_factory=list)

    def ask(self) -> list[int] | None:
        """The tokens that a line adds to those of the run; None where it has no room for them, or the input has ended:
        then there is another prompt, or none."""
        more: list[int] | None = None
        if self.dialogue is not None:
            self.prompt, more = _heard(self.source, self.dialogue, self.console, self.room - self.limit)
        self.prompt, more = self.control.bcast((self.prompt, more))
        return more

    def next(self, new: list[int], computed: int) -> list[int] | None:
        if self.dialogue is not None:
            kept = len(self.dialogue.ids) - computed + max(len(new) - 1, 0)
            self.dialogue.answered(new)
            self.console.note(f"[{computed} tokens computed, {max(kept, 0)} kept, {len(new)} written]")
        return self.ask()


def _heard(
    source: StandardInput, dialogue: Dialogue, console: Console, room: int
) -> tuple[list[int], list[int] | None]:  # fmt: skip
    """What the next run begins with, or, in its place, what is added to one that goes on and has that room; neither at
    the end of the input. From the next line that can be taken."""
    from meshrt.programs.generation.dialogue import read_line

    while (line := read_line(source)) is not None:
        ids_or_reason = dialogue.hear(line)
        if isinstance(ids_or_reason, str):
            console.note(f"({ids_or_reason})")
            continue
        begun, dialogue.ids = bool(dialogue.ids), dialogue.ids + ids_or_reason
        return ([], ids_or_reason) if begun and len(dialogue.ids) <= room else (dialogue.ids, None)
    return [], None
