"""`meshrt doctor`."""

from __future__ import annotations

import sys

import click


@click.command("doctor")
def command() -> None:
    """Is this machine set up for meshrt? Says what is wrong and how to mend it."""
    from meshrt.launch import doctor
    from meshrt.mesh.wires import core
    from meshrt.ranks import host

    sys.exit(doctor.main(core=core) if host.launched_rank() == 0 else 0)
