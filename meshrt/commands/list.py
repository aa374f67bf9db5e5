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
        if has_experts(name):
            use = "a mixture of experts, for quantize" if has_weights(name) else None
            click.echo(f"{name:13} {use or 'the shape of a mixture of experts, for quantize --sizes'}")
            continue
        kind = "a model" if has_weights(name) else "the shape of a model, for --payload none"
        click.echo(f"{name:13} {kind}; runs {runner(name)} with --model {name}")
