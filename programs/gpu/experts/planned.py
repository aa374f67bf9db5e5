"""Experts in a plan: room of a fixed size for each, and kernels that find at each replay which tokens it has.

What a plan keeps cannot depend on a choice: every expert of a GPU computes as many rows as it may get at the most, all
rows of the batch, or those of --capacity, and its weights are read whether it has tokens or not, as DeepEP's kernels
for low latency have it (github.com/deepseek-ai/DeepEP). The host does not wait for the router.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from meshrt.gpu.gpu import Gpu
from meshrt.programs.gpu.experts.mixing import Mixing
from meshrt.programs.gpu.experts.products import Chosen, ExpertsShard, activated, grouped

NOBODY = -1  # in a slot that no token has


def planned_experts(
    gpu: Gpu, mixing: Mixing, shard: ExpertsShard, x: np.ndarray, chosen: Chosen, shares: np.ndarray,
    loaded: Callable[[], int], counts: bool,
) -> np.ndarray:  # fmt: skip
    """What this GPU's experts make of rows x [rows, hidden], added up. Only the first `loaded()` rows are tokens, by
    then; of those that an expert gets, it takes what it would outside of a plan.
    """
    assert gpu.plan is not None
    own, rows, hidden = [*shard.experts], *x.shape
    y = gpu.new(rows, hidden)
    room = mixing.room(rows)
    size, item = len(own) * room, gpu.dtype.itemsize
    if not own:
        return gpu.launch(_nothing, y, cost=gpu.cost(0, gpu.size(y)))
    slots = gpu.new(len(own), room, dtype=np.int32)
    cost = gpu.cost(0, chosen.nbytes + slots.nbytes)
    gpu.launch(_assign, slots, chosen, own, mixing, loaded, cost=cost)
    gpu.plan.add(_count, gpu, mixing, shard, chosen, loaded, size, counts)
    collected = gpu.new(size, hidden)
    gpu.launch(_collect, collected, x, slots, cost=gpu.cost(0, 2 * item * size * hidden))
    feeds = [shard.experts[expert] for expert in own]
    parts = [slice(at * room, (at + 1) * room) for at in range(len(own))]
    wide = gpu.new(size, feeds[0].inner.shape[1])
    grouped(gpu, [collected[part] for part in parts], [feed.inner for feed in feeds], [wide[part] for part in parts])
    inner = activated(gpu, wide, feeds[0].columns)
    out = gpu.new(size, hidden)
    grouped(gpu, [inner[part] for part in parts], [feed.down for feed in feeds], [out[part] for part in parts])
    cost = gpu.cost(2 * size * hidden, item * (size + rows) * hidden + slots.nbytes + chosen.nbytes + shares.nbytes)
    return gpu.launch(_combine, y, out, shares, chosen, slots, own, cost=cost)


def _count(
    gpu: Gpu, mixing: Mixing, shard: ExpertsShard, chosen: Chosen, loaded: Callable[[], int], size: int, counts: bool
) -> None:
    """What a replay did, by what its tokens chose; by shape, by what is drawn for them."""
    rows, loads = loaded(), mixing.loads
    choices = chosen[:rows] if mixing.routing is None else mixing.routing.draw(shard.number, loads.steps - 1, rows)
    tokens = np.bincount(np.asarray(choices).reshape(-1), minlength=len(shard.whole.experts))[[*shard.experts]]
    limit = mixing.limit(rows)
    kept = tokens if limit is None else np.minimum(tokens, limit)
    if counts:
        loads.tokens[shard.number, [*shard.experts]] += tokens
        loads.hit[shard.number] += np.count_nonzero(tokens)
        if dropped := int((tokens - kept).sum()):
            gpu.count("dropped_tokens", dropped)
    gpu.count("expert_rows", size)
    gpu.count("expert_padding", size - int(kept.sum()))


# ---- kernels


def _nothing(y: np.ndarray) -> None:
    y.fill(0)


def _assign(
    slots: NDArray[np.int32], chosen: Chosen, own: Sequence[int], mixing: Mixing, loaded: Callable[[], int]
) -> None:
    rows = loaded()
    limit = mixing.limit(rows)
    slots.fill(NOBODY)
    for at, expert in enumerate(own):
        tokens = np.flatnonzero((chosen[:rows] == expert).any(axis=1))[:limit]
        slots[at, : len(tokens)] = tokens


def _collect(out: np.ndarray, x: np.ndarray, slots: NDArray[np.int32]) -> None:
    flat = slots.reshape(-1)
    out.fill(0)
    out[flat >= 0] = x[flat[flat >= 0]]


def _combine(
    y: np.ndarray, out: np.ndarray, shares: np.ndarray, chosen: Chosen, slots: NDArray[np.int32], own: Sequence[int]
) -> None:
    y.fill(0)
    for at, expert in enumerate(own):
        rows = slots[at][slots[at] >= 0]
        begin = at * slots.shape[1]
        share = shares[rows][chosen[rows] == expert]
        y[rows] += share[:, None] * out[begin : begin + len(rows)]
