"""meshrt: a mesh emulator of MPI processes. `meshrt.run` emulates a program, `meshrt.sweep` many; see docs/start.md."""

from __future__ import annotations

from meshrt.ranks.failing import outside
from meshrt.version import __version__

TYPE_CHECKING = False  # typing takes 4 ms, which processes that only start ranks need for nothing
if TYPE_CHECKING:
    from typing import Any

    from meshrt.emulate import run, sweep
    from meshrt.fitting.fit import Fit, fit
    from meshrt.reports.report import Report

__all__ = ["Fit", "Report", "__version__", "fit", "run", "sweep"]
_HOMES = {"Report": "meshrt.reports.report", "Fit": "meshrt.fitting.fit", "fit": "meshrt.fitting.fit"}

outside.watch()


def __getattr__(name: str) -> Any:
    """Late: the command sets the environment before NumPy is imported."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'meshrt' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "meshrt.emulate")), name)
