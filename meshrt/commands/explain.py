"""`meshrt explain FIELD|TERM`."""

from __future__ import annotations

import re
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
    query = _row(name).casefold()
    if not query:
        raise UsageError(f"{name!r} names nothing: give a field, a word or a page, such as hops")
    if query.endswith(".md"):
        click.echo(_page(query))
        return
    words = {word: text for word, text in (WORDS | KINDS).items() if query in (word, word + "s")}
    matches = [row for row in fields if _names(query, *row[1:])]
    of_host = f".{query.removeprefix('host.')}."
    matches += [
        ("host", path, field) for path, field in HOST_FIELDS.items() if of_host in f".{path}." or query == field.row
    ]
    key = query.removeprefix("result.").partition(".")[0] if query.startswith("result.") else query
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
    wanted = {page.casefold(): path for page, path in pages.items()}.get(name.removeprefix("docs/"))
    if wanted is None:
        there_are = f"there are {', '.join(pages)}"
        raise UsageError(f"there is no page {name!r}: {nearest(name.removeprefix('docs/'), pages, there_are)}")
    return wanted.read_text(encoding="utf-8")


def _row(name: str) -> str:
    """The name of a row as a table has it, without the mark behind it and without its limit: memory of 48.0 KiB."""
    name = re.sub(r" ['*^~]$", "", name.strip())
    return re.sub(r" of [\d.,]+( [KMGT]?i?B)?$", "", name)


def _names(query: str, path: str, field: Field) -> bool:
    """Is a number asked for: by its path, the beginning or the end of that, or its row in a printed table?"""
    row = field.row.casefold()
    if row == "*":  # a row of each instruction, by its name
        from meshrt.arm.isa import OPERATIONS

        if query in OPERATIONS:
            return True
    elif row and (query == row.lstrip("*, ") or fnmatchcase(query, row)):
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
