"""The sizes and constants of a model, read from a Hugging Face folder.

All models are one architecture with many switches: what those of a kind have in common says models/kinds.py, and
mixtures of experts are made of the same parts (models/moe.py). A key that would change the numbers and is not supported
is an error. All other unknown keys are ignored on purpose: such files are full of settings for training.
"""

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal

from meshrt.models.errors import ModelError
from meshrt.models.folders.files import find_file, read_object
from meshrt.models.keys import MAX_SIZE, Keys
from meshrt.models.kinds import ACTIVATIONS, KINDS, ModelKind
from meshrt.models.matrix import Activation, Dense, Layer, Matrix, Mlp, Norm, form_of, read_ranks
from meshrt.models.moe import MIXTURES, Moe, make_experts, read_moe
from meshrt.models.positions import Rope, read_ropes, read_windows
from meshrt.models.quantize.form import Quantized, read_head, read_quantized
from meshrt.records import dataclass

DTYPES = ("float32", "float16", "bfloat16")
# null says that there is none, or as many as heads; all other keys that are null are as if they were not there.
MAY_BE_NULL = ("sliding_window", "attn_logit_softcapping", "final_logit_softcapping", "num_key_value_heads")
MAX_LAYERS = 10_000  # far above any model; beyond, tables of its shapes alone would not fit


