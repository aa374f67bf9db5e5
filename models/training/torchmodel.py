"""The model in torch, for training: what models/reference.py computes, with gradients, matrices whole or in factors.

Needs torch, which nothing imports but training. B batch, T tokens, H heads, G key and value heads, D head size.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from meshrt.models import matrix as shapes
from meshrt.models.config import Config
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
        for matrix in matrices:
            for factor in matrix.factors():
                self.add_module(own_name(factor), nn.Linear(factor.rows, factor.columns, bias=factor.bias))
            if matrix.bias and matrix.rank is not None:
                self.add_module(own_name(matrix), Bias(matrix.columns))

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

    def __init__(self, config: Config, layer: shapes.Layer) -> None:
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


class TorchMlp(Projections):
    """SwiGLU."""

    def __init__(self, mlp: shapes.Mlp) -> None:
        super().__init__(mlp.matrices())
        self.shapes = mlp

    def forward(self, x: Tensor) -> Tensor:
        gate, up = (self.project(matrix, x) for matrix in self.shapes.inner)
        return self.project(self.shapes.down, functional.silu(gate) * up)


class TorchExperts(Projections):
    """What models/experts.py and `experts` of models/reference.py compute."""

    def __init__(self, experts: shapes.Experts) -> None:
        super().__init__(experts.routing)
        self.shapes = experts
        self.experts = nn.ModuleList(map(TorchMlp, experts.experts))
        self.shared = None
        if experts.shared is not None:
            self.shared = experts.shared.down.name.split(".")[-2]
            self.add_module(self.shared, TorchMlp(experts.shared))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y, and how unevenly the experts were taken: 1 where all got the same, their number where one got all.

        That is the sum over the experts of their number * share of choices * mean probability (Switch Transformers,
        2021, https://arxiv.org/abs/2101.03961, equation 4).
        """
        flat, top, count = x.flatten(0, 1), self.shapes.top, len(self.experts)
        p = self.project(self.shapes.router, flat).softmax(-1)
        shares, chosen = p.topk(top)
        if self.shapes.renormalise:
            shares = shares / shares.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)  # choices by expert
        tokens, counts = order // top, chosen.flatten().bincount(minlength=count)
        parts = flat[tokens].split(counts.tolist())
        results = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        y = torch.zeros_like(flat).index_add(0, tokens, results * shares.flatten()[order, None])
        if self.shared is not None:
            shared = getattr(self, self.shared)(flat)
            if self.shapes.shared_gate is not None:
                shared = shared * self.project(self.shapes.shared_gate, flat).sigmoid()
            y = y + shared
        return y.view_as(x), count * (counts / len(order) * p.mean(0)).sum()


class TorchLayer(nn.Module):
    def __init__(self, config: Config, number: int) -> None:
        super().__init__()
        layer = config.layer(number)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        block = TorchExperts(layer.mlp) if isinstance(layer.mlp, shapes.Experts) else TorchMlp(layer.mlp)
        self.block = layer.mlp.router.name.split(".")[-2] if isinstance(layer.mlp, shapes.Experts) else "mlp"
        self.add_module(self.block, block)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
        """The layer's output, and how uneven its experts are if it has some."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        added = getattr(self, self.block)(self.post_attention_layernorm(x))
        return (x + added[0], added[1]) if isinstance(added, tuple) else (x + added, None)


class Llama(nn.Module):
    """Random weights. `tensor_name` gives the parameters' names in a checkpoint."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.qk_norm is None and config.clip_qkv is None, "norms of queries and keys are not trained"
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(TorchLayer(config, number) for number in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.eps)
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        last = {f"{matrix.name}.weight" for number in range(config.layers) for matrix in outputs(config.layer(number))}
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                # What is added to the residual stream starts smaller, so that its variance does not grow with depth.
                deep = tensor_name(name) in last
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * config.layers) if deep else 0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids [B, T] to logits [B, T, vocab]."""
        return self.with_unevenness(ids)[0]

    def with_unevenness(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits, and of each layer with experts how uneven they are."""
        cos, sin = rotary(self.config, ids.shape[1])
        x, uneven = self.embed_tokens(ids), []
        for layer in self.layers:
            x, unevenness = layer(x, cos, sin)
            if unevenness is not None:
                uneven.append(unevenness)
        head = self.embed_tokens if self.config.tie_word_embeddings else self.lm_head
        return functional.linear(self.norm(x), head.weight), uneven


def outputs(layer: shapes.Layer) -> list[Matrix]:
    """The matrices whose product is added to the residual stream."""
    mlps = layer.mlp.mlps if isinstance(layer.mlp, shapes.Experts) else (layer.mlp,)
    return [layer.o, *(mlp.down for mlp in mlps)]


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
