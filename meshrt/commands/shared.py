"""What several commands have in common: options, their reading, the start of a rank's part."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from meshrt.errors import nearest
from meshrt.mesh.presets import PRESETS
from meshrt.whole import whole, whole_numbers

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from meshrt.models.texts import SampleText
    from meshrt.options import Option
    from meshrt.program import Program
    from meshrt.ranks.console import Console

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

EXAMPLES = """
\b
Examples:
  meshrt run llama-tiny                        all 64 cores in this process
  mpirun -n 64 meshrt run llama-tiny           one core per rank
  mpirun -n 4 meshrt run gemm --m 100 --k 200 --n 300 --mesh 6x6 --json -
  meshrt run my_program.py --mesh 4x4          a program of your own
"""


class WrittenWhole:
    """Whole numbers as `whole` reads them, for click's types; `words` are what may be there instead."""

    words: tuple[str, ...] = ()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in self.words:
            return value
        try:
            number = whole(value) if isinstance(value, str) else value
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, param) from None
        return super().convert(number, param, ctx)  # type: ignore[misc]  # a mixin of click's types


class WholeNumber(WrittenWhole, click.types.IntParamType):
    """A whole number, or one of some words."""

    def __init__(self, *words: str) -> None:
        self.words = words


class WholeRange(WrittenWhole, click.IntRange):
    """A whole number in a range."""


class NumberRange(click.FloatRange):
    """A number in a range; NaN, which is neither below nor above anything, is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


class Name(click.Choice[str]):
    """One of some names; for what is none, the message has those that are like it."""

    also = ""  # what else may be given

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        text = super().get_invalid_choice_message(value, ctx) + self.also
        if str(value).endswith(".toml") and not self.also:
            return text + " A device of a file is for a mesh; of other machines, options change single numbers."
        near = nearest(str(value), self.choices, "")
        return text + (f" {near.capitalize()}" if near else "")


class NameOrFile(Name):
    """One of some names, or a file whose name ends so."""

    def __init__(self, names: Collection[str], ending: str) -> None:
        super().__init__(tuple(names))
        self.ending = ending
        self.also = f" A file of your own may be given, too, as mine{ending}."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.endswith(self.ending):
            return value
        return super().convert(value, param, ctx)


class CommandGroup(click.Group):
    """Says of a command that it does not have which one is meant, or which there are."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        subcommand = super().get_command(ctx, cmd_name)
        if subcommand is None:
            names = self.list_commands(ctx)
            hint = nearest(cmd_name, names, f"there are {', '.join(names)}")
            raise click.UsageError(f"no command {cmd_name!r}: {hint}", ctx)
        return subcommand


