"""The dense forward pass in NumPy: what every distributed one is compared with.

LLaMA (Touvron et al. 2023, https://arxiv.org/abs/2302.13971) with grouped-query attention; names as in Hugging Face.
T tokens, S tokens seen so far, H query heads, G key and value heads, D head size.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from meshrt.models.checkpoint import Checkpoint, expected_shapes, open_checkpoint
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.factors import factor_names
from meshrt.models.rope import cos_sin

Array: TypeAlias = NDArray[Any]
Weights: TypeAlias = Mapping[str, Array]
Project: TypeAlias = Callable[[Weights, str, Array], Array]


def load_weights(
    model: str | Path | Checkpoint, dtype: DTypeLike = np.float64, config: Config | None = None
) -> dict[str, Array]:
    """Reads every tensor that the configuration (by default the folder's own) names. Raises ModelError."""
    checkpoint = model if isinstance(model, Checkpoint) else open_checkpoint(model)
    config = config or read_config(checkpoint.folder)
    return {name: checkpoint.read(name).astype(dtype) for name in expected_shapes(config)}


def forward(config: Config, weights: Weights, ids: Sequence[int], dtype: DTypeLike = np.float64) -> Array:
    """Token ids to logits [T, vocab]: row t is the prediction for position t + 1. All arithmetic is in `dtype`."""
    tokens = _token_ids(config, ids)
    w = {name: np.asarray(weight, dtype) for name, weight in weights.items()}
    cos, sin = (table.astype(dtype) for table in cos_sin(config, np.arange(len(tokens))))
    x = w["model.embed_tokens.weight"][tokens]  # [T, hidden]
    for i in range(config.layers):
        x = layer(config, w, i, x, cos, sin)
    x = normed(config, w, "model.norm", x)
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    logits: Array = x @ w[head].T
    return logits


def generate(
    config: Config, weights: Weights, ids: Sequence[int], max_new_tokens: int, dtype: DTypeLike = np.float64
) -> list[int]:
    """Greedy decoding, a whole forward pass for each token. Returns the new ids; it stops after an end-of-text id."""
    new: list[int] = []
    while len(new) < max_new_tokens:
        new.append(int(np.argmax(forward(config, weights, [*ids, *new], dtype)[-1])))
        if new[-1] in config.eos_token_ids:
            break
    return new


def normed(config: Config, w: Weights, name: str, x: Array) -> Array:
    return rms_norm(x, w[name + ".weight"], config.rms_norm_eps)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Root mean square over the last axis."""
    y: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(eps)) * weight
    return y


def project(w: Weights, name: str, x: Array) -> Array:
    """x W^T, or (x U) V of a matrix that is kept as two factors."""
    stages = (name,) if name + ".weight" in w else factor_names(name)
    y = x
    for stage in stages:
        y = y @ w[stage + ".weight"].T
    return y + w[name + ".bias"] if name + ".bias" in w else y


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding of x [heads, T, D]: component i turns with component i + D/2."""
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)


def layer(config: Config, w: Weights, i: int, x: Array, cos: Array, sin: Array, project: Project = project) -> Array:
    """One layer over x [T, hidden]. `project` is what computes a projection: another one can look at its input."""
    name = f"model.layers.{i}."
    y = normed(config, w, name + "input_layernorm", x)
    x = x + attention(config, w, name + "self_attn.", y, cos, sin, project)
    out: Array = x + swiglu(w, name + "mlp.", normed(config, w, name + "post_attention_layernorm", x), project)
    return out


def attention(
    config: Config, w: Weights, name: str, x: Array, cos: Array, sin: Array, project: Project = project
) -> Array:
    """Causal self-attention over x [T, hidden]. Key and value head g serves the query heads g*H/G .. (g+1)*H/G - 1."""

    def heads(projection: str, count: int) -> Array:  # [count, T, D]
        return project(w, name + projection, x).reshape(len(x), count, config.head_dim).transpose(1, 0, 2)

    q = rotate(heads("q_proj", config.heads), cos, sin)
    k = np.repeat(rotate(heads("k_proj", config.kv_heads), cos, sin), config.group, axis=0)
    v = np.repeat(heads("v_proj", config.kv_heads), config.group, axis=0)
    scores = q @ k.transpose(0, 2, 1) / x.dtype.type(np.sqrt(config.head_dim))  # [H, T, T]
    future = np.triu(np.ones(scores.shape[1:], bool), 1)
    y = softmax(np.where(future, x.dtype.type(-np.inf), scores)) @ v  # [H, T, D]
    return project(w, name + "o_proj", y.transpose(1, 0, 2).reshape(len(x), -1))


def softmax(x: Array) -> Array:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    p: Array = e / np.sum(e, axis=-1, keepdims=True)
    return p


def swiglu(w: Weights, name: str, x: Array, project: Project = project) -> Array:
    gate = project(w, name + "gate_proj", x)
    return project(w, name + "down_proj", gate / (1 + np.exp(-gate)) * project(w, name + "up_proj", x))


def _token_ids(config: Config, ids: Sequence[int]) -> NDArray[np.intp]:
    tokens = np.asarray(ids)
    if tokens.ndim != 1 or not tokens.size or not np.issubdtype(tokens.dtype, np.integer):
        raise ModelError(f"expected one or more token ids, got {ids!r}")
    bad = tokens[(tokens < 0) | (tokens >= config.vocab_size)]
    if bad.size:
        raise ModelError(f"token id {bad[0]} is outside the vocabulary, 0..{config.vocab_size - 1}")
    return tokens.astype(np.intp)
