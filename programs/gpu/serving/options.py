"""Options of the serving benchmark: the requests that come, how they are served, what is told of it."""

from typing import Annotated, Literal

from meshrt.options import FILE, Above, AtLeast, AtMost, Below, Listed
from meshrt.programs.gpu.options import Batches
from meshrt.records import dataclass

SPACE = 4 * 2**30  # bytes: vLLM's --swap-space
RATES = 1e-9, 1e9  # slower, and a clock of 64 bits loses the kernels; faster is all at once


@dataclass(frozen=True, kw_only=True)
class Load:
    """The requests."""

    requests: Annotated[int | None, "how many come  [default: 32, or all of a trace]", AtLeast(1)] = None
    trace_file: Annotated[
        str | None, "when they came and how long: CSV (Azure, BurstGPT), or JSON (ShareGPT)", FILE
    ] = None
    skip_long: Annotated[bool, "leave out requests of a trace that are longer than the model may read"] = False
    rate: Annotated[
        float,
        "how many come in a second, on average; 0: all at once, or as a trace has it",
        AtLeast(0),
        AtMost(RATES[1]),
    ] = 0.0
    burstiness: Annotated[
        float, "shape of the gaps' gamma distribution; 1: Poisson, less: in bursts, inf: even", Above(0)
    ] = 1.0
    ramp_up_strategy: Annotated[Literal["linear", "exponential"] | None, "how the rate grows"] = None
    ramp_up_start_rps: Annotated[float, "the rate of the first request", AtLeast(0), AtMost(RATES[1])] = 0.0
    ramp_up_end_rps: Annotated[float, "the rate of the last", AtLeast(0), AtMost(RATES[1])] = 0.0
    random_range_ratio: Annotated[
        float, "lengths are from 1 - this to 1 + this of those given", AtLeast(0), Below(1)
    ] = 0.0
    random_prefix_len: Annotated[int, "tokens that all prompts begin with, beside their own", AtLeast(0)] = 0
    priorities: Annotated[int, "so many priorities, drawn for the requests", AtLeast(1)] = 1
    prompt_tokens: Annotated[str, "of a prompt; 16:64 is a range", Listed(":")] = "32"
    output_tokens: Annotated[str, "of an answer; 16:64 is a range", Listed(":")] = "32"
    seed: Annotated[int, "of arrivals, lengths and tokens", AtLeast(0)] = 0


@dataclass(frozen=True, kw_only=True)
class Service(Batches):
    """How they are served."""

    chunked_prefill: Annotated[bool, "compute prompts in parts, beside new tokens: --max-prefill-tokens a step"] = False
    prefix_caching: Annotated[bool, "keep full blocks of the cache for prompts that begin alike"] = False
    preemption: Annotated[Literal["recompute", "swap"], "who gives way is computed anew, or kept by the host"] = (
        "recompute"
    )
    swap_space: Annotated[
        int | None,
        f"bytes of the host's memory for each GPU's swapped blocks; no room: recompute  [default: {SPACE}]",
        AtLeast(0),
    ] = None
    max_concurrency: Annotated[int | None, "requests that clients have open at once", AtLeast(1)] = None
    num_warmups: Annotated[int, "times that the first request is served before", AtLeast(0), AtMost(10_000)] = 0


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is told."""

    goodput: Annotated[str | None, "milliseconds that a good request takes at most: ttft:500,tpot:50,e2el:9000"] = None
    percentile_metrics: Annotated[str, "of which there are percentiles: ttft,tpot,itl,e2el", Listed()] = "ttft,tpot,itl"
    metric_percentiles: Annotated[str, "which percentiles: 25,50,99", Listed()] = "99"
