"""A serving benchmark: made-up or recorded requests, continuous batching, a model on tensor-parallel GPUs."""

from pathlib import Path
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.models.catalogue import find_model
from meshrt.models.family import Family, read_family
from meshrt.options import grouped
from meshrt.programs.generation.options import Layers
from meshrt.programs.gpu.experts.mixing import mixing_of, told_experts
from meshrt.programs.gpu.opening import open_model, open_weights, shaped
from meshrt.programs.gpu.options import GpuOptions, Model
from meshrt.programs.gpu.quantizing import hold_of, quantized_by_shape, told
from meshrt.programs.gpu.serving.batching import serve
from meshrt.programs.gpu.serving.load import (
    Arrivals,
    anew,
    by_priority,
    check_times,
    figures,
    random_requests,
    ranged,
    served_tokens,
    trace_requests,
)
from meshrt.programs.gpu.serving.metrics import (
    lock_step,
    parse_goodput,
    parse_metrics,
    parse_percentiles,
    vllm_figures,
    wait_growth,
    warnings,
)  # fmt: skip
from meshrt.programs.gpu.serving.options import RATES, SPACE, Figures, Load, Service
from meshrt.programs.gpu.serving.request import BatchLimits, Request
from meshrt.programs.gpu.serving.traces import read_trace
from meshrt.programs.quantizing import CompensatedOptions

MACHINE = "gpu"
MESH = (1, 1)


@grouped
@np.errstate(all="ignore")  # of numbers that are none: the choice of a token says so
def run(
    gpus: Gpus,
    *,
    load: Load,
    service: Service,
    wanted: Figures,
    how: GpuOptions,
    codes: CompensatedOptions,
    model: Model = "llama-tiny",
    layers: Layers = None,
) -> dict[str, Any]:
    """Serve made-up requests with a decomposed model on tensor-parallel GPUs: throughput and latencies."""
    folder = find_model(model)
    family = read_family(folder, quantized=True)
    checkpoint = open_weights(gpus, folder, family)
    family = shaped(gpus, quantized_by_shape(gpus, family, how, codes), how.ratio, layers)
    hold, mixing = hold_of(family, how), mixing_of(gpus, family, how)
    metrics, percentiles = parse_metrics(wanted.percentile_metrics), parse_percentiles(wanted.metric_percentiles)
    goodput = parse_goodput(wanted.goodput)
    queue, replayed = requests_of(gpus, folder, family, load)
    steps = open_model(
        gpus, family, checkpoint, how.scheme, how.kv, queue, dtype=how.dtype, layers_run=how.layers_run,
        block_size=how.block_size, kv_blocks=how.kv_blocks, hold=hold, mixing=mixing, keeps=service.prefix_caching,
    )  # fmt: skip
    limits = limits_of(service)
    steps.host.limit = SPACE if service.swap_space is None else service.swap_space
    start = 0.0
    if service.num_warmups:
        serve(steps, [anew(queue[0], number=-1 - at, arrival=0.0) for at in range(service.num_warmups)], limits)
        start, steps.largest, steps.host.peak, steps.host.full = gpus.meet(), 0, 0, 0
        queue = [anew(request, arrival=request.arrival + start) for request in queue]
    before = steps.computed
    serve(steps, queue, limits)
    steps.close()
    loads = {"lock_step": lock_step(queue, limits.concurrency), "wait_growth": wait_growth(queue)}
    said = warnings(loads)
    for line in said:
        gpus.console.note(line)
    host = {"max": steps.host.peak, "limit": steps.host.limit, "full": steps.host.full}
    return {
        **figures(queue),
        **vllm_figures(queue, start, goodput, metrics, percentiles),
        **loads,
        "warnings": said,
        **served_tokens(queue, steps.computed - before),
        **replayed,
        "priorities": by_priority(queue),
        "scheme": how.scheme,
        "kv": how.kv,
        "kv_blocks": steps.cache.pages.blocks,
        "largest_batch": steps.largest,
        **({"host_memory": host} if limits.swap else {}),
        "plans": steps.recorded,
        **told(family, hold),
        **told_experts(gpus, mixing, family, steps.model.layers_run),
    }


def limits_of(service: Service) -> BatchLimits:
    """What a batch may have. UsageError."""
    swaps = service.preemption == "swap"
    if service.swap_space is not None and not swaps:
        raise UsageError("--swap-space is for --preemption swap")
    return BatchLimits(
        service.max_batch, service.max_prefill_tokens, service.chunked_prefill, service.max_concurrency, swaps
    )


def requests_of(
    gpus: Gpus, folder: Path, family: Family, load: Load
) -> tuple[list[Request], dict[str, Any]]:  # fmt: skip
    """The requests that come, made up or as a trace has them, and what is told of the trace. UsageError."""
    if 0 < load.rate < RATES[0]:
        raise UsageError(f"--rate is {load.rate}; it is 0, or {RATES[0]:g} to {RATES[1]:g} a second")
    arrivals = Arrivals(load.rate, load.burstiness, load.ramp_up_strategy, load.ramp_up_start_rps, load.ramp_up_end_rps)
    lengths = [
        ranged(option, text, load.random_range_ratio)
        for option, text in (("--prompt-tokens", load.prompt_tokens), ("--output-tokens", load.output_tokens))
    ]
    replayed: dict[str, Any] = {}
    if load.trace_file is None:
        if load.skip_long:
            raise UsageError("--skip-long is about a trace: give --trace-file")
        queue = random_requests(
            load.requests or 32, arrivals, lengths[0], lengths[1], family.vocabulary, load.seed, load.random_prefix_len,
            family.max_positions,
        )  # fmt: skip
    else:
        if load.random_range_ratio or load.random_prefix_len:
            raise UsageError("--random-range-ratio, --random-prefix-len: a trace has lengths of its own")
        for option, text, unsaid in (
            ("--prompt-tokens", load.prompt_tokens, Load.prompt_tokens),
            ("--output-tokens", load.output_tokens, Load.output_tokens),
        ):
            if text != unsaid:
                raise UsageError(f"{option} is {text}, and a trace has lengths of its own: leave one of the two away")
        trace = read_trace(gpus.control, load.trace_file, load.requests)
        if load.priorities > 1 and any(call.priority for call in trace.calls):
            raise UsageError(f"--priorities {load.priorities}: the trace has priorities of its own; leave it away")
        queue, left_out = trace_requests(gpus.control, folder, family, trace, arrivals, load.seed, load.skip_long)
        replayed = {"trace": {"format": trace.format, "empty": trace.empty, "too_long": left_out}}
    check_times(queue)
    if load.priorities > 1:
        drawn = np.random.default_rng((load.seed, load.priorities)).integers(0, load.priorities, len(queue))
        queue = [anew(request, priority=int(which)) for request, which in zip(queue, drawn, strict=True)]
    return queue, replayed
