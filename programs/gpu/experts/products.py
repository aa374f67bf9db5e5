"""Experts on one GPU: their weights, the router, and the products of those that tokens take, added in order."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meshrt.gpu.codes import GpuMatrix
from meshrt.gpu.gpu import Gpu
from meshrt.gpu.operations import add, coded_matmuls, matmul, matmuls
from meshrt.gpu.timing import ACTIVATE
from meshrt.models.experts import route
from meshrt.models.matrix import Experts, Mlp
from meshrt.programs.gpu import kernels
from meshrt.programs.gpu.cut import EVERY, Cutter, GpuWeight, product
from meshrt.programs.gpu.experts.mixing import Mixing
from meshrt.programs.gpu.schemes.scheme import Arrays
from meshrt.records import dataclass

Chosen = NDArray[np.integer]  # [tokens, top]


@dataclass(frozen=True)
class Feed:
    """An MLP, or this GPU's part of it: gate and up side by side, and down."""

    inner: GpuWeight
    down: GpuWeight

    @property
    def columns(self) -> int:
        return int(self.inner.shape[1]) // 2


@dataclass(frozen=True)
class ExpertsShard:
    """The experts of one layer on one GPU, by their numbers."""

    router: np.ndarray
    experts: dict[int, Feed]
    shared: Feed | None
    shared_gate: np.ndarray | None
    whole: Experts
    number: int  # of the layer, among those with experts


def cut_experts(cut: Cutter, experts: Experts, mixing: Mixing, number: int) -> ExpertsShard:
    def feed(mlp: Mlp, whole: bool) -> Feed:
        columns = EVERY if whole else cut.own(mlp.down.rows)
        return Feed(
            cut.joined([cut.whole(matrix, EVERY, columns) for matrix in mlp.inner]),
            cut.whole(mlp.down, columns, EVERY),
        )  # fmt: skip

    def plain(at: int) -> np.ndarray:
        weights = cut.whole(experts.routing[at], EVERY, EVERY)
        assert isinstance(weights, np.ndarray)
        return weights

    tensor = mixing.layout == "tensor"
    return ExpertsShard(
        plain(0),
        {each: feed(experts.experts[each], not tensor) for each in mixing.own(number, cut.gpu.index)},
        None if experts.shared is None else feed(experts.shared, mixing.layout == "alltoall"),
        plain(1) if experts.shared_gate is not None else None,
        experts,
        number,
    )


def routed(gpu: Gpu, shard: ExpertsShard, h: np.ndarray, drawn: Chosen | None) -> tuple[Chosen, np.ndarray]:
    """The experts of tokens and their shares; without payload those that were drawn."""
    logits = matmul(gpu, h, shard.router)
    top = shard.whole.top
    chosen, shares = (gpu.new(len(h), top, dtype=dtype) for dtype in (np.int32, np.float32))
    cost = gpu.cost(5 * logits.size, gpu.size(logits) + chosen.nbytes + shares.nbytes)
    gpu.launch(_decide, chosen, shares, logits, top, shard.whole.renormalise, cost=cost)
    return chosen if drawn is None else drawn, shares


def own_experts(
    gpu: Gpu, mixing: Mixing, shard: ExpertsShard, x: np.ndarray, chosen: Chosen, shares: np.ndarray, tokens: int,
    counts: bool,
) -> np.ndarray:  # fmt: skip
    """What this GPU's experts make of rows x of which `chosen` says whose they are, added up: [rows, hidden].

    Of `tokens` in all, an expert may be limited to so many; then each has as many rows, used or not.
    """
    limit, by_expert = mixing.limit(tokens), _by_expert(chosen, len(shard.whole.experts))
    kept, slots, end, dropped = [], [], 0, 0
    for expert in shard.experts:
        rows, choices = by_expert[expert]
        if counts:
            mixing.loads.tokens[shard.number, expert] += len(rows)
            mixing.loads.hit[shard.number] += bool(len(rows))
        if limit is not None:
            dropped += max(0, len(rows) - limit)
        count = len(rows) if limit is None else limit
        if count:
            kept.append((expert, rows[:count], choices[:count]))
            slots.append(slice(end, end + count))
            end += count
    used = sum(len(rows) for _, rows, _ in kept)
    if dropped and counts:
        gpu.count("dropped_tokens", dropped)
    y = gpu.new(len(x), x.shape[1])
    if not end:
        return gpu.launch(_nothing, y, cost=gpu.cost(0, gpu.size(y)))
    for name, count in (("expert_rows", end), ("expert_padding", end - used)):
        gpu.count(name, count)
    item = gpu.dtype.itemsize
    collected = gpu.new(end, x.shape[1])
    pairs = [(slot.start, rows) for slot, (_, rows, _) in zip(slots, kept, strict=True)]
    gpu.launch(_collect, collected, x, pairs, cost=gpu.cost(0, item * (used + end) * x.shape[1]))
    feeds = [shard.experts[expert] for expert, _, _ in kept]
    wide = gpu.new(end, feeds[0].inner.shape[1])
    grouped(gpu, [collected[slot] for slot in slots], [feed.inner for feed in feeds], [wide[slot] for slot in slots])
    inner = activated(gpu, wide, feeds[0].columns)
    out = gpu.new(end, x.shape[1])
    grouped(gpu, [inner[slot] for slot in slots], [feed.down for feed in feeds], [out[slot] for slot in slots])
    parts = [(slot.start, rows, choices) for slot, (_, rows, choices) in zip(slots, kept, strict=True)]
    cost = gpu.cost(2 * used * x.shape[1], item * (used + len(x)) * x.shape[1] + 4 * used)
    return gpu.launch(_combine, y, out, shares, parts, cost=cost)


