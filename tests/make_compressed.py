"""tests/golden/foreign/compressed.npz, by the compressed-tensors library and torch, which the tests do without:

    pip install compressed-tensors torch && python tests/make_compressed.py

Of each case: a weight, what the library packs of it, and what it rebuilds from that. tests/models/test_compressed.py
makes folders of them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams

# bits, symmetric, strategy, group, dtype of scales, out, in
CASES = {
    "group": (4, True, "group", 32, "bfloat16", 20, 96),
    "asymmetric": (4, False, "group", 64, "float16", 13, 128),
    "channel": (4, True, "channel", None, "float32", 12, 70),
    "asymmetric-channel": (4, False, "channel", None, "bfloat16", 9, 64),
    "tensor": (4, True, "tensor", None, "bfloat16", 8, 64),
    "eight": (8, True, "group", 32, "bfloat16", 10, 64),
}


def case(
    seed: int, bits: int, symmetric: bool, strategy: str, group: int | None, dtype: str, rows: int, columns: int
) -> Any:
    args = QuantizationArgs(num_bits=bits, symmetric=symmetric, strategy=strategy, group_size=group)
    w = torch.from_numpy(np.random.default_rng(seed).normal(0.01, 0.05, (rows, columns)).astype(np.float32))
    parts = {"group": w.reshape(rows, -1, group or 1), "channel": w[:, None], "tensor": w.reshape(1, 1, -1)}[strategy]
    scale, zero = calculate_qparams(parts.amin(-1), parts.amax(-1), args)
    scale = scale.to(getattr(torch, dtype))
    if strategy == "tensor":
        scale, zero = scale.reshape(1), zero.reshape(1)
    state = {"weight": w, "weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    packed = PackedQuantizationCompressor.compress(state, scheme)
    rebuilt = PackedQuantizationCompressor.decompress(dict(packed), scheme)["weight"]
    tensors = {"weight": w, "rebuilt": rebuilt.to(torch.float32), **packed}
    return {
        name: (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in tensors.items()
    }


if __name__ == "__main__":
    arrays = {
        f"{name}/{end}": array
        for seed, (name, sizes) in enumerate(CASES.items())
        for end, array in case(seed, *sizes).items()
    }
    np.savez_compressed(Path(__file__).parent / "golden" / "foreign" / "compressed.npz", **arrays)
    for name, array in arrays.items():
        print(name, array.dtype, array.shape)
