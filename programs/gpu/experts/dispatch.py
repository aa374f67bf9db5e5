"""How tokens come to experts, and what these make of them to all GPUs: three layouts.

`tensor` cuts every expert over all GPUs as an MLP. `replicated` gives each GPU whole experts, and each has all tokens
anyway. Both end with one reduce-sum. `alltoall` is expert parallelism as DeepEP has it (github.com/deepseek-ai/DeepEP):
each GPU owns some tokens, routes them, and sends them to the GPUs of their experts, a token once to each, with its
choice and shares; what these have computed comes back and is added, and an all-gather gives it to all.

A GPU adds up what it has of a token in order of the experts' numbers, and a token's owner these sums in order of the
GPUs, whatever comes first.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from meshrt.gpu.gpus import Gpus
from meshrt.programs.gpu.experts.mixing import Mixing
from meshrt.programs.gpu.experts.planned import planned_experts
from meshrt.programs.gpu.experts.products import Chosen, ExpertsShard, own_experts, routed, with_shared
from meshrt.programs.gpu.schemes.scheme import Arrays
from meshrt.programs.shares import part

META = 4 + 4  # bytes of an expert's number and of its share, as they are sent


def mix(
    gpus: Gpus, mixing: Mixing, shards: Sequence[ExpertsShard], hs: Arrays, loaded: Callable[[], int]
) -> Arrays:  # fmt: skip
    """What the experts of a layer make of tokens [tokens, hidden] that every GPU has, on every GPU.

    In a plan, only the first `loaded()` are tokens when it is replayed.
    """
    tokens, layer = len(hs[0]), shards[0].number
    planned = gpus.plan is not None
    drawn = None
    if mixing.routing is not None and not planned:
        drawn = mixing.routing.draw(layer, mixing.loads.steps - 1, tokens)
    if mixing.layout == "alltoall":
        return _all_to_all(gpus, mixing, shards, hs, drawn)
    ys = []
    for gpu, shard, h in zip(gpus.mine, shards, hs, strict=True):
        chosen, shares = routed(gpu, shard, h, drawn)
        counts = mixing.layout == "replicated" or gpu.index == 0
        if planned:
            y = planned_experts(gpu, mixing, shard, h, chosen, shares, loaded, counts)
        else:
            if mixing.layout == "replicated":
                gpu.synchronize()  # how many tokens its experts have is the host's affair
            y = own_experts(gpu, mixing, shard, h, chosen, shares, tokens, counts)
        ys.append(with_shared(gpu, shard, h, y))
    return gpus.reduce_sum(ys)


def _all_to_all(
    gpus: Gpus, mixing: Mixing, shards: Sequence[ExpertsShard], hs: Arrays, drawn: Chosen | None
) -> Arrays:  # fmt: skip
    tokens, hidden = hs[0].shape
    owner = mixing.owner[shards[0].number]
    item = gpus.mine[0].dtype.itemsize
    owns, ways = [], []
    for gpu, shard, h in zip(gpus.mine, shards, hs, strict=True):
        share = part(gpu.index, gpus.count, tokens)
        owns.append(h[share])
        ways.append(routed(gpu, shard, h[share], None if drawn is None else drawn[share]))
    goes = [_destinations(chosen, owner, gpus.count) for chosen, _ in ways]
    table = _table(gpus, goes, owner, drawn)
    parts, outs = [], []
    for gpu, h, (chosen, shares), rows in zip(gpus.mine, owns, ways, goes, strict=True):
        order, top = np.concatenate(rows), shares.shape[1]
        sent = [gpu.new(len(order), hidden), *(gpu.new(len(order), top, dtype=kind) for kind in (np.int32, np.float32))]
        cost = gpu.cost(0, 2 * len(order) * (item * hidden + META * top))
        gpu.launch(_leave, sent[0], sent[1:], (h, chosen, shares), order, cost=cost)
        parts.append(sent)
        count = sum(line[gpu.index] for line in table)
        outs.append([gpu.new(count, hidden), *(gpu.new(count, top, dtype=kind) for kind in (np.int32, np.float32))])
        gpu.count("dispatched_bytes", (len(order) - len(rows[gpu.index])) * (item * hidden + META * top))
    gpus.all_to_all(parts, outs, table, item * hidden + META * mixing.top)
    partial = []
    for gpu, shard, (x, chosen, shares) in zip(gpus.mine, shards, outs, strict=True):
        if drawn is not None:
            chosen = _arrived(gpus, gpu.index, owner, drawn)
        partial.append(own_experts(gpu, mixing, shard, x, chosen, shares, tokens, True))
    return _back(gpus, shards, owns, partial, goes, table, tokens)


def _back(
    gpus: Gpus, shards: Sequence[ExpertsShard], owns: Arrays, partial: Arrays, goes: Sequence[list[NDArray[np.intp]]],
    table: list[list[int]], tokens: int,
) -> Arrays:  # fmt: skip
    """What GPUs have made of tokens to those that own these, added there, and from there to all."""
    hidden, item = owns[0].shape[1], gpus.mine[0].dtype.itemsize
    turned = [[*line] for line in zip(*table, strict=True)]
    backs = [[gpu.new(sum(table[gpu.index]), hidden)] for gpu in gpus.mine]
    gpus.all_to_all([[made] for made in partial], backs, turned, item * hidden)
    ys = []
    for gpu, shard, h, (back,), rows, made in zip(gpus.mine, shards, owns, backs, goes, partial, strict=True):
        gpu.count("combined_bytes", (len(made) - table[gpu.index][gpu.index]) * item * hidden)
        y = gpu.new(*h.shape)
        cost = gpu.cost(back.size, gpu.size(back) + gpu.size(y))
        ys.append(with_shared(gpu, shard, h, gpu.launch(_gather_back, y, back, rows, cost=cost)))
    sizes = [len(range(tokens)[part(index, gpus.count, tokens)]) for index in range(gpus.count)]
    return gpus.all_gather(ys, sizes, rows=True)


def _destinations(chosen: Chosen, owner: NDArray[np.intp], count: int) -> list[NDArray[np.intp]]:
    """For each GPU the rows that have experts there."""
    where = owner[chosen]
    return [np.flatnonzero((where == gpu).any(axis=1)) for gpu in range(count)]


def _table(
    gpus: Gpus, goes: Sequence[list[NDArray[np.intp]]], owner: NDArray[np.intp], drawn: Chosen | None
) -> list[list[int]]:
    """How many tokens go from each GPU to each: all GPUs tell all, and the hosts wait for it."""
    counts = [gpu.new(1, gpus.count, dtype=np.int32) for gpu in gpus.mine]
    for gpu, count, rows in zip(gpus.mine, counts, goes, strict=True):
        gpu.launch(_count, count, rows, cost=gpu.cost(0, 4 * owner.size + count.nbytes))
    (gathered, *_) = gpus.all_gather(counts, [gpus.count] * gpus.count, np.int32)
    for gpu in gpus.mine:
        gpu.synchronize()
    if drawn is None:
        return gathered.reshape(gpus.count, gpus.count).tolist()
    shares = (drawn[part(index, gpus.count, len(drawn))] for index in range(gpus.count))
    return [[len(rows) for rows in _destinations(share, owner, gpus.count)] for share in shares]


def _arrived(gpus: Gpus, index: int, owner: NDArray[np.intp], drawn: Chosen) -> Chosen:
    """The choices of the tokens that a GPU gets."""
    choices: Chosen = drawn[(owner[drawn] == index).any(axis=1)]
    return choices


# ---- kernels


def _leave(_: np.ndarray, sent: Sequence[np.ndarray], sources: Sequence[np.ndarray], order: np.ndarray) -> None:
    for target, source in zip((_, *sent), sources, strict=True):
        target[...] = source[order]


def _count(count: np.ndarray, rows: Sequence[np.ndarray]) -> None:
    count[0] = [len(indices) for indices in rows]


def _gather_back(y: np.ndarray, back: np.ndarray, rows: Sequence[np.ndarray]) -> None:
    y.fill(0)
    begin = 0
    for indices in rows:
        y[indices] += back[begin : begin + len(indices)]
        begin += len(indices)
