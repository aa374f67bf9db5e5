"""A child process that finds `cslc`, `cs_python` and a package of stand-ins on its paths; nothing is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import meshrt
from meshrt.errors import UsageError

PARTS = {
    "cerebras/sdk/runtime/sdkruntimepybind.py": "from meshrt.csl.host.standin import MemcpyDataType, MemcpyOrder\n"
    "from meshrt.csl.host.standin import SdkRuntime\n"
    "from meshrt.csl.host.standin_layout import Color, Route, RoutingPosition, SdkLayout, SdkTarget, SimfabConfig\n"
    "from meshrt.csl.host.standin_layout import get_platform\n",
    "cerebras/geometry/geometry.py": "from meshrt.csl.host.standin_layout import IntVector\n",
    "cerebras/sdk/sdk_utils.py": "from meshrt.csl.host.standin import calculate_cycles, input_array_to_u32\n"
    "from meshrt.csl.host.standin import memcpy_view\n",
    "cerebras/sdk/debug/debug_util.py": "from meshrt.csl.host.standin_debug import debug_util\n",
}
PACKAGES = ("cerebras", "cerebras/sdk", "cerebras/sdk/runtime", "cerebras/sdk/debug", "cerebras/geometry")


def run(
    command: Sequence[str], folder: Path, *, report: Path | None = None, seed: int | None = None,
    built: Path | None = None, timeout: float | None = None, capture: bool = False, exported: bool = False,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a command in a folder; `built` is touched when cslc has built, and reports have what is `exported`.

    subprocess.TimeoutExpired, UsageError.
    """
    with TemporaryDirectory(prefix="meshrt-csl-") as made:
        root = Path(made)
        (root / "bin").mkdir()
        for name, module in (("cslc", "meshrt.csl.host.cslc"), ("cs_python", "meshrt.csl.host.script")):
            path = root / "bin" / name
            path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
            path.chmod(0o755)
        for package in PACKAGES:
            (root / "python" / package).mkdir(parents=True)
            (root / "python" / package / "__init__.py").write_text("")
        for name, text in PARTS.items():
            (root / "python" / name).write_text(text)
        paths = [str(root / "python"), str(Path(meshrt.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "PATH": f"{root / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        given = {"REPORT": report, "SEED": seed, "BUILT": built, "EXPORTED": 1 if exported else None}
        for name, value in ((f"MESHRT_CSL_{word}", value) for word, value in given.items()):
            if value is not None:
                environment[name] = str(value)
        try:
            return subprocess.run(
                list(command), cwd=folder, env=environment, timeout=timeout, text=True, capture_output=capture,
                check=False,
            )  # fmt: skip
        except OSError as error:
            raise UsageError(
                f"{command[0]} cannot be run in {folder}: {error.strerror}; a script goes by its shell, such as:"
                " -- bash run_sim.sh"
            ) from error
