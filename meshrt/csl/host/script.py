"""`cs_python` of a child of `meshrt csl run`: runs a host script; what is wrong with the program is one message."""

from __future__ import annotations

import os
import random
import runpy
import sys
from pathlib import Path

import numpy as np

from meshrt.csl.host.standin import warn_of_numpy
from meshrt.errors import MeshrtError


def main(argv: list[str]) -> int:
    if not argv:
        print("cs_python is given no script", file=sys.stderr)
        return 2
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    text = Path(argv[0]).read_text() if Path(argv[0]).is_file() else ""
    if "make_u48" in text or "<< 16" in text:
        warn_of_numpy()
    if os.environ.get("MESHRT_CSL_EXPORTED"):  # runs are compared: what is drawn from one row of numbers is the same
        random.seed(0)
        np.random.seed(0)
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except MeshrtError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
