"""ci/imports: the drawing in docs/ is that of the sources, and a circle would be seen."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def imports() -> dict[str, Any]:
    """What ci/imports defines."""
    return runpy.run_path(str(ROOT / "ci" / "imports"))


def test_the_drawing_is_that_of_the_sources_and_has_no_circle(imports: dict[str, Any]) -> None:
    drawn = imports["draw"](*imports["read"](ROOT))
    assert "circles: none" in drawn
    assert (ROOT / "docs" / "imports.svg").read_text() == drawn, "draw it again: ci/imports > docs/imports.svg"


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
