"""`meshrt doctor`."""

from __future__ import annotations

import sys

import click


@click.command("doctor")
@click.option(
    "--json", "json_path", metavar="[PATH|-]", is_flag=False, flag_value="-",
    help="Write what was found as JSON, on standard output unless to a PATH.",
)  # fmt: skip
def command(json_path: str | None) -> None:
    """Is this machine set up for meshrt? Says what is wrong and how to mend it."""
    from meshrt.launch import doctor
    from meshrt.mesh.wires import core
    from meshrt.ranks.files import check_target
    from meshrt.reports import report

    if json_path not in (None, "-"):
        check_target("--json", json_path)
    checks = []
    for check in doctor.checks(core):
        checks.append(check)
        if json_path != "-":
            click.echo(check.text())
    report.deliver_json(doctor.as_json(checks), json_path)
    sys.exit(doctor.exit_code(checks))
