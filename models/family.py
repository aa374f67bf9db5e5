"""What the models have in common, as a forward pass needs it.

All that walk a model's layers walk those of its Family: shapes of a folder, the reference, compression, every machine.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.matrix import Experts, Layer, LowRank, Matrix, Mlp
from meshrt.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Family:
    """A decoder-only transformer. Names are those of tensors, without `.weight`."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    layers: tuple[Layer, ...]
    embedding: str
    embedding_scale: float  # of what is looked up there, not of a head that is the same table
    positions: str | None  # the table of learned positions; None: rotary embedding
    position_offset: int  # of the first row of that table
    norm: str
    head: str
    layer_norm: bool  # with mean and bias; else RMSNorm
    norm_shift: int  # to be added to the weights of all norms
    eps: float
    clip: float | None = None  # queries, keys and values are cut off at -clip and clip
    scale: float  # of the scores of attention
    score_cap: float | None  # then scores s become cap tanh(s / cap), and so do logits
    logit_cap: float | None
    stop: tuple[int, ...]
    dtype: str
    config: Config

    @property
    def group(self) -> int:
        """Query heads that share one key and value head."""
        return self.heads // self.kv_heads


def read_family(folder: Path, quantized: bool = False) -> Family:
    """The model of a Hugging Face folder. ModelError, also of a quantized one but to those who can work with it."""
    return family_of(read_config(folder, quantized))


def family_of(config: Config) -> Family:
    kind, names = config.kind, config.kind.names
    return Family(
        hidden=config.hidden_size, heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim,
        vocabulary=config.vocab_size, max_positions=config.max_positions,
        layers=tuple(map(config.layer, range(config.layers))),
        embedding=names.embedding, embedding_scale=config.embedding_scale,
        positions=names.positions, position_offset=config.position_offset, norm=names.norm,
        head=names.embedding if config.tie_word_embeddings else "lm_head",
        layer_norm=kind.layer_norm, norm_shift=kind.norm_shift, eps=config.eps, clip=config.clip_qkv,
        scale=config.attention_scale, score_cap=config.score_cap, logit_cap=config.logit_cap,
        stop=config.eos_token_ids, dtype=config.dtype or "float32", config=config,
    )  # fmt: skip


# What the models here have beside what LLaMA has, experts apart.
DENSE: Mapping[str, Callable[[Family], bool]] = {
    "norms of queries and keys": lambda family: family.config.qk_norm == "head",
    "norms of all heads together": lambda family: family.config.qk_norm == "all",
    "clip_qkv": lambda family: family.clip is not None,
    "windows of attention": lambda family: any(layer.window is not None for layer in family.layers),
    "several rotary embeddings": lambda family: len(family.config.ropes) > 1,
    "learned positions": lambda family: family.positions is not None,
    "LayerNorm": lambda family: family.layer_norm,
    "norms after a part of a layer": lambda family: any(layer.after_mlp is not None for layer in family.layers),
    "weights of norms that are shifted": lambda family: family.norm_shift != 0,
    "a scaled embedding": lambda family: family.embedding_scale != 1,
    "capped scores or logits": lambda family: (family.score_cap, family.logit_cap) != (None, None),
    "MLPs without a gate": lambda family: any(mlp.gate is None for mlp in _mlps(family)),
    "other activations than silu": lambda family: any(mlp.activation != "silu" for mlp in _mlps(family)),
    "biases in its MLPs": lambda family: any(mlp.down.bias for mlp in _mlps(family)),
    "an attention scale of its own": lambda family: family.scale != family.head_dim**-0.5,
}


def _mlps(family: Family) -> list[Mlp]:
    return [layer.mlp for layer in family.layers if isinstance(layer.mlp, Mlp)]


def check_plain(family: Family, folder: Path, machine: str, able: Collection[str] = ()) -> None:
    """ModelError where the model has what the reference, the mesh and GPUs compute, and this one does not yet: of what
    LLaMA does not have it can do what `able` names.
    """
    lacks = [name for name, has in DENSE.items() if name not in able and has(family)]
    experts = ["experts"] if any(isinstance(layer.mlp, Experts) for layer in family.layers) else []
    needs = " and ".join(experts + lacks)
    if needs:
        raise ModelError(
            f"{folder}: the model has {needs}, which {machine} cannot run yet; name a model without, or run it on the"
            " mesh or on GPUs (llama --on mesh, --on gpu; docs/models.md, docs/moe.md)"
        )


def with_ranks(family: Family, ranks: Mapping[str, int]) -> Family:
    """The model with these matrices decomposed, by the last part of their names (such as q_proj), in every layer."""

    def decomposed(matrix: Matrix) -> Matrix:
        rank = ranks.get(matrix.name.rsplit(".", 1)[-1], matrix.rank)
        return matrix if rank is None else replace(matrix, form=LowRank(rank))

    return _each(family, decomposed)


def _each(family: Family, change: Callable[[Matrix], Matrix]) -> Family:
    """The model with this done to every matrix of its layers that may be kept in another form."""

    def of_mlp(mlp: Mlp) -> Mlp:
        return replace(mlp, gate=mlp.gate and change(mlp.gate), up=change(mlp.up), down=change(mlp.down))

    def of_layer(layer: Layer) -> Layer:
        mlp = layer.mlp
        return replace(
            layer, q=change(layer.q), k=change(layer.k), v=change(layer.v), o=change(layer.o),
            mlp=of_mlp(mlp) if isinstance(mlp, Mlp) else replace(
                mlp, experts=tuple(map(of_mlp, mlp.experts)), shared=mlp.shared and of_mlp(mlp.shared)
            ),
        )  # fmt: skip

    return replace(family, layers=tuple(map(of_layer, family.layers)))


def evenly(family: Family, ratio: float) -> Family:
    """The model by shape, every matrix decomposed to l = (1 - ratio) of its shorter side, to the nearest even number.

    So DeInfer counts a "compression ratio" (Table 1: 4916 of 8192 and 614 of 1024), though at 40 % it leaves 84 % of
    LLaMA-3-70B's parameters.
    """

    def halved(matrix: Matrix) -> Matrix:
        rank = 2 * int((1 - ratio) * matrix.most_rank / 2 + 0.5)
        return replace(matrix, form=LowRank(min(max(rank, 1), matrix.most_rank)))

    return _each(family, halved)


def first_unlike(layers: Sequence[Layer], run: int) -> int | None:
    """Which of the layers after the first `run` has other forms than the last of those, or sees others, if one does."""
    forms = [(layer.window, layer.rope, [matrix.form for matrix in layer.matrices()]) for layer in layers]
    return next((at for at in range(run, len(forms)) if forms[at] != forms[run - 1]), None)
