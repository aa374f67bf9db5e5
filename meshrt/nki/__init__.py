"""NKI kernels, unmodified but for the line that imports nki, on the emulated NeuronCores of `meshrt.neuron`.

import meshrt.nki as nki
import meshrt.nki.isa as nisa
import meshrt.nki.language as nl
"""

from typing import NoReturn

from meshrt.errors import UsageError
from meshrt.nki import compiler, isa, language, typing
from meshrt.nki.benchmark import baremetal, benchmark, profile
from meshrt.nki.kernel import Kernel, jit, simulate, simulate_kernel
from meshrt.nki.names import told

trace = jit
__all__ = (
    "Kernel", "baremetal", "benchmark", "compiler", "isa", "jit", "language", "profile", "simulate", "simulate_kernel",
    "trace", "typing",
)  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    if name.startswith("_"):
        raise AttributeError(f"nki has no {name!r}")
    raise UsageError(told("nki", name, __all__))
