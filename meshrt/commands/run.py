"""`meshrt run PROGRAM|MODEL|FILE.py`."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import click

from meshrt.commands import shared
from meshrt.machine import machines
from meshrt.ranks.failing import failure

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from meshrt.program import Program
    from meshrt.ranks.board import Board


class ProgramCommands(click.Group):
    """`run PROGRAM`: each program is a command, made from its signature when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from meshrt.models.catalogue import packaged
        from meshrt.program import packaged_programs

        return [*packaged_programs(), *packaged()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        make = read if cmd_name.endswith(".py") else packaged  # a user's own file may change
        return make(self, cmd_name, ctx.params.get("on"))

    def made(self, program: Program, name: str, fixed: dict[str, Any]) -> click.Command:
        return _command(program, name, fixed)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            raise click.NoSuchOption(name, f"{name} stands behind the program: meshrt run PROGRAM {name} ...") from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """--on may stand behind the program, among the options, which depend on it."""
        on, args = taken("--on", args)
        ctx.params["on"] = on or ctx.params.get("on")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Programs and models (`meshrt run NAME --help` has their options)"):
            named = [(name, self.get_command(ctx, name).get_short_help_str(70)) for name in self.list_commands(ctx)]
            if named:  # `score` has none
                formatter.write_dl(named)


def read(group: ProgramCommands, name: str, on: str | None) -> click.Command:
    """The command of a program or model, made from its signature."""
    from meshrt.program import load_program, named

    program, fixed = named(name)
    return group.made(load_program(program, on), name, fixed)


packaged = cache(read)  # ranks that are forked have it from the process that has imported for them


class ProgramCommand(shared.Sectioned):
    """A program as a command, which knows the options of other machines from those that there are nowhere."""

    machine = ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from meshrt.program import settings_of

            name = error.option_name
            if name == "--tuned":
                message = f"--tuned is for models on the mesh, and this is {self.name} on {self.machine}: leave it away"
                raise click.NoSuchOption(name, message) from None
            others = [machine for machine in machines() if name.lstrip("-").replace("-", "_") in settings_of(machine)]
            if not others:
                raise
            message = f"{name} is for {' and '.join(others)}, and this runs on {self.machine}: leave it away"
            raise click.NoSuchOption(name, message) from None


def taken(flag: str, args: list[str]) -> tuple[str | None, list[str]]:
    """The value of an option that is wherever in the arguments, and the others."""
    for at, arg in enumerate(args):
        if arg == flag and at + 1 < len(args):
            return args[at + 1], args[:at] + args[at + 2 :]
        if arg.startswith(flag + "="):
            return arg.removeprefix(flag + "="), args[:at] + args[at + 1 :]
    return None, args


def import_program(group: ProgramCommands, args: list[str]) -> None:
    """What a packaged program or model imports, and MPI's library, for those that are forked from this process."""
    from meshrt import emulate  # noqa: F401 - imports
    from meshrt.machine import find_machine
    from meshrt.ranks import host
    from meshrt.ranks.start import muster  # noqa: F401 - imports

    on, args = taken("--on", args)
    if not args[0].endswith(".py"):  # a user's own file is for its ranks to read
        command = cast(ProgramCommand, packaged(group, args[0], on))
        find_machine(command.machine)
        if any(option.name == "prompt" for option in command.params):
            import_module("meshrt.models.tokenizer")
    host.library()


@click.group("run", cls=ProgramCommands, epilog=shared.EXAMPLES, subcommand_metavar="PROGRAM|MODEL|FILE.py [OPTIONS]")
@click.option("--on", type=shared.Name(machines()), help="The kind of machine, where a program has several.")
def command(on: str | None) -> None:
    """Run a program, alone or as one of the ranks that mpirun or srun started."""


def payload(default: str = "full") -> shared.Decorator:
    return click.option(
        "--payload", type=shared.Name(["full", "none"]), default=default, show_default=True,
        help="none: shapes for numbers; same messages, counts and cycles.",
    )  # fmt: skip


expect = click.option(
    "--expect", multiple=True, metavar="BOUNDS",
    help="hops<=960,cycles<1e6,decode.stages=4: what the report has to keep, or code 3.",
)  # fmt: skip


def verbose(own_names: Collection[str]) -> shared.Decorator:
    """-v, also by its long name where the program has none like it."""
    flags = ["-v"] if "verbose" in own_names else ["--verbose", "-v"]
    help_text = "Print all rows of the table and all of the result, inner quantities too."
    return click.option("all_rows", *flags, is_flag=True, help=help_text)


html = click.option(
    "--html", metavar="FILE", help="Write a page of the report, with what --maps and --trace keep."
)  # fmt: skip


def _command(program: Program, name: str, fixed: dict[str, Any]) -> click.Command:
    """The click command of a program: its own options, those of its machine, and the shared ones."""
    own_options = [option for option in program.options if option.name not in fixed]
    params = shared.own_options(program, fixed)
    if (program.name, program.machine) == ("llama", "mesh"):
        help_text = "Cores, regions, groups as `meshrt tune` found them."
        params.append(click.Option(["--tuned"], is_flag=True, help=help_text))
    params += machine_options(program, fixed)
    if program.name in ("llama", "lowrank"):
        help_text = "The answer alone on standard output; the table on standard error."
        params.append(click.Option(["--text"], is_flag=True, help=help_text))

    @click.command(name, cls=ProgramCommand, params=params, help=program.help)
    @shared.together(
        payload("none" if _is_shape(name) else "full"),
        expect,
        html,
        shared.form(),
        shared.json_to("the report"),
        shared.quiet,
        verbose([option.name for option in own_options]),
    )
    def run(**values: Any) -> None:
        if values.get("tuned"):
            _check_tuned()
        arguments = fixed | {option.name: values.pop(option.name) for option in own_options}
        through = click.get_current_context().obj or (lambda comm: comm)  # of `bench messages`
        sys.exit(failure.run_guarded(lambda comm, board: execute(through(comm), board, program, arguments, **values)))

    _check_names(program, run.params)
    run.machine = program.machine
    run.own = frozenset(option.name for option in own_options)
    return run


def _check_tuned() -> None:
    """UsageError where what --tuned chooses is given as well, be it the default."""
    from click.core import ParameterSource

    from meshrt.studies.tune.answers import CHOSEN

    for name in ("mesh", *CHOSEN):
        if click.get_current_context().get_parameter_source(name) == ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--tuned chooses --{name.replace('_', '-')} itself: leave out one of the two")


def _check_names(program: Program, params: Sequence[click.Parameter]) -> None:
    """UsageError where a user's program has an option that `run` has for all programs."""
    own = {option.name for option in program.options}
    names = [{param.name, *(flag.lstrip("-").replace("-", "_") for flag in param.opts)} for param in params] + [{"on"}]
    for name, count in Counter(name for of_one in names for name in of_one).items():
        if count > 1 and name in own:
            raise click.UsageError(f"{program.name}: option {name}: `meshrt run` has one of that name; choose another")


def _is_shape(name: str) -> bool:
    """Is it a packaged model that has no weights? It runs by shape unless told otherwise."""
    from meshrt.models.catalogue import has_weights, is_packaged

    return is_packaged(name) and not has_weights(name)


def machine_options(program: Program, fixed: Collection[str]) -> list[click.Parameter]:
    """The options of a program's machine, also by the words that all machines understand."""
    from meshrt.machine import find_machine
    from meshrt.program import settings_of

    words = {name: word for word, name in find_machine(program.machine).SHARED.items()}
    own_names = {option.name for option in program.options if option.name not in fixed}
    params: list[click.Parameter] = []
    for option in settings_of(program.machine).values():
        word = words.get(option.name)
        params.append(shared.option_of(option, *([] if word is None or word in own_names else [f"--{word}"])))
    return params


def execute(
    comm: Intracomm, board: Board, program: Program, arguments: dict[str, Any], *, payload: str,
    json_path: str | None, quiet: bool, form: str = "table", expect: tuple[str, ...] = (), html: str | None = None,
    tuned: bool = False, text: bool = False, all_rows: bool = False, **settings: Any,
) -> int:  # fmt: skip
    """One rank's part of a run, and the report."""
    from meshrt.alike import COMMANDS, check_alike
    from meshrt.emulate import emulate
    from meshrt.errors import UsageError
    from meshrt.program import written_by
    from meshrt.ranks.files import check_apart, check_target
    from meshrt.reports import report

    check_apart({"--json": json_path, "--html": html, **written_by(program, {**arguments, **settings})})
    if quiet and all_rows:
        raise UsageError("--quiet prints no table, and -v prints more of it: leave one of them away")
    if text and json_path == "-":
        raise UsageError("--text and --json - would share standard output: give --json a file")
    if text and payload == "none":
        raise UsageError("--text is for tokens with a meaning, and --payload none has none: leave one of them away")
    if text and shared.for_programs(form):
        raise UsageError(f"--text and --format {form} would share standard output: leave one of them away")
    console = shared.start(comm, json_path, quiet, text, form)
    check_alike(comm, [(program, arguments, settings)], payload == "full", COMMANDS)
    if html is not None:
        check_target("--html", html)
    if expect:
        from meshrt.studies import bounds

        expected = bounds.parse(expect)
    if tuned:
        from meshrt.mesh.devicefile import find_device
        from meshrt.studies.tune.answers import apply

        machine = {name: settings[name] for name in ("device", "core_memory", "route_entries")}
        numbers = find_device(settings["device"], **{name: machine[name] for name in ("core_memory", "route_entries")})
        arguments = apply(comm, console, arguments, settings["mesh"], numbers, machine)
        settings["mesh"] = arguments.pop("mesh")
    document = emulate(comm, board, program, arguments, payload=payload == "full", console=console, **settings)
    if document is not None:
        report.deliver_json(document, json_path)
        if html is not None:
            _write_page(html, document, settings.get("maps"), settings.get("trace"))
        if not quiet and json_path != "-":
            with redirect_stdout(sys.stderr if text else sys.stdout):
                print_report(document, form, inner_of(program), all_rows)
        if expect:
            bounds.keep(bounds.broken(expected, document))
    return 0


def inner_of(program: Program) -> Collection[str]:
    """The inner ones of a program's results. What a user's own returns is all meant to be read."""
    from meshrt.programs import results

    return results.inner() if program.run.__module__.startswith("meshrt.programs.") else ()


def print_report(document: dict[str, Any], form: str, inner: Collection[str], verbose: bool) -> None:
    """The result and the table, without what is inner unless that was asked for; as CSV and as JSON a row for each
    number, with all its digits.
    """
    from meshrt.columns import print_words
    from meshrt.reports import report

    if form == "table":
        report.print_result(document, () if verbose else inner)
        report.print_table(document, verbose)
        if not verbose:
            hidden = report.hidden(document, inner)
            more = f"{hidden} more with -v; " if hidden else ""
            print_words(f"{more}what each is: `meshrt explain NAME`")
        return
    from meshrt.studies.grid import Grid, put

    header, rows = report.fields_of(document)
    if form == "md":
        title, header, rows = report.table_of(document, verbose)
        put([title, Grid(header, rows, right=True)], form)
    else:
        put([Grid(header, rows)], form)


def _write_page(path: str, document: dict[str, Any], maps: str | None, trace: str | None) -> None:
    """The page of a run that is done, with the command line that started it."""
    import shlex

    from meshrt.ranks.files import write_file
    from meshrt.studies.pictures.maps import read_maps
    from meshrt.studies.pictures.page import PageRun, write_page
    from meshrt.studies.pictures.traces import read_trace

    ranks = document["host"].get("ranks", 1)
    command = shlex.join([*(["mpirun", "-n", str(ranks)] if ranks > 1 else []), "meshrt", *sys.argv[1:]])
    kept = None if maps is None else read_maps(maps), None if trace is None else read_trace(trace)
    text = write_page([PageRun(document, *kept, command)])
    write_file("--html", path, lambda stream: stream.write(text.encode()))
