"""`meshrt launch`: ranks on this machine."""

from __future__ import annotations

import sys

import click

from meshrt import failure


@click.command("launch", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--ranks", type=click.IntRange(1), required=True, help="How many ranks.")
@click.option("--dry-run", is_flag=True, help="Print the command instead of running it.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, required=True)
def command(ranks: int, dry_run: bool, arguments: tuple[str, ...]) -> None:
    """Start N ranks on this machine with the right settings: meshrt launch -n 64 -- run llama-tiny."""
    from meshrt.launch import local

    try:
        local.launch(local.Job(ranks=ranks, arguments=arguments), dry_run=dry_run)
    except Exception as error:
        sys.exit(failure.report_alone(error))
