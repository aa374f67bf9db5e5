"""The dense forward pass in NumPy: what every distributed one is compared with.

LLaMA (2023, https://arxiv.org/abs/2302.13971) with grouped-query attention, mixtures of experts of its
kind (models/moe.py), and what models/kinds.py has beside them: Qwen3 (2025, https://arxiv.org/abs/2505.09388), Phi-3
(2024, https://arxiv.org/abs/2404.14219), Gemma 2 (2024, https://arxiv.org/abs/2408.00118) and 3 (2025,
https://arxiv.org/abs/2503.19786), GPT-2 ("Language Models are Unsupervised Multitask Learners",
2019), OPT (2022, https://arxiv.org/abs/2205.01068). Names as in Hugging Face.
T tokens, S tokens seen so far, H query heads, G key and value heads, D head size.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from meshrt.models.config import Config, read_config
from meshrt.models.errors import ModelError
from meshrt.models.experts import route
from meshrt.models.family import Family, family_of
from meshrt.models.folders.checkpoint import Checkpoint, check_shapes, expected_shapes, open_checkpoint
from meshrt.models.matrix import Activation, Experts, Layer, Matrix, Mlp, Norm
from meshrt.models.quantize.folder import read_dense
from meshrt.models.rope import cos_sin

Array: TypeAlias = NDArray[Any]
NamedArrays: TypeAlias = Mapping[str, Array]
Rotary: TypeAlias = tuple[Array, Array]  # cosines and sines [T, D/2]
Rotaries: TypeAlias = tuple[Rotary, ...]  # of each rotary embedding of the model; none where positions are learned
Project: TypeAlias = Callable[[NamedArrays, Matrix, Array], Array]


def load_weights(
    model: str | Path | Checkpoint, dtype: DTypeLike = np.float64, config: Config | None = None
) -> dict[str, Array]:
    """Reads every tensor that the configuration (by default the folder's own) names. Raises ModelError, also for one of
    another shape.

    Quantized matrices become dense ones, with their compensators added.
    """
    config = config or read_config(model.folder if isinstance(model, Checkpoint) else model, quantized=True)
    checkpoint = model if isinstance(model, Checkpoint) else open_checkpoint(model, config)
    if not config.quantized:  # matrices in codes are checked as they are read
        check_shapes(checkpoint, config)

    matrices = {name: matrix for name, matrix in config.matrices().items() if name in config.quantized}
    if config.head is not None:
        matrices["lm_head"] = config.head_matrix

    def tensor(name: str) -> Array:
        matrix = name.removesuffix(".weight")
        return read_dense(checkpoint, matrices[matrix]) if matrix in matrices else checkpoint.read(name)

    return {name: tensor(name).astype(dtype) for name in expected_shapes(replace(config, quantized={}, head=None))}


def project(w: NamedArrays, matrix: Matrix, x: Array) -> Array:
    """x W^T, or (x U) V of a matrix that is kept as two factors."""
    y = x
    for factor in matrix.factors():
        y = y @ w[factor.name + ".weight"].T
    return y + w[matrix.name + ".bias"] if matrix.bias else y


def forward(
    config: Config, weights: NamedArrays, ids: Sequence[int], dtype: DTypeLike = np.float64,
    project: Project = project,
) -> Array:  # fmt: skip
    """Token ids to logits [T, vocab]: row t is the prediction for position t + 1. All arithmetic is in `dtype`, but for
    what `project` does (models/integer.py).
    """
    family = family_of(config)
    tokens = _token_ids(family, ids)
    w = {name: np.asarray(weight, dtype) for name, weight in weights.items()}
    turns = rotary_tables(family, len(tokens), dtype)
    x = embed(family, w, tokens)
    for each in family.layers:
        x = layer(family, w, each, x, turns, project)
    head = Matrix(family.head, family.hidden, family.vocabulary)
    return capped(project(w, head, normed(family, w, family.norm, x)), family.logit_cap)


def generate(
    config: Config, weights: NamedArrays, ids: Sequence[int], max_new_tokens: int, dtype: DTypeLike = np.float64
) -> list[int]:
    """Greedy decoding, a whole forward pass for each token. Returns the new ids; it stops after an end-of-text id."""
    new: list[int] = []
    while len(new) < max_new_tokens:
        new.append(int(np.argmax(forward(config, weights, [*ids, *new], dtype)[-1])))
        if new[-1] in config.eos_token_ids:
            break
    return new


def embed(family: Family, w: NamedArrays, tokens: NDArray[np.integer]) -> Array:
    """[T, hidden], with the learned positions of a model that has them."""
    x: Array = w[family.embedding + ".weight"][tokens]
    if family.embedding_scale != 1:
        x = x * x.dtype.type(family.embedding_scale)
    if family.positions is not None:
        x = x + w[family.positions + ".weight"][family.position_offset + np.arange(len(tokens))]
    return x


def rotary_tables(family: Family, tokens: int, dtype: DTypeLike) -> Rotaries:
    tables = (cos_sin(family.config, np.arange(tokens), number) for number in range(len(family.config.ropes)))
    return tuple((cos.astype(dtype), sin.astype(dtype)) for cos, sin in tables)


def normed(family: Family, w: NamedArrays, name: str, x: Array) -> Array:
    """RMSNorm or LayerNorm over the last axis."""
    weight, eps = norm_weight(family, w, name), x.dtype.type(family.eps)
    if not family.layer_norm:
        return rms_norm(x, weight, eps)
    centred = x - x.mean(axis=-1, keepdims=True)
    y: Array = centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps) * weight + w[name + ".bias"]
    return y


def norm_weight(family: Family, w: NamedArrays, name: str) -> Array:
    weight: Array = w[name + ".weight"]
    return weight + weight.dtype.type(family.norm_shift) if family.norm_shift else weight


def rms_norm(x: Array, weight: Array, eps: Any) -> Array:
    """Over the last axis."""
    y: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return y


def capped(x: Array, cap: float | None) -> Array:
    """cap tanh(x / cap); x where there is no cap."""
    return x if cap is None else np.tanh(x / x.dtype.type(cap)) * x.dtype.type(cap)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding of x [heads, T, D]: component i turns with component i + D/2."""
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)


