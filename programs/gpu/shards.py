"""A model on GPUs: what each of them holds of every layer, as a scheme cuts it."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.models.family import Family
from meshrt.models.folders.checkpoint import Checkpoint, Index
from meshrt.models.matrix import Activation, Experts, Layer, Mlp, Norm
from meshrt.models.rope import cos_sin
from meshrt.programs.gpu.coded import Hold
from meshrt.programs.gpu.cut import Cutter
from meshrt.programs.gpu.experts.mixing import Mixing
from meshrt.programs.gpu.experts.products import ExpertsShard, cut_experts
from meshrt.programs.gpu.headnorms import HeadNorm
from meshrt.programs.gpu.schemes import base, deinfer, dense, overlapped
from meshrt.programs.gpu.schemes.scheme import Scheme
from meshrt.programs.shares import part
from meshrt.records import dataclass

SCHEMES: dict[str, ModuleType] = {
    "dense": dense, "base": base, "deinfer": deinfer, "overlapped": overlapped
}  # fmt: skip


@dataclass(frozen=True)
class HeadsShard:
    """The query heads of one GPU, and the key and value heads that it holds for them, `group` queries each."""

    queries: range
    kv: tuple[int, ...]
    dim: int

    @property
    def group(self) -> int:
        return len(self.queries) // len(self.kv)

    @property
    def width(self) -> int:
        """Numbers in a key, or a value, of a token on this GPU."""
        return len(self.kv) * self.dim

    def query_columns(self) -> slice:
        return slice(self.queries.start * self.dim, self.queries.stop * self.dim)

    def kv_columns(self) -> Index:
        first, last = self.kv[0], self.kv[-1]
        if self.kv == (*range(first, last + 1),):
            return slice(first * self.dim, (last + 1) * self.dim)
        return np.concatenate([np.arange(head * self.dim, (head + 1) * self.dim) for head in self.kv])


@dataclass(frozen=True)
class NormShard:
    weight: np.ndarray
    bias: np.ndarray | None


@dataclass(frozen=True)
class MlpShard:
    """`inner` is of so many `matrices`."""

    inner: Any
    down: Any
    matrices: int
    activation: Activation


@dataclass(frozen=True)
class LayerShard:
    """One layer on one GPU; the weights of the four sub-layers are as the scheme has them."""

    heads: HeadsShard
    attention_norm: NormShard
    qkv: Any
    head_norms: tuple[HeadNorm | None, HeadNorm | None]  # of queries and keys
    o: Any
    mlp_norm: NormShard
    mlp: MlpShard | ExpertsShard
    after_attention: NormShard | None  # of what is added
    after_mlp: NormShard | None


@dataclass(frozen=True)
class Shard:
    """A model, or a stage of one, on one GPU. `head` [hidden, words] has its columns of the vocabulary, from
    `first_word` on. The first stage has the embedding, the last one the norm and the head."""

    embedding: np.ndarray | None
    positions: np.ndarray | None
    layers: tuple[LayerShard, ...]
    norm: NormShard | None
    head: np.ndarray | None
    first_word: int
    rotary: tuple[tuple[np.ndarray, np.ndarray], ...]  # cosines and sines [positions, D/2] of each embedding


@dataclass(frozen=True)
class ShardedModel:
    """A model on the hosted GPUs. `layers_run` of its layers run; the last of them is counted for all others."""

    family: Family
    scheme: Scheme
    shards: tuple[Shard, ...]
    layers_run: int
    mixing: Mixing | None  # of experts


def own_heads(family: Family, index: int, count: int) -> HeadsShard:
    """The heads of GPU `index` of `count`, which divides the query heads.

    Where the key heads do not come out even, a GPU holds one key head for each of its query heads.
    """
    share = family.heads // count
    queries = range(index * share, (index + 1) * share)
    kv = sorted({head // family.group for head in queries})
    if all(sum(head // family.group == kv_head for head in queries) * len(kv) == share for kv_head in kv):
        return HeadsShard(queries, tuple(kv), family.head_dim)
    return HeadsShard(queries, tuple(head // family.group for head in queries), family.head_dim)


def all_heads(family: Family) -> HeadsShard:
    return HeadsShard(range(family.heads), tuple(range(family.kv_heads)), family.head_dim)


def check_fit(family: Family, count: int) -> None:
    """UsageError where so many GPUs cannot share the heads evenly."""
    if family.heads % count:
        counts = ", ".join(str(n) for n in range(1, family.heads + 1) if family.heads % n == 0)
        raise UsageError(f"--tp is {count}; the {family.heads} heads of the model can be shared by {counts} GPUs")
    inner = [layer.mlp.down.rows for layer in family.layers if isinstance(layer.mlp, Mlp)]
    if inner and min(inner) < count:
        raise UsageError(f"--tp is {count}; the MLP has {min(inner)} columns")


def place(
    gpus: Gpus, family: Family, scheme_name: str, checkpoint: Checkpoint | None, layers_run: int, positions: int,
    hold: Hold, mixing: Mixing | None, ends: tuple[bool, bool] = (True, True),
) -> ShardedModel:  # fmt: skip
    """Read every hosted GPU's share of the model; without a checkpoint, shapes. UsageError, LimitError, ModelError.

    `ends`: is it the first stage of a pipeline, and the last?
    """
    check_fit(family, gpus.count)
    scheme = cast(Scheme, SCHEMES[scheme_name])
    shards = tuple(
        _shard(Cutter(gpu, gpus.count, checkpoint, hold), family, scheme, mixing, layers_run, positions, ends)
        for gpu in gpus.mine
    )
    return ShardedModel(family, scheme, shards, layers_run, mixing)


def _shard(
    cut: Cutter, family: Family, scheme: Scheme, mixing: Mixing | None, layers_run: int, positions: int,
    ends: tuple[bool, bool],
) -> Shard:  # fmt: skip
    first, last = ends
    words = cut.own(family.vocabulary)
    rotary = []
    for number in range(len(family.config.ropes)):
        if cut.gpu.payload:
            cos, sin = cos_sin(family.config, np.arange(positions), number)
        else:
            cos = sin = cut.gpu.shaped((positions, family.head_dim // 2), np.float32)
        rotary.append((cut.gpu.keep("weights", cos, np.float32), cut.gpu.keep("weights", sin, np.float32)))
    learned = family.max_positions + family.position_offset
    embedding, head = None, None
    if first:
        embedding = cut.table(family.embedding, family.vocabulary, family.hidden)
    if last and embedding is not None and family.head == family.embedding:
        head = embedding[words]
    elif last:
        head = cut.table(family.head, family.vocabulary, family.hidden, words)
    layers = [_layer(cut, family, scheme, mixing, at) for at in range(layers_run)]
    if layers_run < len(family.layers):  # the others, which are like it, take as much
        before = dict(cut.gpu.memory.names)
        _layer(cut, family, scheme, mixing, layers_run)
        for name, nbytes in cut.gpu.memory.names.items():
            cut.gpu.memory.take(name, (nbytes - before.get(name, 0)) * (len(family.layers) - layers_run - 1))
    return Shard(
        embedding,
        None if family.positions is None or not first else cut.table(family.positions, learned, family.hidden),
        tuple(layers),
        _norm(cut, family, family.norm) if last else None,
        None if head is None else np.ascontiguousarray(head.T) if cut.gpu.payload else head.T,
        words.start,
        tuple(rotary),
    )


def _norm(cut: Cutter, family: Family, name: str) -> NormShard:
    weight = cut.vector(name + ".weight", family.hidden)
    return NormShard(weight, cut.vector(name + ".bias", family.hidden) if family.layer_norm else None)


def _layer(cut: Cutter, family: Family, scheme: Scheme, mixing: Mixing | None, at: int) -> LayerShard:
    layer = family.layers[at]
    attention = (layer.q, layer.k, layer.v)
    split_heads = scheme.split(attention)
    heads = own_heads(family, cut.gpu.place, cut.count)
    columns: tuple[Index, ...] = (heads.query_columns(), heads.kv_columns(), heads.kv_columns())
    return LayerShard(
        heads if split_heads else all_heads(family),
        _norm(cut, family, layer.attention_norm),
        scheme.cut_first(cut, attention, columns),
        _head_norms(cut, family, layer, heads, split_heads),
        scheme.cut_second(cut, layer.o, heads.query_columns(), split_heads),
        _norm(cut, family, layer.mlp_norm),
        _mlp(cut, scheme, layer.mlp) if isinstance(layer.mlp, Mlp) else _experts(cut, family, mixing, at),
        None if layer.after_attention is None else _norm(cut, family, layer.after_attention),
        None if layer.after_mlp is None else _norm(cut, family, layer.after_mlp),
    )


def _mlp(cut: Cutter, scheme: Scheme, mlp: Mlp) -> MlpShard:
    inner = part(cut.gpu.place, cut.count, mlp.down.rows)
    return MlpShard(
        scheme.cut_first(cut, mlp.inner, [inner for _ in mlp.inner]),
        scheme.cut_second(cut, mlp.down, inner, scheme.split(mlp.inner)),
        len(mlp.inner),
        mlp.activation,
    )


def _experts(cut: Cutter, family: Family, mixing: Mixing | None, at: int) -> ExpertsShard:
    experts = family.layers[at].mlp
    assert isinstance(experts, Experts) and mixing is not None
    return cut_experts(cut, experts, mixing, sum(isinstance(layer.mlp, Experts) for layer in family.layers[:at]))


def _head_norms(
    cut: Cutter, family: Family, layer: Layer, heads: HeadsShard, split: bool
) -> tuple[HeadNorm | None, HeadNorm | None]:
    """Where heads are split, a norm of all of them is this GPU's part of it."""

    def one(norm: Norm | None, size: int, columns: Index, counted: Sequence[bool]) -> HeadNorm | None:
        if norm is None:
            return None
        if norm.size != size or not split or cut.count == 1:
            return HeadNorm(cut.vector(norm.name + ".weight", norm.size), norm.size, None)
        mask = np.repeat(np.array(counted, np.float32), family.head_dim)
        return HeadNorm(cut.vector(norm.name + ".weight", size, columns), size, mask)

    before = {head for index in range(cut.gpu.place) for head in own_heads(family, index, cut.count).kv}
    first = [head not in before and head not in heads.kv[:at] for at, head in enumerate(heads.kv)]
    return (
        one(layer.q_norm, layer.q.columns, heads.query_columns(), [True for _ in heads.queries]),
        one(layer.k_norm, layer.k.columns, heads.kv_columns(), first),
    )
