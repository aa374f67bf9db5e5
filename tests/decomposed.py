"""Models decomposed by plain truncated SVD, as folders: what the tests of tensor-parallel GPUs run. NumPy only."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from meshrt.models.matrix import factor_names


def factors(weight: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """weight [out, in] ~ v u: u [rank, in] and v [out, rank], each with the root of the singular values."""
    left, values, right = np.linalg.svd(weight.astype(np.float64), full_matrices=False)
    root = np.sqrt(values[:rank])
    return (root[:, None] * right[:rank]).astype(np.float32), (left[:, :rank] * root).astype(np.float32)


def decompose(source: Path, target: Path, ranks: Mapping[str, int]) -> Path:
    """Copy a model folder with these matrices, by their whole names without `.weight`, as factors."""
    from safetensors.numpy import load_file, save_file

    target.mkdir(parents=True, exist_ok=True)
    for file in source.glob("*.json"):
        (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    config["low_rank"] = {"ranks": dict(ranks)}
    (target / "config.json").write_text(json.dumps(config))
    weights = load_file(source / "model.safetensors")
    for name, rank in ranks.items():
        u, v = factor_names(name)
        weights[u + ".weight"], weights[v + ".weight"] = map(
            np.ascontiguousarray, factors(weights.pop(name + ".weight"), rank)
        )
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target
