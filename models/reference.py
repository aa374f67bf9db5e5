"""The dense forward pass in NumPy: what every distributed one is compared with.

LLaMA (Touvron et al. 2023, https://arxiv.org/abs/2302.13971) with grouped-query attention, mixtures of experts of its
kind (models/moe.py), and OPT (Zhang et al. 2022, https://arxiv.org/abs/2205.01068); names as in Hugging Face.
T tokens, S tokens seen so far, H query heads, G key and value heads, D head size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from meshrt.models.checkpoint import Checkpoint, expected_shapes, open_checkpoint
from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.experts import route
from meshrt.models.family import Family, family_of
from meshrt.models.matrix import Experts, Layer, Matrix, Mlp, Norm
from meshrt.models.opt import OptConfig
from meshrt.models.quantize.folder import read_dense
from meshrt.models.rope import cos_sin

Array: TypeAlias = NDArray[Any]
Weights: TypeAlias = Mapping[str, Array]
Rotary: TypeAlias = tuple[Array, Array]  # cosines and sines [T, D/2]
Project: TypeAlias = Callable[[Weights, Matrix, Array], Array]


def load_weights(
    model: str | Path | Checkpoint, dtype: DTypeLike = np.float64, config: Config | None = None
) -> dict[str, Array]:
    """Reads every tensor that the configuration (by default the folder's own) names. Raises ModelError.

    Quantized matrices become dense ones, with their compensators added.
    """
    checkpoint = model if isinstance(model, Checkpoint) else open_checkpoint(model)
    config = config or read_config(checkpoint.folder, quantized=True)

    matrices = {name: one for name, one in config.matrices().items() if name in config.quantized}
    if config.head is not None:
        matrices["lm_head"] = config.head_matrix

    def tensor(name: str) -> Array:
        matrix = name.removesuffix(".weight")
        return read_dense(checkpoint, matrices[matrix]) if matrix in matrices else checkpoint.read(name)

    return {name: tensor(name).astype(dtype) for name in expected_shapes(replace(config, quantized={}, head=None))}


def project(w: Weights, matrix: Matrix, x: Array) -> Array:
    """x W^T, or (x U) V of a matrix that is kept as two factors."""
    y = x
    for factor in matrix.factors():
        y = y @ w[factor.name + ".weight"].T
    return y + w[matrix.name + ".bias"] if matrix.bias else y


def forward(
    config: Config | OptConfig, weights: Weights, ids: Sequence[int], dtype: DTypeLike = np.float64,
    project: Project = project,
) -> Array:  # fmt: skip
    """Token ids to logits [T, vocab]: row t is the prediction for position t + 1. All arithmetic is in `dtype`, but for
    what `project` does (models/integer.py).
    """
    family = family_of(config)
    tokens = _token_ids(family, ids)
    w = {name: np.asarray(weight, dtype) for name, weight in weights.items()}
    rotary = rotary_tables(family, len(tokens), dtype)
    x = embed(family, w, tokens)
    for one in family.layers:
        x = layer(family, w, one, x, rotary, project)
    head = Matrix(family.head, family.hidden, family.vocabulary)
    return project(w, head, normed(family, w, family.norm, x))


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


def embed(family: Family, w: Weights, tokens: NDArray[np.integer]) -> Array:
    """[T, hidden], with the learned positions of a model that has them."""
    x: Array = w[family.embedding + ".weight"][tokens]
    if family.positions is not None:
        x = x + w[family.positions + ".weight"][family.position_offset + np.arange(len(tokens))]
    return x


def rotary_tables(family: Family, tokens: int, dtype: DTypeLike) -> Rotary | None:
    """None where positions are learned."""
    if not isinstance(family.config, Config):
        return None
    cos, sin = cos_sin(family.config, np.arange(tokens))
    return cos.astype(dtype), sin.astype(dtype)


def normed(family: Family, w: Weights, name: str, x: Array) -> Array:
    """RMSNorm or LayerNorm over the last axis."""
    weight, eps = w[name + ".weight"], x.dtype.type(family.eps)
    if not family.layer_norm:
        return rms_norm(x, weight, eps)
    centred = x - x.mean(axis=-1, keepdims=True)
    y: Array = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps) * weight + w[name + ".bias"]
    return y


def rms_norm(x: Array, weight: Array, eps: Any) -> Array:
    """Over the last axis."""
    y: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return y


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding of x [heads, T, D]: component i turns with component i + D/2."""
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)


