"""`meshrt explain FIELD|TERM`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from operator import eq
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from meshrt.reports.fields import Field


@click.command("explain")
@click.argument("name", metavar="FIELD|TERM|PAGE")
def command(name: str) -> None:
    """What a number of a report contains, its unit, how it came about, where it is raised; or what a word means.

    FIELD is as in the JSON, or any part of it: measured.link_bytes.max, link_bytes, max. Or as in a printed table.
    PAGE is one of the documentation, as messages name it: docs/csl.md.

    \b
    Examples:
      meshrt explain hops
      meshrt explain measured.memory_bytes.max
      meshrt explain "busiest link"
      meshrt explain extrapolated
      meshrt explain docs/failures.md | less
    """
    from meshrt.errors import UsageError, nearest
    from meshrt.machine import machines
    from meshrt.programs.results import RESULTS
    from meshrt.reports.fields import EXTRAPOLATED, HOST_FIELDS, KINDS
    from meshrt.reports.kinds import fields_of
    from meshrt.reports.words import WORDS

    fields = [(machine, path, field) for machine in machines() for path, field in fields_of(machine).items()]
    query = name.strip().casefold()
    if query.endswith(".md"):
        click.echo(_page(query))
        return
    words = {word: text for word, text in (WORDS | KINDS).items() if query in (word, word + "s")}
    matches = [row for row in fields if _names(query, *row[1:])]
    of_host = f".{query.removeprefix('host.')}."
    matches += [("host", path, field) for path, field in HOST_FIELDS.items() if of_host in f".{path}."]
    key = query.removeprefix("result.")
    matches += [("result", name, field) for name, field in RESULTS.items() if fnmatchcase(key, name)]
    if not words and not matches:
        parts = [part for _, path, field in fields for part in (path, *path.split("."), field.row)]
        parts += [part for path in HOST_FIELDS for part in (path, *path.split("."))]
        terms = {*WORDS, *KINDS, *RESULTS, *parts}
        hint = nearest(query, terms - {"", "*"}, "`meshrt run PROGRAM --json -` shows the fields")
        raise UsageError(f"{name!r} is no field of a report and no word of meshrt's: {hint}")
    for word, text in words.items():
        click.echo(f"{word}: {text}")
    for machine, path, field in matches:
        click.echo(f"{path} ({machine}): {field.says}")
        if field.unit:  # a text, or several numbers, has none
            click.echo(f"  unit: {field.unit}")
        click.echo(f"  kind: {field.kind}, {KINDS[field.kind]}")
        click.echo(f"  from: {field.source}")
        if field.scaled:
            click.echo(f"  {EXTRAPOLATED} where --layers-run or --steps-run left a part of the run out")


def _page(name: str) -> str:
    """A page of the documentation, which lies in a wheel as in a checkout. UsageError."""
    from pathlib import Path

    import meshrt
    from meshrt.errors import UsageError, nearest

    installed = Path(meshrt.__file__).parent / "docs"
    folder = installed if installed.is_dir() else installed.parents[1] / "docs"
    pages = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*.md"))}
    wanted = name.removeprefix("docs/")
    if wanted not in pages:
        there_are = f"there are {', '.join(pages)}"
        raise UsageError(f"there is no page {name!r}: {nearest(wanted, pages, there_are)}")
    return pages[wanted].read_text(encoding="utf-8")


def _names(query: str, path: str, field: Field) -> bool:
    """Is a number asked for: by its path, the beginning or the end of that, or its row in a printed table?"""
    if field.row and query in (field.row.casefold(), field.row.casefold().lstrip("*, ")):
        return True
    query = query.removeprefix("measured.")
    whole, parts = path.split("."), query.split(".")
    if parts[0] == "phases":
        parts = parts[-len(whole) :] if len(parts) > len(whole) + 1 else []
    return any(
        len(cut) == len(parts)
        and any(map(eq, cut, parts))  # a * alone would be anything
        and all(piece in ("*", part) for piece, part in zip(cut, parts, strict=True))
        for cut in (whole[: len(parts)], whole[-len(parts) :] if parts else [])
    )
