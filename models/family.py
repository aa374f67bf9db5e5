"""What the model families have in common, as a forward pass needs it: LLaMA, Qwen2, Mistral, mixtures, and OPT.

All that walk a model's layers walk those of its Family: shapes of a folder, the reference, compression, every machine.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.matrix import Experts, Layer, LowRank, Matrix, Mlp
from meshrt.models.opt import OptConfig, is_opt, read_opt


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
    positions: str | None  # the table of learned positions; None: rotary embedding
    position_offset: int  # of the first row of that table
    norm: str
    head: str
    layer_norm: bool  # with mean and bias; else RMSNorm
    eps: float
    clip: float | None = None  # queries, keys and values are cut off at -clip and clip
    stop: tuple[int, ...]
    dtype: str
    config: Config | OptConfig

    @property
    def group(self) -> int:
        """Query heads that share one key and value head."""
        return self.heads // self.kv_heads


def read_family(folder: Path, quantized: bool = False) -> Family:
    """The model of a Hugging Face folder. ModelError, also of a quantized one but to those who can work with it."""
    return family_of(read_opt(folder) if is_opt(folder) else read_config(folder, quantized))


def family_of(config: Config | OptConfig) -> Family:
    return _of_llama(config) if isinstance(config, Config) else _of_opt(config)


def _of_llama(config: Config) -> Family:
    embedding = "model.embed_tokens"
    return Family(
        hidden=config.hidden_size, heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim,
        vocabulary=config.vocab_size, max_positions=config.max_positions,
        layers=tuple(map(config.layer, range(config.layers))),
        embedding=embedding, positions=None, position_offset=0, norm="model.norm",
        head=embedding if config.tie_word_embeddings else "lm_head",
        layer_norm=False, eps=config.rms_norm_eps, clip=config.clip_qkv, stop=config.eos_token_ids,
        dtype=config.dtype or "float32", config=config,
    )  # fmt: skip


def _of_opt(config: OptConfig) -> Family:
    embedding = "model.decoder.embed_tokens"
    return Family(
        hidden=config.hidden_size, heads=config.heads, kv_heads=config.heads, head_dim=config.head_dim,
        vocabulary=config.vocab_size, max_positions=config.max_positions,
        layers=tuple(map(config.layer, range(config.layers))),
        embedding=embedding, positions="model.decoder.embed_positions", position_offset=config.position_offset,
        norm="model.decoder.final_layer_norm", head=embedding if config.tie_word_embeddings else "lm_head",
        layer_norm=True, eps=config.eps, stop=config.eos_token_ids, dtype=config.dtype or "float32", config=config,
    )  # fmt: skip


def check_plain(family: Family, folder: Path, machine: str) -> None:
    """ModelError where the model has what the reference, the mesh and GPUs compute, and this one does not yet."""
    parts = {
        "experts": any(isinstance(one.mlp, Experts) for one in family.layers),
        "norms of queries and keys": any(one.head_norms for one in family.layers),
        "clip_qkv": family.clip is not None,
    }
    found = " and ".join(name for name, there in parts.items() if there)
    if found:
        raise ModelError(
            f"{folder}: the model has {found}, which {machine} cannot run yet; name a model without, or run it on the"
            " mesh or on GPUs (llama --on mesh, --on gpu; docs/moe.md)"
        )


def with_ranks(family: Family, ranks: Mapping[str, int]) -> Family:
    """The model with these matrices decomposed, by the last part of their names (such as q_proj), in every layer."""

    def matrix(one: Matrix) -> Matrix:
        rank = ranks.get(one.name.rsplit(".", 1)[-1], one.rank)
        return one if rank is None else replace(one, form=LowRank(rank))

    return _each(family, matrix)


def _each(family: Family, matrix: Callable[[Matrix], Matrix]) -> Family:
    """The model with this done to every matrix of its layers that may be kept in another form."""

    def mlp(one: Mlp) -> Mlp:
        return Mlp(one.gate and matrix(one.gate), matrix(one.up), matrix(one.down))

    def layer(one: Layer) -> Layer:
        return replace(
            one, q=matrix(one.q), k=matrix(one.k), v=matrix(one.v), o=matrix(one.o),
            mlp=mlp(one.mlp) if isinstance(one.mlp, Mlp) else replace(
                one.mlp, experts=tuple(map(mlp, one.mlp.experts)), shared=one.mlp.shared and mlp(one.mlp.shared)
            ),
        )  # fmt: skip

    return replace(family, layers=tuple(map(layer, family.layers)))


def evenly(family: Family, ratio: float) -> Family:
    """The model by shape, every matrix decomposed to l = (1 - ratio) of its shorter side, to the nearest even number.

    So DeInfer counts a "compression ratio" (Table 1: 4916 of 8192 and 614 of 1024), though at 40 % it leaves 84 % of
    LLaMA-3-70B's parameters.
    """

    def halved(one: Matrix) -> Matrix:
        rank = 2 * int((1 - ratio) * one.most_rank / 2 + 0.5)
        return replace(one, form=LowRank(min(max(rank, 1), one.most_rank)))

    return _each(family, halved)


def first_unlike(layers: Sequence[Layer], run: int) -> int | None:
    """Which of the layers after the first `run` has other forms than the last of those, if one has."""
    forms = [[one.form for one in layer.matrices()] for layer in layers]
    return next((at for at in range(run, len(forms)) if forms[at] != forms[run - 1]), None)
