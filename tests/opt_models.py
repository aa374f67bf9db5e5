"""Small random OPT models, and what Hugging Face transformers computes for them.

The tests compare with tests/golden/opt*.npz and need neither torch nor transformers. To make those files, from the top
of the checkout:

    PYTHONPATH=. python tests/opt_models.py
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from meshrt.models.config import Config
from meshrt.models.folders.checkpoint import expected_shapes

BASE: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "vocab_size": 96,
    "hidden_size": 48,
    "word_embed_proj_dim": 48,
    "ffn_dim": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "activation_function": "relu",
    "do_layer_norm_before": True,
    "dropout": 0.0,
    "bos_token_id": 2,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "dtype": "float32",
}
CASES = {"opt": BASE, "opt-untied": BASE | {"tie_word_embeddings": False, "num_attention_heads": 8, "ffn_dim": 50}}
IDS = {
    name: [int(number) for number in np.random.default_rng([at, 5]).integers(3, 96, 14)]
    for at, name in enumerate(CASES)
}


def drawn_when(tensor: str) -> int:
    """The goldens' numbers were drawn for what is of no layer first, then norms, then matrices, then the head."""
    if "layers." not in tensor:
        return 3 if tensor.startswith("lm_head") else 0
    return 1 if "norm" in tensor else 2


def random_opt(name: str, folder: Path) -> Path:
    """Writes config.json and a float32 model.safetensors, the same for the same name. Returns the folder."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng([*CASES].index(name))
    weights = {}
    shapes = expected_shapes(Config.from_dict(CASES[name]))
    for tensor in sorted(shapes, key=drawn_when):
        shape = shapes[tensor]
        noise = rng.standard_normal(shape).astype(np.float32)
        weights[tensor] = 1 + np.float32(0.1) * noise if tensor.endswith("norm.weight") else np.float32(0.25) * noise
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CASES[name]))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def main() -> None:
    from make_golden import hugging_face_logits, save

    for name, ids in IDS.items():
        with tempfile.TemporaryDirectory() as place:
            save(name, ids=ids, logits=hugging_face_logits(random_opt(name, Path(place)), ids))


if __name__ == "__main__":
    main()
