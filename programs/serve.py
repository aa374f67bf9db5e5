"""A serving benchmark: made-up requests, continuous batching, a decomposed model on tensor-parallel GPUs."""

from typing import Annotated, Any

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.models.catalogue import find_model
from meshrt.models.family import read_family
from meshrt.program import AtLeast
from meshrt.programs.generation.options import Layers, LayersRun
from meshrt.programs.gpu.load import figures, parse_lengths, random_requests
from meshrt.programs.gpu.opening import open_model, open_weights, shaped
from meshrt.programs.gpu.options import (
    BlockSize,
    Dtype,
    Kv,
    KvBlocks,
    MaxBatch,
    MaxPrefillTokens,
    Model,
    Ratio,
    Scheme,
)  # fmt: skip
from meshrt.programs.gpu.serving import Limits, serve

MACHINE = "gpu"
MESH = (1, 1)
RATES = 1e-9, 1e9  # slower, and a clock of 64 bits loses the kernels; faster is all at once


def run(
    gpus: Gpus,
    *,
    model: Model = "llama-tiny",
    scheme: Scheme = "deinfer",
    kv: Kv = "dense",
    ratio: Ratio = None,
    requests: Annotated[int, "how many come", AtLeast(1)] = 32,
    rate: Annotated[float, "how many come in a second, on average; 0: all at once"] = 0.0,
    prompt_tokens: Annotated[str, "of a prompt; 16:64 is a range"] = "32",
    output_tokens: Annotated[str, "of an answer; 16:64 is a range"] = "32",
    seed: Annotated[int, "of arrivals, lengths and tokens", AtLeast(0)] = 0,
    block_size: BlockSize = 16,
    kv_blocks: KvBlocks = None,
    max_batch: MaxBatch = 256,
    max_prefill_tokens: MaxPrefillTokens = 8192,
    dtype: Dtype = None,
    layers: Layers = None,
    layers_run: LayersRun = None,
) -> dict[str, Any]:
    """Serve made-up requests with a decomposed model on tensor-parallel GPUs: throughput and latencies."""
    folder = find_model(model)
    family = read_family(folder)
    checkpoint = open_weights(gpus, folder, family)
    family = shaped(gpus, family, ratio, layers)
    if rate and not RATES[0] <= rate <= RATES[1]:
        raise UsageError(f"--rate is {rate}; it is 0, or {RATES[0]:g} to {RATES[1]:g} a second")
    lengths = parse_lengths("--prompt-tokens", prompt_tokens), parse_lengths("--output-tokens", output_tokens)
    queue = random_requests(requests, rate, *lengths, family.vocabulary, seed)
    steps = open_model(
        gpus, family, checkpoint, scheme, kv == "lowrank", queue, dtype=dtype, layers_run=layers_run,
        block_size=block_size, kv_blocks=kv_blocks,
    )  # fmt: skip
    serve(steps, queue, Limits(max_batch, max_prefill_tokens))
    steps.close()
    return {
        **figures(queue),
        "scheme": scheme,
        "kv": kv,
        "kv_blocks": steps.cache.pages.blocks,
        "largest_batch": steps.largest,
        "plans": steps.recorded,
    }
