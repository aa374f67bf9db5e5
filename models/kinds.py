"""The kinds of model that config.json names by `model_type`: what all models of a kind have in common.

Names of tensors and keys, defaults and meaning are those of Hugging Face transformers. What differs between models of
one kind is in config.json, and models/config.py reads it.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from meshrt.models.matrix import Activation
from meshrt.models.moe import MIXTURES
from meshrt.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Names:
    """Tensors without `.weight`; those of a layer without what its name begins with, `layer` and its number."""

    embedding: str = "model.embed_tokens"
    positions: str | None = None  # the table of learned positions
    norm: str = "model.norm"
    layer: str = "model.layers."
    attention_norm: str = "input_layernorm"
    attention: tuple[str, str, str, str] = (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    )  # fmt: skip
    after_attention: str | None = None  # norms of what a part of a layer makes, before it is added
    mlp_norm: str = "post_attention_layernorm"
    mlp: tuple[str | None, str, str] = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    after_mlp: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelKind:
    """What config.json does not say.

    `keys` are its own names of LLaMA's keys, `defaults` what counts where a key is not there, and `only` has keys that
    must have these values if they are there: all others would silently give other numbers. `windows` says which layers
    see no more than the last `sliding_window` tokens: all where it is set, those that `layer_types` or
    `max_window_layers` say where `use_sliding_window` is, or those of a pattern.

    `together` are tensors of a layer that folders have in place of several, and which those are: rows below one another
    or, where matrices are `turned`, columns of [in, out] side by side.
    """

    names: Names = Names()
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    biases: Literal["none", "switched", "qkv", "all"] = "none"
    layer_norm: bool = False  # with mean and bias; else RMSNorm
    norm_shift: int = 0  # what is added to the weights of norms
    qk_norm: Literal["head", "all"] | None = None
    scaled_embedding: bool = False  # by the root of the hidden size
    position_offset: int | None = None  # of the first row of the table of learned positions; None: rotary embedding
    windows: Literal["never", "all", "late", "pattern"] = "never"
    pattern: int = 0  # every so many layers one sees all
    local_theta: float | None = None  # layers with a window have a rotary embedding of their own, by default of this
    together: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    turned: bool = False


ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "relu": "relu",
}  # fmt: skip

_GEMMA: dict[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "head_dim": 256, "tie_word_embeddings": True,
    "query_pre_attn_scalar": 256,
}  # fmt: skip
_AFTER = Names(
    after_attention="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
_ATTENTION, _MLP = Names().attention, Names().mlp
_OPT = Names(
    embedding="model.decoder.embed_tokens",
    positions="model.decoder.embed_positions",
    norm="model.decoder.final_layer_norm",
    layer="model.decoder.layers.",
    attention_norm="self_attn_layer_norm",
    attention=(*_ATTENTION[:3], "self_attn.out_proj"),
    mlp_norm="final_layer_norm",
    mlp=(None, "fc1", "fc2"),
)
_GPT2 = Names(
    embedding="transformer.wte",
    positions="transformer.wpe",
    norm="transformer.ln_f",
    layer="transformer.h.",
    attention_norm="ln_1",
    attention=("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj"),
    mlp_norm="ln_2",
    mlp=(None, "mlp.up_proj", "mlp.down_proj"),
)

_CAUSAL = {"use_bidirectional_attention": False}

KINDS: Mapping[str, ModelKind] = {
    "llama": ModelKind(biases="switched"),
    "mistral": ModelKind(windows="all", defaults={"sliding_window": 4096, "num_key_value_heads": 8}),
    "qwen2": ModelKind(biases="qkv", windows="late", defaults={"num_key_value_heads": 32}),
    "qwen3": ModelKind(
        biases="switched", qk_norm="head", windows="late", defaults={"head_dim": 128, "num_key_value_heads": 32}
    ),
    "phi3": ModelKind(
        windows="all",
        together={"self_attn.qkv_proj": _ATTENTION[:3], "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")},
    ),
    "gemma": ModelKind(
        biases="switched", norm_shift=1, scaled_embedding=True, keys={"hidden_act": "hidden_activation"},
        defaults={key: value for key, value in _GEMMA.items() if key != "query_pre_attn_scalar"}
        | {"num_key_value_heads": 16},
        only=_CAUSAL,
    ),
    "gemma2": ModelKind(
        names=_AFTER, biases="switched", norm_shift=1, scaled_embedding=True, keys={"hidden_act": "hidden_activation"},
        windows="pattern", pattern=2, only=_CAUSAL,
        defaults=_GEMMA | {
            "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
            "num_key_value_heads": 4,
        },
    ),
    "gemma3_text": ModelKind(
        names=_AFTER, biases="switched", norm_shift=1, scaled_embedding=True, keys={"hidden_act": "hidden_activation"},
        qk_norm="head", windows="pattern", pattern=6, local_theta=1e4,
        only=_CAUSAL | {"attn_logit_softcapping": None},  # transformers does not look at it
        defaults=_GEMMA | {
            "sliding_window": 4096, "rope_theta": 1e6, "attn_logit_softcapping": None, "final_logit_softcapping": None,
            "num_key_value_heads": 4,
        },
    ),
    "opt": ModelKind(
        names=_OPT, biases="all", layer_norm=True, position_offset=2,
        keys={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
        defaults={"tie_word_embeddings": True, "activation_function": "relu", "rms_norm_eps": 1e-5},
        only={
            "do_layer_norm_before": True, "enable_bias": True, "layer_norm_elementwise_affine": True,
            "_remove_final_layer_norm": False, "rms_norm_eps": 1e-5,
        },
    ),
    "gpt2": ModelKind(
        names=_GPT2, biases="all", layer_norm=True, position_offset=0,
        keys={
            "hidden_size": "n_embd", "intermediate_size": "n_inner", "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head", "max_position_embeddings": "n_positions",
            "hidden_act": "activation_function", "rms_norm_eps": "layer_norm_epsilon",
        },
        defaults={"tie_word_embeddings": True, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5},
        only={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
        together={
            "attn.c_attn": _GPT2.attention[:3], "attn.c_proj": _GPT2.attention[3:], "mlp.c_fc": ("mlp.up_proj",),
            "mlp.c_proj": ("mlp.down_proj",),
        },
        turned=True,
    ),
    # Mixtures of experts (models/moe.py).
    "mixtral": ModelKind(only={"sliding_window": None}, defaults={"rope_theta": 1e6, "num_key_value_heads": 8}),
    "deepseek": ModelKind(biases="switched"),
    "qwen2_moe": ModelKind(biases="qkv", defaults={"num_key_value_heads": 16}),
    "olmoe": ModelKind(biases="switched", qk_norm="all", only={"sliding_window": None}),
    "qwen3_moe": ModelKind(biases="switched", qk_norm="head", defaults={"num_key_value_heads": 4}),
}  # fmt: skip
assert {*MIXTURES} < {*KINDS}
