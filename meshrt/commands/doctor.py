"""`meshrt doctor`."""

from __future__ import annotations

import sys

import click

from meshrt.commands import shared


@click.command("doctor")
@shared.json_to("what was found")
def command(json_path: str | None) -> None:
    """Is this machine set up for meshrt? Says what is wrong and how to mend it."""
    from meshrt import report
    from meshrt.launch import doctor
    from meshrt.mesh.wires import core

    found = []
    for check in doctor.checks(core):
        found.append(check)
        if json_path != "-":
            click.echo(check.text())
    report.deliver_json(doctor.as_json(found), json_path)
    sys.exit(doctor.exit_code(found))