def layer(family: Family, w: NamedArrays, layer: Layer, x: Array, turns: Rotaries, project: Project = project) -> Array:
    """One layer over x [T, hidden]. `project` is what computes a projection: another one can look at its input."""
    y = attention(family, w, layer, normed(family, w, layer.attention_norm, x), turns, project)
    x = x + (y if layer.after_attention is None else normed(family, w, layer.after_attention, y))
    y = normed(family, w, layer.mlp_norm, x)
    y = mlp(w, layer.mlp, y, project) if isinstance(layer.mlp, Mlp) else experts(w, layer.mlp, y, project)
    out: Array = x + (y if layer.after_mlp is None else normed(family, w, layer.after_mlp, y))
    return out


def attention(
    family: Family, w: NamedArrays, layer: Layer, x: Array, turns: Rotaries, project: Project = project
) -> Array:  # fmt: skip
    """Causal self-attention over x [T, hidden]. Key and value head g serves the query heads g*H/G .. (g+1)*H/G - 1."""

    def heads(matrix: Matrix, norm: Norm | None) -> Array:  # [their number, T, D]
        y = project(w, matrix, x)
        if norm is not None:
            weight, eps = norm_weight(family, w, norm.name), x.dtype.type(family.eps)
            y = rms_norm(y.reshape(len(x), -1, norm.size), weight, eps).reshape(y.shape)
        if family.clip is not None:
            y = np.clip(y, -family.clip, family.clip)
        return y.reshape(len(x), -1, family.head_dim).transpose(1, 0, 2)

    q, k, v = heads(layer.q, layer.q_norm), heads(layer.k, layer.k_norm), heads(layer.v, None)
    if turns:
        q, k = rotate(q, *turns[layer.rope]), rotate(k, *turns[layer.rope])
    k, v = (np.repeat(part, family.group, axis=0) for part in (k, v))
    scores = capped(q @ k.transpose(0, 2, 1) * x.dtype.type(family.scale), family.score_cap)  # [H, T, T]
    y = softmax(np.where(seen(len(x), layer.window), scores, x.dtype.type(-np.inf))) @ v  # [H, T, D]
    return project(w, layer.o, y.transpose(1, 0, 2).reshape(len(x), -1))


def seen(tokens: int, window: int | None) -> NDArray[np.bool_]:
    """Which tokens each token sees, [T, T]: itself and those before it, or the last `window` of these."""
    back = np.arange(tokens)[:, None] - np.arange(tokens)
    mask: NDArray[np.bool_] = (back >= 0) & (back < (window or tokens))
    return mask


def softmax(x: Array) -> Array:
    e = np.exp(x - np.max(x, axis=-1, keepdims=True))
    p: Array = e / np.sum(e, axis=-1, keepdims=True)
    return p


def mlp(w: NamedArrays, mlp: Mlp, x: Array, project: Project = project) -> Array:
    """act(x gate) * (x up), or act(x up) where there is no gate, times down."""
    up = project(w, mlp.up, x)
    if mlp.gate is None:
        return project(w, mlp.down, activated(up, mlp.activation))
    return project(w, mlp.down, activated(project(w, mlp.gate, x), mlp.activation) * up)


def activated(x: Array, activation: Activation) -> Array:
    """silu is x / (1 + e^-x), gelu_tanh x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 ("Gaussian Error Linear
    Units", 2016, https://arxiv.org/abs/1606.08415), relu max(x, 0).
    """
    if activation == "relu":
        return np.maximum(x, 0)
    if activation == "silu":
        y: Array = x / (1 + np.exp(-x))
        return y
    inner = x.dtype.type(np.sqrt(2 / np.pi)) * (x + x.dtype.type(0.044715) * x * x * x)
    z: Array = x.dtype.type(0.5) * x * (1 + np.tanh(inner))
    return z


def experts(w: NamedArrays, mixture: Experts, x: Array, project: Project = project) -> Array:
    """Each token of x [T, hidden] through its own experts, summed in order of their number, and through the shared one.

    An expert computes its tokens only, and nothing where it has none.
    """
    chosen, shares = route(project(w, mixture.router, x), mixture.top, mixture.renormalise)
    y = np.zeros_like(x)
    for number in np.unique(chosen):
        tokens, choices = np.nonzero(chosen == number)
        share = shares[tokens, choices, None].astype(x.dtype)
        y[tokens] += share * mlp(w, mixture.experts[number], x[tokens], project)
    if mixture.shared is not None:
        shared = mlp(w, mixture.shared, x, project)
        if mixture.shared_gate is not None:
            shared = shared / (1 + np.exp(-project(w, mixture.shared_gate, x)))
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
