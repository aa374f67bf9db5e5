"""DeInfer with collectives beside the kernels, which section 4.2 names and does not describe.

Many tokens go through a sub-layer in two halves: one is computed while the other is exchanged. Of few, whose products
wait for their weights, halves would read those twice; what lies in a low-rank cache already is rebuilt meanwhile.
Matrices are cut as DeInfer cuts them. Where they are not decomposed, and on one GPU, there is nothing to go on beside.
"""

from collections.abc import Sequence

from meshrt.gpu.beside import begin, finish
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.operations import matmul, matmuls
from meshrt.programs.gpu.schemes import deinfer
from meshrt.programs.gpu.schemes.deinfer import (
    DeInferFirst,
    DeInferSecond,
    cut_first,
    cut_second,
    inner,
    own_latents,
    split,
)
from meshrt.programs.gpu.schemes.dense import DenseFirst, DenseSecond
from meshrt.programs.gpu.schemes.scheme import Arrays, Results, RunAhead

__all__ = ["cut_first", "cut_second", "first", "second", "split"]

HALVES = (
    256  # tokens from which on there are two: the largest tiles of a product have as many rows, the usual ones half
)


def first(
    gpus: Gpus, shards: Sequence[DeInferFirst | DenseFirst], xs: Arrays, wanted: int, ahead: RunAhead = None
) -> list[Results]:  # fmt: skip
    """Down, all-gather, up."""
    own = [shard for shard in shards if isinstance(shard, DeInferFirst) and shard.down is not None]
    if not own or gpus.count == 1:
        return deinfer.first(gpus, shards, xs, wanted)
    shares = own[0].shares
    latents = [gpu.new(len(x), sum(shares)) for gpu, x in zip(gpus.mine, xs, strict=True)]
    values = [
        [gpu.new(len(x), up.shape[1]) for up in shard.up[:wanted]]
        for gpu, shard, x in zip(gpus.mine, own, xs, strict=True)
    ]
    halves = _halves(len(xs[0]))
    under_way = [
        begin(gpus, "all_gather", own_latents(gpus, own, [x[half] for x in xs]), [low[half] for low in latents], shares)
        for half in halves
    ]
    if ahead is not None:
        ahead()
    for half, pending in zip(halves, under_way, strict=True):
        for gpu, shard, x, low, outs in zip(gpus.mine, own, xs, finish(gpus, pending), values, strict=True):
            _, inputs = inner(shard, x[half], low)
            matmuls(gpu, inputs[:wanted], shard.up[:wanted], shard.biases[:wanted], [out[half] for out in outs])
    return [
        Results(outs, inner(shard, x, low)[0]) for shard, x, low, outs in zip(own, xs, latents, values, strict=True)
    ]


def second(gpus: Gpus, shards: Sequence[DeInferSecond | DenseSecond], ys: Arrays) -> Arrays:
    """Down, reduce-sum, up."""
    pairs = [shard for shard in shards if isinstance(shard, DeInferSecond)]
    halves = _halves(len(ys[0]))
    if not pairs or gpus.count == 1 or len(halves) == 1:
        return deinfer.second(gpus, shards, ys)
    under_way = []
    for half in halves:
        parts = [matmul(gpu, y[half], shard.down) for gpu, shard, y in zip(gpus.mine, pairs, ys, strict=True)]
        sums = [gpu.new(*part.shape) for gpu, part in zip(gpus.mine, parts, strict=True)]
        under_way.append(begin(gpus, "reduce_sum", parts, sums))
    outs = [gpu.new(len(y), shard.up.shape[1]) for gpu, shard, y in zip(gpus.mine, pairs, ys, strict=True)]
    for half, pending in zip(halves, under_way, strict=True):
        for gpu, shard, low, out in zip(gpus.mine, pairs, finish(gpus, pending), outs, strict=True):
            matmuls(gpu, [low], [shard.up], [shard.bias], [out[half]])
    return outs


def _halves(tokens: int) -> list[slice]:
    return [slice(0, tokens)] if tokens < HALVES else [slice(0, tokens // 2), slice(tokens // 2, tokens)]
