"""Names that instructions take as arguments."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any

from meshrt.errors import UsageError
from meshrt.neuron.timeline import ComputeEngine
from meshrt.nki.names import Named
from meshrt.nki.session import session


class engine(Enum, metaclass=Named):
    """Which engine runs an instruction."""

    unknown = "unknown"
    tensor = "tensor"
    vector = "vector"
    scalar = "scalar"
    gpsimd = "gpsimd"
    dma = "dma"
    sync = "sync"


unknown_engine, tensor_engine, vector_engine = engine.unknown, engine.tensor, engine.vector
scalar_engine, gpsimd_engine = engine.scalar, engine.gpsimd


class nc_version(IntEnum, metaclass=Named):
    """Generations of NeuronCores: trn1, trn2, trn3."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


class reduce_cmd(Enum, metaclass=Named):
    """What an instruction does with the registers that it reduces into."""

    idle = "idle"
    reset = "reset"
    reduce = "reduce"
    reset_reduce = "reset_reduce"
    load_reduce = "load_reduce"


class oob_mode(Enum, metaclass=Named):
    """Indices beyond a tensor: an error, or skipped."""

    error = "error"
    skip = "skip"


class dge_mode(Enum, metaclass=Named):
    """How descriptors of a transfer are made: nothing that is modelled."""

    unknown = "unknown"
    none = "none"
    swdge = "swdge"
    hwdge = "hwdge"


class matmul_perf_mode(Enum, metaclass=Named):
    """Modes of the tensor engine; `none` alone is modelled."""

    none = "none"
    double_row = "double_row"
    double_column = "double_column"
    double_pixel = "double_pixel"


def chosen(
    name: str, given: Any, default: str, allowed: tuple[str, ...] = ("vector", "scalar", "gpsimd")
) -> ComputeEngine:
    """The core's engine that an instruction runs on. UsageError for one that cannot."""
    core = session().core
    wanted = default if given is None or given is engine.unknown else getattr(given, "value", given)
    if wanted not in allowed:
        raise UsageError(
            f"{name} cannot run on {given}; engine= takes {', '.join(f'nisa.engine.{a}' for a in allowed)}"
        )
    chosen_engine: ComputeEngine = getattr(core, wanted)
    return chosen_engine
