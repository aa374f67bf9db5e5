"""Text and progress on one terminal: a bar wipes no text, and leaves none of itself."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from meshrt.ranks import console as console_module
from meshrt.ranks.console import Console

WIDTH = 60


def screen(written: str) -> list[str]:
    """The lines of a terminal of WIDTH columns after what was written to it."""
    rows: list[list[str]] = [[]]
    y = x = 0
    kept = (0, 0)
    for part in re.findall(r"\x1b7|\x1b8|\x1b\[K|.|\n", written, re.DOTALL):
        if part == "\x1b7":
            kept = y, x
        elif part == "\x1b8":
            y, x = kept
        elif part == "\x1b[K":
            rows[y] = rows[y][:x]
        elif part == "\r":
            x = 0
        else:
            if part == "\n" or x == WIDTH:
                y, x = y + 1, 0
                rows += [[]] * (len(rows) == y)
            if part != "\n":
                rows[y] = [*rows[y][:x], *" " * (x - len(rows[y])), part, *rows[y][x + 1 :]]
                x += 1
    return ["".join(row) for row in rows]


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What both streams write."""
    written = io.StringIO()
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    with redirect_stdout(written), redirect_stderr(written):
        yield written


def test_a_bar_stands_behind_the_text_and_wipes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as both:
        console = Console(loud=True, terminal=True, since=-1.0)
        console.text("Once")
        console.progress("decode", 1, 2)
        bar = f"decode [{'#' * 15}{'.' * 15}] 1/2"
        assert screen(both.getvalue()) == [f"Once  {bar}"]
        console.progress("decode", 2, 2)
        assert screen(both.getvalue()) == [f"Once  decode [{'#' * 30}] 2/2"]
        console.text(" upon a time")
        assert screen(both.getvalue()) == ["Once upon a time"]
        console.progress("decode", 1, 2)  # no room
        assert screen(both.getvalue()) == ["Once upon a time"]
        console.text("\n")
        console.progress("decode", 1, 2)
        assert screen(both.getvalue()) == ["Once upon a time", bar]
        console.clear()
        assert screen(both.getvalue()) == ["Once upon a time", ""]


def test_text_of_several_lines_has_the_bar_behind_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as both:
        console = Console(loud=True, terminal=True, since=-1.0)
        for piece in ("x" * (WIDTH + 1), "y"):
            console.text(piece)
            console.progress("decode", 1, 2)
        assert screen(both.getvalue())[1].startswith("xy  decode [")
        console.note("a line")
        console.progress("decode", 0, 2)
        assert screen(both.getvalue())[:3] == ["x" * WIDTH, "xya line", f"decode [{'.' * 30}] 0/2"]


def test_progress_tells_the_time_left_and_in_a_log_a_line_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(console_module, "monotonic", lambda: now)
    printed = {}
    for name, console in {
        "terminal": Console(loud=True, terminal=True, since=-1.0, said=0.0),
        "log": Console(loud=True, logs=True, said=0.0),
        "quiet": Console(said=0.0),
    }.items():
        with terminal(monkeypatch) as both:
            for done in range(1, 8):
                now = 25.0 * done
                console.progress("decode", done, 7)
        printed[name] = both.getvalue()
    assert printed["log"] == "meshrt: decode 3/7, 1 min 40 s left\nmeshrt: decode 6/7, 25 s left\n"
    assert "] 2/7, 2 min 5 s left" in printed["terminal"] and printed["terminal"].endswith("] 7/7")
    assert printed["quiet"] == ""


def test_what_was_done_before_a_run_went_on_has_taken_it_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(console_module, "monotonic", lambda: now)
    console = Console(loud=True, logs=True, said=-60.0)
    with terminal(monkeypatch) as both:
        for done in (10, 11):
            now += 10.0
            console.said = -60.0
            console.progress("decode", done, 20)
    assert both.getvalue() == "meshrt: decode 10/20\nmeshrt: decode 11/20, 1 min 30 s left\n"
