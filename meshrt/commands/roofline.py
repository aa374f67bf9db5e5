"""`meshrt roofline REPORT.json...`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from meshrt.commands import shared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshrt.reports.report import Report
    from meshrt.reports.roofline import RooflinePart
    from meshrt.studies.grid import Grid


@click.command("roofline")
@click.argument("reports", nargs=-1, required=True, metavar="REPORT.json...")
@click.option("--plot", metavar="FILE.png|svg", help="Draw all runs in one picture, by matplotlib.")
@click.option("--picture", is_flag=True, help="Draw each run in characters.")
@click.option("--csv", "csv_path", metavar="FILE.csv", help="Write a row for each phase of each run.")
@shared.together(shared.form(), shared.json_to("it"), shared.quiet)
def command(
    reports: tuple[str, ...], plot: str | None, picture: bool, csv_path: str | None, form: str,
    json_path: str | None, quiet: bool,
) -> None:  # fmt: skip
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
    from meshrt.reports.report import deliver_json, read_report
    from meshrt.reports.roofline import document, lines, parts_of
    from meshrt.studies.files import write_csv
    from meshrt.studies.grid import grid_of, put
    from meshrt.studies.pictures import roofline as pictures

    shared.refuse_ranks("this reads files")
    for option, path in (("--json", json_path), ("--plot", plot), ("--csv", csv_path)):
        if path is not None and (option, path) != ("--json", "-"):
            check_target(option, path)
    if plot:
        pictures.check_plot(plot)
    runs: dict[str, tuple[Report, list[RooflinePart]]] = {}
    for path in reports:
        report = read_report(path)
        runs[path] = report, parts_of(report, path)
    made = document(runs)
    if not quiet and json_path != "-":
        put(said(runs, picture) if form in ("table", "md") else [grid_of(lines(made))], form)
    deliver_json(made, json_path)
    if csv_path:
        write_csv(csv_path, lines(made))
    if plot:
        pictures.draw(plot, {path: parts for path, (_, parts) in runs.items()})
    for path, (_, parts) in runs.items():
        for part in parts:
            part.check(path)


def said(runs: dict[str, tuple[Report, list[RooflinePart]]], picture: bool) -> Iterator[str | Grid]:
    """A table of each run, and below it the picture if it is asked for."""
    from meshrt.reports.roofline import rows
    from meshrt.studies.grid import Grid
    from meshrt.studies.pictures import roofline as pictures

    for at, (path, (report, parts)) in enumerate(runs.items()):
        yield f"{chr(10) * (at > 0)}{path}: {report.data['program']} on {report.data['device']['name']}"
        yield Grid(
            ["", *(part.name for part in parts)], [[row.name, *row.cells] for row in rows(report, parts)], right=True
        )
        if picture:
            yield pictures.sketch(parts)
