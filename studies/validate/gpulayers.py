"""Operators of layers on one GPU, in microseconds: the profiles of LLMServingSim and Vidur (data/README.md).

The two measured different programs, which is why their small operators differ so much: LLMServingSim Hugging Face's
model, run by PyTorch kernel by kernel (eager.py), Vidur vLLM's kernels, one an operator, which are those of
programs/gpu. Both sum up what the device took for kernels; so an operator is run here when the device is busy with
earlier ones, and no launch is waited for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshrt.errors import LimitError, UsageError
from meshrt.gpu.device import GpuDevice
from meshrt.gpu.gpu import Gpu
from meshrt.gpu.operations import add, matmul
from meshrt.gpu.presets import GPU_PRESETS
from meshrt.programs.gpu.forward import activated, normed, rotated
from meshrt.programs.gpu.schemes.scheme import Results
from meshrt.programs.gpu.shards import NormShard
from meshrt.studies.validate import eager
from meshrt.studies.validate.kind import BatchRows, Emulated, MeasurementKind, Sizes, maybe_whole, whole, word

DEVICES = {"A6000": "a6000", "A40": "a40", "A100": "a100", "H100": "h100"}  # that there are measurements of
BUSY = 1.0  # seconds that the device is behind the host
DTYPE = np.dtype(np.float16)
EAGER_OPS = ("embedding", "input_layernorm", "post_layernorm", "final_layernorm", "rope", "act_fn")
FUSED_OPS = ("input_layernorm", "post_attention_layernorm", "attn_rope", "mlp_act", "add")


@dataclass(frozen=True)
class Widths:
    """Of a model (config.json of each): hidden size, heads of queries and of keys, their size, the MLP's width; how
    many numbers of a head are rotated, where not all; a LayerNorm and an MLP without a gate in place of a LLaMA's."""

    hidden: int
    heads: int
    kv: int
    inner: int
    head: int = 128
    rotated: int | None = None
    older: bool = False


MODELS = {
    "Llama-2-7b-hf": Widths(4096, 32, 32, 11008),
    "Llama-2-13b-hf": Widths(5120, 40, 40, 13824),
    "Llama-2-70b-hf": Widths(8192, 64, 8, 28672),
    "Llama-3-8B": Widths(4096, 32, 8, 14336),
    "Llama-3-70B": Widths(8192, 64, 8, 28672),
    "Meta-Llama-3-8B": Widths(4096, 32, 8, 14336),
    "Meta-Llama-3-70B": Widths(8192, 64, 8, 28672),
    "Llama-3.1-8B": Widths(4096, 32, 8, 14336),
    "Llama-3.1-70B": Widths(8192, 64, 8, 28672),
    "CodeLlama-34b-Instruct-hf": Widths(8192, 64, 8, 22016),
    "Qwen-72B": Widths(8192, 64, 64, 24576),
    "internlm-20b": Widths(5120, 40, 40, 13824),
    "internlm2-20b": Widths(6144, 48, 8, 16384),
    "phi-2": Widths(2560, 32, 32, 10240, head=80, rotated=32, older=True),
}


def emulated(row: Sizes) -> Emulated:
    """The device's clock, after one operator less before it; none where it is not known what to run, or on what."""
    if row["gpu"].lower() not in GPU_PRESETS:
        return Emulated(None, f"{row['gpu']} is no GPU of a preset; there are {', '.join(GPU_PRESETS)}")
    try:
        return Emulated(1e6 * seconds(GPU_PRESETS[row["gpu"].lower()], row))
    except (UsageError, LimitError) as error:
        return Emulated(None, str(error))


