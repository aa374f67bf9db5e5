"""The page of a report in a real browser, where one is installed (apt install chromium)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# A browser is no package of Python's, and who runs the tests need not have one: test_show.py reads the page without.
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome is installed here")


def browse(page: Path, *options: str) -> str:
    """What headless Chromium says of a page: with --dump-dom what it is after its scripts have run."""
    assert BROWSER is not None
    settings = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr")
    profile = f"--user-data-dir={page.parent / 'profile'}"
    done = subprocess.run(
        [BROWSER, *settings, "--virtual-time-budget=2000", profile, *options, page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    words = f"run gemm --mesh 6x4 --m 24 --k 24 --n 24 -q --maps {folder}/run.npz --html {folder}/run.html"
    subprocess.run(
        [sys.executable, "-m", "meshrt", *words.split(), "--json", folder / "run.json"], check=True, timeout=100
    )
    return folder / "run.html"


def test_a_browser_shows_the_numbers_and_runs_the_page_without_an_error(page: Path) -> None:
    shown = browse(page, "--dump-dom")
    measured = json.loads((page.parent / "run.json").read_text())["measured"]
    for number in (measured["messages"], measured["hops"]):
        assert f">{number:,}<" in shown
    assert "<title>" in shown and len(re.findall("<img", shown)) >= 4


@pytest.mark.parametrize("width", [pytest.param(390, id="phone"), pytest.param(1000, id="desk", marks=pytest.mark.all)])
def test_a_browser_draws_the_page(page: Path, width: int, tmp_path: Path) -> None:
    from PIL import Image

    picture = tmp_path / "page.png"
    browse(page, f"--window-size={width},900", f"--screenshot={picture}")
    pixels = np.asarray(Image.open(picture).convert("L"))
    assert pixels.shape == (900, width)
    assert 0.005 < (pixels < 128).mean() < 0.5, "text on paper"
    assert (pixels[:, -8:] > 250).all(), "nothing hangs over the right edge"


def test_no_table_is_cut_on_paper(page: Path) -> None:
    paper, cut = page.with_name("paper.html"), "[...document.querySelectorAll('div.wide')].filter(e=>"
    cut += "e.scrollWidth>e.clientWidth&&getComputedStyle(e).overflowX!='visible').length"
    counts = []
    for text in (page.read_text(), page.read_text().replace("@media print", "@media all")):
        paper.write_text(text + f"<script>document.body.style.width='12rem';document.title='cut: '+{cut}</script>")
        shown = re.search(r"<title>cut: (\d+)</title>", browse(paper, "--window-size=500,900", "--dump-dom"))
        assert shown is not None
        counts.append(int(shown[1]))
    assert counts[0] > 0 == counts[1]  # on a narrow screen they are scrolled; paper cannot be
