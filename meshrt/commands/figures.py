"""What `meshrt bench` measures in one process, or beside a run: times, of the emulator and of its clock."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from meshrt.arm.device import ARM_PRESETS
from meshrt.commands import shared
from meshrt.ranks.failing import failure

if TYPE_CHECKING:
    from collections.abc import Callable


@click.command("plan")
@click.option("--model", default="llama-tiny", show_default=True, help="A packaged model's name, or a folder.")
@click.option("--tp", type=shared.WholeRange(1), default=4, show_default=True, help="How many GPUs.")
@click.option("--batch", type=shared.WholeRange(1), default=8, show_default=True, help="Sequences in a step.")
@shared.together(shared.form(), shared.json_to("the figures"))
def plan(model: str, tp: int, batch: int, form: str, json_path: str | None) -> None:
    """The host's time for a decoding step on GPUs, planned as it goes and replayed from a recorded plan."""
    from meshrt.studies.bench import plan_time as study

    def measure() -> tuple[Any, Callable[[], None]]:
        savings = study.measure(model, tp, batch)
        document = {"model": model, "tp": tp, "batch": batch, "ways": [saving.json() for saving in savings]}
        return document, lambda: study.print_savings(savings, form)

    _alone(measure, json_path)


@click.command("host")
@shared.form("md")
def host(form: str) -> None:
    """The emulator's own speed on this machine, beside its goals (docs/speed.md); takes about two minutes."""
    from meshrt.launch import bench

    try:
        shared.refuse_ranks("this measures in one process, which starts ranks itself where it measures some")
        from meshrt.studies.grid import Cell, Grid, put

        rows = [
            [work, Cell(*measured), goal and Cell(*goal), baseline, Cell(ratio, f"{ratio:.2f}")]
            for work, measured, goal, baseline, ratio in bench.rows(bench.measure())
        ]
        put([Grid(["work", "measured", "goal", "baseline", "ratio to it"], rows), bench.GOALS], form)
    except Exception as error:
        sys.exit(failure.report_alone(error))


@click.command("workloads")
@click.option(
    "--only", multiple=True, metavar="NAME", help="W1, 'W1 with products', W2, W3 or W5 alone; may be given again."
)
@click.option(
    "--cores", type=shared.WholeNumber(), multiple=True, help="Instead of 64, 256, 1024 and 4096; may be given again."
)
@click.option("--ranks", type=shared.WholeRange(1), multiple=True, help="Instead of 1 and 2; may be given again.")
@shared.together(shared.form(), shared.json_to("the figures"))
def workloads(
    only: tuple[str, ...], cores: tuple[int, ...], ranks: tuple[int, ...], form: str, json_path: str | None
) -> None:
    """Messages and hops a second, by the clock and of processor time, beside other tools' figures for the same work;
    takes about three minutes.
    """
    from meshrt.launch.bench import timed
    from meshrt.studies.bench import workloads as study

    def measure() -> tuple[Any, Callable[[], None]]:
        figures = study.measure(timed, only, cores or study.CORES, ranks or study.RANKS)
        return study.as_json(figures), lambda: study.print_figures(figures, form)

    _alone(measure, json_path)


@click.command("clock")
@click.option(
    "--cores",
    type=shared.WholeRange(2),
    multiple=True,
    help="Lengths of lines, instead of 8 to 512; may be given again.",
)
@click.option(
    "--words",
    type=shared.WholeRange(1),
    multiple=True,
    help="Sizes of tiles, instead of 1 to 4096; may be given again.",
)
@shared.together(shared.form(), shared.json_to("the figures"))
def clock(cores: tuple[int, ...], words: tuple[int, ...], form: str, json_path: str | None) -> None:
    """The virtual clock beside a published model of reductions and broadcasts on a WSE-2."""
    from meshrt.ranks.console import make_console
    from meshrt.studies.bench import reduce_model as study

    def measure() -> tuple[Any, Callable[[], None]]:
        points = study.measure(cores or study.LENGTHS, words or study.WORDS, make_console(0, 1, False))
        return study.as_json(points), lambda: study.print_points(points, form)

    _alone(measure, json_path)


@click.command("scaling")
@click.option(
    "--side", type=shared.WholeRange(1), multiple=True, help="Meshes, instead of 8 to 720; may be given again."
)
@click.option(
    "--ranks", type=shared.WholeRange(1), multiple=True, help="Ranks, instead of 1, 2, 4 and 8; may be given again."
)
@click.option("--edge", type=shared.WholeRange(1), default=2048, show_default=True, help="Side of the matrices.")
@shared.together(shared.form(), shared.json_to("the figures"))
def scaling(side: tuple[int, ...], ranks: tuple[int, ...], edge: int, form: str, json_path: str | None) -> None:
    """The host's time over cores, 64 to 518,400, and ranks, 1 to 8, and where it goes; takes about five minutes."""
    from meshrt.launch.bench import timed
    from meshrt.studies.bench import scaling as study

    def measure() -> tuple[Any, Callable[[], None]]:
        points = study.measure(timed, side or study.SIDES, ranks or study.RANKS, edge)
        return study.as_json(points), lambda: study.print_points(points, form)

    _alone(measure, json_path)


