"""One step of a model: the tokens of a batch through all layers to the next token of each sequence.

It is the same for a prompt and for new tokens; where the keys and values come from is the batch's affair.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import numpy as np

from meshrt.gpu.gpu import Gpu
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.meter import LinkBytes
from meshrt.gpu.operations import add, matmul, take
from meshrt.gpu.repeat import Repeat
from meshrt.gpu.timing import ACTIVATE, NORM, ROTATE
from meshrt.models.matrix import Activation
from meshrt.programs.gpu import kernels
from meshrt.programs.gpu.experts.dispatch import mix
from meshrt.programs.gpu.experts.products import ExpertsShard
from meshrt.programs.gpu.headnorms import prepared
from meshrt.programs.gpu.schemes.scheme import Arrays, Results
from meshrt.programs.gpu.shards import MlpShard, NormShard, ShardedModel
from meshrt.records import dataclass

Rotary = tuple[np.ndarray, np.ndarray]  # cosines and sines [tokens, D/2]
_ACTIVATIONS: dict[Activation, tuple[Callable[..., None], Callable[..., None]]] = {  # of one matrix, of gate and up
    "silu": (kernels.silu, kernels.swiglu), "gelu_tanh": (kernels.gelu_tanh, kernels.geglu),
    "relu": (kernels.relu, kernels.reglu),
}  # fmt: skip


class Batch(Protocol):
    """Tokens that go through the model together. `last` has the rows of those that are followed by a new token."""

    tokens: np.ndarray
    loaded: int  # of these rows, the first so many are tokens of sequences
    position_rows: np.ndarray  # rows of the table of positions
    last: np.ndarray | None  # None: all

    @property
    def wanted(self) -> int:
        """How many of Q, K and V are needed in the full space."""
        ...

    def begin(self, gpus: Gpus, model: ShardedModel) -> None:
        """Before the first layer."""
        ...

    def ahead(self, gpus: Gpus, model: ShardedModel, layer: int) -> None:
        """What attention will need and is there before the layer's Q, K and V are. Called by some schemes."""
        ...

    def attend(
        self, gpus: Gpus, model: ShardedModel, layer: int, results: Sequence[Results], rotary: Sequence[Rotary | None]
    ) -> Arrays:
        """Attention of every hosted GPU's heads, [tokens, heads D]. The cache gets what is new."""
        ...


@dataclass(frozen=True)
class Ahead:
    """What a step leaves: the next token's ids, float32 [sequences], on each hosted GPU; its columns of the logits.

    `best` [sequences, GPUs] are the greatest logits that the ids were chosen by.
    """

    ids: Arrays
    best: np.ndarray
    logits: Arrays  # [rows, words]: of `last`, or of all tokens where they were asked for


def forward(gpus: Gpus, model: ShardedModel, batch: Batch, all_logits: bool = False) -> Ahead:
    """Run, or record, one step."""
    if model.mixing is not None:
        _do(gpus, model.mixing.begin_step)
    with gpus.scope():
        return head_of(gpus, model, batch, through(gpus, model, batch), all_logits)


