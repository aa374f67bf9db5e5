"""Columns of texts as a terminal or a log has them: no number is cut, words are wrapped, what is too wide is parted."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TextIO

from meshrt.records import dataclass

LOG_WIDTH = 200  # columns of a table that goes to no terminal, unless its numbers need more
GAP = 2
NARROWEST = 16  # of a column of words; a longer word needs more


@dataclass(frozen=True)
class Screen:
    """Where lines go. `width`: None is a log, in which no table is parted; `bold`: may headings stand out?"""

    width: int | None = None
    bold: bool = False


def screen() -> Screen:
    """Standard output as it is."""
    width = terminal_width(sys.stdout)
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") in ("dumb", None)
    return Screen(width, width is not None and not plain)


def terminal_width(stream: TextIO) -> int | None:
    """Columns of the terminal that a stream goes to; None where it goes to none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def print_columns(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> None:
    """Print rows under a header; `right`: which columns are of numbers, and to the right."""
    for line in laid_out(header, rows, right, screen()):
        print(line)


def print_words(line: str) -> None:
    """Print a line of words; a terminal that is too narrow has several."""
    print(wrapped(line, screen().width))


def wrapped(line: str, width: int | None, indent: str = "") -> str:
    """A line of words as several of that width, between its words; those after the first stand further in."""
    if width is None or len(line) <= width:
        return line
    return textwrap.fill(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def laid_out(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], where: Screen
) -> Iterator[str]:
    """Their lines. What is wider than a terminal is parted: columns of words at the left stand before each part."""
    widths = [max(map(_widest, column)) for column in zip(header, *rows, strict=True)]
    _narrow(widths, header, rows, right, where.width or LOG_WIDTH)
    for at, part in enumerate(_parts(widths, right, where.width)):
        if at:
            yield ""
        for row, bold in ((header, where.bold), *((row, False) for row in rows)):
            cells = [_lines(row[column], widths[column], right[column]) for column in part]
            for number in range(max(map(len, cells))):
                texts = [
                    _aligned(cell[number : number + 1], widths[column], right[column])
                    for column, cell in zip(part, cells, strict=True)
                ]
                line = (" " * GAP).join(texts).rstrip()
                yield f"\033[1m{line}\033[0m" if bold and line else line


def _aligned(line: Sequence[str], width: int, right: bool) -> str:
    text = "".join(line)
    return text.rjust(width) if right else text.ljust(width)


def _widest(text: str) -> int:
    return max(map(len, text.split("\n")))


def _lines(text: str, width: int, whole: bool) -> list[str]:
    """The lines of a cell. Between its words only, and its first one's indent is that of all."""
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()))
        wrapped = [line] if whole or len(line) <= width else textwrap.wrap(
            line.strip(), width, initial_indent=indent, subsequent_indent=indent, break_long_words=False,
            break_on_hyphens=False,
        )  # fmt: skip
        lines += wrapped or [""]
    return lines


def _narrow(
    widths: list[int], header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], limit: int
) -> None:
    """Take from columns of words, the widest first, what a line has too much; nothing from those at the left where it
    is parted all the same, and they leave each part its room."""
    full_widths = [*widths]
    labels = next((at for at, numbers in enumerate(right) if numbers), len(right))
    least = [
        width if numbers else max(min(width, NARROWEST), *(len(word) for text in column for word in text.split()), 0)
        for width, numbers, column in zip(widths, right, zip(header, *rows, strict=True), strict=True)
    ]
    while sum(widths) + GAP * (len(widths) - 1) > limit:
        wide = max(range(len(widths)), key=lambda at: widths[at] - least[at])
        if widths[wide] <= least[wide]:
            beside = GAP * labels + max(widths[labels:], default=0)
            if all(right[labels:]) and sum(full_widths[:labels]) + beside <= limit:
                widths[:] = full_widths
            return
        widths[wide] -= 1


def _parts(widths: Sequence[int], right: Sequence[bool], limit: int | None) -> Iterator[list[int]]:
    """Which columns stand side by side: those of words at the left in each part, and others as there is room."""
    count = next((at for at, numbers in enumerate(right) if numbers), len(right))
    labels = [*range(count)]
    if limit is not None and sum(widths[at] + GAP for at in labels) > limit // 2 > 0 and count < len(right):
        labels = labels[:1]  # all of them would leave no room
    part, others = [*labels], [at for at in range(len(widths)) if at not in labels]
    for at in others:
        if (
            limit is not None
            and len(part) > len(labels)
            and sum(widths[column] + GAP for column in (*part, at)) - GAP > limit
        ):
            yield part
            part = [*labels]
        part.append(at)
    yield part
