"""The command line's entry point. The commands are in meshrt/commands/."""

from __future__ import annotations

import gc
import os
import sys


def is_command(file: str) -> bool:
    """Is the process whose sys.argv begins so this command? Else it is a program that imports it."""
    folder, name = os.path.split(os.path.realpath(file))
    ours = folder == os.path.dirname(os.path.realpath(__file__))
    return name == "meshrt" or (ours and name in ("cli.py", "__main__.py"))


IS_COMMAND = is_command(sys.argv[0])
if IS_COMMAND:
    gc.set_threshold(200_000)  # what imports make is no garbage, not looked through before the run (failing/failure.py)

from meshrt.ranks.start import shepherd  # noqa: E402 - it may be all that this process needs

DOOR = shepherd.enter() if IS_COMMAND else None
SERVER = None
if DOOR is not None:
    from meshrt.ranks.start import forkserver

    SERVER = forkserver.Server(*DOOR)

from meshrt.ranks.host import prepare_environment  # noqa: E402 - none of it is imported before
from meshrt.ranks.launcher import launched_rank  # noqa: E402

prepare_environment()  # before anything imports numpy

import signal  # noqa: E402

from meshrt.ranks.failing import signals  # noqa: E402

if IS_COMMAND:  # until main() listens
    signal.signal(signal.SIGINT, signals.end)

from contextlib import suppress  # noqa: E402
from importlib import import_module  # noqa: E402
from io import TextIOWrapper  # noqa: E402
from typing import Any  # noqa: E402

import click  # noqa: E402

from meshrt.commands.shared import EXAMPLES  # noqa: E402
from meshrt.errors import MpiError, nearest  # noqa: E402
from meshrt.ranks import hostmemory  # noqa: E402
from meshrt.ranks.failing import causes, failure  # noqa: E402
from meshrt.records import write_all  # noqa: E402
from meshrt.version import __version__  # noqa: E402

# What click raises where a group is called with nothing at all: its message is the whole help. Not of click 8.1.
NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())

# What a command is called -> its module in meshrt/commands/.
COMMANDS = {
    "bench": "bench",
    "chat": "chat",
    "completion": "completion",
    "compress": "compress",
    "csl": "csl",
    "devices": "devices",
    "diff": "diff",
    "doctor": "doctor",
    "explain": "explain",
    "fit": "fit",
    "fuzz": "fuzz",
    "html": "html",
    "import": "import_",
    "launch": "launch",
    "list": "list",
    "nki": "nki",
    "plmr": "plmr",
    "quantize": "quantize",
    "reproduce": "reproduce",
    "roofline": "roofline",
    "run": "run",
    "score": "score",
    "show": "show",
    "submit": "submit",
    "sweep": "sweep",
    "tune": "tune",
    "validate": "validate",
}


COMPLETE = "_MESHRT_COMPLETE"  # where it is set, a shell asks how a line may go on

# Commands that the ranks of a job do together. What one process does, rank 0 of a job does for all.
TOGETHER = frozenset({"bench", "chat", "csl", "plmr", "reproduce", "run", "sweep", "tune", "validate"})


def _meant(name: str) -> str:
    """What helps who gave that name in place of a command."""
    from meshrt.program import is_runnable  # for those who mistype

    if name == "help":
        return "meshrt --help"
    if is_runnable(name):
        return f"did you mean `meshrt run {name}`?"
    return nearest(name, COMMANDS, f"there are {', '.join(COMMANDS)}")


class Commands(click.Group):
    """Imports a command's module when the command is asked for: a rank pays for none but its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            raise click.UsageError(f"no command {cmd_name!r}: {_meant(cmd_name)}", ctx)
        if launched_rank() and cmd_name not in TOGETHER:
            ctx.exit()
        command: click.Command = import_module(f"meshrt.commands.{COMMANDS[cmd_name]}").command
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """How a command ends that is told to, or has lost its reader: click itself says nothing, or ends with 1."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, KeyboardInterrupt, signals.Terminated) as error:
            sys.exit(failure.report_alone(error))


class Unheard(click.HelpFormatter):
    """Of the ranks of a job but the first, which shows the help that all are asked for: they end here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise click.exceptions.Exit(0)


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """The versions that a report of a fault needs. Nothing is started of the MPI library."""
    if not value or ctx.resilient_parsing:
        return
    if launched_rank() == 0:
        from platform import python_version

        import numpy

        from meshrt.mesh.wires import core
        from meshrt.ranks import host

        try:
            library = host.library()
        except MpiError:
            library = "no MPI library"
        compiled = "" if core.chosen(os.environ) is None else ", compiled core"
        click.echo(f"meshrt, version {__version__}")
        click.echo(f"Python {python_version()}, NumPy {numpy.__version__}, {library}{compiled}")
    ctx.exit()


@click.group(cls=Commands, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Show the versions of meshrt and of what it runs on, and exit.",
)  # fmt: skip
def cli() -> None:
    """A mesh emulator of MPI processes that runs LLM inference on machines you do not have."""


def import_ahead(arguments: list[str]) -> None:
    """What a command line will want, as far as that can be told before it is read."""
    import_module("locale")  # gettext does, through which click's messages go
    with suppress(Exception):  # whatever it is, a rank will come to it and say so
        command = import_module(f"meshrt.commands.{COMMANDS[arguments[0]]}").command
        if arguments[0] == "run":
            from meshrt.commands.run import import_program

            import_program(command, arguments[1:])
        write_all()


def main() -> None:
    """Entry point. Errors that click finds are printed by rank 0 alone."""
    if SERVER is not None:
        import_ahead(sys.argv[1:])
        SERVER.serve()  # and this process goes on as a rank
        prepare_environment()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by a shell's >&-: nobody wants to read
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
    for stream in (sys.stdout, sys.stderr):  # a terminal without a character, or one that is none, ends no run
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    hostmemory.bound()
    signals.raise_on_end()
    if launched_rank():
        click.Context.formatter_class = Unheard
    try:
        code = cli(standalone_mode=False, complete_var=COMPLETE)
        sys.exit(code or 0)
    except NO_ARGUMENTS as error:
        if launched_rank() == 0:
            click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # rich ends with 1 as well
            sys.exit(causes.BROKEN_PIPE)
        if SERVER is not None and not error.code:
            forkserver.end()
        raise
    except click.exceptions.Abort:
        sys.exit(causes.INTERRUPTED)
    except Exception as error:
        if COMPLETE in os.environ:  # a shell asks how a line goes on, and shows an error in the midst of it
            sys.exit(1)
        sys.exit(failure.report_alone(error))


if __name__ == "__main__":
    main()