def layer(family: Family, w: Weights, one: Layer, x: Array, rotary: Rotary | None, project: Project = project) -> Array:
    """One layer over x [T, hidden]. `project` is what computes a projection: another one can look at its input."""
    x = x + attention(family, w, one, normed(family, w, one.attention_norm, x), rotary, project)
    y = normed(family, w, one.mlp_norm, x)
    out: Array = x + (mlp(w, one.mlp, y, project) if isinstance(one.mlp, Mlp) else experts(w, one.mlp, y, project))
    return out


def attention(
    family: Family, w: Weights, one: Layer, x: Array, rotary: Rotary | None, project: Project = project
) -> Array:
    """Causal self-attention over x [T, hidden]. Key and value head g serves the query heads g*H/G .. (g+1)*H/G - 1."""

    def heads(matrix: Matrix, norm: Norm | None) -> Array:  # [their number, T, D]
        y = project(w, matrix, x)
        if norm is not None:
            weight, eps = w[norm.name + ".weight"], x.dtype.type(family.eps)
            y = rms_norm(y.reshape(len(x), -1, norm.size), weight, eps).reshape(y.shape)
        if family.clip is not None:
            y = np.clip(y, -family.clip, family.clip)
        return y.reshape(len(x), -1, family.head_dim).transpose(1, 0, 2)

    q, k, v = heads(one.q, one.q_norm), heads(one.k, one.k_norm), heads(one.v, None)
    if rotary is not None:
        q, k = rotate(q, *rotary), rotate(k, *rotary)
    k, v = (np.repeat(part, family.group, axis=0) for part in (k, v))
    scores = q @ k.transpose(0, 2, 1) / x.dtype.type(np.sqrt(family.head_dim))  # [H, T, T]
    future = np.triu(np.ones(scores.shape[1:], bool), 1)
    y = softmax(np.where(future, x.dtype.type(-np.inf), scores)) @ v  # [H, T, D]
    return project(w, one.o, y.transpose(1, 0, 2).reshape(len(x), -1))


def softmax(x: Array) -> Array:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    p: Array = e / np.sum(e, axis=-1, keepdims=True)
    return p


def mlp(w: Weights, one: Mlp, x: Array, project: Project = project) -> Array:
    """SwiGLU, or ReLU where there is no gate."""
    up = project(w, one.up, x)
    if one.gate is None:
        return project(w, one.down, np.maximum(up, 0))
    gate = project(w, one.gate, x)
    return project(w, one.down, gate / (1 + np.exp(-gate)) * up)


def experts(w: Weights, one: Experts, x: Array, project: Project = project) -> Array:
    """Each token of x [T, hidden] through its own experts, summed in order of their number, and through the shared one.

    An expert computes its tokens only, and nothing where it has none.
    """
    chosen, shares = route(project(w, one.router, x), one.top, one.renormalise)
    y = np.zeros_like(x)
    for number in np.unique(chosen):
        tokens, places = np.nonzero(chosen == number)
        share = shares[tokens, places, None].astype(x.dtype)
        y[tokens] += share * mlp(w, one.experts[number], x[tokens], project)
    if one.shared is not None:
        shared = mlp(w, one.shared, x, project)
        if one.shared_gate is not None:
            shared = shared / (1 + np.exp(-project(w, one.shared_gate, x)))
        y += shared
    return y


def _token_ids(family: Family, ids: Sequence[int]) -> NDArray[np.intp]:
    tokens = np.asarray(ids)
    if tokens.ndim != 1 or not tokens.size or not np.issubdtype(tokens.dtype, np.integer):
        raise ModelError(f"expected one or more token ids, got {ids!r}")
    bad = tokens[(tokens < 0) | (tokens >= family.vocabulary)]
    if bad.size:
        raise ModelError(f"token id {bad[0]} is outside the vocabulary, 0..{family.vocabulary - 1}")
    return tokens.astype(np.intp)
