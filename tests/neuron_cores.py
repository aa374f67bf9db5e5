"""NeuronCores and tensors for the tests."""

from typing import Any

import ml_dtypes
import numpy as np

from meshrt.neuron import language as nl
from meshrt.neuron.core import NeuronCore
from meshrt.neuron.device import NeuronDevice, find_neuron_device
from meshrt.neuron.tile import Tile, as_tile


def new_core(payload: bool = True, index: int = 0, **limits: Any) -> NeuronCore:
    """A NeuronCore of a trn1, with other limits if they are given."""
    return NeuronCore(find_neuron_device("trn1", **limits), index, payload)


def slow_core(**numbers: Any) -> NeuronCore:
    """A NeuronCore with numbers to reckon with: 1 cycle and 1 byte a second, one DMA engine, which is 1 s late."""
    given: dict[str, Any] = {
        "tensor_hz": 1.0, "vector_hz": 1.0, "scalar_hz": 1.0, "gpsimd_hz": 1.0, "least_cycles": 1, "dma_engines": 1,
        "gpsimd_start_cycles": 5, "dma_bytes_per_second": 1.0, "hbm_bytes_per_second": 1.0, "dma_transfer_seconds": 1.0,
        "dma_descriptor_seconds": 0.0, "dma_start_seconds": 0.0,
    }  # fmt: skip
    return NeuronCore(NeuronDevice(name="slow", **(given | numbers)))


def tensor(core: NeuronCore, *shape: int, dtype: Any = nl.float32, seed: int = 0) -> Tile:
    """Normal numbers in HBM."""
    return core.tensor_of(np.random.default_rng(seed).standard_normal(shape, np.float32), dtype)


def loaded(core: NeuronCore, *shape: int, dtype: Any = nl.float32, seed: int = 0) -> Tile:
    """Normal numbers in SBUF."""
    return as_tile(nl.load(tensor(core, *shape, dtype=dtype, seed=seed)))


def values(result: Any) -> np.ndarray:
    """The numbers of a tile or of a result."""
    return as_tile(result).data.copy()


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """What ml_dtypes and NumPy make of float32 numbers in a dtype."""
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype(np.float32)
