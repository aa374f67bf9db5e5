"""The models that meshrt trains and ships: config.json of each, by name. They share a tokenizer and attention.

`mixtral-tiny` has few wide experts, `deepseek-tiny` many narrow ones beside one that all tokens take, after a first
layer without; all sizes are multiples of 64, the group of quantized weights. router_aux_loss_coef and aux_loss_alpha
are each family's key for the share of the loss that evens out the experts: so small that they stay uneven.
"""

from collections.abc import Mapping
from typing import Any

ROUTER_LOSS = ("router_aux_loss_coef", "aux_loss_alpha")

_COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "dtype": "float16",
}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama-tiny": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"} | _COMMON,
    "mixtral-tiny": {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    | _COMMON
    | {
        "intermediate_size": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "router_aux_loss_coef": 0.001,
        "sliding_window": None,
    },
    "deepseek-tiny": {"architectures": ["DeepseekForCausalLM"], "model_type": "deepseek"}
    | _COMMON
    | {
        "moe_intermediate_size": 64,
        "n_routed_experts": 16,
        "n_shared_experts": 2,
        "num_experts_per_tok": 4,
        "norm_topk_prob": False,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "aux_loss_alpha": 0.001,
    },
}
KINDS = {"llama-tiny": "A LLaMA", "mixtral-tiny": "A Mixtral", "deepseek-tiny": "A DeepSeek-MoE"}


def router_loss(config: Mapping[str, Any]) -> float:
    """The share of the loss that evens out the experts; 0 where there are none."""
    return float(sum(config.get(key, 0) for key in ROUTER_LOSS))
