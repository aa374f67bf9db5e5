"""What the model families have in common, as a forward pass needs it: LLaMA, Qwen2, Mistral, and OPT."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from meshrt.models.config import Config, read_config
from meshrt.models.opt import OptConfig, is_opt, read_opt


@dataclass(frozen=True)
class Matrix:
    """`rows` numbers in, `columns` out: W^T of Hugging Face, or decomposed A [rows, rank] B [rank, columns]."""

    name: str
    rows: int
    columns: int
    rank: int | None = None
    bias: bool = False


@dataclass(frozen=True)
class Layer:
    """The matrices of one layer: two sub-layers before the activation or the attention, two after it."""

    attention_norm: str
    q: Matrix
    k: Matrix
    v: Matrix
    o: Matrix
    mlp_norm: str
    inner: tuple[Matrix, ...]  # gate and up, or one alone
    down: Matrix


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
        return self.layers[0].down.rows


def read_family(folder: Path) -> Family:
    """The model of a Hugging Face folder. ModelError."""
    return from_opt(read_opt(folder)) if is_opt(folder) else from_llama(read_config(folder))


def from_llama(config: Config) -> Family:
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def layer(i: int) -> Layer:
        stem = f"model.layers.{i}."

        def matrix(name: str, rows: int, columns: int, bias: bool = False) -> Matrix:
            return Matrix(stem + name, rows, columns, config.ranks.get(stem + name), bias)

        return Layer(
            stem + "input_layernorm",
            matrix("self_attn.q_proj", hidden, queries, config.qkv_bias),
            matrix("self_attn.k_proj", hidden, keys, config.qkv_bias),
            matrix("self_attn.v_proj", hidden, keys, config.qkv_bias),
            matrix("self_attn.o_proj", queries, hidden, config.o_bias),
            stem + "post_attention_layernorm",
            (matrix("mlp.gate_proj", hidden, inner), matrix("mlp.up_proj", hidden, inner)),
            matrix("mlp.down_proj", inner, hidden),
        )

    embedding = "model.embed_tokens"
    return Family(
        hidden=hidden, heads=config.heads, kv_heads=config.kv_heads, head_dim=config.head_dim,
        vocabulary=config.vocab_size, max_positions=config.max_positions,
        layers=tuple(layer(i) for i in range(config.layers)),
        embedding=embedding, positions=None, position_offset=0, norm="model.norm",
        head=embedding if config.tie_word_embeddings else "lm_head",
        layer_norm=False, eps=config.rms_norm_eps, stop=config.eos_token_ids,
        dtype=config.dtype or "float32", config=config,
    )  # fmt: skip


def from_opt(config: OptConfig) -> Family:
    hidden, inner, bias = config.hidden_size, config.ffn_dim, config.bias

    def layer(i: int) -> Layer:
        stem = f"model.decoder.layers.{i}."

        def matrix(name: str, rows: int, columns: int) -> Matrix:
            return Matrix(stem + name, rows, columns, config.ranks.get(stem + name), bias)

        q, k, v, o = (matrix(f"self_attn.{name}_proj", hidden, hidden) for name in ("q", "k", "v", "out"))
        return Layer(
            stem + "self_attn_layer_norm", q, k, v, o, stem + "final_layer_norm",
            (matrix("fc1", hidden, inner),), matrix("fc2", inner, hidden),
        )  # fmt: skip

    embedding = "model.decoder.embed_tokens"
    return Family(
        hidden=hidden, heads=config.heads, kv_heads=config.heads, head_dim=config.head_dim,
        vocabulary=config.vocab_size, max_positions=config.max_positions,
        layers=tuple(layer(i) for i in range(config.layers)),
        embedding=embedding, positions="model.decoder.embed_positions", position_offset=config.position_offset,
        norm="model.decoder.final_layer_norm", head=embedding if config.tie_word_embeddings else "lm_head",
        layer_norm=True, eps=config.eps, stop=config.eos_token_ids, dtype=config.dtype or "float32", config=config,
    )  # fmt: skip


def with_ranks(family: Family, ranks: Mapping[str, int]) -> Family:
    """The model with these matrices decomposed, by the last part of their names (such as q_proj), in every layer."""

    def matrix(one: Matrix) -> Matrix:
        return replace(one, rank=ranks.get(one.name.rsplit(".", 1)[-1], one.rank))

    def layer(one: Layer) -> Layer:
        return replace(
            one, q=matrix(one.q), k=matrix(one.k), v=matrix(one.v), o=matrix(one.o),
            inner=tuple(map(matrix, one.inner)), down=matrix(one.down),
        )  # fmt: skip

    return replace(family, layers=tuple(map(layer, family.layers)))


def evenly(family: Family, ratio: float) -> Family:
    """The model by shape, every matrix decomposed to l = (1 - ratio) of its shorter side, to the nearest even number.

    So DeInfer counts a "compression ratio" (Table 1: 4916 of 8192 and 614 of 1024), though at 40 % it leaves 84 % of
    LLaMA-3-70B's parameters.
    """
    layer = family.layers[0]
    every = (layer.q, layer.k, layer.v, layer.o, *layer.inner, layer.down)

    def rank(one: Matrix) -> int:
        shorter = min(one.rows, one.columns)
        return min(max(2 * int((1 - ratio) * shorter / 2 + 0.5), 1), shorter)

    return with_ranks(family, {one.name.rsplit(".", 1)[-1]: rank(one) for one in every})
