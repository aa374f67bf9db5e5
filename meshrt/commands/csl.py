"""`meshrt csl run`, `check` and `plmr`: programs in CSL, as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from meshrt.commands import shared

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


@click.group("csl", cls=shared.CommandGroup)
def command() -> None:
    """Programs in CSL, as they are: a subset, not made or endorsed by Cerebras (docs/csl.md)."""


@command.command("run", context_settings={"ignore_unknown_options": True})
@click.argument("path", metavar="DIR|LAYOUT.csl")
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@click.option("--params", default="", metavar="NAME:N,...", help="Of the layout.")
@click.option("--arch", metavar="wse2|wse3", help="Of the layout: what @is_arch says.  [default: wse3]")
@click.option("--launch", multiple=True, metavar="NAME[:N,...]", help="Call an exported function; may be given again.")
@click.option("--show", multiple=True, metavar="NAME", help="Print an exported array; may be given again.")
@click.option("--seed", type=int, metavar="N", help="Take ready tasks in any order, by this seed.")
@click.option(
    "--seeds", type=click.IntRange(min=1), metavar="N",
    help="Run N times more, with seeds 1 to N, and say whether the order of ready tasks changes the result.",
)  # fmt: skip
@shared.together(shared.json_to("the report"), shared.quiet)
def run_command(
    path: str, words: tuple[str, ...], params: str, arch: str | None, launch: tuple[str, ...], show: tuple[str, ...],
    seed: int | None, seeds: int | None, json_path: str | None, quiet: bool,
) -> None:  # fmt: skip
    """Run a folder's own script, with `cslc` and `cs_python` that it alone sees; or a layout by itself.

    \b
    Examples:
      meshrt csl run MeshGEMV/WSE-3 -- bash run_sim.sh 8 16 16 2
      meshrt csl run examples/csl/shift/layout.csl --params n:5,width:3 --launch main --show total
      mpirun -n 4 meshrt csl run LAYOUT.csl --launch main     a block of the cores each
    """
    from pathlib import Path

    from meshrt.errors import UsageError
    from meshrt.ranks.files import check_target
    from meshrt.ranks.launcher import launched_size

    where = Path(path)
    if seeds:
        shared.refuse_ranks("--seeds are runs one after the other")
        if seed is not None:
            raise UsageError(f"--seed {seed} is one order of ready tasks, --seeds are several: one of the two")
    if where.is_file() and where.suffix == ".csl" and not words and launched_size() > 1:
        import sys

        from meshrt.ranks.failing import failure

        def run(comm: Intracomm, board: object) -> int:
            if comm.rank == 0 and json_path not in (None, "-"):
                check_target("--json", json_path)
            _run_layout(where, params, arch or "wse3", launch, show, seed, json_path, quiet, comm)
            return 0

        sys.exit(failure.run_guarded(run))
    if not where.exists():
        raise UsageError(f"{path} is not there: a folder with a script, or a layout (.csl), is asked for")
    shared.refuse_ranks("a folder's script is one process, and ranks are for a LAYOUT.csl")
    if json_path not in (None, "-"):
        check_target("--json", json_path)
    if where.suffix == ".csl":
        if words:
            raise UsageError(f"{path} is a layout and runs by itself: a command is for a folder")
        _run_layout(where, params, arch or "wse3", launch, show, seed, json_path, quiet, seeds=seeds or 0)
        return
    if not where.is_dir():
        raise UsageError(f"{path} is neither a folder nor a layout (.csl)")
    if params or arch or launch or show:
        raise UsageError(
            "--params, --arch, --launch and --show are for a layout (.csl): a folder's script says this itself"
        )
    if not words:
        raise UsageError(f"{path} is a folder: say how it runs, such as: meshrt csl run {path} -- bash commands.sh")
    _run_folder(where, words, seed, json_path, seeds or 0, quiet)


def _run_layout(
    layout: object, params: str, arch: str, launch: tuple[str, ...], show: tuple[str, ...], seed: int | None,
    json_path: str | None, quiet: bool, comm: Intracomm | None = None, seeds: int = 0,
) -> None:  # fmt: skip
    from pathlib import Path

    from meshrt.csl.host.direct import run
    from meshrt.csl.host.orders import says
    from meshrt.reports.report import deliver_json

    assert isinstance(layout, Path)
    report, shown = run(layout, params, arch, launch, show, seed, comm, seeds)
    if comm is not None and comm.rank:
        return
    deliver_json(report | {"shown": shown}, json_path)
    if quiet or json_path == "-":
        return
    for name, cores in shown.items():
        for core, numbers in cores.items():
            click.echo(f"{name} ({core}): {' '.join(f'{number:g}' for number in numbers)}")
    width, height = report["mesh"]
    met = "" if report["bank_conflicts"] is None else f" with {report['bank_conflicts']} bank conflicts"
    click.echo(
        f"{width} x {height} cores, {report['cycles']['max']:,.0f} cycles (modelled, docs/csl.md),"
        f" {report['tasks']} tasks, {report['operations']} vector operations{met}, {report['wavelets']} wavelets,"
        f" {report['hops']} hops, {report['memory_bytes']['max']:,} of {report['memory_bytes']['limit']:,} bytes a core"
    )
    if seeds:
        click.echo(says(report["orders"]))


def _run_folder(
    folder: object, words: tuple[str, ...], seed: int | None, json_path: str | None, seeds: int, quiet: bool
) -> None:
    import json
    import sys
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from meshrt.csl.host import child
    from meshrt.csl.host.orders import OrderOutcome, compare, outcome, says
    from meshrt.errors import MeshrtError
    from meshrt.reports.report import deliver_json

    assert isinstance(folder, Path)
    with TemporaryDirectory(prefix="meshrt-csl-") as made:

        def run(seed: int | None, again: bool = False) -> tuple[int, str, list[dict[str, Any]]]:
            path = Path(made) / f"report-{seed}-{again}"
            ran = child.run(words, folder, report=path, seed=seed, exported=bool(seeds), capture=again)
            lines = path.read_text().splitlines() if path.exists() else []
            return ran.returncode, ran.stderr or "", [json.loads(line) for line in lines]

        def other(seed: int | None) -> OrderOutcome:
            code, stderr, runs = run(seed, again=True)
            if code:
                last = stderr.strip().splitlines()[-1:] or ["nothing is said"]
                raise MeshrtError(f"exit code {code}: {last[0]}")
            return outcome(runs)

        code, _, runs = run(seed)
        document: dict[str, Any] = {"runs": runs}
        if seeds and not code:
            document["orders"] = compare(outcome(runs), seeds, other, repeats=True)
        for report in runs:
            report.pop("exported", None)
    deliver_json(document, json_path)
    if code:
        sys.exit(code)
    if seeds and not quiet and json_path != "-":
        click.echo(says(document["orders"]))


@command.command("check")
@click.argument("path", metavar="DIR")
@click.option("--only", multiple=True, metavar="TEXT", help="Programs with this in their name; may be given again.")
@click.option("--arguments", default="", metavar="TEXT", help="For scripts that take any, such as run_sim.sh.")
@click.option(
    "--timeout", type=shared.NumberRange(0, 1e6, min_open=True), default=120.0, show_default=True, metavar="SECONDS",
    help="For each program.",
)  # fmt: skip
@shared.together(shared.form(), shared.json_to("it"), shared.quiet)
def check_command(
    path: str, only: tuple[str, ...], arguments: str, timeout: float, form: str, json_path: str | None, quiet: bool
) -> None:
    """Each program of a checkout: does it parse, build, run, and print its own SUCCESS?

    \b
    Example:
      meshrt csl check ~/csl-examples --only tutorials
    """
    shared.refuse_ranks("each program is one process")
    from dataclasses import asdict
    from pathlib import Path

    from meshrt.csl.check import check, programs
    from meshrt.errors import UsageError
    from meshrt.ranks.files import check_target
    from meshrt.reports.report import deliver_json
    from meshrt.studies.grid import print_grid

    if json_path not in (None, "-"):
        check_target("--json", json_path)
    root = Path(path).resolve()
    chosen = [
        program
        for program in programs(root)
        if not only or any(text in str(program[0].relative_to(root)) for text in only)
    ]
    if not chosen:
        raise UsageError(f"no program of {path} has {' or '.join(only)} in its name")
    checked = [check(root, folder, script, tuple(arguments.split()), timeout) for folder, script in chosen]
    deliver_json({"programs": [asdict(result) for result in checked]}, json_path)
    if not quiet and json_path != "-":
        rows = [
            [result.name, result.parses, result.builds, result.runs, result.right, result.why[:110]]
            for result in checked
        ]
        print_grid(["program", "parses", "builds", "runs", "right", "why"], rows, form)
        right = sum(result.right == "yes" for result in checked)
        if form == "table":
            click.echo(f"{right} of {len(checked)} print SUCCESS")


@command.command("plmr")
@click.argument("path", metavar="LAYOUT.csl")
@click.option("--params", default="", metavar="NAME:N,...", help="Of the layout; {N} is what grows, {8*N} arithmetic.")
@click.option("--launch", multiple=True, metavar="NAME[:N,...]", help="Call an exported function; may be given again.")
@click.option("--arch", default="wse3", show_default=True, metavar="wse2|wse3", help="What @is_arch says.")
@click.option("--sizes", default="4,8,12,16", show_default=True, help="The numbers N.")
@click.option("--steps", default="1", show_default=True, help="What the critical path is divided by: a number, N, N-1.")
@click.option(
    "--reach", type=shared.Name(["next", "line"]), default="next", show_default=True,
    help="A step bridges one core, or a line: then N - 1 hops are no offence.",
)  # fmt: skip
@click.option("--expect", multiple=True, metavar="BOUNDS", help="entries=12,hops=2,stages~N^0.5: what has to hold.")
@shared.together(shared.form(), shared.json_to("it"), shared.quiet)
def plmr_command(
    path: str, params: str, launch: tuple[str, ...], arch: str, sizes: str, steps: str,
    reach: Literal["next", "line"], expect: tuple[str, ...], form: str, json_path: str | None, quiet: bool,
) -> None:  # fmt: skip
    """Parallelism, latency, memory and routing of a layout at several sizes, as `meshrt plmr` has them.

    \b
    Examples:
      meshrt csl plmr examples/csl/gemv/layout.csl --params m:5,k:3,height:{N} --launch compute --reach line
      mpirun -n 4 meshrt csl plmr LAYOUT.csl ...     the ranks share the sizes
    """
    import sys

    from meshrt.ranks.failing import failure

    def judge(comm: Intracomm, board: object) -> int:
        from meshrt.reports.report import deliver_json
        from meshrt.studies.bounds import keep
        from meshrt.studies.plmr import layouts, table
        from meshrt.studies.plmr.check import expected, parse_sizes
        from meshrt.studies.plmr.expect import parse as bounds

        console = shared.start(comm, json_path, quiet, form=form)
        subject = layouts.layout(path, params, launch, arch, steps, reach)
        expectations = bounds(expect, [*layouts.METRICS])
        findings = [layouts.check_layout(comm, subject, parse_sizes(sizes), console)]
        lines = expected(findings, expectations)
        if comm.rank == 0:
            machine = layouts.limits(arch)
            deliver_json(table.as_json(findings, machine, None, lines), json_path)
            if not quiet and json_path != "-":
                table.print_tables(findings, machine, None, form)
        keep(lines)
        return 0

    sys.exit(failure.run_guarded(judge))