def _by_expert(chosen: Chosen, experts: int) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """Of each expert the rows that chose it, in order, and at which of their places."""
    flat = np.asarray(chosen).reshape(-1)
    order = np.argsort(flat, kind="stable")
    ends = np.searchsorted(flat[order], np.arange(experts + 1))
    top = chosen.shape[1]
    return [(own // top, own % top) for own in (order[ends[at] : ends[at + 1]] for at in range(experts))]


def grouped(gpu: Gpu, xs: Arrays, weights: Sequence[GpuWeight], outs: Arrays) -> None:
    """Products of the experts that have tokens, or room: one kernel for all."""
    none = [None for _ in xs]
    if isinstance(weights[0], GpuMatrix):
        coded_matmuls(gpu, xs, [weight for weight in weights if isinstance(weight, GpuMatrix)], none, outs)
    else:
        matmuls(gpu, xs, [weight for weight in weights if isinstance(weight, np.ndarray)], none, outs)


def activated(gpu: Gpu, wide: np.ndarray, columns: int) -> np.ndarray:
    out = gpu.new(len(wide), columns)
    cost = gpu.cost_of_rows(ACTIVATE, out.shape, 5 * out.size, 3 * gpu.size(out))
    return gpu.launch(kernels.swiglu, out, gpu.shaped(out.shape), wide[:, :columns], wide[:, columns:], cost=cost)


def with_shared(gpu: Gpu, shard: ExpertsShard, h: np.ndarray, y: np.ndarray) -> np.ndarray:
    """y and what the shared expert, or this GPU's part of it, adds to it."""
    if shard.shared is None:
        return y
    feed = shard.shared
    more = product(gpu, activated(gpu, product(gpu, h, feed.inner), feed.columns), feed.down)
    if shard.shared_gate is None:
        return add(gpu, y, more)
    gate = matmul(gpu, h, shard.shared_gate)
    cost = gpu.cost(2 * y.size + 4 * gate.size, 3 * gpu.size(y) + gpu.size(gate))
    return gpu.launch(_add_gated, y, more, gate, cost=cost)


# ---- kernels


def _decide(chosen: np.ndarray, shares: np.ndarray, logits: np.ndarray, top: int, renormalise: bool) -> None:
    chosen[...], shares[...] = route(logits, top, renormalise)


def _nothing(y: np.ndarray) -> None:
    y.fill(0)


def _collect(out: np.ndarray, x: np.ndarray, pairs: Sequence[tuple[int, np.ndarray]]) -> None:
    out.fill(0)  # room that no token has
    for begin, rows in pairs:
        out[begin : begin + len(rows)] = x[rows]


def _combine(
    y: np.ndarray, out: np.ndarray, shares: np.ndarray, parts: Sequence[tuple[int, np.ndarray, np.ndarray]]
) -> None:
    y.fill(0)
    for begin, rows, choices in parts:
        y[rows] += shares[rows, choices, None] * out[begin : begin + len(rows)]


def _add_gated(y: np.ndarray, more: np.ndarray, gate: np.ndarray) -> None:
    y += more * (0.5 * (1 + np.tanh(0.5 * gate)))
