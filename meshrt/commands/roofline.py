"""`meshrt roofline REPORT.json...`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from meshrt.commands import shared

if TYPE_CHECKING:
    from meshrt.report import Report
    from meshrt.roofline import Part


@click.command("roofline")
@click.argument("reports", nargs=-1, required=True, metavar="REPORT.json...")
@click.option("--plot", metavar="FILE.png|svg", help="Draw all runs in one picture, by matplotlib.")
@click.option("--picture", is_flag=True, help="Draw each run in characters.")
@click.option("--csv", "csv_path", metavar="FILE.csv", help="Write a row for each phase of each run.")
@shared.together(shared.json_to("it"), shared.quiet)
def command(
    reports: tuple[str, ...], plot: str | None, picture: bool, csv_path: str | None, json_path: str | None, quiet: bool
) -> None:
    """How near runs came to what their machines can do, and what they were bound by.

    A REPORT is what `meshrt run --json` has written, of any machine; - is standard input. For each phase: operations,
    bytes by what they crossed, what was attained, and the shares of the time that operations, bytes and latencies took
    at least, by the numbers of the device that are in the report. Rates are in decimal units.

    A bound that is longer than the time is an error of meshrt's own: exit code 1.

    \b
    Examples:
      meshrt run llama-tiny --json run.json && meshrt roofline run.json --picture
      meshrt roofline *.json --plot roofs.png
    """
    from meshrt.ranks.files import check_target
    from meshrt.report import deliver_json, read_report, show, table_of
    from meshrt.roofline import document, lines, parts_of, rows
    from meshrt.studies import roofline as pictures
    from meshrt.studies.files import write_csv

    shared.refuse_ranks("this reads files")
    for option, path in (("--json", json_path), ("--plot", plot), ("--csv", csv_path)):
        if path is not None and path != "-":
            check_target(option, path)
    if plot:
        pictures.check_plot(plot)
    runs: dict[str, tuple[Report, list[Part]]] = {}
    for path in reports:
        report = read_report(path)
        runs[path] = report, parts_of(report, path)
    if not quiet and json_path != "-":
        for at, (path, (report, parts)) in enumerate(runs.items()):
            between = "\n" if at else ""
            click.echo(f"{between}{path}: {report.data['program']} on {report.data['device']['name']}")
            show(table_of([part.name for part in parts], rows(report, parts)))
            if picture:
                click.echo(pictures.sketch(parts))
    made = document(runs)
    deliver_json(made, json_path)
    if csv_path:
        write_csv(csv_path, lines(made))
    if plot:
        pictures.draw(plot, {path: parts for path, (_, parts) in runs.items()})
    for path, (_, parts) in runs.items():
        for part in parts:
            part.check(path)
