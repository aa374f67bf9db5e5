"""The model in torch, for training: what models/reference.py computes, with gradients, matrices whole or in factors.

Needs torch, which nothing imports but training. B batch, T tokens, H heads, G key and value heads, D head size.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from meshrt.models.config import Config
from meshrt.models.matrix import Layer as Shapes
from meshrt.models.matrix import Matrix
from meshrt.models.rope import inverse_frequencies


class Bias(nn.Module):
    """Of a matrix that is in two factors; it keeps the matrix's name."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))


class Projections(nn.Module):
    """A sub-layer's matrices, named as in the checkpoint."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        super().__init__()
        for one in matrices:
            for factor in one.factors():
                self.add_module(own_name(factor), nn.Linear(factor.rows, factor.columns, bias=factor.bias))
            if one.bias and one.rank is not None:
                self.add_module(own_name(one), Bias(one.columns))

    def project(self, matrix: Matrix, x: Tensor) -> Tensor:
        for factor in matrix.factors():
            x = getattr(self, own_name(factor))(x)
        if matrix.bias and matrix.rank is not None:
            x = x + getattr(self, own_name(matrix)).bias
        return x


def own_name(matrix: Matrix) -> str:
    """What it is called in its sub-layer."""
    return matrix.name.rpartition(".")[2]


class Attention(Projections):
    """Grouped-query attention, rotary embeddings."""

    def __init__(self, config: Config, layer: Shapes) -> None:
        super().__init__(layer.attention)
        self.shapes = layer
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = rotate(
            self.project(self.shapes.q, x).view(b, t, self.heads, self.head_dim).transpose(1, 2), cos, sin
        )  # B H T D
        k = rotate(self.project(self.shapes.k, x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2), cos, sin)
        v = self.project(self.shapes.v, x).view(b, t, self.kv_heads, self.head_dim).transpose(1, 2)  # B G T D
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(self.shapes.o, y.transpose(1, 2).reshape(b, t, -1))


class Mlp(Projections):
    """SwiGLU."""

    def __init__(self, layer: Shapes) -> None:
        super().__init__(layer.dense_mlp.matrices())
        self.shapes = layer.dense_mlp

    def forward(self, x: Tensor) -> Tensor:
        gate, up = (self.project(one, x) for one in self.shapes.inner)
        return self.project(self.shapes.down, functional.silu(gate) * up)


class Layer(nn.Module):
    def __init__(self, config: Config, number: int) -> None:
        super().__init__()
        layer = config.layer(number)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = Mlp(layer)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Llama(nn.Module):
    """Random weights. `tensor_name` gives the parameters' names in a checkpoint."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        layers = [config.layer(number) for number in range(config.layers)]
        last = {f"{one.name}.weight" for layer in layers for one in (layer.o, layer.dense_mlp.down)}
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                # What is added to the residual stream starts smaller, so that its variance does not grow with depth.
                deep = tensor_name(name) in last
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.layers) if deep else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids [B, T] to logits [B, T, vocab]."""
        cos, sin = rotary(self.config, ids.shape[1])
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        head = self.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return functional.linear(self.norm(x), head.weight)


def tensor_name(parameter: str) -> str:
    """A parameter's name in the model to that in the checkpoint."""
    return parameter if parameter.startswith("lm_head.") else f"model.{parameter}"


def rotary(config: Config, tokens: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T, D/2]."""
    angle = torch.outer(torch.arange(tokens, dtype=torch.float32), torch.from_numpy(inverse_frequencies(config)))
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotary embedding: component i turns with component i + D/2."""
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)