@click.command("model")
@click.option("--processors", type=shared.WholeRange(1, 10**6), default=64, show_default=True, help="Of a node.")
@click.option("--latency", type=shared.WholeRange(0, 10**9), default=2000, show_default=True, help="Of a message, ns.")
@click.option(
    "--bandwidth", type=shared.WholeRange(1, 10**9), default=12500, show_default=True, help="Of a node, MB/s."
)
@shared.together(shared.form(), shared.json_to("the figures"))
def model(processors: int, latency: int, bandwidth: int, form: str, json_path: str | None) -> None:
    """What the host's time is made of, tried on sizes held back, and what 10, 100 and 1,000 nodes would bring; takes
    about two minutes.
    """
    from meshrt.launch.bench import timed
    from meshrt.studies.bench import hostmodel as study

    def measure() -> tuple[Any, Callable[[], None]]:
        fitted, network = study.measure(timed), study.Network(processors, latency * 1e-9, bandwidth * 1e6)
        return study.as_json(fitted, network), lambda: study.print_model(fitted, network, form)

    _alone(measure, json_path)


@click.command("split")
@click.option("--device", type=shared.Name([*ARM_PRESETS]), default="phone", show_default=True, help="Of the products.")
@click.option("--m", type=shared.WholeRange(1), default=64, show_default=True, help="Rows of the second product.")
@click.option("--k", type=shared.WholeRange(1), default=2048, show_default=True, help="What they add up over.")
@click.option("--n", type=shared.WholeRange(1), default=5504, show_default=True, help="Columns of the products.")
@shared.together(shared.form(), shared.json_to("the figures"))
def split(device: str, m: int, k: int, n: int, form: str, json_path: str | None) -> None:
    """Ways to share work out to unequal Arm cores behind one bus: equally, by speed, by fair rates, by stealing."""
    from meshrt.studies.arm import split as study

    def measure() -> tuple[Any, Callable[[], None]]:
        lines = study.measure(device, m, k, n)
        return study.as_json(lines), lambda: study.print_lines(lines, form)

    _alone(measure, json_path)


@click.command("floor", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--ranks", type=shared.WholeRange(2), default=64, show_default=True, help="How many ranks.")
@click.option("--times", type=shared.WholeRange(1), default=1, show_default=True, help="Turns of both; medians count.")
@shared.together(shared.form(), shared.json_to("the figures"))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, required=True)
def floor(ranks: int, times: int, form: str, json_path: str | None, arguments: tuple[str, ...]) -> None:
    """A run's time over that of its messages in bare mpi4py: bench floor run llama-tiny."""
    from meshrt.launch.bench import bare, timed
    from meshrt.studies.bench import floor as study

    def measure() -> tuple[Any, Callable[[], None]]:
        figures = study.measure(timed, bare, ranks, arguments, times)
        return study.as_json(figures), lambda: study.print_floor(figures, form)

    _alone(measure, json_path)


def _alone(measure: Callable[[], tuple[Any, Callable[[], None]]], json_path: str | None) -> None:
    """Measure in this process, which is no rank itself; write what was found, and print it unless that is the JSON."""
    from meshrt.reports import report

    try:
        shared.refuse_ranks("this measures in one process, which starts ranks itself where it measures some")
        if json_path is not None and json_path != "-":
            from meshrt.ranks import files

            files.check_target("--json", json_path)
        document, show = measure()
        report.deliver_json(document, json_path)
        if json_path != "-":
            show()
    except Exception as error:
        sys.exit(failure.report_alone(error))


@click.command("profile", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@shared.form()
@click.option("--to", metavar="PATH", help="Write the seconds as JSON instead of printing them.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, required=True)
@click.pass_context
def profile(context: click.Context, form: str, to: str | None, arguments: tuple[str, ...]) -> None:
    """Where the host's time goes: bench profile run gemm --mesh 64x64. Of rank 0, if there are several.

    The kinds are those of a run on the mesh: on other machines nearly all is `other`, their products too.
    """
    from meshrt.ranks.launcher import launched_rank
    from meshrt.reports import report
    from meshrt.studies.bench import hosttime

    if to:
        from meshrt.ranks import files

        files.check_target("--to", to)
    meshrt = context.find_root().command
    code, seconds = hosttime.profiled(lambda: meshrt(list(arguments), standalone_mode=False))
    if launched_rank() == 0:
        if to:
            report.write_json(seconds, to)
        else:
            hosttime.print_shares(seconds, form)
            sys.stdout.flush()  # before MPI ends, after which a launcher may no longer listen
    sys.exit(code)


@click.command("messages", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--to", metavar="FOLDER", required=True, help="Where each rank's go, in a file named as the rank.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, required=True)
@click.pass_context
def messages(context: click.Context, to: str, arguments: tuple[str, ...]) -> None:
    """Write down what each rank posts and waits for: bench messages --to FOLDER run gemm. `bench floor` does it."""
    from meshrt.ranks import files
    from meshrt.studies.bench.messages import Recorder

    files.check_target("--to", f"{to}/0")
    recorder = Recorder()
    code: Any = 0
    try:
        context.find_root().command.main(list(arguments), standalone_mode=False, obj=recorder.through)
    except SystemExit as end:
        code = end.code
    if not code:
        recorder.write(to)
    sys.exit(code)


FIGURES = (plan, host, workloads, clock, scaling, model, split, profile, messages, floor)
