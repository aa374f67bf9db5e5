"""The documentation as pages (mkdocs.yml), and the workflow of public CI."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from make_gallery import PICTURES, draw_links
from PIL import Image

from meshrt.studies.pictures.heat import COLOURS

ROOT = Path(__file__).parents[2]


def test_every_page_of_the_documentation_has_its_place() -> None:
    named = set(re.findall(r"[\w/]+\.md", (ROOT / "mkdocs.yml").read_text()))
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md") if path.parent.name != "decisions"}
    assert named == pages | {"decisions/README.md", "index.md"}


def leads_somewhere(site: Path, link: str) -> bool:
    """Is there what a link of the first page leads to? Some lead to what lies beside docs/ in a checkout alone."""
    return (site / link).exists() or (ROOT / link).is_file()


# Without what builds the site, which the extra `test` brings, it is still tested that all pages are named.
@pytest.mark.skipif(
    find_spec("mkdocs") is None, reason="mkdocs is in the extras `test` and `site`, and not installed here"
)
def test_the_pages_are_built(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site"), "--quiet"]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    assert "meshrt" in (tmp_path / "site" / "start" / "index.html").read_text()
    first = (tmp_path / "site" / "index.html").read_text()
    assert "A mesh emulator" in first and 'href="start/"' in first and 'href="docs/' not in first
    assert not [
        link for link in re.findall(r'<a href="([a-z][^":#]*)"', first) if not leads_somewhere(tmp_path / "site", link)
    ]
    step = "examples/tutorial/1_shift.py"
    assert f'href="../{step}"' in (tmp_path / "site" / "tutorial" / "index.html").read_text()
    assert (tmp_path / "site" / step).read_text() == (ROOT / step).read_text()


def test_public_ci_runs_the_command_of_the_house() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "- run: .ci/run" in workflow and (ROOT / ".ci" / "run").is_file()


def test_every_picture_is_made_by_the_script_and_shown() -> None:
    docs = ROOT / "docs"
    pictures = {path.name for path in (docs / "pictures").iterdir()}
    shown = {name for page in docs.rglob("*.md") for name in re.findall(r"\(pictures/([^)]+)\)", page.read_text())}
    assert pictures == shown == {f"{name}.png" for name in PICTURES}


def test_a_picture_of_the_gallery_is_what_the_script_makes_of_it(tmp_path: Path) -> None:
    """Of each colour as much of it: where letters stand is matplotlib's affair."""
    draw_links("rowsum", tmp_path, tmp_path)

    def shares(folder: Path) -> np.ndarray:
        pixels = np.asarray(Image.open(folder / "rowsum.png").convert("RGB")).reshape(-1, 3)
        colours = [tuple(bytes.fromhex(colour[1:])) for colour in COLOURS]
        return np.array([(pixels == colour).all(axis=1).mean() for colour in colours])

    made, kept = shares(tmp_path), shares(ROOT / "docs" / "pictures")
    assert kept.max() > 0.2 and np.allclose(made, kept, atol=0.03), "python tests/make_gallery.py rowsum"
