"""The command line. Thin: parse, call one function, print."""

from __future__ import annotations

from meshrt.host import prepare_environment

prepare_environment()  # before anything imports numpy

import sys  # noqa: E402 - the environment comes first
from typing import TYPE_CHECKING, Any, Literal  # noqa: E402

import click  # noqa: E402

from meshrt import __version__, failure  # noqa: E402
from meshrt.device import PRESETS, find_device  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

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
            return _command(load_program("llama"), cmd_name, {"model": cmd_name}, tunable=True)
        return _command(load_program(cmd_name), cmd_name, {}, tunable=cmd_name == "llama")

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


def _own_options(program: Program, fixed: Collection[str]) -> list[click.Parameter]:
    """The options of a program's signature, without those that are fixed."""
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
    return own


TUNED = click.Option(["--tuned"], is_flag=True, help="Cores, regions, groups as `meshrt tune` found them.")


def _command(program: Program, name: str, fixed: dict[str, Any], tunable: bool = False) -> click.Command:
    """The click command of a program: its own options, then the shared ones."""

    def callback(**values: Any) -> None:
        shared = {
            key: values.pop(key)
            for key in ("mesh", "device", "core_memory", "route_entries", "payload", "json_path", "quiet")
        } | {"tuned": tunable and values.pop("tuned")}
        sys.exit(failure.run_guarded(lambda comm, board: execute(comm, board, program, {**fixed, **values}, **shared)))

    params = [*_own_options(program, fixed), *([TUNED] if tunable else []), *SHARED]
    return click.Command(name, params=params, callback=callback, help=program.summary,
                         context_settings={"help_option_names": ["-h", "--help"]})  # fmt: skip


def execute(
    comm: Intracomm, board: Board, program: Program, arguments: dict[str, Any], *, mesh: str | None, device: str,
    core_memory: int | None, route_entries: int | None, payload: str, json_path: str | None, quiet: bool,
    tuned: bool = False,
) -> int:  # fmt: skip
    """One rank's part of a run: make its block, run the program, report."""
    from meshrt import report
    from meshrt.console import make_console
    from meshrt.emulate import emulate
    from meshrt.mesh import parse_mesh

    if json_path and json_path != "-":
        report.check_target("--json", json_path)
    machine = find_device(device, core_memory=core_memory, route_entries=route_entries)
    console = make_console(comm.rank, comm.size, quiet or json_path == "-")
    if tuned:
        from meshrt.studies.tuned import apply

        arguments = apply(comm, console, arguments, mesh, machine)
        mesh = arguments.pop("mesh")
    cores = parse_mesh(mesh) if mesh else None
    told = emulate(
        comm, board, program, arguments, mesh=cores, device=machine, payload=payload == "full", console=console
    )
    if told is not None:
        report.deliver_json(told, json_path)
        if console.loud:
            report.print_result(told)
            report.print_table(told)
    return 0


@cli.command("list")
def list_() -> None:
    """The programs and models that there are."""
    from meshrt.models.catalogue import has_weights, packaged
    from meshrt.program import load_program, packaged_programs

    for name in packaged_programs():
        click.echo(f"{name:13} {load_program(name).summary}")
    for name in packaged():
        kind = "a model" if has_weights(name) else "the shape of a model, for --payload none"
        click.echo(f"{name:13} {kind}; runs llama with --model {name}")


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


