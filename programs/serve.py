"""A serving benchmark: made-up requests, continuous batching, a decomposed model on tensor-parallel GPUs."""

from typing import Annotated, Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.models.catalogue import find_model
from meshrt.models.family import read_family
from meshrt.program import AtLeast
from meshrt.programs import quantizing
from meshrt.programs.generation.options import Layers, LayersRun, taken
from meshrt.programs.gpu import options as own
from meshrt.programs.gpu.load import figures, parse_lengths, random_requests
from meshrt.programs.gpu.mixing import mixing_of, told_experts
from meshrt.programs.gpu.opening import open_model, open_weights, shaped
from meshrt.programs.gpu.options import How
from meshrt.programs.gpu.quantizing import hold_of, quantized_by_shape, told
from meshrt.programs.gpu.serving import Limits, serve
from meshrt.programs.routing import RoutingSeed, RoutingText

MACHINE = "gpu"
MESH = (1, 1)
RATES = 1e-9, 1e9  # slower, and a clock of 64 bits loses the kernels; faster is all at once


@np.errstate(all="ignore")  # of numbers that are none: the choice of a token says so
def run(
    gpus: Gpus,
    *,
    model: own.Model = "llama-tiny",
    scheme: own.Scheme = "deinfer",
    kv: own.Kv = "dense",
    ratio: own.Ratio = None,
    bits: quantizing.Bits = None,
    group: quantizing.Group = None,
    symmetric: quantizing.Symmetric = False,
    ranks: quantizing.Ranks = None,
    compensator_bits: quantizing.CompensatorBits = None,
    unfused: own.Unfused = False,
    compensators: own.Compensators = "apart",
    compensator_memory: own.CompensatorMemory = "stored",
    experts: own.Experts = "tensor",
    place: own.Place = "contiguous",
    capacity: own.Capacity = None,
    routing: RoutingText = None,
    routing_seed: RoutingSeed = 0,
    requests: Annotated[int, "how many come", AtLeast(1)] = 32,
    rate: Annotated[float, "how many come in a second, on average; 0: all at once"] = 0.0,
    prompt_tokens: Annotated[str, "of a prompt; 16:64 is a range"] = "32",
    output_tokens: Annotated[str, "of an answer; 16:64 is a range"] = "32",
    seed: Annotated[int, "of arrivals, lengths and tokens", AtLeast(0)] = 0,
    block_size: own.BlockSize = 16,
    kv_blocks: own.KvBlocks = None,
    max_batch: own.MaxBatch = 256,
    max_prefill_tokens: own.MaxPrefillTokens = 8192,
    dtype: own.Dtype = None,
    layers: Layers = None,
    layers_run: LayersRun = None,
) -> dict[str, Any]:
    """Serve made-up requests with a decomposed model on tensor-parallel GPUs: throughput and latencies."""
    how = taken(How, locals())
    folder = find_model(model)
    family = read_family(folder, quantized=True)
    checkpoint = open_weights(gpus, folder, family)
    family = shaped(gpus, quantized_by_shape(gpus, family, how), ratio, layers)
    hold, mixing = hold_of(family, how), mixing_of(gpus, family, how)
    if rate and not RATES[0] <= rate <= RATES[1]:
        raise UsageError(f"--rate is {rate}; it is 0, or {RATES[0]:g} to {RATES[1]:g} a second")
    lengths = parse_lengths("--prompt-tokens", prompt_tokens), parse_lengths("--output-tokens", output_tokens)
    queue = random_requests(requests, rate, *lengths, family.vocabulary, seed)
    steps = open_model(
        gpus, family, checkpoint, scheme, kv, queue, dtype=dtype, layers_run=layers_run,
        block_size=block_size, kv_blocks=kv_blocks, hold=hold, mixing=mixing,
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
        **told(family, hold),
        **told_experts(gpus, mixing, family, steps.model.layers_run),
    }