@dataclass(frozen=True, kw_only=True)
class Config:
    """A decoder-only transformer: norms, grouped-query attention, an MLP or experts (models/matrix.py, Layer).

    `moe` says which layers have experts instead of an MLP of `intermediate_size`. `clip_qkv` bounds queries, keys and
    values after their norms. `rope` is None where positions are learned; layers with a window have `local_rope` where
    there is one. `windows` has that of each layer, of tokens that a token sees, and nothing where all of them see all.
    Scores of attention are products times `attention_scale`; where there is a `score_cap` c they become
    c tanh(score / c), and logits with a `logit_cap` likewise.

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
    eps: float  # of norms
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    activation: Activation
    max_positions: int
    rope: Rope | None
    local_rope: Rope | None = None
    windows: tuple[int | None, ...] = ()
    attention_scale: float
    score_cap: float | None = None
    logit_cap: float | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str | None = None
    moe: Moe | None = None
    clip_qkv: float | None = None
    factored: Mapping[str, int] = field(default_factory=dict, hash=False)
    quantized: Mapping[str, Quantized] = field(default_factory=dict, hash=False)
    head: Quantized | None = None

    @property
    def kind(self) -> ModelKind:
        return KINDS[self.model_type]

    @property
    def qk_norm(self) -> Literal["head", "all"] | None:
        """Queries and keys have a norm before they are turned: over each head, or over all together."""
        return self.kind.qk_norm

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The rotary embeddings, of which a layer has one."""
        return tuple(rope for rope in (self.rope, self.local_rope) if rope is not None)

    @property
    def group(self) -> int:
        """Query heads that share one key and value head."""
        return self.heads // self.kv_heads

    @property
    def head_matrix(self) -> Matrix:
        """The head where it is no embedding."""
        return Matrix("lm_head", self.hidden_size, self.vocab_size, self.head or Dense())

    @property
    def embedding_scale(self) -> float:
        """Of what is looked up in the table of embeddings."""
        return self.hidden_size**0.5 if self.kind.scaled_embedding else 1.0

    @property
    def position_offset(self) -> int:
        """Of the first row of the table of learned positions."""
        return self.kind.position_offset or 0

    def layer(self, number: int) -> Layer:
        """A layer's matrices and norms, by their names without `.weight`."""
        hidden, inner, names = self.hidden_size, self.intermediate_size, self.kind.names
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        stem, window = f"{names.layer}{number}.", self.windows[number] if self.windows else None

        def matrix(name: str, rows: int, columns: int, bias: bool = False) -> Matrix:
            form = self.quantized.get(stem + name) or form_of(self.factored, stem + name)
            return Matrix(stem + name, rows, columns, form, bias)

        def norm(name: str, all_heads: int) -> Norm | None:
            size = {"head": self.head_dim, "all": all_heads}
            return None if self.qk_norm is None else Norm(stem + name, size[self.qk_norm])

        (q, k, v, o), (gate, up, down) = names.attention, names.mlp
        return Layer(
            stem + names.attention_norm,
            matrix(q, hidden, queries, self.qkv_bias),
            matrix(k, hidden, keys, self.qkv_bias),
            matrix(v, hidden, keys, self.qkv_bias),
            matrix(o, queries, hidden, self.o_bias),
            stem + names.mlp_norm,
            make_experts(self.model_type, self.moe, hidden, matrix)
            if self.moe is not None and self.moe.has_experts(number)
            else Mlp(
                None if gate is None else matrix(gate, hidden, inner, self.mlp_bias),
                matrix(up, hidden, inner, self.mlp_bias),
                matrix(down, inner, hidden, self.mlp_bias),
                self.activation,
            ),
            norm("self_attn.q_norm", queries),
            norm("self_attn.k_norm", keys),
            names.after_attention and stem + names.after_attention,
            names.after_mlp and stem + names.after_mlp,
            window,
            0 if window is None or self.local_rope is None else 1,
        )

    def matrices(self) -> dict[str, Matrix]:
        """Those of all layers that may be kept in another form, by name."""
        return {matrix.name: matrix for number in range(self.layers) for matrix in self.layer(number).matrices()}

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], generation: Mapping[str, Any] | None = None, source: str = "config.json"
    ) -> "Config":
        """Reads the dictionary of a config.json, of transformers 4 or 5.

        `generation` is that of generation_config.json, whose end-of-text ids win. Raises ModelError with file and key.
        """
        name = Keys(data, source).get("model_type", str)
        if name not in KINDS:
            raise Keys(data, source).bad("model_type", f"is {name!r}; supported are {', '.join(KINDS)}")
        kind = KINDS[name]
        given = {key: value for key, value in data.items() if value is not None or key in MAY_BE_NULL}
        read = Keys({**kind.defaults, **given}, source, names=kind.keys)
        _refuse_unsupported(read, name, kind)

        hidden, heads, kv_heads, head_dim = _read_heads(read, kind)
        bias = kind.biases == "all" or (kind.biases == "switched" and read.get("attention_bias", bool, False))
        layers = read.size("num_hidden_layers", most=MAX_LAYERS)
        eps = read.between("rms_norm_eps", 0, 1)
        activation = _read_activation(read, name)
        scalar = read.between("query_pre_attn_scalar", 1e-6, 1e9) if read.has("query_pre_attn_scalar") else head_dim

        def cap(key: str) -> float | None:
            return read.between(key, 1e-6, 1e18) if read.has(key) else None

        rope, local_rope = read_ropes(read, kind)
        eos = read
        if generation is not None and generation.get("eos_token_id") is not None:
            eos = Keys(generation, source.replace("config.json", "generation_config.json"))
        config = cls(
            model_type=name,
            vocab_size=read.size("vocab_size"),
            hidden_size=hidden,
            intermediate_size=read.size("intermediate_size", 4 * hidden if name == "gpt2" else None),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            eps=eps,
            tie_word_embeddings=read.get("tie_word_embeddings", bool, False),
            qkv_bias=bias or name == "qwen2" or (name == "qwen2_moe" and read.get("qkv_bias", bool, True)),
            o_bias=bias,
            mlp_bias=kind.biases == "all" or (name == "llama" and read.get("mlp_bias", bool, False)),
            activation=activation,
            max_positions=read.size("max_position_embeddings"),
            rope=rope,
            local_rope=local_rope,
            windows=read_windows(read, kind, layers),
            attention_scale=scalar**-0.5,
            score_cap=cap("attn_logit_softcapping"),
            logit_cap=cap("final_logit_softcapping"),
            bos_token_id=(read.token_ids("bos_token_id") or (None,))[0],
            eos_token_ids=eos.token_ids("eos_token_id"),
            dtype=_dtype(read),
            moe=read_moe(read, name, layers) if name in MIXTURES else None,
            clip_qkv=cap("clip_qkv") if name == "olmoe" else None,
        )
        return _with_forms(config, read)


