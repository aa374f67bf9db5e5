"""OPT (Zhang et al. 2022, https://arxiv.org/abs/2205.01068): learned positions, LayerNorm, ReLU, biases everywhere.

Names and meaning as in Hugging Face's OPTForCausalLM. Supported is what all sizes but 350M have: normalisation before
each sub-layer, and embeddings as wide as the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshrt.models.config import DTYPES, MAX_LAYERS
from meshrt.models.errors import ModelError
from meshrt.models.files import find_file, read_object
from meshrt.models.keys import MAX_SIZE
from meshrt.models.matrix import Layer, Matrix, Mlp, form_of, read_ranks

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
    """The sizes of an OPT model. `factored`: ranks of the matrices kept as two factors, by name without `.weight`."""

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
    factored: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    def layer(self, number: int) -> Layer:
        """A layer's matrices and norms, by their names without `.weight`."""
        hidden, inner, stem = self.hidden_size, self.ffn_dim, f"model.decoder.layers.{number}."

        def matrix(name: str, rows: int, columns: int) -> Matrix:
            return Matrix(stem + name, rows, columns, form_of(self.factored, stem + name), self.bias)

        q, k, v, o = (matrix(f"self_attn.{name}_proj", hidden, hidden) for name in ("q", "k", "v", "out"))
        mlp = Mlp(None, matrix("fc1", hidden, inner), matrix("fc2", inner, hidden))
        return Layer(stem + "self_attn_layer_norm", q, k, v, o, stem + "final_layer_norm", mlp)

    def matrices(self) -> dict[str, Matrix]:
        """Those of all layers, by name."""
        return {one.name: one for number in range(self.layers) for one in self.layer(number).matrices()}

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
            return replace(config, factored=read_ranks(low_rank, config.matrices().values()))
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
