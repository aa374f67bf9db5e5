"""How a mixture of experts is spread over GPUs: which GPU has which expert, how tokens come there, what was counted."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.models.family import Family
from meshrt.models.matrix import Experts
from meshrt.programs.gpu.options import GpuOptions
from meshrt.programs.routing import Routing, imbalance, make_routing
from meshrt.programs.shares import part
from meshrt.records import dataclass


@dataclass
class Loads:
    """What hosted GPUs found of their experts, over all layers with experts that ran."""

    tokens: NDArray[np.int64]  # [layers, experts], those that were dropped included
    hit: NDArray[np.int64]  # [layers]: experts with tokens, added up over the steps
    steps: int = 0


@dataclass(frozen=True)
class Mixing:
    """`owner` [layers, experts] is the GPU of each expert; in the layout `tensor` all have a part of it."""

    layout: str
    place: str
    owner: NDArray[np.intp]
    top: int
    capacity: float | None
    routing: Routing | None  # None: the router decides
    loads: Loads

    def limit(self, tokens: int) -> int | None:
        """Most tokens of so many that an expert takes; None: all that come."""
        return None if self.capacity is None else ceil(self.capacity * tokens * self.top / self.owner.shape[1])

    def room(self, rows: int) -> int:
        """Rows that an expert computes in a plan for batches of up to so many."""
        limit = self.limit(rows)
        return rows if limit is None else min(limit, rows)

    def begin_step(self) -> None:
        self.loads.steps += 1

    def own(self, layer: int, gpu: int) -> list[int]:
        """The experts that a GPU has of a layer."""
        if self.layout == "tensor":
            return [*range(self.owner.shape[1])]
        return np.flatnonzero(self.owner[layer] == gpu).tolist()


def mixing_of(gpus: Gpus, family: Family, how: GpuOptions) -> Mixing | None:
    """As it was asked for; None of a model without experts. UsageError."""
    mixtures = [layer.mlp for layer in family.layers if isinstance(layer.mlp, Experts)]
    if not mixtures:
        for name, given in (
            ("--experts", how.experts != "tensor"), ("--place", how.place != "contiguous"),
            ("--capacity", how.capacity is not None), ("--routing", how.routing is not None),
            ("--routing-seed", how.routing_seed != 0),
        ):  # fmt: skip
            if given:
                raise UsageError(f"{name} is about the experts of a model, and this one has none")
        return None
    moe, count = mixtures[0], len(mixtures[0].experts)
    if gpus.static and how.experts == "alltoall":
        raise UsageError(
            "--static: what GPUs send each other with --experts alltoall has other sizes at each step; take tensor or"
            " replicated, or leave --static away"
        )
    if how.scheme != "dense" and any(matrix.rank for each in mixtures for matrix in each.matrices()):
        raise UsageError("the model has experts in two factors; give --scheme dense, which multiplies them out")
    if how.capacity is not None and how.capacity > count / moe.top:
        raise UsageError(
            f"--capacity is {how.capacity:g}; it is {count / moe.top:g} at most: then an expert has room for all tokens"
        )
    check_columns(moe, gpus.count, how.experts)
    if how.place != "contiguous" and how.experts == "tensor":
        raise UsageError("--place frequency: with --experts tensor every GPU has a part of every expert")
    if gpus.payload and how.routing is not None and how.place == "contiguous":
        raise UsageError("--routing: with numbers the router decides; it is for --payload none, or --place frequency")
    if gpus.payload and how.routing is None and how.place != "contiguous":
        raise UsageError("--place frequency: with numbers, say how often experts are chosen: --routing FILE")
    if how.routing_seed and gpus.payload and not (how.routing or "").startswith(("zipf:", "lognormal")):
        raise UsageError("--routing-seed: nothing is drawn here; it goes with --payload none, or --routing zipf:S")
    routing = make_routing(how.routing or "uniform", len(mixtures), count, moe.top, how.routing_seed)
    owner = np.stack([
        placed(how.place, gpus.count, frequency) for frequency in routing.frequency
    ])  # fmt: skip
    loads = Loads(np.zeros((len(mixtures), count), np.int64), np.zeros(len(mixtures), np.int64))
    return Mixing(
        how.experts, how.place, owner, moe.top, how.capacity, None if gpus.payload else routing, loads
    )  # fmt: skip


def check_columns(mixture: Experts, count: int, layout: str) -> None:
    """UsageError where matrices have too few columns for all GPUs."""
    inner = mixture.experts[0].down.rows
    if layout == "tensor" and inner < count:
        raise UsageError(f"--tp is {count}; an expert has {inner} columns: give --experts replicated, or alltoall")
    if layout != "alltoall" and mixture.shared is not None and mixture.shared.down.rows < count:
        raise UsageError(f"--tp is {count}; the shared expert has {mixture.shared.down.rows} columns")


def placed(place: str, count: int, frequency: Sequence[float] | NDArray[Any]) -> NDArray[np.intp]:
    """The GPU of each expert. By frequency: the most frequent first, each to the GPU that is expected to get the fewest
    tokens of those that have room, which is the same for all (greedy bin packing); ties to the lower numbers."""
    experts = len(frequency)
    owner = np.empty(experts, np.intp)
    if place == "contiguous":
        for gpu in range(count):
            owner[part(gpu, count, experts)] = gpu
        return owner
    load, held, room = [0.0] * count, [0] * count, -(-experts // count)
    for expert in np.argsort(-np.asarray(frequency), kind="stable").tolist():
        gpu = min((gpu for gpu in range(count) if held[gpu] < room), key=lambda gpu: load[gpu])
        owner[expert] = gpu
        load[gpu] += float(frequency[expert])
        held[gpu] += 1
    return owner


def describe(gpus: Gpus, mixing: Mixing) -> dict[str, Any]:
    """The loads of all GPUs as facts of a snapshot. All ranks call it."""
    tokens, hit = _loads(gpus, mixing)
    return {"steps": mixing.loads.steps, "tokens": tokens.tolist(), "hit": hit.tolist()}


def restore(gpus: Gpus, mixing: Mixing, facts: Mapping[str, Any]) -> None:
    """Go on from there; rank 0 stands for what all had found."""
    mixing.loads.steps = int(facts["steps"])
    for target, counts in ((mixing.loads.tokens, facts["tokens"]), (mixing.loads.hit, facts["hit"])):
        target[...] = np.array(counts, np.int64) if gpus.control.rank == 0 else 0


def _loads(gpus: Gpus, mixing: Mixing) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tokens and hits, of all ranks, on all."""
    tokens, hit = (gpus.control.allreduce(counts, sum) for counts in (mixing.loads.tokens, mixing.loads.hit))
    return tokens, hit


