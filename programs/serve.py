"""A serving benchmark: made-up or recorded requests, continuous batching, a model on tensor-parallel GPUs."""

from typing import Annotated, Any, Literal

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.models.catalogue import find_model
from meshrt.models.family import read_family
from meshrt.options import Above, AtLeast, AtMost, Below
from meshrt.programs import quantizing
from meshrt.programs.generation.options import Layers, LayersRun, taken
from meshrt.programs.gpu import options as own
from meshrt.programs.gpu.load import (
    Arrivals,
    anew,
    by_priority,
    figures,
    random_requests,
    ranged,
    served_tokens,
    trace_requests,
)
from meshrt.programs.gpu.metrics import (
    lock_step,
    parse_goodput,
    parse_metrics,
    parse_percentiles,
    vllm_figures,
    wait_growth,
    warnings,
)  # fmt: skip
from meshrt.programs.gpu.mixing import mixing_of, told_experts
from meshrt.programs.gpu.opening import open_model, open_weights, shaped
from meshrt.programs.gpu.options import How
from meshrt.programs.gpu.quantizing import hold_of, quantized_by_shape, told
from meshrt.programs.gpu.request import Limits
from meshrt.programs.gpu.serving import serve
from meshrt.programs.gpu.traces import read_trace
from meshrt.programs.routing import RoutingSeed, RoutingText

