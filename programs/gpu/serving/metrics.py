"""The figures of `vllm bench serve`, by its names and definitions (vllm/benchmarks/serve.py), and what they warn of.

Time counts from the start of the benchmark, a request's latencies from when it was sent. `tpot` is (end - first token)
/ (tokens - 1), and in goodput 0 of a single token; the peak of tokens is of whole seconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.programs.gpu.serving.request import Request

METRICS = ("ttft", "tpot", "itl", "e2el")
TOGETHER = 0.5  # of all first tokens after the first round that come with those of half of all clients
LONGER = 0.05  # seconds that a request waits longer for each second that it comes later


def parse_goodput(text: str | None) -> dict[str, float]:
    """'ttft:500,tpot:50' to seconds by metric. UsageError."""
    wanted: dict[str, float] = {}
    for pair in (text or "").replace(",", " ").split():
        name, _, value = pair.partition(":")
        try:
            milliseconds = float(value)
        except ValueError:
            milliseconds = -1.0
        if name not in ("ttft", "tpot", "e2el") or not milliseconds >= 0:
            raise UsageError(
                f"--goodput is {text!r}; give milliseconds of ttft, tpot or e2el, such as ttft:500,tpot:50"
            )
        if name in wanted:
            raise UsageError(f"--goodput is {text!r}, which has {name} twice; give it once")
        wanted[name] = milliseconds / 1e3
    return wanted


def parse_metrics(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if wrong := [name for name in names if name not in METRICS]:
        raise UsageError(f"--percentile-metrics: there is no {wrong[0]!r}; there are {', '.join(METRICS)}")
    return names


def parse_percentiles(text: str) -> list[float]:
    try:
        percentiles = [float(part) for part in text.split(",")]
    except ValueError:
        percentiles = [-1.0]
    if not all(0 <= percentile <= 100 for percentile in percentiles):
        raise UsageError(f"--metric-percentiles is {text!r}; give numbers from 0 to 100, such as 25,50,99")
    return percentiles


def vllm_figures(
    requests: Sequence[Request], start: float, goodput: Mapping[str, float], metrics: Sequence[str],
    percentiles: Sequence[float],
) -> dict[str, Any]:  # fmt: skip
    """What `vllm bench serve` writes of requests that were served from `start` on."""
    duration = max(request.times[-1] for request in requests) - start
    inputs, outputs = (
        sum(map(len, parts)) for parts in zip(*((request.prompt, request.new) for request in requests), strict=True)
    )
    values = {
        "ttft": [request.times[0] - request.begin for request in requests],
        "tpot": [_tpot(request) for request in requests if len(request.times) > 1],
        "itl": np.concatenate([np.diff(request.times) for request in requests]).tolist(),
        "e2el": [request.times[-1] - request.begin for request in requests],
    }
    of_all = values | {"tpot": [_tpot(request) if len(request.times) > 1 else 0.0 for request in requests]}
    good = sum(all(of_all[name][at] <= most for name, most in goodput.items()) for at in range(len(requests)))
    figures: dict[str, Any] = {
        "duration": duration,
        "failed": 0,
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(requests) / duration,
        "request_goodput": good / duration if goodput else None,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
        **_peaks(requests),
    }
    for name in metrics:
        figures |= _spread(name, 1e3 * np.asarray(values[name] or [0.0]), percentiles)
    return figures


def _tpot(request: Request) -> float:
    return (request.times[-1] - request.times[0]) / (len(request.times) - 1)


def _spread(name: str, values: np.ndarray, percentiles: Sequence[float]) -> dict[str, float]:
    statistics = {"mean": values.mean(), "median": np.median(values), "std": values.std()}
    statistics |= {f"p{int(at) if at == int(at) else at}": np.percentile(values, at) for at in percentiles}
    return {f"{statistic}_{name}_ms": float(value) for statistic, value in statistics.items()}


def _peaks(requests: Sequence[Request]) -> dict[str, Any]:
    """Most tokens in a second, and most requests that were open at once: one that ends when another is sent is not."""
    first = min(request.begin for request in requests)
    seconds = np.concatenate([np.asarray(request.times) - first for request in requests]).astype(np.int64)
    ends = sorted(
        (time, change) for request in requests for time, change in ((request.begin, 1), (request.times[-1], -1))
    )
    return {
        "max_output_tokens_per_s": float(np.unique(seconds, return_counts=True)[1].max()),
        "max_concurrent_requests": int(np.cumsum([change for _, change in ends]).max()),
    }


# ---- what a load is not good for


def lock_step(requests: Sequence[Request], concurrency: int | None) -> float | None:
    """Of a closed loop: the share of requests, after each client's first, whose first token came in one step with those
    of half of all clients or more. None of an open loop, or where no client had a second request."""
    later = sorted(request.times[0] for request in requests)[concurrency:] if concurrency and concurrency > 1 else []
    if not later:
        return None
    assert concurrency is not None
    _, counts = np.unique(later, return_counts=True)
    return float(counts[2 * counts >= min(concurrency, len(later))].sum() / len(later))


def wait_growth(requests: Sequence[Request]) -> float | None:
    """Seconds that a request waited longer for the server for each second that it was sent later: the slope of the line
    of least squares. Where requests come faster than they are served, r for each that is, it is r - 1. None where they
    came at once, or in less time than two of the shortest take."""
    sent = np.asarray([request.begin for request in requests])
    waited = np.asarray([(request.admitted or 0.0) - request.begin for request in requests])
    apart = sent - sent.mean()
    shortest = min(request.times[-1] - request.begin for request in requests)
    return float((apart * waited).sum() / (apart * apart).sum()) if np.ptp(sent) > 2 * shortest else None


def warnings(figures: Mapping[str, Any]) -> list[str]:
    """What has to be said of a load, in words."""
    share, growth, lines = figures["lock_step"], figures["wait_growth"], []
    if share is not None and share >= TOGETHER:
        lines.append(
            f"{share:.0%} of the requests began in one step with those of half of all clients: the closed loop runs in"
            " lock step, which real clients do not; vary lengths (--random-range-ratio) or give a --rate"
        )
    if growth is not None and growth > LONGER:
        lines.append(
            f"the load is above capacity: a request waits {growth:.2f} s longer for each second that it comes later, so"
            " latencies grow with the number of requests; give a lower --rate, or --max-concurrency"
        )
    return lines
