"""`meshrt fuzz`: does bad input ever get more than a clear message?"""

from __future__ import annotations

import os
import sys

import click

from meshrt.commands import shared
from meshrt.ranks.failing import failure


@click.command("fuzz")
@click.option("--seconds", type=shared.NumberRange(0, 1e6), default=60.0, show_default=True, help="How long.")
@click.option("--seed", type=shared.WholeRange(0), default=0, show_default=True, help="The same inputs again.")
@click.option(
    "--only",
    metavar="KIND,...",
    help="loaders, config, mixtures, quantized, gguf, packed, onnx, tokenizer, prompt, cli.  [default: all]",
)
@click.option("--out", metavar="DIR", default="fuzz-findings", show_default=True, help="Where findings are kept.")
@shared.together(shared.form(), shared.quiet)
def command(seconds: float, seed: int, only: str | None, out: str, form: str, quiet: bool) -> None:
    """Try bad model folders, prompts and command lines: exit code 1 if one does more than give a clear message.

    Counts are printed at the end; what is found (the input, how it ended, its seed) is kept in DIR.
    """
    from pathlib import Path

    from meshrt.launch.local import without_launcher
    from meshrt.ranks.console import make_console
    from meshrt.studies.fuzz import fuzz

    try:
        console = make_console(0, 1, quiet or shared.for_programs(form))
        tally = fuzz.fuzz(seconds, seed, fuzz.parse_kinds(only), Path(out), console, without_launcher(os.environ))
    except Exception as error:
        sys.exit(failure.report_alone(error))
    if not quiet:
        fuzz.print_tally(tally, form)
    sys.exit(1 if tally.kept else 0)
