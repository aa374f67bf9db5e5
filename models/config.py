"""The sizes and constants of a model, read from a Hugging Face folder.

Llama, Qwen2 and Mistral are one architecture with three sets of switches, and mixtures of experts are made of its parts
(models/moe.py). A key that would change the numbers and is not supported is an error. All other unknown keys are
ignored on purpose: such files are full of settings for training.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from meshrt.models.errors import ModelError
from meshrt.models.files import find_file, read_object
from meshrt.models.keys import MAX_SIZE, Keys
from meshrt.models.matrix import Dense, Layer, Matrix, Mlp, Norm, form_of, read_ranks
from meshrt.models.moe import MIXTURES, Moe, make_experts, read_moe
from meshrt.models.quantize.form import Quantized, read_head, read_quantized

MODEL_TYPES = ("llama", "qwen2", "mistral", *MIXTURES)
BIASED, SWITCHED_BIAS = ("qwen2", "qwen2_moe"), ("llama", "deepseek", "olmoe", "qwen3_moe")  # all others have no bias
WINDOWED = ("mistral", "mixtral", "olmoe")  # where a window acts whenever it is there
QK_NORMS: Mapping[str, Literal["head", "all"]] = {"olmoe": "all", "qwen3_moe": "head"}
DTYPES = ("float32", "float16", "bfloat16")
MAX_LAYERS = 10_000  # far above any model; beyond, tables of its shapes alone would not fit
FACTORS = (1e-6, 1e6)  # of the rotary embedding: with these all angles are finite in float32


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary embedding. `kind` says which of the last four fields act: none, `factor` for linear, all for llama3."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 0


@dataclass(frozen=True, kw_only=True)
class Config:
    """A decoder-only transformer: RMSNorm, rotary grouped-query attention, SwiGLU, no bias unless said.

    `moe` says which layers have experts instead of an MLP of `intermediate_size`. `qk_norm`: queries and keys have a
    norm before they are turned, over each head or over all together; after it `clip_qkv` bounds them and the values.
    `factored` has the ranks of the matrices kept as two factors (models/matrix.py), by name without `.weight`;
    `quantized` those in a few bits (models/quantize/form.py), and `head` the form of the head where it is one of them.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    max_positions: int
    rope: Rope
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str | None = None
    moe: Moe | None = None
    qk_norm: Literal["head", "all"] | None = None
    clip_qkv: float | None = None
    factored: Mapping[str, int] = field(default_factory=dict, hash=False)
    quantized: Mapping[str, Quantized] = field(default_factory=dict, hash=False)
    head: Quantized | None = None

    @property
    def group(self) -> int:
        """Query heads that share one key and value head."""
        return self.heads // self.kv_heads

    @property
    def head_matrix(self) -> Matrix:
        """The head where it is no embedding."""
        return Matrix("lm_head", self.hidden_size, self.vocab_size, self.head or Dense())

    def layer(self, number: int) -> Layer:
        """A layer's matrices and norms, by their names without `.weight`."""
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        stem = f"model.layers.{number}."

        def matrix(name: str, rows: int, columns: int, bias: bool = False) -> Matrix:
            form = self.quantized.get(stem + name) or form_of(self.factored, stem + name)
            return Matrix(stem + name, rows, columns, form, bias)

        def norm(name: str, all_heads: int) -> Norm | None:
            size = {"head": self.head_dim, "all": all_heads}
            return None if self.qk_norm is None else Norm(stem + name, size[self.qk_norm])

        return Layer(
            stem + "input_layernorm",
            matrix("self_attn.q_proj", hidden, queries, self.qkv_bias),
            matrix("self_attn.k_proj", hidden, keys, self.qkv_bias),
            matrix("self_attn.v_proj", hidden, keys, self.qkv_bias),
            matrix("self_attn.o_proj", queries, hidden, self.o_bias),
            stem + "post_attention_layernorm",
            make_experts(self.model_type, self.moe, hidden, matrix)
            if self.moe is not None and self.moe.has_experts(number)
            else Mlp(
                matrix("mlp.gate_proj", hidden, inner),
                matrix("mlp.up_proj", hidden, inner),
                matrix("mlp.down_proj", inner, hidden),
            ),
            norm("self_attn.q_norm", queries),
            norm("self_attn.k_norm", keys),
        )

    def matrices(self) -> dict[str, Matrix]:
        """Those of all layers that may be kept in another form, by name."""
        return {one.name: one for number in range(self.layers) for one in self.layer(number).matrices()}

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], generation: Mapping[str, Any] | None = None, source: str = "config.json"
    ) -> "Config":
        """Reads the dictionary of a config.json, of transformers 4 or 5.

        `generation` is that of generation_config.json, whose end-of-text ids win. Raises ModelError with file and key.
        """
        read = Keys(data, source)
        kind = read.get("model_type", str)
        if kind not in MODEL_TYPES:
            raise read.bad("model_type", f"is {kind!r}; supported are {', '.join(MODEL_TYPES)}")
        _refuse_unsupported(read, kind)

        hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
        kv_heads = read.size("num_key_value_heads", heads)
        if heads % kv_heads:
            raise read.bad("num_attention_heads", f"is {heads}, not a multiple of num_key_value_heads, {kv_heads}")
        if not read.has("head_dim") and hidden % heads:
            raise read.bad("hidden_size", f"is {hidden}, not a multiple of num_attention_heads, {heads}; give head_dim")
        head_dim = read.size("head_dim", hidden // heads)
        if head_dim % 2:
            raise read.bad("head_dim", f"is {head_dim}; rotary embedding needs an even one")
        if heads * head_dim > MAX_SIZE:
            raise read.bad("head_dim", f"is {head_dim}, of {heads} heads; all of them may have {MAX_SIZE} numbers")
        bias = read.get("attention_bias", bool, False) if kind in SWITCHED_BIAS else False
        layers = read.size("num_hidden_layers", most=MAX_LAYERS)
        eps = read.between("rms_norm_eps", 0, 1)

        eos = read
        if generation is not None and generation.get("eos_token_id") is not None:
            eos = Keys(generation, source.replace("config.json", "generation_config.json"))
        config = cls(
            model_type=kind,
            vocab_size=read.size("vocab_size"),
            hidden_size=hidden,
            intermediate_size=read.size("intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=eps,
            tie_word_embeddings=read.get("tie_word_embeddings", bool, False),
            qkv_bias=bias or kind == "qwen2" or (kind == "qwen2_moe" and read.get("qkv_bias", bool, True)),
            o_bias=bias,
            max_positions=read.size("max_position_embeddings"),
            rope=_rope(read),
            bos_token_id=(read.token_ids("bos_token_id") or (None,))[0],
            eos_token_ids=eos.token_ids("eos_token_id"),
            dtype=_dtype(read),
            moe=read_moe(read, kind, layers) if kind in MIXTURES else None,
            qk_norm=QK_NORMS.get(kind),
            clip_qkv=read.between("clip_qkv", 0, 1e18) if kind == "olmoe" and read.has("clip_qkv") else None,
        )
        if read.has("quantized") and read.has("low_rank"):
            raise read.bad("quantized", "and 'low_rank' are both set; a matrix is kept in one form")
        key = "quantized" if read.has("quantized") else "low_rank"
        if not read.has(key):
            return config
        try:
            if key == "quantized":
                shapes = {name: (one.columns, one.rows) for name, one in config.matrices().items()}
                forms = read_quantized(read.get(key, dict), shapes)
                head = read_head(read.get(key, dict), next(iter(forms.values())), hidden)
                if head is not None and config.tie_word_embeddings:
                    raise ValueError("has a 'head', and tie_word_embeddings says that it is the embedding")
                return replace(config, quantized=forms, head=head)
            return replace(config, factored=read_ranks(read.get(key, dict), config.matrices().values()))
        except ValueError as error:
            raise read.bad(key, str(error)) from error


def read_config(folder: str | Path, quantized: bool = False) -> Config:
    """Reads config.json and, if there is one, generation_config.json of a model folder. Raises ModelError.

    A folder of `meshrt quantize` is refused but to those who say that they can work with its matrices.
    """
    folder = Path(folder)
    source, generation = (find_file(folder, name) for name in ("config.json", "generation_config.json"))
    if source is None:
        raise ModelError(f"{folder}: no config.json there; a model is a folder as Hugging Face writes it")
    config = Config.from_dict(read_object(source), read_object(generation) if generation else None, str(source))
    if config.quantized and not quantized:
        raise ModelError(
            f"{source}: 'quantized' is set: quantized matrices run on all machines and in the reference, and are"
            " neither compressed nor quantized again; name the model that this one was made from"
        )
    return config


def _refuse_unsupported(read: Keys, kind: str) -> None:
    """Everything that would silently give other numbers."""
    if read.get("hidden_act", str, "silu") != "silu":
        raise read.bad("hidden_act", f"is {read.data['hidden_act']!r}; only silu is supported")
    if read.get("mlp_bias", bool, False):
        raise read.bad("mlp_bias", "is true; only feed-forward layers without bias are supported")
    if kind not in SWITCHED_BIAS and read.get("attention_bias", bool, kind in BIASED) != (kind in BIASED):
        raise read.bad("attention_bias", f"is {read.data['attention_bias']}, which is not what {kind} has")
    if read.has("quantization_config"):
        raise read.bad("quantization_config", "is set; only F32, F16 and BF16 weights are supported")
    # Qwen2 and Qwen3 files carry a window that use_sliding_window switches.
    if read.get("use_sliding_window", bool, False) or (kind in WINDOWED and read.has("sliding_window")):
        key = "sliding_window" if kind in WINDOWED else "use_sliding_window"
        raise read.bad(key, "is active; only full attention is supported")
    layer_types = read.get("layer_types", list, [])
    if any(layer != "full_attention" for layer in layer_types):
        raise read.bad("layer_types", "has layers other than full_attention; only that is supported")


def _rope(read: Keys) -> Rope:
    """transformers 4: `rope_theta` and `rope_scaling` (or null). transformers 5: all of it in `rope_parameters`."""
    both = [key for key in ("rope_scaling", "rope_parameters") if read.has(key)]
    if len(both) == 2 and read.data["rope_scaling"] != read.data["rope_parameters"]:
        raise read.bad("rope_scaling", "and 'rope_parameters' are both set and differ; keep one of them")
    rope = Keys(read.get(both[0], dict), read.source, both[0] + ".") if both else Keys({}, read.source)
    if any(isinstance(value, dict) for value in rope.data.values()):
        raise read.bad(both[0], "differs between kinds of layers; only one for all layers is supported")
    for place in (read, rope):
        if place.number("partial_rotary_factor", 1.0) != 1.0:
            raise place.bad("partial_rotary_factor", "is not 1; only whole heads are rotated")
    theta = (rope if rope.has("rope_theta") else read).between("rope_theta", 1, 1e18, 10000.0)

    name = "rope_type" if rope.has("rope_type") else "type"
    kind = rope.get(name, str, "default")
    if kind == "default":
        return Rope(theta=theta)
    if kind not in ("linear", "llama3"):
        raise rope.bad(name, f"is {kind!r}; supported are default, linear, llama3")
    factor = rope.between("factor", *FACTORS)
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=factor)
    low, high = (rope.between(key, *FACTORS) for key in ("low_freq_factor", "high_freq_factor"))
    if not low < high:
        raise rope.bad("low_freq_factor", f"is {low}; it must be below high_freq_factor, {high}")
    return Rope(
        theta=theta,
        kind="llama3",
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=rope.size("original_max_position_embeddings"),
    )


def _dtype(read: Keys) -> str | None:
    key = "dtype" if read.has("dtype") else "torch_dtype"
    if not read.has(key):
        return None
    name: str = read.get(key, str)
    if name not in DTYPES:
        raise read.bad(key, f"is {name!r}; supported are {', '.join(DTYPES)}")
    return name
