"""The pictures of docs/gallery.md: `python tests/make_gallery.py` makes them, below docs/pictures/."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
PICTURES = {
    "rowsum": "examples/rowsum.py",
    "halo": "examples/halo.py",
    "transpose": "examples/transpose.py",
    "alltoall": "examples/alltoall.py",
    "middle": "examples/tutorial/7_middle.py",
    "gemm": "gemm --m 64 --k 64 --n 64",
}


def make(name: str, words: str, to: Path) -> None:
    """A picture of the links of one run on 8 x 8 cores."""
    with TemporaryDirectory() as folder:
        maps = f"{folder}/run.npz"
        for command in (f"run {words} --mesh 8x8 --quiet --maps {maps}", f"show {maps} --png {to / name}.png"):
            subprocess.run([sys.executable, "-m", "meshrt", *command.split()], cwd=ROOT, check=True)


if __name__ == "__main__":
    to = ROOT / "docs" / "pictures"
    to.mkdir(exist_ok=True)
    for name, words in PICTURES.items():
        make(name, words, to)