def _read_heads(read: Keys, kind: ModelKind) -> tuple[int, int, int, int]:
    """Hidden size; heads of queries, and of keys and values; the size of one. ModelError."""
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    kv_heads = read.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise read.bad("num_attention_heads", f"is {heads}, not a multiple of num_key_value_heads, {kv_heads}")
    if not read.has("head_dim") and hidden % heads:
        raise read.bad("hidden_size", f"is {hidden}, not a multiple of num_attention_heads, {heads}; give head_dim")
    head_dim = read.size("head_dim", hidden // heads)
    if head_dim % 2 and kind.position_offset is None:
        raise read.bad("head_dim", f"is {head_dim}; rotary embedding needs an even one")
    if heads * head_dim > MAX_SIZE:
        raise read.bad("head_dim", f"is {head_dim}, of {heads} heads; all of them may have {MAX_SIZE} numbers")
    if read.get("word_embed_proj_dim", int, hidden) != hidden:
        raise read.bad("word_embed_proj_dim", f"is {read.found('word_embed_proj_dim')}; only {hidden} is supported")
    return hidden, heads, kv_heads, head_dim


def _read_activation(read: Keys, name: str) -> Activation:
    """That of a model of this type. ModelError."""
    activation = read.get("hidden_act", str, "silu") if name != "gemma" else _read_gelu(read)
    supported = ACTIVATIONS if name not in MIXTURES else ("silu",)
    if activation not in supported:
        raise read.bad("hidden_act", f"is {activation!r}; supported are {', '.join(supported)}")
    return ACTIVATIONS[activation]


def _read_gelu(read: Keys) -> str:
    """That of the first Gemma. Its folders name it by one of two keys or both, and versions of transformers differ on
    which counts; but a `hidden_act` of gelu has always meant that by tanh. ModelError where the keys differ.
    """
    key, default = "hidden_activation", "gelu_pytorch_tanh"
    both = Keys(read.data, read.source)
    new: str = both.get(key, str, default)
    old: str = both.get("hidden_act", str, default)
    if new != (old := default if old == "gelu" else old):
        raise both.bad(key, f"is {new!r} and 'hidden_act' {old!r}, by default {default}; set both, to the same")
    return new


def _with_forms(config: Config, read: Keys) -> Config:
    """With what the file says of matrices in codes, or in two factors. ModelError."""
    if read.has("quantized") and read.has("low_rank"):
        raise read.bad("quantized", "and 'low_rank' are both set; a matrix is kept in one form")
    key = "quantized" if read.has("quantized") else "low_rank"
    if not read.has(key):
        return config
    try:
        if key == "low_rank":
            return replace(config, factored=read_ranks(read.get(key, dict), config.matrices().values()))
        shapes = {name: (matrix.columns, matrix.rows) for name, matrix in config.matrices().items()}
        forms = read_quantized(read.get(key, dict), shapes)
        head = read_head(read.get(key, dict), next(iter(forms.values())), config.hidden_size)
        if head is not None and config.tie_word_embeddings:
            raise ValueError("has a 'head', and tie_word_embeddings says that it is the embedding")
        return replace(config, quantized=forms, head=head)
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


def _refuse_unsupported(read: Keys, name: str, kind: ModelKind) -> None:
    """Everything that would silently give other numbers."""
    for key, value in kind.only.items():
        if read.data.get(key) not in (None, value):
            raise read.bad(key, f"is {read.data[key]!r}; only {value!r} is supported")
    for key in ("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"):
        if key not in kind.defaults and read.has(key):
            raise read.bad(key, f"is {read.data[key]!r}, which is not what {name} has; take it out")
    if name != "llama" and read.get("mlp_bias", bool, False):
        raise read.bad("mlp_bias", f"is true, which is not what {name} has")
    biased = kind.biases == "qkv"
    if kind.biases != "switched" and read.get("attention_bias", bool, biased) != biased:
        raise read.bad("attention_bias", f"is {read.data['attention_bias']}, which is not what {name} has")
    if not read.get("is_causal", bool, True):
        raise read.bad("is_causal", "is false; only models of which a token sees those before it are supported")
    if read.has("quantization_config"):
        raise read.bad("quantization_config", "is set; only F32, F16 and BF16 weights are supported")


def _dtype(read: Keys) -> str | None:
    key = "dtype" if read.has("dtype") else "torch_dtype"
    if not read.has(key):
        return None
    name: str = read.get(key, str)
    if name not in DTYPES:
        raise read.bad(key, f"is {name!r}; supported are {', '.join(DTYPES)}")
    return name
