"""The pictures below docs/pictures/, which docs/gallery.md shows: `python tests/make_gallery.py [NAME...]` makes them.

Those of pages are drawn by headless Chromium (apt install chromium); those of the site want the extra `site`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image

ROOT = Path(__file__).parents[1]
LINKS = {
    "rowsum": "examples/rowsum.py",
    "halo": "examples/halo.py",
    "transpose": "examples/transpose.py",
    "alltoall": "examples/alltoall.py",
    "middle": "examples/tutorial/7_middle.py",
    "gemm": "gemm --m 64 --k 64 --n 64",
}
REPORTS = {"report": (1000, 1000), "report-narrow": (390, 800), "report-dark": (1000, 1000)}  # width, height
PARTS = {  # of that page: from which title to which, and width, height
    "report-path": ("Critical path", "Timeline", (1000, 1000)),
    "report-path-narrow": ("Critical path", "Timeline", (390, 800)),
    "report-timeline": ("Timeline", "Roofline", (1000, 560)),
}
SITE = {"site-start": "start", "site-tutorial": "tutorial", "site-api": "api", "site-narrow": "start"}
SITE_SIZES = {"site-narrow": (400, 800)}
PICTURES = (*LINKS, *REPORTS, *PARTS, *SITE)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def meshrt(words: str) -> None:
    subprocess.run([sys.executable, "-m", "meshrt", *words.split()], cwd=ROOT, check=True)


def draw_links(name: str, to: Path, folder: Path) -> None:
    """A picture of the links of one run on 8 x 8 cores."""
    meshrt(f"run {LINKS[name]} --mesh 8x8 --quiet --maps {folder}/run.npz")
    meshrt(f"show {folder}/run.npz --png {to / name}.png")


def photograph(page: Path, to: Path, size: tuple[int, int], *options: str) -> None:
    """What a window of `size` (width, height, pixels) shows of a page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("pictures of pages want Chromium: apt install chromium")
    settings = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000")
    profile = f"--user-data-dir={to.parent / f'.{to.stem}'}"
    window = (f"--window-size={size[0]},{size[1]}", f"--screenshot={to}")
    try:
        subprocess.run([browser, *settings, *options, profile, *window, page.as_uri()], check=True, capture_output=True)
    finally:
        shutil.rmtree(to.parent / f".{to.stem}", ignore_errors=True)
    Image.open(to).quantize(64).save(to, optimize=True)  # a quarter of the bytes


def part_of(page: Path, first: str, last: str) -> Path:
    """A page with the sections of another from the title `first` on, and before `last`."""
    text, part = page.read_text(), page.with_name("part.html")
    begin, end = (text.index(f"<h2>{title}</h2>") for title in (first, last))
    part.write_text(text[: text.index("<h1>")] + text[begin:end])
    return part


def main(names: list[str]) -> None:
    to = ROOT / "docs" / "pictures"
    to.mkdir(exist_ok=True)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in LINKS.keys() & set(names):
            draw_links(name, to, folder)
        if (REPORTS.keys() | PARTS.keys()) & set(names):
            files = f"--maps {folder}/run.npz --trace {folder}/trace.json --html {folder}/run.html"
            meshrt(f"run llama-tiny --max-new-tokens 8 --quiet {files}")
            for name in PARTS.keys() & set(names):
                first, last, size = PARTS[name]
                photograph(part_of(folder / "run.html", first, last), to / f"{name}.png", size)
            for name in REPORTS.keys() & set(names):
                dark = ["--blink-settings=preferredColorScheme=0"] if name.endswith("dark") else []
                photograph(folder / "run.html", to / f"{name}.png", REPORTS[name], *dark)
        if pages := SITE.keys() & set(names):
            command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--no-directory-urls", "--site-dir"]
            subprocess.run([*command, folder / "site"], cwd=ROOT, check=True)
            for name in pages:
                size = SITE_SIZES.get(name, (1280, 800))
                photograph(folder / "site" / f"{SITE[name]}.html", to / f"{name}.png", size)


if __name__ == "__main__":
    main(sys.argv[1:] or list(PICTURES))
