"""The matrices of a model by shape and kind: what is quantized, and what rank policies and sizes go by.

Dense models as Config has them; of mixtures of experts, Mixtral's and DeepSeek-MoE's matrices, by shape alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from meshrt.models.checkpoint import expected_shapes
from meshrt.models.config import MAX_LAYERS, Config, read_config
from meshrt.models.files import find_file, read_object
from meshrt.models.keys import Keys

Kind = Literal["attention", "mlp", "shared", "expert"]
KINDS: tuple[Kind, ...] = ("attention", "mlp", "shared", "expert")
MIXTURES = ("mixtral", "deepseek")
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
MAX_EXPERTS = 4096


@dataclass(frozen=True)
class Shape:
    """A matrix [rows, columns], out and in. `expert` is the name of its expert, None: every token goes through it."""

    name: str
    rows: int
    columns: int
    kind: Kind
    expert: str | None = None


@dataclass(frozen=True)
class Shapes:
    """A model's matrices, its other weights (embedding, head, norms, biases, routers) and how many bytes each takes."""

    matrices: tuple[Shape, ...]
    others: int
    item_bytes: int

    @property
    def weights(self) -> int:
        return sum(one.rows * one.columns for one in self.matrices)


def read_shapes(folder: Path) -> Shapes:
    """Those of a model folder, which needs no weights. Raises ModelError."""
    if is_mixture(folder):
        return _of_mixture(read_object(folder / "config.json"), str(folder / "config.json"))
    return shapes_of(read_config(folder))


def is_mixture(folder: Path) -> bool:
    """Is this a mixture of experts that is known by shape?"""
    source = find_file(folder, "config.json")
    return source is not None and read_object(source).get("model_type") in MIXTURES


def shapes_of(config: Config) -> Shapes:
    """Those of a dense model."""
    matrices = tuple(
        Shape(name, one.columns, one.rows, "attention" if ".self_attn." in name else "mlp")
        for name, one in config.matrices().items()
    )
    others = sum(map(math.prod, expected_shapes(config).values())) - sum(one.rows * one.columns for one in matrices)
    return Shapes(matrices, others, ITEM_BYTES[config.dtype or "float32"])


def _of_mixture(data: Mapping[str, Any], source: str) -> Shapes:
    """Mixtral, or DeepSeek-MoE, whose first layers are dense and whose shared experts are one MLP."""
    size = Keys(data, source).size
    mixtral = data["model_type"] == "mixtral"
    hidden, heads, layers = size("hidden_size"), size("num_attention_heads"), size("num_hidden_layers", most=MAX_LAYERS)
    keyval = hidden // heads * size("num_key_value_heads")
    experts = size("num_local_experts" if mixtral else "n_routed_experts", most=MAX_EXPERTS)
    inner = size("intermediate_size" if mixtral else "moe_intermediate_size")
    dense = 0 if mixtral else size("first_k_dense_replace", most=layers)
    found: list[Shape] = []

    def mlp(prefix: str, names: tuple[str, ...], inner: int, kind: Kind, expert: str | None = None) -> None:
        gate, up, down = (prefix + name for name in names)
        found.extend(Shape(name, inner, hidden, kind, expert) for name in (gate, up))
        found.append(Shape(down, hidden, inner, kind, expert))

    plain = ("gate_proj", "up_proj", "down_proj")
    for i in range(layers):
        layer = f"model.layers.{i}."
        for name, rows in (("q_proj", hidden), ("k_proj", keyval), ("v_proj", keyval), ("o_proj", hidden)):
            found.append(Shape(f"{layer}self_attn.{name}", rows, hidden, "attention"))
        if i < dense:
            mlp(layer + "mlp.", plain, size("intermediate_size"), "mlp")
            continue
        block = layer + ("block_sparse_moe." if mixtral else "mlp.")
        for j in range(experts):
            name = f"{block}experts.{j}"
            mlp(name + ".", ("w1", "w3", "w2") if mixtral else plain, inner, "expert", name)
        if not mixtral:
            mlp(block + "shared_experts.", plain, size("n_shared_experts", most=MAX_EXPERTS) * inner, "shared")
    routers, norms = (layers - dense) * experts * hidden, (2 * layers + 1) * hidden
    return Shapes(tuple(found), 2 * size("vocab_size") * hidden + routers + norms, ITEM_BYTES["float16"])
