"""`meshrt list`."""

from __future__ import annotations

import click

from meshrt.commands import shared


@click.command("list")
@shared.form()
def command(form: str) -> None:
    """The programs and models that there are."""
    from meshrt.models.catalogue import has_experts, has_weights, packaged, runner
    from meshrt.program import load_program, packaged_programs
    from meshrt.studies.grid import Grid, put

    rows = [(name, "program", load_program(name).summary) for name in packaged_programs()]
    for name in packaged():
        kind = "a mixture of experts" if has_experts(name) else "a model"
        kind = kind if has_weights(name) else f"the shape of {kind}, for --payload none"
        rows.append((name, "model", f"{kind}; runs {runner(name)} with --model {name}"))
    width = max(len(name) for name, _, _ in rows)
    lines = (f"{name:{width}} {summary}" for name, _, summary in rows)
    put(lines if form == "table" else [Grid(["name", "kind", "what"], rows)], form)