def through(gpus: Gpus, model: ShardedModel, batch: Batch, xs: Arrays | None = None) -> Arrays:
    """What the model's layers make of tokens, or, of a stage that is not the first, of what came from the one before.
    Buffers are the caller's scope's."""
    family, scheme, shards = model.family, model.scheme, model.shards
    layers = len(family.layers)
    batch.begin(gpus, model)
    if xs is None:
        xs = [_embed(gpu, model, at, batch) for at, gpu in enumerate(gpus.mine)]
    turns = [
        [turning(gpu, tables, batch.position_rows) for tables in shard.rotary]
        for gpu, shard in zip(gpus.mine, shards, strict=True)
    ]
    repeat = Repeat(gpus, layers - model.layers_run)
    attention, mlp = (LinkBytes(gpus.mine, gpus.traffic, name) for name in ("attention_link_bytes", "mlp_link_bytes"))
    for at in range(model.layers_run):
        ws = [shard.layers[at] for shard in shards]
        if at == model.layers_run - 1 and model.layers_run < layers:
            _do(gpus, repeat.begin)
        with gpus.scope(), _counted(gpus, attention):
            hs = [normed(gpu, x, w.attention_norm, family.eps) for gpu, x, w in zip(gpus.mine, xs, ws, strict=True)]
            qkv = scheme.first(gpus, [w.qkv for w in ws], hs, batch.wanted, partial(batch.ahead, gpus, model, at))
            rotary = [own[family.layers[at].rope] if own else None for own in turns]
            qkv = prepared(gpus, [w.head_norms for w in ws], family.clip, family.eps, qkv)
            ys = batch.attend(gpus, model, at, qkv, rotary)
            added = scheme.second(gpus, [w.o for w in ws], ys)
            _add(gpus, xs, _normed_after(gpus, [w.after_attention for w in ws], added, family.eps))
        with gpus.scope(), _counted(gpus, mlp):
            hs = [normed(gpu, x, w.mlp_norm, family.eps) for gpu, x, w in zip(gpus.mine, xs, ws, strict=True)]
            added = _fed(gpus, model, [w.mlp for w in ws], hs, batch)
            _add(gpus, xs, _normed_after(gpus, [w.after_mlp for w in ws], added, family.eps))
    if model.layers_run < layers:
        _do(gpus, repeat.end)
    return xs


def _fed(
    gpus: Gpus, model: ShardedModel, shards: Sequence[MlpShard | ExpertsShard], hs: Arrays, batch: Batch
) -> Arrays:
    """What a layer's MLP or experts make of tokens."""
    if experts := [shard for shard in shards if isinstance(shard, ExpertsShard)]:
        assert model.mixing is not None
        return mix(gpus, model.mixing, experts, hs, lambda: batch.loaded)
    own = [shard for shard in shards if isinstance(shard, MlpShard)]
    inner = model.scheme.first(gpus, [shard.inner for shard in own], hs, own[0].matrices)
    ys = [activated(gpu, result, own[0].activation) for gpu, result in zip(gpus.mine, inner, strict=True)]
    return model.scheme.second(gpus, [shard.down for shard in own], ys)


def _do(gpus: Gpus, function: object) -> None:
    """Now, or in a plan that is being recorded."""
    assert callable(function)
    if gpus.plan is not None:
        gpus.plan.add(function)
        return
    function()
    if gpus.noted is not None:
        gpus.noted.add(function)


@contextmanager
def _counted(gpus: Gpus, link_bytes: LinkBytes) -> Iterator[None]:
    _do(gpus, link_bytes.begin)
    yield
    _do(gpus, link_bytes.end)


def _embed(gpu: Gpu, model: ShardedModel, at: int, batch: Batch) -> np.ndarray:
    shard = model.shards[at]
    assert shard.embedding is not None
    x = take(gpu, shard.embedding, batch.tokens)
    if model.family.embedding_scale != 1:
        gpu.launch(kernels.scaled, x, model.family.embedding_scale, cost=gpu.cost(x.size, 2 * gpu.size(x)))
    if shard.positions is not None:
        add(gpu, x, take(gpu, shard.positions, batch.position_rows))
    return x


def _add(gpus: Gpus, xs: Arrays, addends: Arrays) -> None:
    for gpu, x, addend in zip(gpus.mine, xs, addends, strict=True):
        add(gpu, x, addend)


def _normed_after(gpus: Gpus, norms: Sequence[NormShard | None], ys: Arrays, eps: float) -> Arrays:
    """What a part of a layer made, after the norm that some models have there."""
    return [y if norm is None else normed(gpu, y, norm, eps) for gpu, y, norm in zip(gpus.mine, ys, norms, strict=True)]


