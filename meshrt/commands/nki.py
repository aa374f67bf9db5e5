"""`meshrt nki`: kernels written for AWS's NKI, as they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from meshrt.commands import shared
from meshrt.ranks.failing import failure


@click.group("nki", cls=shared.CommandGroup, subcommand_metavar="COMMAND [OPTIONS]")
def command() -> None:
    """Kernels written for AWS's NKI, as they are."""


@command.command("check")
@click.argument("folder", metavar="DIR")
@click.option("--only", metavar="TEXT", help="Only kernels whose FILE:NAME has this in it.")
def check_command(folder: str, only: str | None) -> None:
    """Try the kernels of DIR, a checkout of AWS's nki-samples, on emulated NeuronCores, and compare with NumPy.

    Each runs in a process of its own, where neuronxcc.nki and nki are meshrt.nki, and torch, jax and their like are
    empty. Exit code 1 if one of them is not right. Nothing is fetched.
    """
    from pathlib import Path

    from meshrt.studies.nki.check import KernelOutcome, check, lines

    wrong: list[KernelOutcome] = []

    def watched() -> Iterator[KernelOutcome]:
        for outcome in check(Path(folder), only):
            if not outcome.right:
                wrong.append(outcome)
            yield outcome

    try:
        for line in lines(watched()):  # as they come
            click.echo(line)
    except Exception as error:
        sys.exit(failure.report_alone(error))
    sys.exit(1 if wrong else 0)
