"""What kernels name and is not there: the nearest thing that is, by its meaning if known, else by its letters."""

from __future__ import annotations

from collections.abc import Iterable
from enum import EnumMeta
from typing import Any, NoReturn

from meshrt.errors import MissingName as MissingName
from meshrt.errors import nearest

_RANDOM = "random numbers of the hardware are not emulated: make them with NumPy and give them as an argument"
_DYNAMIC = "the nearest is nl.sequential_range, with numbers for bounds"
_GATHER = "the nearest is a DMA by a tile of indices, as in nl.load(x[tile, columns])"
_BETWEEN = "the nearest is nl.shared_hbm: programs run one after the other, and read what earlier ones have stored"
_MX = "MX formats are not there; the nearest is nisa.nc_matmul of 8-bit floats with perf_mode double_row"
INSTEAD = {
    "activate2": "the nearest is nisa.tensor_scalar before nisa.activation", "all_gather": _BETWEEN,
    "all_reduce": _BETWEEN, "astype": "say nl.copy(tile, dtype=...)", "collectives": _BETWEEN,
    "core_barrier": _BETWEEN, "dma_compute": "the nearest is nisa.dma_copy with dst_rmw_op=nl.add",
    "dynamic_range": _DYNAMIC, "exponential": "the nearest is nisa.activation with nl.exp, bias and reduce_op",
    "fori_loop": _DYNAMIC, "gather_flattened": _GATHER, "local_gather": _GATHER, "nc_matmul_mx": _MX,
    "nc_match_replace8": "the nearest are nisa.nc_find_index8 and nisa.tensor_copy_predicated", "nc_n_gather": _GATHER,
    "nccl": _BETWEEN, "quantize_mx": _MX, "rand": _RANDOM, "rand2": _RANDOM, "rand_get_state": _RANDOM,
    "rand_set_state": _RANDOM, "range_select": "the nearest is nisa.select_reduce, with a predicate of two comparisons",
    "register_alloc": _DYNAMIC, "register_load": _DYNAMIC, "register_move": _DYNAMIC, "register_store": _DYNAMIC,
    "rng": _RANDOM, "sendrecv": _BETWEEN, "sequence_bounds": "the nearest is nl.where on comparisons with nisa.iota",
    "set_rng_seed": _RANDOM, "T": "say nl.transpose(tile)",
    "tensor_scalar_cumulative": "the nearest is nisa.tensor_tensor_scan", "to": "say nl.copy(tile, dtype=...)",
    "topk": "the nearest are nisa.max8 and nisa.nc_find_index8", "while_loop": _DYNAMIC,
}  # fmt: skip


def told(of: str, name: str, names: Iterable[str]) -> str:
    """The message for a name that `of` does not have."""
    instead = INSTEAD.get(name) or nearest(name, names, "docs/nki.md lists what there is")
    return f"{of} has no {name!r} here: {instead}"


class Named(EnumMeta):
    """Enumerations that say which members they have."""

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        members: Any = cls.__members__
        raise MissingName(told(f"nisa.{cls.__name__}", name, members) + f" It has {', '.join(members)}")
