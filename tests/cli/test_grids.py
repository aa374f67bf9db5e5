"""Tables: whole at any width, with and without colour; in four forms; all by one mechanism."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import hypothesis.strategies as st
import pytest
from hypothesis import given
from mpi_jobs import Finished, child_environment

from meshrt.cli import cli
from meshrt.columns import Screen, laid_out
from meshrt.commands.reproduce import as_they_come
from meshrt.ranks.console import Console
from meshrt.studies.grid import FORMS, Cell, Grid, put

ROOT = Path(__file__).parents[2]
SMALL = "--m 12 --k 12 --n 12 --mesh 4x4"
# Commands that print tables: those of seconds have other numbers each time, and those that build a model write it.
TABLES = {
    "list": "list",
    "devices": "devices wse2 a100 n2x8 trn1",
    "run": "run llama-tiny --prompt-ids 1,2,3 --max-new-tokens 2 --ignore-eos --decode-regions 2 --mesh 8x8",
    "bench gemm": f"bench gemm {SMALL}",
    "bench serve": "bench serve --model llama-tiny --requests 2 --only dense",
    "bench split": "bench split --m 8 --k 256 --n 256",
    "bench clock": "bench clock --cores 8 --cores 16 --words 1 --words 256",
    "compare": "roofline {report}",
    "diff": "diff {report} {other}",
    "fit": "fit gemm --m 1000 --k 1000 --n 1000 --mesh 4x4",
    "plmr": "plmr summa cannon meshgemm --sizes 4,6,8",
    "sweep": "sweep gemm --set algorithm=meshgemm,summa --set m=12,24 --mesh 2x2,3x2",
    "validate": "validate --only 'A100 all-reduce' --sample 2",
    "reproduce": "reproduce neuronmm 6 --cache none",
    "tune": "tune xuv --m 256 --k 512 --r 128 --n 512 --top 2",
    "quantize": "quantize mixtral-8x7b --sizes",
    "csl check": "csl check {csl}",
}
HOST = ("wall time", "host time")
SCREENS = [(columns, colour) for columns in (60, 80, 200) for colour in (True, False)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two reports, and a folder of CSL."""
    folder = tmp_path_factory.mktemp("tables")
    for name, size in (("report", 12), ("other", 24)):
        words = f"run gemm --mesh 4x4 --k {size} --quiet --json {folder / name}"
        subprocess.run([sys.executable, "-m", "meshrt", *words.split()], check=True, timeout=100)
    return {"report": str(folder / "report"), "other": str(folder / "other"), "csl": str(ROOT / "examples" / "csl")}


