"""What walks over arrays of times: the compiled core (core.c), or NumPy, which is the definition; with the same bits.

The core is there where it was built when meshrt was installed. MESHRT_CORE=numpy does without it, MESHRT_CORE=compiled
not.
"""

import os
from collections.abc import Mapping
from typing import Any

from meshrt.errors import UsageError

try:
    from meshrt.mesh.wires import _core
except ImportError:
    _core = None  # type: ignore[assignment]

built: Any = _core
FUNCTIONS = (  # _core.pyi: a core without one of them was built from older sources
    "address", "give", "replay", "serve", "ring", "heard", "listen", "multiply", "line_up", "enter", "leave", "come_in",
)  # fmt: skip


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
    if lacks := [function for function in FUNCTIONS if not hasattr(built, function)]:
        raise UsageError(
            f"the compiled core is older than the checkout (it has no {lacks[0]!r}): run launch/setup-venv, or install"
            " meshrt again; MESHRT_CORE=numpy does without it"
        )
    return built
