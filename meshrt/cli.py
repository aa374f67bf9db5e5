"""The command line. Thin: parse, call one function, print."""

from __future__ import annotations

from meshrt.host import prepare_environment

prepare_environment()  # before anything imports numpy

import sys  # noqa: E402 - the environment comes first
from typing import TYPE_CHECKING, Any  # noqa: E402

import click  # noqa: E402

from meshrt import __version__, failure  # noqa: E402
from meshrt.device import PRESETS, find_device  # noqa: E402

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from meshrt.board import Board
    from meshrt.program import Program

EXAMPLES = """
\b
Examples:
  meshrt run llama-tiny                        all 64 cores in this process
  mpirun -n 64 meshrt run llama-tiny           one core per rank
  mpirun -n 4 meshrt run gemm --m 100 --k 200 --n 300 --mesh 6x6 --json -
  meshrt run my_program.py --mesh 4x4          a program of your own
"""


@click.group(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """A mesh emulator of MPI processes that runs LLM inference on machines you do not have."""


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
            return _command(load_program("llama"), cmd_name, {"model": cmd_name})
        return _command(load_program(cmd_name), cmd_name, {})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Programs and models (`meshrt run NAME --help` has their options)"):
            formatter.write_dl(
                [(name, self.get_command(ctx, name).get_short_help_str(70)) for name in self.list_commands(ctx)]
            )


@cli.command(cls=Programs, epilog=EXAMPLES, subcommand_metavar="PROGRAM|MODEL|FILE.py [OPTIONS]")
def run() -> None:
    """Run a program, alone or as one of the ranks that mpirun or srun started."""


SHARED = (
    click.Option(["--mesh"], metavar="WxH", help="Cores, shared by the ranks.  [default: the program's own]"),
    click.Option(["--device"], type=click.Choice([*PRESETS]), default="wse2", show_default=True, help="The machine."),
    click.Option(["--core-memory"], type=click.IntRange(1), help="A core's memory.  [default: device's]"),
    click.Option(["--route-entries"], type=click.IntRange(1, 256), help="A router's limit.  [default: device's]"),
    click.Option(["--payload"], type=click.Choice(["full", "none"]), default="full", show_default=True,
                 help="none: shapes for numbers; same messages, counts and cycles."),
    click.Option(["--json", "json_path"], metavar="PATH|-", help="Write the report as JSON, - for standard output."),
    click.Option(["--quiet", "-q"], is_flag=True, help="Print nothing but errors (and the JSON)."),
)  # fmt: skip


def _command(program: Program, name: str, fixed: dict[str, Any]) -> click.Command:
    """The click command of a program: its own options, then the shared ones."""
    own: list[click.Parameter] = []
    for option in program.options:
        if option.name in fixed:
            continue
        flag = f"--{option.name.replace('_', '-')}"
        if option.kind is bool:
            own.append(click.Option([flag], is_flag=True, default=option.default, help=option.help))
        else:
            kind = click.Choice(option.choices) if option.choices else option.kind
            shown = option.default is not None
            own.append(click.Option([flag], type=kind, default=option.default, show_default=shown, help=option.help))

    def callback(**values: Any) -> None:
        shared = {
            key: values.pop(key)
            for key in ("mesh", "device", "core_memory", "route_entries", "payload", "json_path", "quiet")
        }
        sys.exit(failure.run_guarded(lambda comm, board: execute(comm, board, program, {**fixed, **values}, **shared)))

    return click.Command(name, params=[*own, *SHARED], callback=callback, help=program.summary,
                         context_settings={"help_option_names": ["-h", "--help"]})  # fmt: skip


def execute(
    comm: Intracomm, board: Board, program: Program, arguments: dict[str, Any], *, mesh: str | None, device: str,
    core_memory: int | None, route_entries: int | None, payload: str, json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a run: make its block, run the program, report."""
    from meshrt import report
    from meshrt.console import make_console
    from meshrt.emulate import emulate
    from meshrt.mesh import parse_mesh

    if json_path and json_path != "-":
        report.check_target("--json", json_path)
    cores = parse_mesh(mesh) if mesh else None
    machine = find_device(device, core_memory=core_memory, route_entries=route_entries)
    console = make_console(comm.rank, comm.size, quiet or json_path == "-")
    told = emulate(
        comm, board, program, arguments, mesh=cores, device=machine, payload=payload == "full", console=console
    )
    if told is not None:
        if json_path == "-":
            report.print_json(told)
        elif json_path:
            report.write_json(told, json_path)
        if console.loud:
            report.print_result(told)
            report.print_table(told)
    return 0


@cli.command("list")
def list_() -> None:
    """The programs and models that there are."""
    from meshrt.models.catalogue import packaged
    from meshrt.program import load_program, packaged_programs

    for name in packaged_programs():
        click.echo(f"{name:12} {load_program(name).summary}")
    for name in packaged():
        click.echo(f"{name:12} a model; runs llama with --model {name}")


@cli.command()
def devices() -> None:
    """The machines that there are: their numbers and where those are from."""
    from dataclasses import asdict

    for device in PRESETS.values():
        numbers = asdict(device)
        sources = numbers.pop("sources")
        click.echo(numbers.pop("name"))
        for key, value in numbers.items():
            click.echo(f"  {key:22} {'no limit' if value is None else value}")
        for source in sources:
            click.echo(f"  source: {source}")


@cli.command()
def doctor() -> None:
    """Is this machine set up for meshrt? Says what is wrong and how to mend it."""
    from meshrt.launch import doctor as examination

    sys.exit(examination.main())


@cli.group()
def bench() -> None:
    """Measure and compare."""


@bench.command("host")
def bench_host() -> None:
    """The emulator's own speed on this machine, beside its targets; takes about two minutes."""
    from meshrt.launch import bench as benchmark

    try:
        click.echo(benchmark.table(benchmark.measure()))
    except Exception as error:
        sys.exit(failure.report_alone(error))


@cli.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--ranks", type=click.IntRange(1), required=True, help="How many ranks.")
@click.option("--dry-run", is_flag=True, help="Print the command instead of running it.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, required=True)
def launch(ranks: int, dry_run: bool, arguments: tuple[str, ...]) -> None:
    """Start N ranks on this machine with the right settings: meshrt launch -n 64 -- run llama-tiny."""
    from meshrt.launch import local

    try:
        local.launch(local.Job(ranks=ranks, arguments=arguments), dry_run=dry_run)
    except Exception as error:
        sys.exit(failure.report_alone(error))


def main() -> None:
    """Entry point. Errors that click finds are printed by rank 0 alone."""
    try:
        code = cli(standalone_mode=False)
        sys.exit(code or 0)
    except click.exceptions.Abort:
        sys.exit(failure.INTERRUPTED)
    except Exception as error:
        sys.exit(failure.report_alone(error))


if __name__ == "__main__":
    main()
