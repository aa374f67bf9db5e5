"""ci/imports: the drawing in docs/ is that of the sources, and a circle would be seen."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def imports() -> dict[str, Any]:
    """What ci/imports defines."""
    return runpy.run_path(str(ROOT / "ci" / "imports"))


@pytest.fixture(scope="module")
def sources(imports: dict[str, Any]) -> Any:
    """What it reads of this checkout: what each file imports, and the folders."""
    return imports["read"](ROOT)


def test_the_drawing_is_that_of_the_sources_and_has_no_circle(imports: dict[str, Any], sources: Any) -> None:
    drawn = imports["draw"](*sources)
    assert "circles: none" in drawn
    assert (ROOT / "docs" / "imports.svg").read_text() == drawn, "draw it again: ci/imports > docs/imports.svg"


FLOORS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
          "thirteen", "fourteen", "fifteen", "sixteen"]  # fmt: skip


def test_the_drawing_says_how_many_floors_folders_and_arrows_there_are(imports: dict[str, Any], sources: Any) -> None:
    graph, folders = sources
    floor, _ = imports["floors"](graph, folders)
    house, count = (ROOT / "docs" / "house.md").read_text(), 1 + max(floor.values())
    assert f"![{FLOORS[count].capitalize()} floors, arrows that go down, no circles](imports.svg)" in house
    drawn = imports["draw"](graph, folders)
    counts = f"in {len(set(folders.values()))} folders, on {count} floors; "
    assert counts in drawn and f" {drawn.count('<path') // 2} arrows; circles" in drawn


def test_files_of_the_walks_are_there_and_define_what_is_named() -> None:
    """docs/house.md: `folder/file.py` (`name`), also a file named before by its stem alone: fabric (`send`)."""
    house = (ROOT / "docs" / "house.md").read_text()
    walks = house.partition("## Six walks")[2].split("\n**")[1:]
    assert len(walks) == 6
    named = re.compile(r"`([\w/]+\.(?:py|c))`|(\w+) \((?=`)|`(\w+)`")
    for walk in walks:
        files: dict[str, str] = {}
        at, checked = "", 0
        for path, stem, name in named.findall(walk):
            if path:
                at = files[Path(path).stem] = (ROOT / path).read_text()
            elif stem:
                at = files[stem]
            else:
                defined = rf"\b(?:def|class) {name}\b|^(?:static )?[\w ]+\*?{name}\("
                assert re.search(defined, at, re.MULTILINE), (name, walk)
                checked += 1
        assert len(files) > 6 and checked >= len(files) - 4, walk


def test_floors_go_down_and_a_circle_is_red(imports: dict[str, Any], tmp_path: Path) -> None:
    sources = {
        "top.py": "from meshrt.low import a, b", "errors.py": "import os", "unused.py": "",
        "low/a.py": "def late():\n    from meshrt.low.b import thing", "low/b.py": "import meshrt.low.c",
        "low/c.py": "from meshrt.low import a\nfrom meshrt.errors import Wrong", "low/alone.py": "import meshrt.errors",
        "low/__init__.py": "", "programs/gemm.py": "import meshrt.top",
    }  # fmt: skip
    for name, text in sources.items():
        path = tmp_path / "meshrt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph, folders = imports["read"](tmp_path)
    assert graph == {
        "meshrt.top": {"meshrt.low.a", "meshrt.low.b"}, "meshrt.errors": set(), "meshrt.unused": set(),
        "meshrt.low.a": {"meshrt.low.b"}, "meshrt.low.b": {"meshrt.low.c"},
        "meshrt.low.c": {"meshrt.low.a", "meshrt.errors"}, "meshrt.low.alone": {"meshrt.errors"},
    }  # fmt: skip
    floor, circles = imports["floors"](graph, folders)
    assert circles == [{"meshrt.low.a", "meshrt.low.b", "meshrt.low.c"}]
    assert {name.removeprefix("meshrt."): level for name, level in floor.items()} == {
        "top": 2, "low.a": 1, "low.b": 1, "low.c": 1, "low.alone": 1, "errors": 0, "unused": 0,
    }  # fmt: skip
    drawn = imports["draw"](graph, folders)
    assert "circles: 1<" in drawn and "a circle of 3 in meshrt/low/: a, b, c<" in drawn
    assert all(f'fill="#d00">{name}<' in drawn for name in "abc") and 'fill="#d00">alone<' not in drawn