def normed(gpu: Gpu, x: np.ndarray, norm: NormShard, eps: float) -> np.ndarray:
    """RMSNorm or LayerNorm, as the model has it."""
    out = gpu.new(*x.shape)
    cost = gpu.cost_of_rows(NORM, x.shape, 4 * x.size, 2 * gpu.size(x))
    scale, wide = gpu.shaped((len(x), 1)), gpu.shaped(x.shape)
    if norm.bias is None:
        return gpu.launch(kernels.rms_norm, out, x, norm.weight, eps, scale, wide, cost=cost)
    centred = gpu.shaped(x.shape)
    return gpu.launch(kernels.layer_norm, out, x, norm.weight, norm.bias, eps, scale, wide, centred, cost=cost)


def turning(gpu: Gpu, tables: Rotary, rows: np.ndarray) -> Rotary:
    """Cosines and sines at these positions."""
    return take(gpu, tables[0], rows, np.float32), take(gpu, tables[1], rows, np.float32)


def rotated(gpu: Gpu, x: np.ndarray, dim: int, rotary: Rotary | None) -> np.ndarray:
    """Rotary embedding of x [tokens, heads D], in place, if the model has it."""
    if rotary is None:
        return x
    tokens, half = len(x), dim // 2
    heads = x.reshape(tokens, -1, dim)
    scratch = gpu.shaped((5, tokens, heads.shape[1], half))
    return gpu.launch(
        kernels.rotate, x, heads[..., :half], heads[..., half:], rotary[0][:, None], rotary[1][:, None], scratch,
        cost=gpu.cost_of_rows(ROTATE, x.shape, 3 * x.size, 2 * gpu.size(x)),
    )  # fmt: skip


def activated(gpu: Gpu, result: Results, activation: Activation) -> np.ndarray:
    """act(gate) * up, or act of one alone."""
    values = result.values
    out = gpu.new(*values[0].shape)
    cost = gpu.cost_of_rows(ACTIVATE, out.shape, 5 * out.size, (len(values) + 1) * gpu.size(out))
    plain, gated = _ACTIVATIONS[activation]
    kernel = gated if len(values) == 2 else plain
    return gpu.launch(kernel, out, gpu.shaped(out.shape), *values, cost=cost)


def head_of(gpus: Gpus, model: ShardedModel, batch: Batch, xs: Arrays, all_logits: bool = False) -> Ahead:
    """Every GPU finds the likeliest of its words; the candidates are gathered, and every GPU has the winners."""
    logits, pairs = [], []
    for gpu, shard, x in zip(gpus.mine, model.shards, xs, strict=True):
        rows = x if batch.last is None or all_logits else take(gpu, x, batch.last)
        assert shard.norm is not None and shard.head is not None
        scores = matmul(gpu, normed(gpu, rows, shard.norm, model.family.eps), shard.head)
        if model.family.logit_cap is not None:
            cost = gpu.cost(3 * scores.size, 2 * gpu.size(scores))
            gpu.launch(kernels.capped, scores, model.family.logit_cap, cost=cost)
        logits.append(scores)
        final = scores if batch.last is None or not all_logits else take(gpu, scores, batch.last)
        pair = gpu.new(len(final), 2, dtype=np.float32)
        gpu.launch(
            kernels.likeliest, pair, final, shard.first_word, pair[:, 0], pair[:, 1],
            gpu.shaped((len(final),), np.int64), cost=gpu.cost(final.size, gpu.size(final)),
        )  # fmt: skip
        pairs.append(pair)
    gathered = gpus.all_gather(pairs, [2] * gpus.count, np.float32)
    ids = []
    for gpu, candidates in zip(gpus.mine, gathered, strict=True):
        out, flat = gpu.shaped((len(candidates),), np.float32), candidates.reshape(-1)
        rows, indices = np.arange(len(candidates)) * gpus.count, gpu.shaped((len(candidates),), np.int64)
        cost = gpu.cost(candidates.size, candidates.nbytes)
        ids.append(gpu.launch(kernels.winners, out, candidates[:, 0::2], flat[1::2], rows, indices, cost=cost))
    return Ahead(ids, gathered[0][:, 0::2], logits)
