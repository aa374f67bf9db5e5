"""`meshrt reproduce PAPER`: a paper's tables and figures, published and emulated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.mesh.devicefile import find_device
from meshrt.neuron.device import NEURON_PRESETS, find_neuron_device
from meshrt.ranks.failing import failure

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

    from meshrt.ranks.console import Console
    from meshrt.studies.grid import Grid

FOR_PEOPLE = ("table", "md")  # forms that are read as they come; the others are of all tables

cache = click.option(
    "--cache",
    metavar="FILE|none",
    help="Keep the runs here, as they come, and take those that are here; none: keep nothing."
    "  [default: in $XDG_CACHE_HOME/meshrt, or else ~/.cache/meshrt]",
)


@click.group("reproduce", cls=shared.CommandGroup, subcommand_metavar="PAPER [TABLE]... [OPTIONS]")
def command() -> None:
    """Run what a paper's tables and figures describe, and print published, emulated and their ratio."""


@command.command("waferllm")
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@shared.device
@click.option("--call-cycles", type=shared.WholeRange(0), help="Cost of a vector instruction.  [default: device's]")
@click.option(
    "--system",
    "systems",
    multiple=True,
    type=shared.Name(["waferllm", "as-published", "t10", "t10-inferred", "ladder", "ladder-inferred"]),
    help="Of whole models only this one's cells: of Tables 2 to 4, of waferllm and as-published of 7 and 8, too. May be"
    " given again. Baselines as inferred from the tables are run only if they are named here.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="NAME",
    help="The same for models, and Tables 2 to 4, 7 and 8 alone; may be given again.",
)
@cache
@click.option("--csv", "csv_folder", metavar="FOLDER", help="Write tables.csv, gemm.csv and gemv.csv.")
@click.option("--png", "png_folder", metavar="FOLDER", help="Draw gemm.png and gemv.png; needs matplotlib.")
@shared.together(shared.form(), shared.json_to("it"), shared.quiet)
def waferllm(tables: tuple[str, ...], **options: Any) -> None:
    """WaferLLM (OSDI 2025) on a wafer of small cores: Tables 2 to 8, Figures 9 and 10.

    TABLE is 2 to 8, or gemm or gemv for the curves over core counts of Figures 9 and 10; without any, all of them. That
    takes long: share it out with mpirun. Each table is printed as soon as it is done, and what was run is kept.
    """
    sys.exit(failure.run_guarded(lambda comm, board: reproduce_waferllm(comm, tables, **options)))


