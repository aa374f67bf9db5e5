"""`nisa`: the instructions, of both generations of the API. Costs are those of docs/neuron.md and docs/nki.md."""

from __future__ import annotations

from typing import Any

from meshrt.errors import UsageError
from meshrt.nki.constants import (
    dge_mode,
    engine,
    gpsimd_engine,
    matmul_perf_mode,
    nc_version,
    oob_mode,
    reduce_cmd,
    scalar_engine,
    tensor_engine,
    unknown_engine,
    vector_engine,
)
from meshrt.nki.instructions.moves import dma_copy, dma_transpose, iota, memset, nc_stream_shuffle, shared_constant_tile
from meshrt.nki.instructions.products import nc_matmul, nc_transpose
from meshrt.nki.instructions.scalar import (
    activation,
    activation_reduce,
    affine_select,
    dropout,
    reciprocal,
    select_reduce,
)
from meshrt.nki.instructions.statistics import (
    bn_aggr,
    bn_stats,
    max8,
    nc_find_index8,
    reduced,  # noqa: F401 - for operators of nl
    tensor_partition_reduce,
    tensor_reduce,
)
from meshrt.nki.instructions.vector import (
    arithmetic,
    scalar_tensor_tensor,
    tensor_copy,
    tensor_copy_predicated,
    tensor_scalar,
    tensor_scalar_reduce,
    tensor_tensor,
    tensor_tensor_scan,
)
from meshrt.nki.names import told
from meshrt.nki.session import session

__all__ = (
    "activation", "activation_reduce", "affine_select", "arithmetic", "bn_aggr", "bn_stats", "dge_mode", "dma_copy",
    "dma_transpose", "dropout", "engine", "get_nc_version", "gpsimd_engine", "iota", "matmul_perf_mode", "max8",
    "memset", "nc_find_index8", "nc_matmul", "nc_stream_shuffle", "nc_transpose", "nc_version", "oob_mode",
    "reciprocal", "reduce_cmd", "scalar_engine", "scalar_tensor_tensor", "select_reduce", "shared_constant_tile",
    "tensor_copy", "tensor_copy_predicated", "tensor_engine", "tensor_partition_reduce", "tensor_reduce",
    "tensor_scalar", "tensor_scalar_reduce", "tensor_tensor", "tensor_tensor_scan", "unknown_engine", "vector_engine",
)  # fmt: skip


def get_nc_version() -> Any:
    """The generation of the NeuronCore that the kernel runs on."""
    return nc_version.gen3 if session().device.name == "trn2" else nc_version.gen2


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"nisa has no {name!r}")
    raise UsageError(told("nisa", name, __all__))