MACHINE = "gpu"
MESH = (1, 1)
SPACE = 4 * 2**30  # vLLM's --swap-space
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
    requests: Annotated[int | None, "how many come  [default: 32, or all of a trace]", AtLeast(1)] = None,
    trace_file: Annotated[str | None, "when they came and how long: CSV (Azure, BurstGPT), or JSON (ShareGPT)"] = None,
    skip_long: Annotated[bool, "leave out requests of a trace that are longer than the model may read"] = False,
    rate: Annotated[
        float,
        "how many come in a second, on average; 0: all at once, or as a trace has it",
        AtLeast(0),
        AtMost(RATES[1]),
    ] = 0.0,
    burstiness: Annotated[
        float, "shape of the gaps' gamma distribution; 1: Poisson, less: in bursts, inf: even", Above(0)
    ] = 1.0,
    ramp_up_strategy: Annotated[Literal["linear", "exponential"] | None, "how the rate grows"] = None,
    ramp_up_start_rps: Annotated[float, "the rate of the first request", AtLeast(0)] = 0.0,
    ramp_up_end_rps: Annotated[float, "the rate of the last", AtLeast(0)] = 0.0,
    max_concurrency: Annotated[int | None, "requests that clients have open at once", AtLeast(1)] = None,
    num_warmups: Annotated[int, "times that the first request is served before", AtLeast(0), AtMost(10_000)] = 0,
    random_range_ratio: Annotated[
        float, "lengths are from 1 - this to 1 + this of those given", AtLeast(0), Below(1)
    ] = 0.0,
    random_prefix_len: Annotated[int, "tokens that all prompts begin with, beside their own", AtLeast(0)] = 0,
    priorities: Annotated[int, "so many priorities, drawn for the requests", AtLeast(1)] = 1,
    goodput: Annotated[str | None, "milliseconds that a good request takes at most: ttft:500,tpot:50,e2el:9000"] = None,
    percentile_metrics: Annotated[str, "of which there are percentiles: ttft,tpot,itl,e2el"] = "ttft,tpot,itl",
    metric_percentiles: Annotated[str, "which percentiles: 25,50,99"] = "99",
    prompt_tokens: Annotated[str, "of a prompt; 16:64 is a range"] = "32",
    output_tokens: Annotated[str, "of an answer; 16:64 is a range"] = "32",
    seed: Annotated[int, "of arrivals, lengths and tokens", AtLeast(0)] = 0,
    block_size: own.BlockSize = 16,
    kv_blocks: own.KvBlocks = None,
    max_batch: own.MaxBatch = 256,
    max_prefill_tokens: own.MaxPrefillTokens = 8192,
    chunked_prefill: Annotated[
        bool, "compute prompts in parts, beside new tokens: --max-prefill-tokens a step"
    ] = False,
    prefix_caching: Annotated[bool, "keep full blocks of the cache for prompts that begin alike"] = False,
    preemption: Annotated[
        Literal["recompute", "swap"], "who gives way is computed anew, or kept by the host"
    ] = "recompute",
    swap_space: Annotated[
        int | None,
        f"bytes of the host's memory for each GPU's swapped blocks; no room: recompute  [default: {SPACE}]",
        AtLeast(0),
    ] = None,
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
    if 0 < rate < RATES[0]:
        raise UsageError(f"--rate is {rate}; it is 0, or {RATES[0]:g} to {RATES[1]:g} a second")
    arrivals = Arrivals(rate, burstiness, ramp_up_strategy, ramp_up_start_rps, ramp_up_end_rps)
    wanted = parse_goodput(goodput), parse_metrics(percentile_metrics), parse_percentiles(metric_percentiles)
    lengths = [
        ranged(*option, random_range_ratio)
        for option in (("--prompt-tokens", prompt_tokens), ("--output-tokens", output_tokens))
    ]
    replayed: dict[str, Any] = {}
    if trace_file is None:
        if skip_long:
            raise UsageError("--skip-long is about a trace: give --trace-file")
        queue = random_requests(
            requests or 32, arrivals, lengths[0], lengths[1], family.vocabulary, seed, random_prefix_len
        )
    else:
        if random_range_ratio or random_prefix_len:
            raise UsageError("--random-range-ratio, --random-prefix-len: a trace has lengths of its own")
        trace = read_trace(gpus.control, trace_file, requests)
        queue, left_out = trace_requests(gpus.control, folder, family, trace, arrivals, seed, skip_long)
        replayed = {"trace": {"format": trace.format, "empty": trace.empty, "too_long": left_out}}
    if priorities > 1:
        drawn = np.random.default_rng((seed, priorities)).integers(0, priorities, len(queue))
        queue = [anew(request, priority=int(which)) for request, which in zip(queue, drawn, strict=True)]
    steps = open_model(
        gpus, family, checkpoint, scheme, kv, queue, dtype=dtype, layers_run=layers_run,
        block_size=block_size, kv_blocks=kv_blocks, hold=hold, mixing=mixing, keeps=prefix_caching,
    )  # fmt: skip
    if swap_space is not None and preemption != "swap":
        raise UsageError("--swap-space is for --preemption swap")
    steps.host.limit = SPACE if swap_space is None else swap_space
    limits = Limits(max_batch, max_prefill_tokens, chunked_prefill, max_concurrency, preemption == "swap")
    start = 0.0
    if num_warmups:
        serve(steps, [anew(queue[0], number=-1 - at, arrival=0.0) for at in range(num_warmups)], limits)
        start = gpus.meet()
        queue = [anew(request, arrival=request.arrival + start) for request in queue]
    before = steps.computed
    serve(steps, queue, limits)
    steps.close()
    loads = {"lock_step": lock_step(queue, max_concurrency), "wait_growth": wait_growth(queue)}
    said = warnings(loads)
    for line in said:
        gpus.console.note(line)
    return {
        **figures(queue),
        **vllm_figures(queue, start, *wanted),
        **loads,
        "warnings": said,
        **served_tokens(queue, steps.computed - before),
        **replayed,
        "priorities": by_priority(queue),
        "scheme": scheme,
        "kv": kv,
        "kv_blocks": steps.cache.pages.blocks,
        "largest_batch": steps.largest,
        **(
            {"host_memory": {"max": steps.host.peak, "limit": steps.host.limit, "full": steps.host.full}}
            if preemption == "swap"
            else {}
        ),
        "plans": steps.recorded,
        **told(family, hold),
        **told_experts(gpus, mixing, family, steps.model.layers_run),
    }