class Bench(click.Group):
    """`bench gemm` and the like: their options are those of the program, read off its signature when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        from meshrt.studies.compare import COMPARISONS

        return [*COMPARISONS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        from meshrt.studies.compare import COMPARISONS

        return _comparison(cmd_name) if cmd_name in COMPARISONS else super().get_command(ctx, cmd_name)


def _comparison(name: str) -> click.Command:
    """The command that sets a program's alternatives side by side."""
    from meshrt.program import load_program
    from meshrt.studies.compare import COMPARISONS

    comparison = COMPARISONS[name]
    program = load_program(comparison.program)
    shared = [one for one in SHARED if one.name != "payload"]
    more = [
        click.Option(["--payload"], type=click.Choice(["full", "none"]), help="[default: full up to 4096 cores]"),
        click.Option(["--only"], multiple=True, metavar="NAME", help="Only this alternative; may be given again."),
    ]

    def callback(**values: Any) -> None:
        sys.exit(failure.run_guarded(lambda comm, board: _compare(comm, name, **values)))

    return click.Command(
        name, params=[*_own_options(program, comparison.fixed()), *shared, *more], callback=callback,
        help=f"The choices of {program.name}'s --{comparison.option} on the same work, in one table.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip


def _compare(
    comm: Intracomm, name: str, *, mesh: str | None, device: str, core_memory: int | None, route_entries: int | None,
    payload: str | None, only: tuple[str, ...], json_path: str | None, quiet: bool, **arguments: Any,
) -> int:  # fmt: skip
    """One rank's part of a comparison."""
    from meshrt import report
    from meshrt.console import make_console
    from meshrt.mesh import parse_mesh
    from meshrt.studies import compare

    if json_path and json_path != "-":
        report.check_target("--json", json_path)
    console = make_console(comm.rank, comm.size, quiet or json_path == "-")
    told = compare.compare(
        comm, console, name, arguments, mesh=parse_mesh(mesh) if mesh else None, only=only,
        device=find_device(device, core_memory=core_memory, route_entries=route_entries),
        payload=None if payload is None else payload == "full",
    )  # fmt: skip
    if comm.rank == 0:
        report.deliver_json(told, json_path)
        if console.loud:
            compare.print_comparison(told)
    return 0


@cli.group(cls=Bench)
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


@bench.command("workloads")
@click.option("--only", multiple=True, metavar="NAME", help="W1, W2, ...: only this work; may be given again.")
@click.option("--cores", type=int, multiple=True, help="Instead of 64, 256, 1024 and 4096; may be given again.")
@click.option("--ranks", type=click.IntRange(1), multiple=True, help="Instead of 1 and 2; may be given again.")
@click.option("--json", "json_path", metavar="PATH", help="Write the figures as JSON, too.")
def bench_workloads(only: tuple[str, ...], cores: tuple[int, ...], ranks: tuple[int, ...], json_path: str) -> None:
    """Messages and hops a second beside other tools' figures for the same work; takes about three minutes."""
    from meshrt.launch.bench import timed
    from meshrt.studies import workloads

    def measure() -> tuple[Any, Callable[[], None]]:
        figures = workloads.measure(timed, only, cores or workloads.CORES, ranks or workloads.RANKS)
        return workloads.as_json(figures), lambda: workloads.print_figures(figures)

    _alone(measure, json_path)


@bench.command("clock")
@click.option("--cores", type=int, multiple=True, help="Lengths of lines, instead of 8 to 512; may be given again.")
@click.option("--words", type=int, multiple=True, help="Sizes of tiles, instead of 1 to 4096; may be given again.")
@click.option("--json", "json_path", metavar="PATH", help="Write the figures as JSON, too.")
def bench_clock(cores: tuple[int, ...], words: tuple[int, ...], json_path: str | None) -> None:
    """The virtual clock beside a published model of reductions and broadcasts on a WSE-2."""
    from meshrt.console import make_console
    from meshrt.studies import reduce_model as study

    def measure() -> tuple[Any, Callable[[], None]]:
        points = study.measure(cores or study.LENGTHS, words or study.WORDS, make_console(0, 1, False))
        return study.as_json(points), lambda: study.print_points(points)

    _alone(measure, json_path)


@bench.command("scaling")
@click.option("--side", type=click.IntRange(1), multiple=True, help="Meshes, instead of 8 to 720; may be given again.")
@click.option("--ranks", type=click.IntRange(1), default=2, show_default=True, help="How many ranks.")
@click.option("--edge", type=click.IntRange(1), default=2048, show_default=True, help="Side of the matrices.")
@click.option("--json", "json_path", metavar="PATH", help="Write the figures as JSON, too.")
def bench_scaling(side: tuple[int, ...], ranks: int, edge: int, json_path: str | None) -> None:
    """The host's time over cores, 64 to 518,400, and where it goes; takes about 75 seconds."""
    from meshrt.launch.bench import timed
    from meshrt.studies import scaling

    def measure() -> tuple[Any, Callable[[], None]]:
        points = scaling.measure(timed, side or scaling.SIDES, ranks, edge)
        return scaling.as_json(points), lambda: scaling.print_points(points)

    _alone(measure, json_path)


def _alone(measure: Callable[[], tuple[Any, Callable[[], None]]], json_path: str | None) -> None:
    """Measure in this process, which is no rank itself; write what was found, and print it."""
    from meshrt import report

    try:
        if json_path:
            report.check_target("--json", json_path)
        told, show = measure()
        if json_path:
            report.write_json(told, json_path)
        show()
    except Exception as error:
        sys.exit(failure.report_alone(error))


@bench.command("profile", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--to", metavar="PATH", help="Write the seconds as JSON instead of printing them.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, required=True)
def bench_profile(to: str | None, arguments: tuple[str, ...]) -> None:
    """Where the host's time goes: bench profile run gemm --mesh 64x64. Of rank 0, if there are several."""
    from meshrt import report
    from meshrt.host import launched_rank
    from meshrt.studies import hosttime

    if to:
        report.check_target("--to", to)
    code, seconds = hosttime.profiled(lambda: cli(list(arguments), standalone_mode=False))
    if launched_rank() == 0:
        if to:
            report.write_json(seconds, to)
        else:
            hosttime.print_shares(seconds)
            sys.stdout.flush()  # before MPI ends, after which a launcher may no longer listen
    sys.exit(code)


@cli.command()
@click.argument("programs", nargs=-1, metavar="[PROGRAM[:OPTION=VALUE,...]]...")
@click.option("--sizes", default="8,12,16,24,32,48,64", show_default=True, help="N of the N x N meshes.")
@click.option("--tile", default=8, show_default=True, help="Side of a core's tiles in gemm and gemv, at every N.")
@click.option("--set", "extra", multiple=True, metavar="OPTION=VALUE", help="For all programs; {8*N} is arithmetic.")
@click.option("--steps", help="What the critical path is divided by: a number, N, N-1.  [default: gemm N, others 1]")
@click.option(
    "--reach",
    type=click.Choice(["next", "line"]),
    help="A step bridges one core, or a line: then N - 1 hops are no offence.  [default: gemv line]",
)
@click.option(
    "--expect",
    multiple=True,
    metavar="BOUNDS",
    help="entries=12,hops=2,memory~1,stages~N^0.5: what has to hold at every N, or code 3.",
)
@click.option("--device", type=click.Choice([*PRESETS]), default="wse2", show_default=True, help="The machine.")
@click.option("--core-memory", type=click.IntRange(1), help="A core's memory.  [default: device's]")
@click.option("--route-entries", type=click.IntRange(1, 256), help="A router's limit.  [default: device's]")
@click.option("--json", "json_path", metavar="PATH|-", help="Write it as JSON, - for standard output.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors (and the JSON).")
def plmr(programs: tuple[str, ...], **options: Any) -> None:
    """Measure parallelism, latency, memory and routing of programs on growing meshes, and judge how they grow.

    A PROGRAM is a packaged one, your own FILE.py, or a short name: allgather, summa, cannon, meshgemm (gemm),
    pipeline, ring, ktree (gemv). Without any, all of these: Figures 6 and 8 of WaferLLM.
    """  # fmt: skip
    sys.exit(failure.run_guarded(lambda comm, board: _plmr(comm, programs, **options)))


def _plmr(
    comm: Intracomm, programs: tuple[str, ...], *, sizes: str, tile: int, extra: tuple[str, ...], steps: str | None,
    reach: Literal["next", "line"] | None, expect: tuple[str, ...], device: str, core_memory: int | None,
    route_entries: int | None, json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a compliance check."""
    from meshrt import report
    from meshrt.console import make_console
    from meshrt.studies import expect as bounds
    from meshrt.studies import plmr, plmr_table
    from meshrt.studies.subject import parse

    if json_path and json_path != "-":
        report.check_target("--json", json_path)
    machine = find_device(device, core_memory=core_memory, route_entries=route_entries)
    expectations = bounds.parse(expect, [*plmr.METRICS])
    subjects = [parse(text, extra, steps, reach) for text in programs or plmr.FIGURES]
    console = make_console(comm.rank, comm.size, quiet or json_path == "-")
    findings = plmr.check(comm, subjects, plmr.parse_sizes(sizes), machine, tile, console)
    lines = plmr.expected(findings, expectations)
    if comm.rank == 0:
        told = plmr_table.as_json(findings, machine, tile, lines)
        report.deliver_json(told, json_path)
        if console.loud:
            plmr_table.print_tables(findings, machine, tile)
    bounds.keep(lines)
    return 0


def _integers(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    """'480,600' -> (480, 600)."""
    if text is None:
        return None
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 480,600", ctx, option)
    return tuple(int(part) for part in text.split(","))


@cli.command()
@click.argument("model")
@click.option("--prompt-tokens", type=click.IntRange(1), required=True, help="Tokens of a prompt, on average.")
@click.option("--new-tokens", type=click.IntRange(1), required=True, help="Tokens of an answer, on average.")
@click.option("--device", type=click.Choice([*PRESETS]), default="wse2", show_default=True, help="The machine.")
@click.option("--core-memory", type=click.IntRange(1), help="A core's memory.  [default: device's]")
@click.option("--route-entries", type=click.IntRange(1, 256), help="A router's limit.  [default: device's]")
@click.option("--kv", type=click.Choice(["shift", "concat", "roundrobin"]), default="shift", show_default=True)
@click.option("--dtype", type=click.Choice(["float32", "float16", "bfloat16"]), help="[default: the model's]")
@click.option(
    "--layers-run", type=click.IntRange(1), help="Of a region's layers.  [default: 1 in large models, or all]"
)
@click.option("--sides", callback=_integers, metavar="N,N,...", help="Only N x N cores for prefill.")
@click.option("--decode-sides", callback=_integers, metavar="N,N,...", help="Only N x N cores for decode.")
@click.option("--regions", callback=_integers, metavar="R,R,...", help="For prefill, the first that suffice.")
@click.option("--decode-regions", callback=_integers, metavar="R,R,...", help="The same for decode.")
@click.option("--again", is_flag=True, help="Do not take an answer that is there already.")
@click.option("--json", "json_path", metavar="PATH|-", help="Write it as JSON, - for standard output.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors (and the JSON).")
def tune(model: str, **options: Any) -> None:
    """Choose cores, regions, head groups and trees for prefill and decode of a model, from emulated runs.

    The answer is kept, and `meshrt run MODEL --tuned` uses it. Share the runs out with mpirun.
    """
    sys.exit(failure.run_guarded(lambda comm, board: _tune(comm, model, **options)))


def _tune(
    comm: Intracomm, model: str, *, prompt_tokens: int, new_tokens: int, device: str, core_memory: int | None,
    route_entries: int | None, kv: str, dtype: str | None, layers_run: int | None, again: bool,
    json_path: str | None, quiet: bool, **limits: tuple[int, ...] | None,
) -> int:  # fmt: skip
    """One rank's part of a tuning."""
    from meshrt import report
    from meshrt.console import make_console
    from meshrt.studies import tuned
    from meshrt.studies.tune import Space
    from meshrt.studies.tune_print import print_answer

    if json_path and json_path != "-":
        report.check_target("--json", json_path)
    console = make_console(comm.rank, comm.size, quiet or json_path == "-")
    machine = find_device(device, core_memory=core_memory, route_entries=route_entries)
    question = tuned.make_question(model, machine, prompt_tokens, new_tokens, kv, dtype, layers_run)
    told = tuned.answer(comm, console, question, Space(**limits), again)
    if comm.rank == 0:
        report.deliver_json(told, json_path)
        if console.loud:
            print_answer(told)
    tuned.check_found(told)
    return 0


@cli.command()
@click.argument("paper", type=click.Choice(["waferllm"]))
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--device", type=click.Choice([*PRESETS]), default="wse2", show_default=True, help="The machine.")
@click.option("--call-cycles", type=click.IntRange(0), help="Cost of a vector instruction.  [default: device's]")
@click.option(
    "--system",
    "systems",
    multiple=True,
    type=click.Choice(["waferllm", "t10", "ladder"]),
    help="Only this one's cells; may be given again.",
)
@click.option("--model", "models", multiple=True, metavar="NAME", help="Only this one's cells; may be given again.")
@click.option("--cache", metavar="FILE", help="Keep the runs here, and take those that are here already.")
@click.option("--csv", "csv_folder", metavar="FOLDER", help="Write tables.csv, gemm.csv and gemv.csv.")
@click.option("--png", "png_folder", metavar="FOLDER", help="Draw gemm.png and gemv.png; needs matplotlib.")
@click.option("--json", "json_path", metavar="PATH|-", help="Write it as JSON, - for standard output.")
@click.option("--quiet", "-q", is_flag=True, help="Print nothing but errors (and the JSON).")
def reproduce(paper: str, tables: tuple[str, ...], **options: Any) -> None:
    """Run what a paper's tables and figures describe, and print published, emulated and their ratio.

    TABLE is 2 to 8, or gemm or gemv for the curves over core counts of Figures 9 and 10; without any, all of them. That
    takes long: share it out with mpirun, and keep what is done with --cache.
    """
    sys.exit(failure.run_guarded(lambda comm, board: _reproduce(comm, tables, **options)))


def _reproduce(
    comm: Intracomm, tables: tuple[str, ...], *, device: str, call_cycles: int | None, systems: tuple[str, ...],
    models: tuple[str, ...], cache: str | None, csv_folder: str | None, png_folder: str | None,
    json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a reproduction."""
    from meshrt import report
    from meshrt.console import make_console
    from meshrt.errors import UsageError
    from meshrt.studies import reproduce_files as files
    from meshrt.studies.published import MODELS
    from meshrt.studies.reproduce import NAMES, reproduce, write_files
    from meshrt.studies.reproduce_print import print_reproduction
    from meshrt.studies.reproduce_store import open_store

    for what, given, there in (("table or figure", tables, NAMES), ("model", models, MODELS)):
        if wrong := [name for name in given if name not in there]:
            raise UsageError(f"no {what} {wrong[0]!r}; there are {', '.join(there)}")
    if png_folder:
        files.check_matplotlib()
    for option, folder in (("--csv", csv_folder), ("--png", png_folder)):
        if folder:
            files.check_folder(option, folder)
    for option, path in (("--json", json_path), ("--cache", cache)):
        if path and path != "-":
            report.check_target(option, path)
    console = make_console(comm.rank, comm.size, quiet or json_path == "-")
    machine = find_device(device, call_cycles=call_cycles)
    names = tuple(dict.fromkeys(tables)) or NAMES
    told = reproduce(comm, console, names, machine, open_store(cache), systems=systems, models=models)
    if comm.rank == 0:
        written = write_files(told, csv_folder, png_folder)
        report.deliver_json(told, json_path)
        if console.loud:
            print_reproduction(told)
            for path in written:
                click.echo(f"written: {path}")
    return 0


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