def on_a_terminal(argv: list[str], columns: int, colour: bool, errors: bool = False) -> str:
    """What a command says on a terminal of so many columns, with its `errors` or without."""
    master, slave = pty.openpty()
    env = {key: value for key, value in child_environment().items() if key != "NO_COLOR"}
    env |= {"COLUMNS": str(columns), "TERM": "xterm", **({} if colour else {"NO_COLOR": "1"})}
    streams = {"stdin": subprocess.DEVNULL, "stdout": slave, "stderr": slave if errors else subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-m", "meshrt", *argv], **streams, env=env) as process:
        os.close(slave)
        printed = b""
        while True:
            try:
                piece = os.read(master, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not piece:
                break
            printed += piece
        assert process.wait(100) in (0, 3)
    os.close(master)
    return printed.decode().replace("\r\n", "\n")


def numbers(text: str) -> set[str]:
    """Every word with a digit in it, of lines that are the same each time."""
    lines = [line for line in text.splitlines() if not line.startswith(HOST)]
    return {word for line in lines for word in line.split() if any(map(str.isdigit, word))}


@pytest.mark.sample(2)
@pytest.mark.parametrize(("columns", "colour"), SCREENS)
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_whole_on_any_terminal(
    name: str, columns: int, colour: bool, files: dict[str, str], run_meshrt: Callable[..., Finished]
) -> None:
    argv = shlex.split(TABLES[name].format(**files))
    code, whole, err, _ = run_meshrt(*argv)
    assert code in (0, 3), err
    screen = on_a_terminal(argv, columns, colour)
    assert ("\033[1m" in screen) == colour or name in ("list", "devices")
    assert colour or "\033" not in screen
    screen = re.sub(r"\033\[\d*m", "", screen)
    assert numbers(whole) - numbers(screen) == set()
    assert "\N{HORIZONTAL ELLIPSIS}" not in screen


@pytest.mark.parametrize("columns", [60, pytest.param(200, marks=pytest.mark.all)])
def test_a_long_message_is_wrapped_on_a_terminal_and_a_line_elsewhere(
    columns: int, run_meshrt: Callable[..., Finished]
) -> None:
    argv = ["run", "gemm", "--m", "10000000"]
    code, _, line, _ = run_meshrt(*argv)
    screen = on_a_terminal(argv, columns, colour=False, errors=True)
    assert code == 3 and line.count("\n") == 1 and all(part in line for part in ("160000000", "49152", "larger --mesh"))
    assert max(map(len, screen.splitlines())) <= columns
    assert screen.split() == line.replace("; does not fit", " does not fit").split()


@pytest.mark.parametrize("form", FORMS)
def test_a_file_has_a_table_before_the_next_is_begun(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped, and one of hours, would else have shown none of what was done."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written))
    put([Grid(("tokens",), [[31]])], form)
    assert b"31" in written.getvalue()


@pytest.mark.parametrize("form", FORMS)
def test_tables_that_are_read_are_printed_as_they_come(form: str) -> None:
    """A program gets all of a reproduction at its end, and a run that is quiet shows none."""
    shown = []
    show = as_they_come(Console(loud=True), form, lambda report, name, form: shown.append((report[name], form)))
    if show is not None:
        show({"3": "done"}, "3")
    assert shown == ([("done", form)] if form in ("table", "md") else [])
    assert as_they_come(Console(loud=False), form, print) is None


@pytest.mark.sample(8)
@pytest.mark.parametrize("form", ["csv", "md", "json"])
@pytest.mark.parametrize("name", TABLES)
def test_a_table_has_every_form(
    name: str, form: str, files: dict[str, str], run_meshrt: Callable[..., Finished]
) -> None:
    code, out, err, _ = run_meshrt(*shlex.split(TABLES[name].format(**files)), "--format", form)
    assert code in (0, 3), err
    if form == "json":
        rows = json.loads(out)
        assert rows and (name == "fit" or all(isinstance(row, dict) and len(row) > 1 for row in rows))
    elif form == "csv":
        for table in out.split("\n\n"):
            lines = [*csv.reader(io.StringIO(table.strip("\n")))]
            assert len(lines) > 1 and len({len(line) for line in lines}) == 1
            assert len(set(lines[0])) == len(lines[0])
            texts = [cell for line in lines for cell in line if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", cell)]
            assert not texts, "numbers for a program, without the commas of a person's"
    else:
        tables = re.findall(r"(?:^\|.*\|$\n)+", out, re.M)
        assert tables and all(table.splitlines()[1].startswith("| ---") for table in tables)


def leaves(group: click.Group, stem: str = "") -> dict[str, click.Command]:
    commands: dict[str, click.Command] = {}
    names = group.list_commands(click.Context(group))
    for name in ["llama-tiny"] if "llama-tiny" in names else names:  # a program's are any program's
        command = group.get_command(click.Context(group), name)
        assert command is not None
        commands |= leaves(command, f"{stem}{name} ") if isinstance(command, click.Group) else {stem + name: command}
    return commands


# They print no table: a text, a picture, a line, a file, what another command prints.
WITHOUT = {
    "bench messages", "chat llama-tiny", "completion", "csl run", "doctor", "explain", "html", "import", "launch",
    "nki check", "score", "show", "submit",
}  # fmt: skip


def test_every_command_with_a_table_has_its_form() -> None:
    commands = leaves(cli)
    without = {name for name, command in commands.items() if "form" not in {option.name for option in command.params}}
    groups = {name for name in without if name.split()[0] in ("submit", "launch", "nki", "completion")}
    assert without - groups - WITHOUT == set()


def test_no_table_is_made_elsewhere() -> None:
    for folder in ("meshrt", "studies", "launch", "programs", "models"):
        for path in (ROOT / folder).rglob("*.py"):
            assert "rich.table" not in path.read_text(), path


WORDS = st.text("abcdefgh 0123456789", min_size=0, max_size=30)


@given(st.data(), st.sampled_from([60, 80, 200, None]), st.booleans())
def test_no_number_is_cut_and_words_stay_whole(data: st.DataObject, width: int | None, bold: bool) -> None:
    count = data.draw(st.integers(1, 12))
    right = [data.draw(st.booleans()) for _ in range(count)]
    cell = [st.integers(0, 10**18).map("{:,}".format) if is_number else WORDS for is_number in right]
    header, *rows = data.draw(st.lists(st.tuples(*cell), min_size=1, max_size=4))
    lines = [re.sub(r"\033\[\d*m", "", line) for line in laid_out(header, rows, right, Screen(width, bold))]
    said = {word for line in lines for word in line.split()}
    assert {word for row in (header, *rows) for text in row for word in text.split()} <= said
    if width is not None and not any(len(text) > 20 for row in (header, *rows) for text in row):
        assert max(map(len, lines), default=0) <= width


def test_names_stay_on_a_line_where_a_table_is_parted_all_the_same() -> None:
    name, numbers = "memory of 48.0 KiB", [f"{n} KiB" for n in range(100, 109)]
    header = ["", *(f"phase {n}" for n in range(9))]
    lines = [*laid_out(header, [[name, *numbers]], [False, *[True] * 9], Screen(60))]
    parts = [line for line in lines if line.startswith(name)]
    assert len(parts) == 3 and max(map(len, lines)) <= 60
    assert [number for line in parts for number in re.findall(r"\d+ KiB", line.removeprefix(name))] == numbers


def test_values_are_whole_where_programs_read_them(capsys: pytest.CaptureFixture[str]) -> None:
    parts: list[Any] = ["a title", Grid(["", "size"], [["x", Cell(318259, "310.8 KiB")], ["y|z", 1234]], "of it")]
    put(parts, "json")
    rows = [{"table": "of it", "": "x", "size": 318259}, {"table": "of it", "": "y|z", "size": 1234}]
    assert json.loads(capsys.readouterr().out) == rows
    put([*parts, parts[1]], "csv")
    table = "table,,size\nof it,x,318259\nof it,y|z,1234\n"
    assert capsys.readouterr().out == f"{table}\n{table}"
    put(parts, "md")
    assert capsys.readouterr().out == "a title\n\n|  | size |\n| --- | --- |\n| x | 310.8 KiB |\n| y\\|z | 1234 |\n"
    put(parts)
    assert capsys.readouterr().out == "a title\n          size\nx    310.8 KiB\ny|z      1,234\n"
