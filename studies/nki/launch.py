"""A kernel of a checkout in a process of its own: checked on numbers, or launched by shape. Prints JSON.

    python -m meshrt.studies.nki.launch ROOT FILE NAME DEVICE < launches.json

A launch is {"shapes": [[rows, columns], ..], "options": {..}}: operands in bfloat16, and keywords; in place of these
{"blocks": NAME, "tokens": M} asks a function of the same file for them. "reorder": true: engines take instructions in
the order that suits them. Without launches the kernel is checked.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from meshrt.studies.nki.case import BFLOAT16
from meshrt.studies.nki.child import attempt, load, told
from meshrt.studies.nki.standins import install


class HollowOperand:
    """An operand without numbers."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype = shape, np.dtype(BFLOAT16)


def launched(root: Path, path: str, name: str, device: str, launches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each launch measured."""
    install()
    module = load(root, path)
    kernel = getattr(module, name)
    reports = []
    for launch in launches:
        kernel.how = kernel.how.__class__(device=device, show=False, reorder=launch.get("reorder", False))
        options = launch["options"]
        if "blocks" in options:
            options = getattr(module, options["blocks"])(options["tokens"])
        kernel(*(HollowOperand(tuple(shape)) for shape in launch["shapes"]), **options)
        reports.append(kernel.report)
    return reports


def main(root: str, path: str, name: str, device: str) -> dict[str, Any]:
    if not (launches := json.load(sys.stdin)):
        return attempt(Path(root), path, name)
    try:
        return {"reports": launched(Path(root), path, name, device, launches)}
    except (Exception, SystemExit) as error:
        return {"reason": told(error)}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
