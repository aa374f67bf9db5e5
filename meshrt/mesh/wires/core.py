"""What walks over arrays of times: the compiled core (core.c), or NumPy, which is the definition; with the same bits.

The core is there where it was built when meshrt was installed. MESHRT_CORE=numpy does without it, MESHRT_CORE=compiled
not.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshrt.errors import UsageError
from meshrt.sources import checksum

try:
    from meshrt.mesh.wires import _core
except ImportError:
    _core = None  # type: ignore[assignment]  # it was not built

built: Any = _core
PACKAGE = Path(__file__).parents[2]


def chosen(environ: Mapping[str, str] | None = None) -> Any:
    """The compiled core, None where NumPy is to do it. UsageError for a choice that there is not, and for
    a core that is not of this checkout.
    """
    name = (os.environ if environ is None else environ).get("MESHRT_CORE", "")
    if name not in ("", "numpy", "compiled"):
        raise UsageError(f"MESHRT_CORE is {name!r}: choose numpy or compiled")
    if name == "compiled" and built is None:
        raise UsageError(
            "MESHRT_CORE is 'compiled', but the core was not built here: install meshrt again, with a C compiler"
        )
    if name == "numpy" or built is None:
        return None
    sources = checksum(PACKAGE)
    if sources is not None and sources != getattr(built, "SOURCES", None):
        raise UsageError(
            "the compiled core is not of this checkout, whose C sources are others: run launch/setup-venv, or install"
            " meshrt again; MESHRT_CORE=numpy does without it"
        )
    return built
