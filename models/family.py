"""What the model families have in common, as a forward pass needs it: LLaMA, Qwen2, Mistral, and OPT.

All that walk a model's layers walk those of its Family: shapes of a folder, the reference, compression, every machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshrt.models.config import Config, read_config
from meshrt.models.matrix import Layer, LowRank, Matrix, Mlp
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
    stop: tuple[int, ...]
    dtype: str
    config: Config | OptConfig

    @property
    def group(self) -> int:
        """Query heads that share one key and value head."""
        return self.heads // self.kv_heads

    @property
    def inner(self) -> int:
        return self.layers[0].mlp.down.rows


def read_family(folder: Path) -> Family:
    """The model of a Hugging Face folder. ModelError."""
    return family_of(read_opt(folder) if is_opt(folder) else read_config(folder))


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
        layer_norm=False, eps=config.rms_norm_eps, stop=config.eos_token_ids,
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


def with_ranks(family: Family, ranks: Mapping[str, int]) -> Family:
    """The model with these matrices decomposed, by the last part of their names (such as q_proj), in every layer."""

    def matrix(one: Matrix) -> Matrix:
        rank = ranks.get(one.name.rsplit(".", 1)[-1], one.rank)
        return one if rank is None else replace(one, form=LowRank(rank))

    def layer(one: Layer) -> Layer:
        return replace(
            one, q=matrix(one.q), k=matrix(one.k), v=matrix(one.v), o=matrix(one.o),
            mlp=Mlp(one.mlp.gate and matrix(one.mlp.gate), matrix(one.mlp.up), matrix(one.mlp.down)),
        )  # fmt: skip

    return replace(family, layers=tuple(map(layer, family.layers)))


def evenly(family: Family, ratio: float) -> Family:
    """The model by shape, every matrix decomposed to l = (1 - ratio) of its shorter side, to the nearest even number.

    So DeInfer counts a "compression ratio" (Table 1: 4916 of 8192 and 614 of 1024), though at 40 % it leaves 84 % of
    LLaMA-3-70B's parameters.
    """

    def rank(one: Matrix) -> int:
        return min(max(2 * int((1 - ratio) * one.most_rank / 2 + 0.5), 1), one.most_rank)

    return with_ranks(family, {one.name.rsplit(".", 1)[-1]: rank(one) for one in family.layers[0].matrices()})


def first_unlike(layers: Sequence[Layer], run: int) -> int | None:
    """Which of the layers after the first `run` has other forms than the last of those, if one has."""
    forms = [[one.form for one in layer.matrices()] for layer in layers]
    return next((at for at in range(run, len(forms)) if forms[at] != forms[run - 1]), None)
