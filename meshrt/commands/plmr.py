"""`meshrt plmr`: does an algorithm keep to the machine?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

import click

from meshrt.commands import shared
from meshrt.mesh.devicefile import find_device
from meshrt.ranks.failing import failure

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm


@click.command("plmr")
@click.argument("programs", nargs=-1, metavar="[PROGRAM[:OPTION=VALUE,...]]...")
@click.option("--sizes", default="8,12,16,24,32,48,64", show_default=True, help="N of the N x N meshes.")
@click.option("--tile", default=8, show_default=True, help="Side of a core's tiles in gemm and gemv, at every N.")
@click.option("--set", "extra", multiple=True, metavar="OPTION=VALUE", help="For all programs; {8*N} is arithmetic.")
@click.option("--steps", help="What the critical path is divided by: a number, N, N-1.  [default: gemm N, others 1]")
@click.option(
    "--reach",
    type=shared.Name(["next", "line"]),
    help="A step bridges one core, or a line: then N - 1 hops are no offence.  [default: gemv line]",
)
@click.option(
    "--expect",
    multiple=True,
    metavar="BOUNDS",
    help="entries=12,hops=2,memory~1,stages~N^0.5: what has to hold at every N, or code 3.",
)
@shared.together(shared.machine, shared.form(), shared.json_to("it"), shared.quiet)
def command(programs: tuple[str, ...], **options: Any) -> None:
    """Measure parallelism, latency, memory and routing of programs on growing meshes, and judge how they grow.

    A PROGRAM is a packaged one, a model, your own FILE.py, or a short name: allgather, summa, cannon, meshgemm (gemm),
    pipeline, ring, ktree (gemv). Without any, all of these: Figures 6 and 8 of WaferLLM.

    All runs are by shape, as with --payload none: tiles are [1, 1, *tile] then, of which `block.lead` has the first two
    numbers. A file of your own has to run so.
    """  # fmt: skip
    sys.exit(failure.run_guarded(lambda comm, board: check(comm, programs, **options)))


def check(
    comm: Intracomm, programs: tuple[str, ...], *, sizes: str, tile: int, extra: tuple[str, ...], steps: str | None,
    reach: Literal["next", "line"] | None, expect: tuple[str, ...], device: str, core_memory: int | None,
    route_entries: int | None, form: str, json_path: str | None, quiet: bool,
) -> int:  # fmt: skip
    """One rank's part of a compliance check."""
    from meshrt.reports import report
    from meshrt.studies.bounds import keep
    from meshrt.studies.plmr import check, table
    from meshrt.studies.plmr.expect import parse as bounds
    from meshrt.studies.plmr.subject import parse

    console = shared.start(comm, json_path, quiet, form=form)
    machine = find_device(device, core_memory=core_memory, route_entries=route_entries)
    expectations = bounds(expect, [*check.METRICS])
    subjects = [parse(text, extra, steps, reach) for text in programs or check.FIGURES]
    findings = check.check(comm, subjects, check.parse_sizes(sizes), machine, tile, console)
    lines = check.expected(findings, expectations)
    if comm.rank == 0:
        document = table.as_json(findings, machine, tile, lines)
        report.deliver_json(document, json_path)
        if not quiet and json_path != "-":
            table.print_tables(findings, machine, tile, form)
    keep(lines)
    return 0
