"""`meshrt show RUN`: a picture of what each core and link of a run did."""

from __future__ import annotations

import click

from meshrt.commands import shared

WHAT = (
    "links", "packets", "memory", "entries", "idle", "busy", "messages", "stages", "macs", "pairs", "carried",
    "flops", "traffic", "launches", "collective", "read", "written", "sbuf", "psum", "saved", "reloaded",
    "instructions", "operations", "l1", "l2", "slc",
)  # fmt: skip


@click.command("show")
@click.argument("run", metavar="MAPS.npz|REPORT.json")
@click.option(
    "--what",
    type=shared.Name(WHAT),
    help="What a core's cell shows; of pairs, that of two.  [default: links, where there are any]",
)
@click.option("--phase", default="total", show_default=True, metavar="NAME", help="Of this phase alone.")
@click.option("--site", metavar="NAME", help="Of a run on several meshes of a wafer.  [default: the first]")
@click.option("--png", metavar="FILE", help="Draw it to a .png, .svg or .pdf as well; needs matplotlib.")
def command(run: str, what: str | None, phase: str, site: str | None, png: str | None) -> None:
    """A picture of a run that --maps was given to: a cell a core or a device, in the terminal and as a file.

    Of pairs, who sent how much to whom, a row is a sender and a column a receiver; carried are those of exchanges.

    Of a report, the maps beside it are shown, which have its name and end with .npz.

    \b
    Examples:
      meshrt run gemm --mesh 16x16 --maps run.npz --json run.json
      meshrt show run.json
      meshrt show run.npz --what idle --png idle.svg
    """
    shared.refuse_ranks("one process draws a picture")
    from os.path import isfile

    from meshrt.reports.report import read_report
    from meshrt.studies.pictures import heat, maps

    if png is not None:
        heat.check_file("--png", png)
    kept = maps.read_maps(run)
    if not run.endswith(".npz") and isfile(run):
        maps.maps_of(read_report(run).data, run)
    picture = maps.picture(kept, what or maps.there(kept)[0], phase, site)
    heat.print_heat(picture)
    if png is not None:
        heat.draw_heat("--png", png, picture)
