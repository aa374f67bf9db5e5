"""Small random models as Hugging Face folders: the cases that every way of running a model is tested on. NumPy only."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshrt.models.config import Config
from meshrt.models.folders.checkpoint import expected_shapes

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}
# The original length is so short that, of six frequencies, some are kept, some blended and some slowed.
LLAMA3 = {
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 48,
}
_V5 = ("rope_parameters", "dtype")
_NOT_LLAMA = ("attention_bias", "mlp_bias")

CASES: dict[str, dict[str, Any]] = {
    "mha": BASE,
    "gqa82": BASE | {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2},
    "mqa": BASE | {"num_key_value_heads": 1},
    # A head size that divides no mesh, and heads that do not add up to the hidden size.
    "headdim": BASE | {"hidden_size": 36, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 10},
    "oddvocab": BASE
    | {
        "vocab_size": 97,
        "hidden_size": 30,
        "intermediate_size": 50,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
    },
    "tied": BASE | {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "untied": BASE | {"hidden_size": 24, "intermediate_size": 40, "num_key_value_heads": 2},
    "bias": BASE | {"num_key_value_heads": 2, "attention_bias": True},
    "linear": BASE | {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama3": BASE | {"num_key_value_heads": 2, "rope_parameters": LLAMA3 | {"rope_type": "llama3"}},
    "qwen2": {k: v for k, v in BASE.items() if k not in _NOT_LLAMA}
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
        "sliding_window": 4,
        "use_sliding_window": False,
    },
    "mistral": {k: v for k, v in BASE.items() if k not in _NOT_LLAMA}
    | {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "num_key_value_heads": 2,
        "sliding_window": None,
    },
    # The keys of transformers 4.
    "v4": {k: v for k, v in BASE.items() if k not in _V5}
    | {
        "num_key_value_heads": 2,
        "rope_theta": 500.0,
        "rope_scaling": {k: v for k, v in LLAMA3.items() if k != "rope_theta"} | {"type": "llama3"},
        "torch_dtype": "float32",
    },
    # Two factors in place of some matrices: all of layer 0, some of layer 1, with ranks of all sizes.
    "lowrank": BASE
    | {
        "num_key_value_heads": 2,
        "low_rank": {
            "ranks": {
                **{
                    f"model.layers.0.self_attn.{name}_proj": rank
                    for name, rank in zip("qkvo", (16, 7, 24, 1), strict=True)
                },
                **{f"model.layers.0.mlp.{name}_proj": rank for name, rank in (("gate", 16), ("up", 48), ("down", 15))},
                "model.layers.1.self_attn.v_proj": 12,
                "model.layers.1.mlp.up_proj": 20,
            }
        },
    },
    "lowrankbias": {k: v for k, v in BASE.items() if k not in _NOT_LLAMA}
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_key_value_heads": 2,
        "low_rank": {
            "ranks": {
                **{f"model.layers.0.self_attn.{name}_proj": 16 for name in "qkv"},
                **{f"model.layers.1.mlp.{name}_proj": 16 for name in ("gate", "up", "down")},
            }
        },
    },
}


def case_seed(name: str) -> int:
    return list(CASES).index(name)


def case_ids(name: str) -> list[int]:
    """12 to 20 token ids of the case."""
    rng = np.random.default_rng([case_seed(name), 1])
    return [int(i) for i in rng.integers(0, CASES[name]["vocab_size"], rng.integers(12, 21))]


def random_weights(config_dict: dict[str, Any], seed: int) -> dict[str, NDArray[np.float32]]:
    """Weights of such a spread that logits are of order one and attention is neither flat nor one-hot."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in expected_shapes(Config.from_dict(config_dict)).items():
        noise = rng.standard_normal(shape).astype(np.float32)
        weights[name] = 1 + np.float32(0.1) * noise if "norm" in name else np.float32(0.25) * noise
    return weights


def random_checkpoint(config_dict: dict[str, Any], folder: Path, seed: int) -> Path:
    """Writes config.json and a float32 model.safetensors, the same for the same arguments. Returns the folder."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_dict, indent=2))
    save_file(random_weights(config_dict, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder
