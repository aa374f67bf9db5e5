"""Made-up requests for a serving benchmark, and its usual figures: throughput, TTFT, TPOT, ITL, their percentiles.

Names and meanings as in `vllm bench serve`: TTFT from arrival to the first token; ITL from a token to the next of the
same request; TPOT a request's mean ITL; E2EL from arrival to the last token.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.programs.gpu.serving import Request
from meshrt.whole import whole

PERCENTILES = (50, 90, 99)


def parse_lengths(option: str, text: str) -> tuple[int, int]:
    """'32' or '16:64' to the shortest and the longest. UsageError."""
    first, _, last = text.partition(":")
    try:
        low, high = whole(first), whole(last if ":" in text else first)
    except ValueError:
        raise UsageError(
            f"{option} is {text!r}; give a number of tokens such as 32, or a range such as 16:64"
        ) from None
    if not 1 <= low <= high:
        raise UsageError(f"{option} is {text!r}; it starts at 1, and a range goes up")
    return low, high


def random_requests(
    count: int, rate: float, prompts: tuple[int, int], outputs: tuple[int, int], vocabulary: int, seed: int
) -> list[Request]:
    """Requests of random tokens and lengths, which arrive at random (a Poisson process); rate 0: all at once."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(prompts[0], prompts[1], count, endpoint=True)
    limits = rng.integers(outputs[0], outputs[1], count, endpoint=True)
    arrivals = np.cumsum(rng.exponential(1 / rate, count)) if rate else np.zeros(count)
    return [
        Request(at, tuple(rng.integers(0, vocabulary, length).tolist()), int(limit), float(arrival))
        for at, (length, limit, arrival) in enumerate(zip(lengths.tolist(), limits, arrivals, strict=True))
    ]


def figures(requests: Sequence[Request]) -> dict[str, Any]:
    """What the clocks say of requests that were served. Times are milliseconds, rates per second."""
    begin = min(request.arrival for request in requests)
    seconds = max(request.times[-1] for request in requests) - begin
    prompt_tokens, output_tokens = (sum(len(part) for part in parts) for parts in zip(
        *((request.prompt, request.new) for request in requests), strict=True
    ))  # fmt: skip
    gaps = [np.diff(request.times) for request in requests]
    return {
        "completed": len(requests),
        "seconds": seconds,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "requests_per_second": len(requests) / seconds,
        "output_tokens_per_second": output_tokens / seconds,
        "tokens_per_second": (prompt_tokens + output_tokens) / seconds,
        "preemptions": sum(request.preemptions for request in requests),
        "ttft_ms": spread([request.times[0] - request.arrival for request in requests]),
        "tpot_ms": spread([float(gap.mean()) for gap in gaps if len(gap)]),
        "itl_ms": spread([float(gap) for request_gaps in gaps for gap in request_gaps]),
        "e2el_ms": spread([request.times[-1] - request.arrival for request in requests]),
    }


def spread(seconds: Sequence[float]) -> dict[str, float] | None:
    """Mean and percentiles in milliseconds; None of nothing."""
    if not seconds:
        return None
    values = 1e3 * np.asarray(seconds)
    return {"mean": float(values.mean())} | {f"p{at}": float(np.percentile(values, at)) for at in PERCENTILES}
