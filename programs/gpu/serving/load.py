"""Made-up requests for a serving benchmark, and its usual figures: throughput, TTFT, TPOT, ITL, their percentiles.

Names and meanings as in `vllm bench serve`: TTFT from arrival to the first token; ITL from a token to the next of the
same request; TPOT a request's mean ITL; E2EL from arrival to the last token.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from meshrt.errors import UsageError
from meshrt.models.family import Family
from meshrt.programs.generation.prompt import encoded
from meshrt.programs.gpu.serving.request import IDS, Request, check_length
from meshrt.programs.gpu.serving.traces import DIALOGUES, RequestTrace, as_fast_as
from meshrt.ranks.control import Control
from meshrt.records import dataclass
from meshrt.whole import whole

PERCENTILES = (50, 90, 99)
LATEST = 1e9  # seconds at which a request may come: a clock of 64 bits tells times there apart by 0.1 us
WORDS = "dialogues are read by it: put the model's own there, or give a CSV file of lengths"


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


@dataclass(frozen=True)
class Arrivals:
    """`rate` requests in a second, 0: all at once. Gaps are of a gamma distribution of shape `burstiness`: 1 is a
    Poisson process, less is more bursty, inf even. Or the rate goes from `first` to `last` from request to request."""

    rate: float = 0.0
    burstiness: float = 1.0
    ramp: Literal["linear", "exponential"] | None = None
    first: float = 0.0
    last: float = 0.0

    def __post_init__(self) -> None:
        if self.ramp is None and (self.first or self.last):
            raise UsageError("--ramp-up-start-rps and --ramp-up-end-rps go with --ramp-up-strategy")
        if self.ramp is not None and self.rate:
            raise UsageError("--ramp-up-strategy has rates of its own: leave --rate away")
        if self.ramp is not None and not 0 < self.first <= self.last:
            raise UsageError(
                f"--ramp-up-strategy {self.ramp} from {self.first:g} to {self.last:g} a second: --ramp-up-start-rps is"
                " above 0, and --ramp-up-end-rps not below it"
            )
        if self.burstiness != 1 and not (self.rate or self.ramp):
            raise UsageError("--burstiness: without a --rate all requests come at once")

    def times(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        """Of so many requests. Those of one rate are stretched so that the last comes at count / rate, as vLLM's.

        UsageError where 64 bits have no such gaps.
        """
        if not (self.rate or self.ramp):
            return np.zeros(count)
        share = np.arange(count) / max(count - 1, 1)
        if self.ramp == "linear":
            rates = self.first + (self.last - self.first) * share
        elif self.ramp == "exponential":
            rates = self.first * (self.last / self.first) ** share
        else:
            rates = np.full(count, self.rate)
        even = np.isinf(self.burstiness)
        times = np.cumsum(1 / rates if even else rng.gamma(self.burstiness, 1 / (rates * self.burstiness)))
        if not self.ramp:
            with np.errstate(all="ignore"):
                times = times * (count / self.rate / times[-1])
        if not np.isfinite(times).all():
            raise UsageError(
                f"--burstiness is {self.burstiness:g}: the gaps between {count} requests are no numbers that 64 bits"
                " have; give a larger one"
            )
        return times


def ranged(option: str, text: str, ratio: float) -> tuple[int, int]:
    """The same, of --random-range-ratio: from 1 - ratio to 1 + ratio of a number."""
    low, high = parse_lengths(option, text)
    if ratio and low != high:
        raise UsageError(f"{option} {text} is a range already: leave --random-range-ratio away")
    shortest, longest = (round(length, 9) for length in (low * (1 - ratio), high * (1 + ratio)))  # 1.1 x 10 is 11
    return max(1, int(np.floor(shortest))), int(np.ceil(longest))


def random_requests(
    count: int, rate: float | Arrivals, prompts: tuple[int, int], outputs: tuple[int, int], vocabulary: int, seed: int,
    prefix: int = 0, positions: int | None = None,
) -> list[Request]:  # fmt: skip
    """Requests of random tokens and lengths, which arrive at random (a Poisson process); rate 0: all at once.

    UsageError for one that is longer than so many `positions`, before any token is drawn.
    """
    arrivals = rate if isinstance(rate, Arrivals) else Arrivals(rate)
    rng = np.random.default_rng(seed)
    lengths = rng.integers(prompts[0], prompts[1], count, endpoint=True)
    limits = rng.integers(outputs[0], outputs[1], count, endpoint=True)
    for at, (length, limit) in enumerate(zip(lengths.tolist(), limits.tolist(), strict=True)):
        if positions is not None:
            check_length(at, prefix + length, limit, positions)
    times = arrivals.times(rng, count)
    begin = _random_ids(np.random.default_rng((seed, prefix)), vocabulary, prefix)
    return [
        Request(at, begin + _random_ids(rng, vocabulary, length), int(limit), float(arrival))
        for at, (length, limit, arrival) in enumerate(zip(lengths.tolist(), limits, times, strict=True))
    ]


def _random_ids(rng: np.random.Generator, vocabulary: int, count: int) -> "array[int]":
    return array(IDS, rng.integers(0, vocabulary, count).astype(np.int32).tobytes())


def trace_requests(
    control: Control, folder: Path, family: Family, trace: RequestTrace, arrivals: Arrivals, seed: int, skip_long: bool
) -> tuple[list[Request], int]:
    """Requests as a trace has them, with random tokens or those of its texts, and how many were longer than the model
    may read and left out. A rate scales its times; dialogues have none, and come as made-up requests do. UsageError."""
    rng, calls = np.random.default_rng(seed), trace.calls
    if trace.format == DIALOGUES:
        times = arrivals.times(rng, len(calls)).tolist()
    elif arrivals.ramp or arrivals.burstiness != 1:
        raise UsageError(
            "--burstiness and --ramp-up-strategy: the trace says when requests come; --rate scales its times"
        )
    else:
        times = as_fast_as(calls, arrivals.rate) if arrivals.rate else [call.time for call in calls]
    requests, too_long = [], []
    for at, (call, time) in enumerate(zip(calls, times, strict=True)):
        texts = call.texts or ()
        ids = [encoded(control, folder, family.vocabulary, text, way=WORDS).ids for text in texts]
        length, limit = map(len, ids) if ids else (call.prompt, call.output)
        if length + limit > family.max_positions:  # its tokens may be more than the host has room for
            too_long.append((length, limit))
            continue
        prompt = array(IDS, ids[0]) if ids else _random_ids(rng, family.vocabulary, length)
        requests.append(Request(at, prompt, limit, float(time), priority=call.priority))
    if too_long and not (skip_long and requests):
        length, limit = too_long[0]
        raise UsageError(
            f"{len(too_long)} of {len(calls)} requests of the trace are longer than the model's {family.max_positions}"
            f" positions, the first has {length} + {limit}: take a model with more, or --skip-long"
        )
    return requests, len(too_long)


def check_times(requests: Sequence[Request]) -> None:
    """UsageError for requests that come so late that the clock loses what is between two kernels."""
    latest = max(request.arrival for request in requests)
    if latest > LATEST:
        raise UsageError(
            f"the last request comes at {latest:g} s, and the clock tells kernels apart up to {LATEST:g} s: let them"
            " come faster (--rate, --ramp-up-start-rps), or fewer of them (--requests)"
        )


def anew(request: Request, **changes: Any) -> Request:
    """The same request, not served yet, but for these."""
    return replace(request, **{"new": [], "times": []} | changes)


def figures(requests: Sequence[Request]) -> dict[str, Any]:
    """What the clocks say of requests that were served. Times are milliseconds, rates per second."""
    begin = min(request.begin for request in requests)
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
        "ttft_ms": spread([request.times[0] - request.begin for request in requests]),
        "tpot_ms": spread([float(gap.mean()) for gap in gaps if len(gap)]),
        "itl_ms": spread([float(gap) for request_gaps in gaps for gap in request_gaps]),
        "e2el_ms": spread([request.times[-1] - request.begin for request in requests]),
    }


def spread(seconds: Sequence[float]) -> dict[str, float] | None:
    """Mean and percentiles in milliseconds; None of nothing."""
    if not seconds:
        return None
    values = 1e3 * np.asarray(seconds)
    return {"mean": float(values.mean())} | {f"p{at}": float(np.percentile(values, at)) for at in PERCENTILES}


def served_tokens(requests: Sequence[Request], computed: int) -> dict[str, int]:
    """What became of all tokens but the last of each request: `computed` and `hit` are these, and what preemption
    `discarded`, once each."""
    return {
        "tokens_computed": computed,
        "tokens_hit": sum(request.hit for request in requests),
        "tokens_discarded": sum(request.discarded for request in requests),
    }


def by_priority(requests: Sequence[Request]) -> dict[str, Any]:
    """Figures of each priority."""
    of_each: dict[int, list[Request]] = {}
    for request in sorted(requests, key=lambda request: request.priority):
        of_each.setdefault(request.priority, []).append(request)
    return {
        str(priority): {
            "completed": len(own),
            "preemptions": sum(request.preemptions for request in own),
            "ttft_ms": spread([request.times[0] - request.begin for request in own]),
            "e2el_ms": spread([request.times[-1] - request.begin for request in own]),
        }
        for priority, own in of_each.items()
    }
