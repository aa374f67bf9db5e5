"""Stand-ins, in the process that tries a kernel only: nki under AWS's names, and empty modules for frameworks."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import numpy as np

import meshrt.nki as nki
from meshrt.nki import compiler, isa, language, typing

FRAMEWORKS = (
    "torch", "torch_xla", "torch_neuronx", "torchvision", "jax", "jax_neuronx", "transformers", "diffusers", "loguru",
    "pytest", "scipy", "libneuronxla", "neuronx_distributed", "matplotlib", "pandas", "tabulate",
)  # fmt: skip
TYPES = "neuronxcc.nki.compiler.backends"  # of AWS's compiler, which samples name in annotations


def install() -> None:
    """From here on `import neuronxcc.nki`, `import nki` are meshrt.nki, and frameworks import as empty modules."""
    sizes = _module("constants", sizeinbytes=lambda dtype: np.dtype(dtype).itemsize)
    modes = _module("constants", oob_mode=isa.oob_mode, dge_mode=isa.dge_mode, engine=isa.engine)
    outer = _module("neuronxcc", nki=nki)
    outer.__path__ = []
    sys.modules["neuronxcc"] = outer
    compiler.__path__ = []
    for root in ("neuronxcc.nki", "nki"):
        sys.modules |= {
            root: nki, f"{root}.isa": isa, f"{root}.language": language, f"{root}.compiler": compiler,
            f"{root}.typing": typing, f"{root}.isa.constants": modes, f"{root}.language.constants": sizes,
        }  # fmt: skip
    sys.meta_path.append(_Frameworks())


def _module(name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(names)
    return module


class Anything:
    """Whatever a file does with a framework when it is imported."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __call__(self, *args: Any, **_: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __mro_entries__(self, _: Any) -> tuple[type, ...]:
        return (Anything,)

    def __getitem__(self, _: Any) -> Any:
        return Anything()

    def __or__(self, _: Any) -> Any:
        return Anything()

    __ror__ = __or__


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class _Frameworks(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """After all others: what is not installed, of the frameworks."""

    def find_spec(self, name: str, *_: Any) -> Any:
        if name.split(".")[0] not in FRAMEWORKS and not name.startswith(TYPES):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing."""