def reproduce_waferllm(
    comm: Intracomm, tables: tuple[str, ...], *, device: str, call_cycles: int | None, systems: tuple[str, ...],
    models: tuple[str, ...], cache: str | None, csv_folder: str | None, png_folder: str | None,
    form: str, json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a reproduction."""
    from meshrt.errors import UsageError
    from meshrt.studies import files
    from meshrt.studies.store import open_store
    from meshrt.studies.waferllm import reproduce as study
    from meshrt.studies.waferllm.curves import CURVES
    from meshrt.studies.waferllm.printed import print_part, said, summary
    from meshrt.studies.waferllm.published import MODELS

    _chosen("model", models, MODELS)
    names = study.of_systems(_chosen("table or figure", tables, study.NAMES), bool(tables), systems, models)
    if png_folder and not any(name in CURVES for name in names):
        raise UsageError(f"--png draws {' and '.join(CURVES)}, of which {' '.join(names)} has none: leave --png out")
    files.check_outputs(csv_folder, png_folder)
    console = shared.start(comm, json_path, quiet, form=form)
    machine = find_device(device, call_cycles=call_cycles)
    document = study.reproduce(
        comm, console, names, machine, open_store(cache, "waferllm"), systems=systems, models=models,
        show=as_they_come(console, form, print_part),
    )  # fmt: skip
    if comm.rank == 0:
        written = study.write_files(document, csv_folder, png_folder)
        _deliver(document, written, (summary if form in FOR_PEOPLE else said)(document), form, json_path, quiet)
    return 0


@command.command("neuronmm")
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--device", type=shared.Name([*NEURON_PRESETS]), default="trn1", show_default=True, help="The machine.")
@click.option(
    "--kernels", metavar="DIR", help="A checkout of the paper's own kernels: run beside ours in Tables 1, 3, 4 and 7."
)
@click.option(
    "--reorder", is_flag=True, help="Let engines take those kernels' instructions in the order that suits them."
)
@cache
@click.option("--csv", "csv_folder", metavar="FOLDER", help="Write tables.csv, shares.csv and figure6.csv.")
@click.option("--png", "png_folder", metavar="FOLDER", help="Draw figure6.png; needs matplotlib.")
@shared.together(shared.form(), shared.json_to("it"), shared.quiet)
def neuronmm(tables: tuple[str, ...], **options: Any) -> None:
    """NeuronMM (2025) on NeuronCores: Tables 1, 3, 4, 5, 6, 7 and Figure 6, by shape.

    TABLE is 1, 3 to 7 or figure6; without any, all of them, which takes a few minutes: share it out with mpirun. Or
    tp32, which is not of the paper: AWS's own latencies on 32 cores. Each table is printed as soon as it is done.

    Published kernels are run as they are by meshrt.nki, after a comparison with NumPy: some seconds each for Tables 1
    and 7, a minute or two for each of Table 4; kept as the others are. Nothing is fetched.
    """
    sys.exit(failure.run_guarded(lambda comm, board: reproduce_neuronmm(comm, tables, **options)))


def reproduce_neuronmm(
    comm: Intracomm, tables: tuple[str, ...], *, device: str, kernels: str | None, reorder: bool, cache: str | None,
    csv_folder: str | None, png_folder: str | None, form: str, json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a reproduction."""
    from pathlib import Path

    from meshrt.errors import UsageError
    from meshrt.studies.files import check_outputs
    from meshrt.studies.neuronmm import reproduce as study
    from meshrt.studies.neuronmm.printed import print_part, said, summary

    if reorder and kernels is None:
        raise UsageError(
            "--reorder is of the paper's own kernels: name a checkout of them by --kernels, or leave it out"
        )
    names = _chosen("table or figure", tables, study.NAMES) if tables else study.OF_THE_PAPER
    check_outputs(csv_folder, png_folder)
    console = shared.start(comm, json_path, quiet, form=form)
    machine, folder = find_neuron_device(device), None if kernels is None else Path(kernels)
    show = as_they_come(console, form, print_part)
    document = study.reproduce(comm, console, names, machine, study.open_runs(cache), folder, show, reorder)
    if comm.rank == 0:
        written = study.write_files(document, csv_folder, png_folder)
        _deliver(document, written, (summary if form in FOR_PEOPLE else said)(document), form, json_path, quiet)
    return 0


@command.command("arm")
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@cache
@click.option("--csv", "csv_folder", metavar="FOLDER", help="Write tables.csv.")
@shared.together(shared.form(), shared.json_to("it"), shared.quiet)
def arm(tables: tuple[str, ...], **options: Any) -> None:
    """W4A8 on Arm (MNN, 2024) on n2x8: its counts, its peak, its tiles and the gains of section V.C, by shape.

    TABLE is linear, attention, other, peak, tiles or vc; without any, all of them, which takes a minute: share it out
    with mpirun. Each table is printed as soon as it is done, and what was run is kept. What the paper has wrong is
    named, and mended one after the other.
    """
    sys.exit(failure.run_guarded(lambda comm, board: reproduce_arm(comm, tables, **options)))


def reproduce_arm(
    comm: Intracomm, tables: tuple[str, ...], *, cache: str | None, csv_folder: str | None, form: str,
    json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a reproduction."""
    from meshrt.studies.arm import reproduce as study
    from meshrt.studies.files import check_outputs

    names = _chosen("table", tables, study.NAMES)
    check_outputs(csv_folder, None)
    console = shared.start(comm, json_path, quiet, form=form)
    show = as_they_come(console, form, study.print_part)
    document = study.reproduce(comm, console, names, study.open_runs(cache), show)
    if comm.rank == 0:
        parts = study.summary(document) if form in FOR_PEOPLE else study.said(document)
        _deliver(document, study.write_files(document, csv_folder), parts, form, json_path, quiet)
    return 0


@command.command("deinfer")
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@cache
@click.option("--csv", "csv_folder", metavar="FOLDER", help="Write tables.csv, points.csv and claims.csv.")
@shared.together(shared.form(), shared.json_to("it"), shared.quiet)
def deinfer(tables: tuple[str, ...], **options: Any) -> None:
    """DeInfer (DAC 2026) on tensor-parallel GPUs: Tables 1 and 3 to 6, Figures 1 and 5 to 7, by shape.

    TABLE is 1, 3, 4, 5, 6, figure5, figure6 or figure7 (which has Figure 1); without any, all of them, which takes ten
    minutes: share it out with mpirun. Each table is printed as soon as it is done, and what was run is kept.
    """
    sys.exit(failure.run_guarded(lambda comm, board: reproduce_deinfer(comm, tables, **options)))


def reproduce_deinfer(
    comm: Intracomm, tables: tuple[str, ...], *, cache: str | None, csv_folder: str | None, form: str,
    json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a reproduction."""
    from meshrt.studies.deinfer import reproduce as study
    from meshrt.studies.files import check_outputs
    from meshrt.studies.store import open_store

    names = _chosen("table or figure", tables, study.NAMES)
    check_outputs(csv_folder, None)
    console = shared.start(comm, json_path, quiet, form=form)
    show = as_they_come(console, form, study.print_part)
    document = study.reproduce(comm, console, names, open_store(cache, "deinfer"), show)
    if comm.rank == 0:
        parts = study.summary(document) if form in FOR_PEOPLE else study.said(document)
        _deliver(document, study.write_files(document, csv_folder), parts, form, json_path, quiet)
    return 0


@command.command("milo")
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--held-out-stories",
    type=shared.WholeRange(1, 200),
    default=200,
    show_default=True,
    help="Text to measure the packaged mixtures on.",
)
@cache
@click.option("--csv", "csv_folder", metavar="FOLDER", help="Write tables.csv, claims.csv, and packaged_TABLE.csv.")
@shared.together(shared.form(), shared.json_to("it"), shared.quiet)
def milo(tables: tuple[str, ...], **options: Any) -> None:
    """MiLo (MLSys 2025): Tables 1 to 9, Figures 5, 7, 8, 9 and 11.

    TABLE is 1 to 9, figure5, figure7, figure8, figure9 or figure11. Sizes are exact, by shape; times are an A100's
    roofline; perplexities need the published weights and stand beside those of mixtral-tiny and deepseek-tiny. Without
    any, all of them, which takes some minutes: share it out with mpirun. Each table is printed as soon as it is done,
    and what was measured is kept.
    """
    sys.exit(failure.run_guarded(lambda comm, board: reproduce_milo(comm, tables, **options)))


def reproduce_milo(
    comm: Intracomm, tables: tuple[str, ...], *, held_out_stories: int, cache: str | None, csv_folder: str | None,
    form: str, json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a reproduction."""
    from meshrt.studies.files import check_outputs
    from meshrt.studies.milo import reproduce as study
    from meshrt.studies.milo.kept import open_kept
    from meshrt.studies.milo.printed import claims, print_part, said

    names = _chosen("table or figure", tables, study.NAMES)
    check_outputs(csv_folder, None)
    console = shared.start(comm, json_path, quiet, form=form)
    kept = open_kept(cache, held_out_stories)
    document = study.reproduce(comm, console, names, kept, as_they_come(console, form, print_part))
    if comm.rank == 0:
        parts = claims(document) if form in FOR_PEOPLE else said(document, names)
        _deliver(document, study.write_files(document, csv_folder), parts, form, json_path, quiet)
    return 0


# ------------------------------------------------------------------------------------------------- what all of them do


def _chosen(kind: str, chosen: tuple[str, ...], there_are: tuple[str, ...]) -> tuple[str, ...]:
    """Each name that was given, once; all that there are without any. UsageError for one that is not there."""
    from meshrt.errors import UsageError, nearest

    if wrong := [name for name in chosen if name not in there_are]:
        all_of_them = f"there are {', '.join(there_are)}"  # no number is near another
        way_out = all_of_them if wrong[0].isdigit() else nearest(wrong[0], there_are, all_of_them)
        raise UsageError(f"no {kind} {wrong[0]!r}; {way_out}")
    return tuple(dict.fromkeys(chosen)) or there_are


def as_they_come(console: Console, form: str, print_part: Callable[..., None]) -> Callable[..., None] | None:
    """What prints each table as soon as it is done; None where a program reads all of them at the end, or nobody."""
    return partial(print_part, form=form) if console.loud and form in FOR_PEOPLE else None


def _deliver(
    document: dict[str, Any], written: Iterable[object], parts: Iterable[str | Grid], form: str, json_path: str | None,
    quiet: bool,
) -> None:  # fmt: skip
    """The report, as JSON and in a form for people or programs, and the names of the files that were written."""
    from meshrt.reports.report import deliver_json
    from meshrt.studies.grid import put

    deliver_json(document, json_path)
    if not quiet and json_path != "-":
        put((*parts, *(f"written: {path}" for path in written)), form)
