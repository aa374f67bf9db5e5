"""`meshrt html REPORT...`: reports as a page that needs nothing else."""

from __future__ import annotations

import click

from meshrt.commands import shared


@click.command("html")
@click.argument("reports", nargs=-1, required=True, metavar="REPORT.json...")
@click.option("--to", metavar="FILE.html", help="Where it is written.  [default: beside the first report]")
def command(reports: tuple[str, ...], to: str | None) -> None:
    """Write a page of one or more reports that --json wrote, with the maps that lie beside them as NAME.npz.

    It is one file that asks for nothing from the network: numbers, phases, critical path, maps, arguments, device.
    What is of a trace, the critical path step by step, is on the page of `meshrt run ... --trace FILE --html FILE`.

    \b
    Examples:
      meshrt run gemm --json run.json --maps run.npz
      meshrt html run.json
      meshrt html before.json after.json --to both.html
    """
    shared.refuse_ranks("one process writes a page")
    from pathlib import Path

    from meshrt.ranks.files import check_apart, check_target, write_file
    from meshrt.reports.report import read_report
    from meshrt.studies.pictures import maps, page

    path = to or str(Path(reports[0]).with_suffix(".html"))
    check_target("--to", path)
    runs = []
    for name in reports:
        check_apart({"the report": name, "the maps": str(Path(name).with_suffix(".npz")), "--to": path})
        report = read_report(name).data
        runs.append(page.PageRun(report, maps.maps_of(report, name), name=name))
    text = page.write_page(runs)
    write_file("--to", path, lambda stream: stream.write(text.encode()))
    click.echo(path)
