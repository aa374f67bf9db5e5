"""`meshrt diff A.json B.json`: what changed between two reports."""

from __future__ import annotations

from typing import Any

import click

from meshrt.commands import shared


@click.command("diff")
@click.argument("before", metavar="A.json")
@click.argument("after", metavar="B.json")
@click.option(
    "--only", multiple=True, metavar="PATTERN", help="Such as '*.hops', of whole paths: only these; may be given again."
)
@click.option("--fail-above", metavar="SHARE", help="5%: code 3 where a result changed by more, up or down.")
@click.option("--host", is_flag=True, help="Compare also what is of the computers: seconds, ranks, messages.")
@shared.together(shared.form(), shared.json_to("it"), shared.quiet)
def command(
    before: str, after: str, only: tuple[str, ...], fail_above: str | None, host: bool, form: str,
    json_path: str | None, quiet: bool,
) -> None:  # fmt: skip
    """What changed between two reports that --json wrote: first what was asked for, then what came of it. One may be
    -, standard input.

    \b
    Examples:
      meshrt diff before.json after.json
      meshrt diff main.json mine.json --only '*hops' --only '*.cycles' --fail-above 0%
    """
    shared.refuse_ranks("two files are compared by one process")
    from meshrt.ranks.files import check_target
    from meshrt.reports.report import deliver_json
    from meshrt.studies import bounds, differences
    from meshrt.studies.grid import print_grid

    share = None if fail_above is None else _share(fail_above)
    if json_path not in (None, "-"):
        check_target("--json", json_path)
    left_out = ("kinds",) if host else differences.LEFT_OUT
    documents = _read(before), _read(after)
    differences.check_patterns(*documents, only, left_out)
    changes = differences.differences(*documents, only, left_out)
    deliver_json(differences.as_json(changes), json_path)
    if not quiet and json_path != "-":
        if changes or form != "table":
            rows = [[entry.path, entry.before, entry.after, differences.percent(entry.change)] for entry in changes]
            print_grid(["", "before", "after", "change"], rows, form)
        else:
            click.echo("nothing changed")
    if share is not None:
        bounds.keep(differences.above(changes, share))


def _share(text: str) -> float:
    """'5%' or '0.05'. UsageError, also for 5: who means five of a hundred would guard nothing."""
    from meshrt.errors import UsageError

    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise UsageError(f"--fail-above {text!r} is no share such as 5% or 0.05")
    if share > 1 and not text.endswith("%"):
        raise UsageError(f"--fail-above {text!r} is {100 * share:g}%: write that, or {share:g}%")
    return share


def _read(path: str) -> Any:
    """A JSON document; - is standard input. UsageError."""
    import json
    import sys
    from pathlib import Path

    from meshrt.errors import UsageError

    try:
        return json.loads(sys.stdin.read() if path == "-" else Path(path).read_text())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON that `meshrt run --json PATH` wrote: {error}") from error
