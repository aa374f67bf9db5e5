"""`meshrt list`."""

from __future__ import annotations

import click


@click.command("list")
def command() -> None:
    """The programs and models that there are."""
    from meshrt.models.catalogue import has_experts, has_weights, packaged, runner
    from meshrt.program import load_program, packaged_programs

    for name in packaged_programs():
        click.echo(f"{name:13} {load_program(name).summary}")
    for name in packaged():
        kind = "a mixture of experts" if has_experts(name) else "a model"
        kind = kind if has_weights(name) else f"the shape of {kind}, for --payload none"
        click.echo(f"{name:13} {kind}; runs {runner(name)} with --model {name}")