class Sectioned(click.Command):
    """A command whose help has its options in groups. `own`: those of its program."""

    own: frozenset[str] = frozenset()

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """An option that has two names, its machine's and that of all machines, is given by one of them."""
        given = set(_flags(self.params, args))
        for param in self.params:
            if len(names := given.intersection(param.opts)) > 1:
                raise click.UsageError(f"{' and '.join(sorted(names))} say the same thing: give one of them", ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from meshrt.commands.sections import SECTIONS, section

        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for option in self.get_params(ctx):
            if (record := option.get_help_record(ctx)) is not None:
                name = "help" if "--help" in option.opts else option.name or ""
                rows[section(name, name in self.own)].append(record)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _flags(params: Sequence[click.Parameter], args: Sequence[str]) -> Iterator[str]:
    """The long names of options that are among the arguments, and not in the place of another's value."""
    takes_value = {
        name: not param.is_flag
        for param in params if isinstance(param, click.Option) for name in (*param.opts, *param.secondary_opts)
    }  # fmt: skip
    rest = iter(args)
    for arg in rest:
        name, equals, _ = arg.partition("=")
        if arg == "--":
            return
        if name in takes_value:
            if name.startswith("--"):
                yield name
            if takes_value[name] and not equals:
                next(rest, None)


def together(*decorators: Decorator) -> Decorator:
    """Several options as one decorator, in the order in which the help shows them."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


mesh = click.option("--mesh", metavar="WxH", help="Cores, shared by the ranks.  [default: the program's own]")
device = click.option(
    "--device",
    type=NameOrFile(PRESETS, ".toml"),
    default="wse2",
    show_default=True,
    help="The machine, or a FILE.toml.",
)
machine = together(
    device,
    click.option("--core-memory", type=WholeRange(1), help="A core's memory.  [default: device's]"),
    click.option("--route-entries", type=WholeRange(1, 256), help="A router's limit.  [default: device's]"),
)
quiet = click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors (and the JSON).")


def json_to(contents: str) -> Decorator:
    """--json for a command that writes `contents`."""
    return click.option(
        "--json", "json_path", metavar="PATH|-", help=f"Write {contents} as JSON, - for standard output."
    )


def form(default: str = "table") -> Decorator:
    """--format of a command that prints a table."""
    return click.option(
        "--format", "form", type=Name(["table", "csv", "md", "json"]), default=default, show_default=True,
        help="How the table is printed.",
    )  # fmt: skip


def for_programs(form: str) -> bool:
    """Is that a form of tables for programs? Nothing else is on standard output then."""
    return form in ("csv", "json")


def option_of(option: Option, *aliases: str) -> click.Option:
    """An option of a program or a machine as click's. Its range is checked by the run, for scripts as well."""
    if option.kind is bool:
        flags = option.flag if option.shown is None else f"{option.flag}/--{option.shown}"
        return click.Option([flags], is_flag=True, default=option.default, help=option.help)
    choice = Name(option.choices) if option.ending is None else NameOrFile(option.choices, option.ending)
    kind = choice if option.choices else WholeNumber(*option.words) if option.kind is int else option.kind
    return click.Option(
        [option.flag, *aliases], type=kind, default=option.default, show_default=option.default is not None,
        help=option.help, metavar=option.shown,
    )  # fmt: skip


def own_options(program: Program, fixed: Collection[str]) -> list[click.Parameter]:
    """The options of a program's signature, without those that are fixed."""
    return [option_of(option) for option in program.options if option.name not in fixed]


def integers(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """'480,600' -> (480, 600), as a callback of an option."""
    if text is None:
        return None
    try:
        return tuple(whole_numbers(text))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 480,600", ctx, option) from None


def known_command(ctx: click.Context, option: click.Parameter, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """What follows `--`, as a callback: found wrong here, and not on a cluster after hours in a queue.

    Its first word is a command of meshrt's, an option of meshrt's own, or to be filled in by a sweep.
    """
    first, meshrt = arguments[0], ctx.find_root().command
    is_command = not isinstance(meshrt, click.Group) or first in meshrt.list_commands(ctx)
    if not is_command and not first.startswith("-") and "{" not in first:
        raise click.UsageError(f"{first!r} is no command of meshrt's: what follows -- is such as run llama-tiny", ctx)
    return arguments


def refuse_ranks(reason: str) -> None:
    """UsageError under a launcher, for what one process does: each of the ranks would do all of it, at the same time.

    `reason` says what, as in "this writes one folder".
    """
    from meshrt.errors import UsageError
    from meshrt.ranks.launcher import launched_size

    if launched_size() > 1:
        raise UsageError(f"{launched_size()} ranks: {reason}; leave mpirun away")


def calibration_text(path: str | None, stories: int | None, seed: int | None) -> SampleText:
    """What to calibrate on: 256 stories of seed 0, if nothing else is said. UsageError for the stories that are held
    out, and for a file beside what is of stories.
    """
    from meshrt.errors import UsageError
    from meshrt.models.stories import HELD_OUT_SEED
    from meshrt.models.texts import SampleText

    if path is not None:
        _refuse_stories(f"--calibration {path}", {"--calibration-stories": stories, "--seed": seed})
    if seed == HELD_OUT_SEED:
        raise UsageError(f"--seed {seed} is that of the held-out stories: calibrate with any other")
    return SampleText(path, 256 if stories is None else stories, seed or 0)


def held_out_text(path: str | None, stories: int | None) -> SampleText | None:
    """What to measure perplexity on, if on anything: 200 stories, if nothing is said. UsageError for a file beside a
    number of stories.
    """
    from meshrt.models.texts import SampleText

    if path is not None:
        _refuse_stories(f"--held-out {path}", {"--held-out-stories": stories})
    stories = 200 if stories is None else stories
    return SampleText(path, stories) if path or stories else None


def _refuse_stories(text: str, options: Mapping[str, int | None]) -> None:
    """UsageError for what is of generated stories, beside a text that is none."""
    from meshrt.errors import UsageError

    for name, value in options.items():
        if value is not None:
            raise UsageError(f"{name} {value} is of generated stories, and {text} is a text: leave one of the two away")


def start(
    comm: Intracomm, json_path: str | None, quiet: bool, alone: bool = False, form: str = "table"
) -> Console:  # fmt: skip
    """This rank's console; UsageError, before any work, where the JSON could not be written after it.

    `alone`: standard output is for answers alone, and has them even where all else is quiet. It has nothing but the
    table where its `form` is one that programs read.
    """
    from meshrt.ranks.console import make_console
    from meshrt.ranks.files import check_target

    if json_path is not None and json_path != "-":
        check_target("--json", json_path)
    return make_console(comm.rank, comm.size, quiet or json_path == "-" or for_programs(form), alone)