def told_experts(gpus: Gpus, mixing: Mixing | None, family: Family, layers_run: int) -> dict[str, Any]:
    """What the result says of the experts of the layers that ran; nothing of a model without. All ranks call it."""
    if mixing is None:
        return {}
    layers = sum(isinstance(layer.mlp, Experts) for layer in family.layers[:layers_run])
    tokens, hit = (counts[:layers] for counts in _loads(gpus, mixing))
    counted = {
        name: gpus.control.allreduce(sum(gpu.counters.tally.get(name, 0) for gpu in gpus.mine), sum)
        for name in ("expert_rows", "expert_padding")
    }
    by_gpu = [
        [int(line[[*mixing.own(layer, gpu)]].sum()) for gpu in range(gpus.count)] for layer, line in enumerate(tokens)
    ]
    rows, uneven = counted["expert_rows"], {"experts": imbalance(tokens), "gpus": imbalance(np.array(by_gpu))}
    return {
        **{f"imbalance_of_{name}": None if shares is None else shares["mean"] for name, shares in uneven.items()},
        "experts": {
            "layout": mixing.layout,
            "place": mixing.place,
            "tokens": tokens.tolist(),
            "tokens_by_gpu": by_gpu,
            "imbalance": uneven,
            "hit_per_step": float(hit.mean() / max(mixing.loads.steps, 1)) if layers else 0.0,
            "padding_share": counted["expert_padding"] / rows if rows else 0.0,
        },
    }
