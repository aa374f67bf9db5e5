"""A LLaMA of random weights, of any size, as a folder: `python -m meshrt.models.random_llama OUT [--hidden N ...]`.

Tensor by tensor: no more than a piece of one is in memory at a time. The weights are bfloat16, of the size that keeps
activations as large as they were: what comes out is not text, but numbers as finite as those of a model that was
trained. Without options there are 1.2 thousand million parameters.
"""

import argparse
import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from meshrt.models.config import Config
from meshrt.models.folders.checkpoint import SINGLE, expected_shapes

PIECE = 1 << 22  # numbers that are drawn at a time


def settings(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocabulary: int) -> dict[str, Any]:
    """config.json of such a model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "bfloat16",
    }


def write(out: Path, data: dict[str, Any], seed: int = 0) -> int:
    """Writes the folder, which must not be there; how many parameters it has. Raises ModelError, OSError."""
    shapes = expected_shapes(Config.from_dict(data, source=str(out)))
    out.mkdir(parents=True)
    (out / "config.json").write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = np.random.default_rng(seed)
    with (out / SINGLE).open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            _draw(stream, rng, shape)
    return end // 2


def _draw(stream: IO[bytes], rng: np.random.Generator, shape: Sequence[int]) -> None:
    """A matrix of numbers about zero, or a norm's weights about one."""
    scale, centre = (shape[-1] ** -0.5, 0) if len(shape) > 1 else (0.1, 1)
    for low in range(0, prod(shape), PIECE):
        numbers = rng.standard_normal(min(PIECE, prod(shape) - low), np.float32)
        stream.write((numbers * np.float32(scale) + np.float32(centre)).astype(ml_dtypes.bfloat16).tobytes())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    sizes = {"hidden": 2048, "inner": 8192, "layers": 18, "heads": 32, "kv_heads": 8, "vocabulary": 32000}
    for name, default in sizes.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--seed", type=int, default=0)
    given = vars(parser.parse_args(arguments))
    out, seed = given.pop("out"), given.pop("seed")
    print(f"{out}: {write(out, settings(**given), seed):,} parameters")


if __name__ == "__main__":
    main()