def seconds(device: GpuDevice, row: Sizes, kernels: eager.Eager = eager.EAGER) -> float:
    """Of the operator, by shape. UsageError."""
    gpu = Gpu(device, 0, False, DTYPE, now=BUSY)
    if (row["k"] is None) != (row["n"] is None):
        raise UsageError(f"k is {row['k']} and n is {row['n']}: products have both, other operators neither")
    if row["k"] is None and row["model"] not in MODELS:
        raise UsageError(f"the sizes of {row['model']} are not known; there are {', '.join(MODELS)}")
    if row["k"] is not None:
        matmul(gpu, gpu.shaped((row["m"], row["k"])), gpu.shaped((row["k"], row["n"])))
    elif row["source"] == "LLMServingSim":
        _eager(gpu, row, MODELS[row["model"]], kernels)
    else:
        _fused(gpu, row["op"], row["m"], row["tp"], MODELS[row["model"]])
    return gpu.now - BUSY


def _eager(gpu: Gpu, row: Sizes, widths: Widths, kernels: eager.Eager) -> None:
    tokens, tp = row["m"], row["tp"]
    x = gpu.shaped((tokens, widths.hidden))
    match row["op"]:
        case "input_layernorm" | "post_layernorm" | "final_layernorm":
            eager.rms_norm(gpu, x, gpu.shaped((widths.hidden,)), 1e-5, kernels)
        case "act_fn":
            gate, up = (gpu.shaped((tokens, widths.inner // tp)) for _ in range(2))
            eager.swiglu(gpu, gate, up)
        case "embedding":
            eager.embed(gpu, gpu.shaped((tokens, widths.hidden)), gpu.shaped((tokens,), np.int64), kernels)
        case "rope":
            cos, sin = (gpu.shaped((tokens, 1, widths.head)) for _ in range(2))
            for heads in (widths.heads, widths.kv):
                eager.rotate(gpu, gpu.shaped((tokens, max(1, heads // tp), widths.head)), cos, sin, kernels)
        case unknown:
            raise UsageError(f"op is {unknown!r}; LLMServingSim's are {', '.join(EAGER_OPS)}")


def _fused(gpu: Gpu, op: str, tokens: int, tp: int, widths: Widths) -> None:
    x = gpu.shaped((tokens, widths.hidden))
    match op:
        case "input_layernorm" | "post_attention_layernorm":
            bias = gpu.shaped((widths.hidden,)) if widths.older else None
            normed(gpu, x, NormShard(gpu.shaped((widths.hidden,)), bias), 1e-5)
        case "attn_rope":  # queries and keys in one
            heads = widths.heads // tp + max(1, widths.kv // tp)
            turned = widths.rotated or widths.head
            cos, sin = (gpu.shaped((tokens, turned // 2)) for _ in range(2))
            rotated(gpu, gpu.shaped((tokens, heads * turned)), turned, (cos, sin))
        case "mlp_act":
            inputs = [gpu.shaped((tokens, widths.inner // tp)) for _ in range(1 if widths.older else 2)]
            activated(gpu, Results(inputs, [None for _ in inputs]), "gelu_tanh" if widths.older else "silu")
        case "add":
            add(gpu, x, x)
        case unknown:
            raise UsageError(f"op is {unknown!r}; Vidur's are {', '.join(FUSED_OPS)}")


def _by_gpu(rows: Sequence[Sizes]) -> list[tuple[float, BatchRows]]:
    batches: dict[str, list[int]] = {}
    for at, row in enumerate(rows):
        batches.setdefault(row["gpu"], []).append(at)
    return [(float(100 * len(batch)), tuple(batch)) for batch in batches.values()]


LAYERS = MeasurementKind(
    name="gpu layers",
    file="gpu_layers.csv",
    columns={
        "gpu": word, "model": word, "tp": whole, "op": word, "m": whole, "k": maybe_whole, "n": maybe_whole,
        "source": word,
    },
    measured="microseconds",
    unit="us",
    kernel=lambda row: f"{row['gpu']} layers",
    size=lambda row: f"{row['source']} {row['op']}",
    batches=_by_gpu,
    emulate=lambda rows: [emulated(row) for row in rows],
)  # fmt: skip
