"""Something to look at: pictures in the terminal and as files, and pages that need nothing else."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner, Result

from meshrt.cli import cli
from meshrt.errors import UsageError
from meshrt.studies.pictures import maps as studies_maps
from meshrt.studies.pictures.heat import levels, pooled
from meshrt.studies.pictures.maps import read_maps

MESH = (45, 3)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report, with maps beside it."""
    folder = tmp_path_factory.mktemp("run")
    words = "run gemv --k 90 --n 45 --allreduce ktree --mesh 45x3 --core-memory 40000 --payload none --quiet"
    process(*words.split(), "--maps", folder / "run.npz", "--json", folder / "run.json")
    return folder / "run.json"


def meshrt(*arguments: object, columns: int = 80) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)), env={"COLUMNS": str(columns), "NO_COLOR": "1"})


def process(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "meshrt", *map(str, arguments)], check=True, timeout=100)


def ended(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("columns", [60, 80, 200])
@pytest.mark.parametrize("quantity", ["links", "memory", "entries", "idle"])
def test_a_picture_keeps_to_the_terminal_and_has_every_core(run: Path, columns: int, quantity: str) -> None:
    text = ended(meshrt("show", run, "--what", quantity, columns=columns))
    assert max(map(len, text.splitlines())) <= columns
    array = read_maps(str(run)).arrays[f"total/{'link_bytes' if quantity == 'links' else quantity}"]
    values = array.max(axis=0) if array.ndim == 3 else array
    side = 2 if columns < 94 else 1
    assert (f"a cell is {side} x {side} cores" in text) == (side > 1)
    shown = [line.split()[1:] for line in text.splitlines() if line.split() and line.split()[0] in ("0", "1", "2")]
    places = [row for row in shown if len(row) == -(-MESH[0] // side)]
    expected = [
        [max(values[y : y + side, x : x + side].flat) for x in range(0, MESH[0], side)] for y in range(0, MESH[1], side)
    ]
    tenths = [["." if not value else str(min(9, int(10 * value / values.max()))) for value in row] for row in expected]
    assert places == tenths
    assert f"{values.max():,}" in text.replace("\n", " ") or quantity == "idle"


def test_pairs_are_a_picture_of_senders_and_receivers(run: Path, tmp_path: Path) -> None:
    file = read_maps(str(run)).arrays
    senders, receivers, nbytes, _ = file["total/pairs"].T
    text = ended(meshrt("show", run, "--what", "pairs", columns=300))
    rows = [line.split()[1:] for line in text.splitlines() if len(line.split()) == 1 + 45 * 3]
    places = {(a, b) for a, row in enumerate(rows) for b, place in enumerate(row) if place != "."}
    assert len(rows) == 135 and places == set(zip(senders.tolist(), receivers.tolist(), strict=True))
    assert f"{len(places)} pairs, {nbytes.sum():,} bytes in all" in text
    most = int(np.argmax(nbytes))
    (v, u), (y, x) = (divmod(int(cores[most]), 45) for cores in (senders, receivers))
    assert f"most {nbytes[most]:,} from ({u}, {v}) to ({x}, {y})" in text
    for form in ("png", "svg"):
        ended(meshrt("show", run, "--what", "pairs", "--png", tmp_path / f"a.{form}"))
    assert "sender" in (tmp_path / "a.svg").read_text()
    assert "0 pairs, 0 bytes in all" in ended(meshrt("show", run, "--what", "carried"))


def test_many_pairs_are_added_up(run: Path) -> None:
    maps = read_maps(str(run))
    with patch.object(studies_maps, "MOST", 50):
        shown = studies_maps.picture(maps, "pairs")
    assert shown.each == studies_maps.Each(3, 45, 1) and shown.each.core(16) == (3, 1)
    expected = np.zeros((45, 45), int)
    for sender, receiver, nbytes, _ in maps.arrays["total/pairs"].tolist():
        expected[sender // 3, receiver // 3] += nbytes
    assert (shown.values == expected).all()


def test_cells_are_the_largest_of_their_cores() -> None:
    values = np.arange(15.0).reshape(3, 5)
    assert pooled(values, 2).tolist() == [[6, 8, 9], [11, 13, 14]]
    assert levels(np.array([[0, 1, 5, 10]])).tolist() == [[-1, 1, 5, 9]]
    assert levels(np.zeros((1, 2))).tolist() == [[-1, -1]]


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", ["png", "svg"])
def test_a_picture_as_a_file_is_the_same_twice(run: Path, form: str, tmp_path: Path) -> None:
    first, second = tmp_path / f"a.{form}", tmp_path / f"b.{form}"
    for file in (first, second):
        ended(meshrt("show", run.with_suffix(".npz"), "--png", file))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"\x89PNG" if form == "png" else b"<?xml")


def test_what_cannot_be_shown_is_told(run: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare.json"
    bare.write_text("{}")
    wrong = tmp_path / "wrong.npz"
    wrong.write_text("none")
    about = tmp_path / "about.npz"
    np.savez(about, about='{"parts": {}}')
    for arguments, reason in (
        ([bare], "has no maps"),
        ([about], "is no file that `meshrt run --maps"),
        ([wrong], "is no file that `meshrt run --maps"),
        ([tmp_path / "away.npz"], "cannot be read"),
        ([run, "--phase", "totl"], "no phase 'totl'"),
        ([run, "--site", "far"], "no site 'far'"),
        ([run, "--png", tmp_path / "a.gif"], "the name ends with"),
    ):
        result = meshrt("show", *arguments)
        assert isinstance(result.exception, UsageError) and reason in str(result.exception), arguments
    refused = tmp_path / "refused.json"
    refused.write_text('{"machine": "mesh", "refused": "core (0, 0) is full"}')
    other = tmp_path / "other.json"
    report = json.loads(run.read_text())
    report["measured"]["critical_path"]["cycles"] += 1
    other.write_text(json.dumps(report))
    part = tmp_path / "part.json"
    part.write_text(json.dumps(report | {"host": {}}))
    maps = other.with_suffix(".npz")
    maps.write_bytes(run.with_suffix(".npz").read_bytes())
    for arguments, reason in (
        (["html", bare], "is no report of schema"),
        (["html", part], f"{part} is no whole report of this version of meshrt (KeyError: 'ranks'); run it again"),
        (["html", refused], "has no numbers: the run was refused: core (0, 0)"),
        (["html", other], f"{maps} has the maps of another run than {other}: cycles is "),
        (["show", other], "write both at once, with --json "),
        (["html", run, "--to", run], f"the report and --to both name {run}"),
        (["html", run, other, "--to", maps], f"the maps and --to both name {maps}"),
    ):
        result = meshrt(*arguments)
        assert isinstance(result.exception, UsageError) and reason in str(result.exception), arguments
    assert json.loads(run.read_text())["machine"] == "mesh"


class Page(HTMLParser):
    """Tags that are closed, what refers to somewhere, the text, and the pictures' numbers."""

    VOID = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.refers: list[str] = []
        self.text = ""
        self.numbers: list[Any] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.refers += [value or "" for key, value in attrs if key in ("src", "href", "srcset", "action", "data")]
        if tag not in self.VOID:
            self.open.append("json" if ("type", "application/json") in attrs else tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() in (tag, "json")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.open and self.open[-1] == "json":
            self.numbers.append(json.loads(data))


def read_page(file: Path) -> Page:
    page, text = Page(), file.read_text()
    page.feed(text)
    assert not page.open and "http" not in text and "url(" not in text and "@import" not in text
    assert all(reference.startswith("data:image/png;base64,") for reference in page.refers)
    return page


def test_a_page_has_all_of_a_report_and_asks_for_nothing(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert ended(meshrt("html", run, "--to", file)).strip() == str(file)
    page = read_page(file)
    maps = read_maps(str(run)).arrays
    assert page.numbers[0] == maps["total/link_bytes"].max(axis=0).tolist()
    assert maps["total/memory"].tolist() in page.numbers
    assert "from each core (down) to each (across)" in page.text and max(map(len, page.numbers)) == 135
    for word in (
        "Numbers",
        "Critical path",
        "Roofline",
        "bound by",
        "allreduce",
        "wse2",
        "40,000, in place of 49,152",
        "WaferLLM",
    ):
        assert word in page.text, word
    command = next(line for line in page.text.splitlines() if "meshrt run gemv" in line)
    command = command[command.index("meshrt run") :].partition("meshrt 0")[0]
    words = shlex.split(command)[1:]
    again = tmp_path / "again.json"
    process(*words, "--payload", "none", "--quiet", "--json", again)
    before, after = (json.loads(path.read_text()) for path in (run, again))
    for key in before.keys() - {"host"}:
        assert before[key] == after[key], key


def test_pages_of_any_machine_and_what_is_in_a_report_is_no_html(tmp_path: Path) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text(
        'MACHINE = "arm"\ndef run(soc, *, text: str = "<script>alert(1)</script>"):\n    return {"said": text}\n'
    )
    file = tmp_path / "page.html"
    process("run", evil, "--html", file, "--quiet")
    page = read_page(file)
    assert page.text.count("<script>alert(1)</script>") == 2
