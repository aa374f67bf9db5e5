"""Small random models of every kind that is no LLaMA, and what Hugging Face transformers computes for them.

The tests compare with tests/golden/NAME.npz and need neither torch nor transformers. To make those files, from the top
of the checkout:

    PYTHONPATH=. python tests/family_models.py [NAME...]

Sizes divide nothing that meshes are cut in; windows are shorter than the prompts.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshrt.models.config import Config
from meshrt.models.folders.checkpoint import expected_shapes

COMMON: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 36,
    "intermediate_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "float32",
}
SILU, TANH = {"hidden_act": "silu"}, {"hidden_activation": "gelu_pytorch_tanh"}
QWEN3 = COMMON | SILU | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 10}
PHI3 = COMMON | SILU | {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 40, "sliding_window": 5,
}  # fmt: skip
GEMMA = COMMON | TANH | {"tie_word_embeddings": True, "head_dim": 10, "query_pre_attn_scalar": 7}
GEMMA2 = GEMMA | {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "num_hidden_layers": 3, "sliding_window": 5,
    "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0,
}  # fmt: skip
GEMMA3 = GEMMA | {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 3, "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}  # fmt: skip
GPT2 = {
    "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 67, "n_embd": 36, "n_layer": 2,
    "n_head": 3, "n_positions": 64, "n_inner": None, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    "bos_token_id": 1, "eos_token_id": 2, "dtype": "float32",
}  # fmt: skip
OPT = {
    "architectures": ["OPTForCausalLM"], "model_type": "opt", "vocab_size": 67, "hidden_size": 36, "ffn_dim": 50,
    "word_embed_proj_dim": 36, "num_hidden_layers": 2, "num_attention_heads": 3, "max_position_embeddings": 64,
    "activation_function": "relu", "do_layer_norm_before": True, "bos_token_id": 2, "eos_token_id": 2,
    "pad_token_id": 1, "dtype": "float32",
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "qwen3": QWEN3,
    "qwen3-late": QWEN3
    | {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1, "attention_bias": True},
    "mistral-window": COMMON | SILU | {"architectures": ["MistralForCausalLM"], "model_type": "mistral",
                                       "num_attention_heads": 3, "num_key_value_heads": 1, "sliding_window": 6},
    "phi3": PHI3,
    "phi3-full": PHI3 | {"sliding_window": None, "num_key_value_heads": 4},
    "gemma": {key: value for key, value in GEMMA.items() if key != "query_pre_attn_scalar"}
    | {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"},
    "gemma2": GEMMA2,
    "gemma2-uncapped": GEMMA2
    | {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": True},
    "gemma3": GEMMA3,
    "gpt2": GPT2,
    "gpt2-untied": GPT2 | {"tie_word_embeddings": False, "n_inner": 50, "activation_function": "relu"},
    "opt-odd": OPT,
    "llama-mlp-bias": COMMON | SILU | {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                                       "attention_bias": True, "mlp_bias": True, "head_dim": 10},
    "gpt2-odd-heads": GPT2 | {"n_embd": 27},
}  # fmt: skip
PROMPT, NEW = 9, 6  # token ids: those that are given, and those that follow greedily
IDS = {
    name: [int(number) for number in np.random.default_rng([at, 19]).integers(3, 67, PROMPT)]
    for at, name in enumerate(CASES)
}
GOLDEN = Path(__file__).parent / "golden"


def golden_of(name: str) -> tuple[list[int], NDArray[np.float32]]:
    """The ids, prompt and continuation, and their logits [ids, vocabulary], of transformers."""
    golden = {**np.load(GOLDEN / f"{name}.npz")}
    return golden["ids"].tolist(), golden["logits"]


def of_eight(name: str) -> dict[str, Any]:
    """What makes the same kind of model one whose heads eight devices can share."""
    kind = CASES[name]["model_type"]
    if kind == "gpt2":
        return {"n_embd": 40 if name == "gpt2-odd-heads" else 48, "n_head": 8}
    if kind == "opt":
        return {"hidden_size": 48, "word_embed_proj_dim": 48, "num_attention_heads": 8}
    heads = {"num_attention_heads": 8, "num_key_value_heads": min(8, 2 * CASES[name]["num_key_value_heads"])}
    return heads | ({"hidden_size": 48} if kind == "phi3" else {"head_dim": 6})


def random_family(name: str, folder: Path, **changes: Any) -> Path:
    """Writes config.json and a float32 model.safetensors as Hugging Face has it, the same for the same name."""
    from safetensors.numpy import save_file

    data = CASES[name] | changes
    config, rng = Config.from_dict(data), np.random.default_rng([300, [*CASES].index(name)])
    weights = {}
    for tensor, shape in expected_shapes(config).items():
        noise = rng.standard_normal(shape).astype(np.float32)
        if "norm" in tensor or ".ln_" in tensor:
            weights[tensor] = np.float32(0.2) * noise
            if tensor.endswith("weight"):
                weights[tensor] += np.float32(1 - config.kind.norm_shift)
        else:
            weights[tensor] = np.float32(0.25) * noise
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(data, indent=2))
    save_file(published(config, weights), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def published(config: Config, weights: dict[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    """As folders have them: Phi-3's matrices of one input are one, GPT-2's too, and those are [in, out]."""
    weights = dict(weights)
    for number in range(config.layers):
        layer = config.layer(number)
        q, k, v, o = (matrix.name for matrix in layer.attention)
        if config.model_type == "phi3":
            stem = q.removesuffix("q_proj")
            mlp = layer.dense_mlp
            assert mlp.gate is not None
            pairs = {
                stem + "qkv_proj": [q, k, v],
                f"model.layers.{number}.mlp.gate_up_proj": [mlp.gate.name, mlp.up.name],
            }
        elif config.model_type == "gpt2":
            stem, mlp = f"transformer.h.{number}.", layer.dense_mlp
            pairs = {
                stem + "attn.c_attn": [q, k, v], stem + "attn.c_proj": [o], stem + "mlp.c_fc": [mlp.up.name],
                stem + "mlp.c_proj": [mlp.down.name],
            }  # fmt: skip
        else:
            pairs = {}
        for whole, parts in pairs.items():
            for end in (".weight", ".bias"):
                if parts[0] + end in weights:
                    joined = np.concatenate([weights.pop(part + end) for part in parts])
                    turned = config.model_type == "gpt2" and end == ".weight"
                    weights[whole + end] = np.ascontiguousarray(joined.T) if turned else joined
    return weights


def main() -> None:
    from make_golden import hugging_face_logits, save

    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as place:
            folder, ids = random_family(name, Path(place)), IDS[name]
            while len(ids) < PROMPT + NEW:
                ids = [*ids, int(hugging_face_logits(folder, ids)[-1].argmax())]
            logits = hugging_face_logits(folder, ids)
        best, second = np.sort(logits[PROMPT - 1 :], axis=-1)[:, :-3:-1].T
        assert np.min(best - second) > 0.005, f"{name}: a near tie, which another order of summation may decide"
        save(name, ids=ids, logits=logits)


if __name__ == "__main__":
    main()
