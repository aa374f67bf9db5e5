"""Small random mixtures of experts, and what Hugging Face transformers computes for them.

The tests compare with tests/golden/NAME.npz and need neither torch nor transformers. To make those files, from the top
of the checkout:

    PYTHONPATH=. python tests/moe_models.py [NAME...]

DeepSeek-MoE is not in transformers, and its published code does not run on transformers 5. It is LLaMA with other MLPs,
so here it is transformers' LLaMA with these written in torch.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from random_models import BASE, random_checkpoint

COMMON: dict[str, Any] = {key: value for key, value in BASE.items() if key not in ("attention_bias", "mlp_bias")} | {
    "vocab_size": 61,
    "hidden_size": 36,
    "intermediate_size": 22,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 10,
    "num_experts_per_tok": 3,
}
MIXTRAL = COMMON | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 5,
    "sliding_window": None,
}
DEEPSEEK = COMMON | {
    "architectures": ["DeepseekForCausalLM"],
    "model_type": "deepseek",
    "intermediate_size": 50,
    "moe_intermediate_size": 14,
    "n_routed_experts": 9,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "norm_topk_prob": False,
    "scoring_func": "softmax",
}
QWEN2 = COMMON | {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "intermediate_size": 50,
    "moe_intermediate_size": 14,
    "shared_expert_intermediate_size": 26,
    "num_experts": 7,
    "norm_topk_prob": False,
    "mlp_only_layers": [1],
    "decoder_sparse_step": 1,
    "use_sliding_window": False,
    "sliding_window": 4,
}
OLMOE = COMMON | {
    "architectures": ["OlmoeForCausalLM"],
    "model_type": "olmoe",
    "head_dim": 12,  # there the heads have to add up to the hidden size
    "num_experts": 6,
    "norm_topk_prob": False,
    "clip_qkv": 0.75,
}
QWEN3 = COMMON | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "intermediate_size": 50,
    "moe_intermediate_size": 14,
    "num_local_experts": 11,
    "norm_topk_prob": True,
    "mlp_only_layers": [0],
    "decoder_sparse_step": 1,
}
CASES: dict[str, dict[str, Any]] = {
    "mixtral": MIXTRAL,
    "mixtral-two": MIXTRAL | {"num_local_experts": 2, "num_experts_per_tok": 2},  # all of them
    "deepseek": DEEPSEEK,
    "deepseek-renormalised": DEEPSEEK | {"norm_topk_prob": True, "n_shared_experts": None, "first_k_dense_replace": 0},
    "qwen2-moe": QWEN2,
    "qwen2-moe-renormalised": QWEN2
    | {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 2, "qkv_bias": False},
    "olmoe": OLMOE,
    "olmoe-renormalised": OLMOE | {"norm_topk_prob": True, "clip_qkv": None, "attention_bias": True},
    "qwen3-moe": QWEN3,
    # The name that files had before transformers 5.
    "qwen3-moe-probabilities": {key: value for key, value in QWEN3.items() if key != "num_local_experts"}
    | {"norm_topk_prob": False, "num_experts": 11, "mlp_only_layers": [], "decoder_sparse_step": 3},
}
IDS = {
    name: [int(number) for number in np.random.default_rng([at, 7]).integers(0, 61, 13)]
    for at, name in enumerate(CASES)
}


def random_moe(name: str, folder: Path) -> Path:
    """Writes config.json and a float32 model.safetensors, the same for the same name. Returns the folder."""
    return random_checkpoint(CASES[name], folder, 100 + [*CASES].index(name))


def logits_of(name: str, folder: Path, dtype: Any) -> Any:
    """Logits [T, vocab] in a type of torch."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model: Any
    if CASES[name]["model_type"] == "deepseek":
        model = deepseek(CASES[name], folder, dtype)
    else:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", experts_implementation="eager"
        )
    with torch.no_grad():
        return model(torch.tensor([IDS[name]])).logits[0].numpy()


def deepseek(config: dict[str, Any], folder: Path, dtype: Any) -> Any:
    """DeepSeekMoE (arXiv 2401.06066, equations 9 to 11; MoEGate and DeepseekMoE of modeling_deepseek.py)."""
    import torch
    from safetensors.torch import load_file
    from torch import nn
    from torch.nn import functional
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden, inner = config["hidden_size"], config["moe_intermediate_size"]

    class Mlp(nn.Module):
        def __init__(self, inner: int) -> None:
            super().__init__()
            self.gate_proj = nn.Linear(hidden, inner, bias=False)
            self.up_proj = nn.Linear(hidden, inner, bias=False)
            self.down_proj = nn.Linear(inner, hidden, bias=False)

        def forward(self, x: Any) -> Any:
            return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))

    class Moe(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(hidden, config["n_routed_experts"], bias=False)
            self.experts = nn.ModuleList(Mlp(inner) for _ in range(config["n_routed_experts"]))
            if config["n_shared_experts"]:
                self.shared_experts = Mlp(inner * config["n_shared_experts"])

        def forward(self, x: Any) -> Any:
            weights, chosen = torch.topk(self.gate(x).softmax(-1), config["num_experts_per_tok"], dim=-1)
            if config["norm_topk_prob"]:
                weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
            y = torch.stack(
                [
                    sum(weight * self.experts[expert](token) for weight, expert in zip(shares, own, strict=True))
                    for token, shares, own in zip(x[0], weights[0], chosen[0], strict=True)
                ]
            )[None]
            return y + self.shared_experts(x) if config["n_shared_experts"] else y

    model = LlamaForCausalLM(LlamaConfig(**{k: v for k, v in config.items() if k not in ("model_type", "dtype")}))
    for number in range(config["first_k_dense_replace"], config["num_hidden_layers"]):
        model.model.layers[number].mlp = Moe()
    model.set_attn_implementation("eager")
    state = load_file(folder / "model.safetensors")
    if config["tie_word_embeddings"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state)
    return model.to(dtype).eval()


def main() -> None:
    import torch
    from make_golden import save

    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as place:
            folder = random_moe(name, Path(place))
            narrow, wide = (logits_of(name, folder, dtype) for dtype in (torch.float32, torch.float64))
        save(name, ids=IDS[name], logits=narrow, wide=wide)


if __name__ == "__main__":
    main()
