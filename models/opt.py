"""OPT (Zhang et al. 2022, https://arxiv.org/abs/2205.01068): learned positions, LayerNorm, ReLU, biases everywhere.

Names and meaning as in Hugging Face's OPTForCausalLM. Supported is what all sizes but 350M have: normalisation before
each sub-layer, and embeddings as wide as the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from meshrt.models.config import DTYPES, MAX_LAYERS, MAX_SIZE
from meshrt.models.errors import ModelError
from meshrt.models.factors import factor_names, read_ranks
from meshrt.models.files import find_file, read_object
from meshrt.models.reference import project, softmax

POSITION_OFFSET = 2  # rows of the table of positions before that of position 0

# Keys that must have these values if they are there: everything else would silently give other numbers.
_ONLY = {
    "do_layer_norm_before": True,
    "activation_function": "relu",
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "_remove_final_layer_norm": False,
}


@dataclass(frozen=True, kw_only=True)
class OptConfig:
    """The sizes of an OPT model. `ranks` has the matrices kept as two factors, by name without `.weight`."""

    vocab_size: int
    hidden_size: int
    ffn_dim: int
    layers: int
    heads: int
    max_positions: int
    bias: bool = True
    eps: float = 1e-5
    tie_word_embeddings: bool = True
    position_offset: int = POSITION_OFFSET
    eos_token_ids: tuple[int, ...] = ()
    dtype: str | None = None
    ranks: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    def matrices(self) -> dict[str, tuple[int, int]]:
        """The six matrices of every layer, [out, in], by name without `.weight`."""
        hidden, inner = self.hidden_size, self.ffn_dim
        shapes = {}
        for i in range(self.layers):
            stem = f"model.decoder.layers.{i}."
            for name in ("q", "k", "v", "out"):
                shapes[f"{stem}self_attn.{name}_proj"] = (hidden, hidden)
            shapes[stem + "fc1"], shapes[stem + "fc2"] = (inner, hidden), (hidden, inner)
        return shapes

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "config.json") -> "OptConfig":
        """Reads the dictionary of a config.json. Raises ModelError with file and key."""

        def bad(key: str, what: str) -> ModelError:
            return ModelError(f"{source}: {key!r} {what}")

        def positive(key: str, most: int = MAX_SIZE) -> int:
            value = data.get(key)
            if type(value) is not int or not 0 < value <= most:
                raise bad(key, f"is {value!r}; it must be a positive integer, {most} at most")
            return value

        for key, value in _ONLY.items():
            if data.get(key) not in (None, value):
                raise bad(key, f"is {data[key]!r}; only {value!r} is supported")
        hidden, heads = positive("hidden_size"), positive("num_attention_heads")
        if hidden % heads:
            raise bad("hidden_size", f"is {hidden}, not a multiple of num_attention_heads, {heads}")
        if data.get("word_embed_proj_dim") not in (None, hidden):
            raise bad("word_embed_proj_dim", f"is {data['word_embed_proj_dim']!r}; it must be hidden_size, {hidden}")
        dtype = data.get("dtype") or data.get("torch_dtype")
        if dtype is not None and dtype not in DTYPES:
            raise bad("torch_dtype", f"is {dtype!r}; supported are {', '.join(DTYPES)}")
        eos = data.get("eos_token_id")
        stop = tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
        if any(type(one) is not int or one < 0 for one in stop):
            raise bad("eos_token_id", f"is {eos!r}, not a token id or a list of them")
        config = cls(
            vocab_size=positive("vocab_size"), hidden_size=hidden, ffn_dim=positive("ffn_dim"),
            layers=positive("num_hidden_layers", MAX_LAYERS), heads=heads,
            max_positions=positive("max_position_embeddings"),
            tie_word_embeddings=data.get("tie_word_embeddings") is not False, eos_token_ids=stop, dtype=dtype,
        )  # fmt: skip
        low_rank = data.get("low_rank")
        if low_rank is None:
            return config
        if not isinstance(low_rank, dict):
            raise bad("low_rank", f"is {low_rank!r}, not an object")
        try:
            return replace(config, ranks=read_ranks(low_rank, config.matrices()))
        except ValueError as error:
            raise bad("low_rank", str(error)) from error


def is_opt(folder: str | Path) -> bool:
    """Does config.json say that the model is an OPT? Raises ModelError where it cannot be read."""
    return _load(Path(folder)).get("model_type") == "opt"


def read_opt(folder: str | Path) -> OptConfig:
    """Reads config.json of a model folder. Raises ModelError."""
    return OptConfig.from_dict(_load(Path(folder)), str(Path(folder) / "config.json"))


def _load(folder: Path) -> dict[str, Any]:
    path = find_file(folder, "config.json")
    if path is None:
        raise ModelError(f"{folder}: no config.json there; a model is a folder as Hugging Face writes it")
    return read_object(path)


def opt_shapes(config: OptConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that a model of this configuration has, by name. Projections are [out, in]."""
    hidden, stem = config.hidden_size, "model.decoder."
    shapes: dict[str, tuple[int, ...]] = {
        stem + "embed_tokens.weight": (config.vocab_size, hidden),
        stem + "embed_positions.weight": (config.max_positions + config.position_offset, hidden),
        stem + "final_layer_norm.weight": (hidden,),
        stem + "final_layer_norm.bias": (hidden,),
    }
    for i in range(config.layers):
        for norm in ("self_attn_layer_norm", "final_layer_norm"):
            for part in ("weight", "bias"):
                shapes[f"{stem}layers.{i}.{norm}.{part}"] = (hidden,)
    for name, (size, inner) in config.matrices().items():
        rank = config.ranks.get(name)
        if rank is None:
            shapes[name + ".weight"] = (size, inner)
        else:
            u, v = factor_names(name)
            shapes[u + ".weight"], shapes[v + ".weight"] = (rank, inner), (size, rank)
        shapes[name + ".bias"] = (size,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def opt_forward(
    config: OptConfig, weights: Mapping[str, NDArray[Any]], ids: Sequence[int], dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Token ids to logits [T, vocab]: row t is the prediction for position t + 1. All arithmetic is in `dtype`."""
    w = {name: np.asarray(weight, dtype) for name, weight in weights.items()}
    stem, tokens = "model.decoder.", np.asarray(ids)
    x = w[stem + "embed_tokens.weight"][tokens]  # [T, hidden]
    x = x + w[stem + "embed_positions.weight"][config.position_offset + np.arange(len(tokens))]
    for i in range(config.layers):
        layer = f"{stem}layers.{i}."
        x = x + _attention(config, w, layer + "self_attn.", _normed(config, w, layer + "self_attn_layer_norm", x))
        inner = np.maximum(project(w, layer + "fc1", _normed(config, w, layer + "final_layer_norm", x)), 0)
        x = x + project(w, layer + "fc2", inner)
    head = stem + "embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    logits: NDArray[Any] = _normed(config, w, stem + "final_layer_norm", x) @ w[head].T
    return logits


def _normed(config: OptConfig, w: Mapping[str, NDArray[Any]], name: str, x: NDArray[Any]) -> NDArray[Any]:
    """LayerNorm over the last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + x.dtype.type(config.eps))
    y: NDArray[Any] = centred / scale * w[name + ".weight"] + w[name + ".bias"]
    return y


def _attention(config: OptConfig, w: Mapping[str, NDArray[Any]], name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Causal self-attention over x [T, hidden]."""

    def heads(projection: str) -> NDArray[Any]:  # [heads, T, D]
        return project(w, name + projection, x).reshape(len(x), config.heads, config.head_dim).transpose(1, 0, 2)

    q, k, v = map(heads, ("q_proj", "k_proj", "v_proj"))
    scores = q @ k.transpose(0, 2, 1) / x.dtype.type(np.sqrt(config.head_dim))  # [heads, T, T]
    future = np.triu(np.ones(scores.shape[1:], bool), 1)
    y = softmax(np.where(future, x.dtype.type(-np.inf), scores)) @ v
    return project(w, name + "out_proj", y.transpose(1, 0, 2).reshape(len(x), -1))
