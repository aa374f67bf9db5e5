"""Continuous batching: requests come and go, the batch changes from step to step (Yu et al. 2022, Orca; vLLM).

A step is a prefill of requests that were waiting, if there is room for one, else one new token for all that run. Where
the cache has no block left for a running request, the one that was admitted last gives its blocks back and waits again;
later it is computed anew, its prompt and what it had said in one prefill. Every rank takes the same decisions, from the
same virtual time.
"""

from collections.abc import Callable, Sequence
from dataclasses import field

from meshrt.errors import LimitError, UsageError
from meshrt.models.family import Family
from meshrt.programs.gpu.batch import Tokens
from meshrt.programs.gpu.pages import Pages
from meshrt.programs.gpu.steps import Steps
from meshrt.records import dataclass


@dataclass(eq=False)
class Request:
    """`prompt` arrives at `arrival` (seconds) and is to be followed by `limit` tokens, or by one of `stop`."""

    number: int
    prompt: tuple[int, ...]
    limit: int
    arrival: float = 0.0
    stop: tuple[int, ...] = ()
    new: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # when each new token was there
    preemptions: int = 0

    @property
    def done(self) -> bool:
        return len(self.new) >= self.limit or (bool(self.new) and self.new[-1] in self.stop)

    def tokens(self) -> Tokens:
        return Tokens(self.number, [*self.prompt, *self.new])

    def __len__(self) -> int:
        return len(self.prompt) + len(self.new)


@dataclass(frozen=True)
class Limits:
    """Of a batch: running requests, and tokens of a prefill (one prompt may be longer)."""

    batch: int = 256
    prefill_tokens: int = 8192


def check_lengths(family: Family, requests: Sequence[Request]) -> None:
    """UsageError for a request that the model cannot serve."""
    positions = family.max_positions
    for request in requests:
        if not request.prompt or request.limit < 1:
            raise UsageError(
                f"request {request.number} has {len(request.prompt)} prompt tokens and asks for {request.limit} more"
            )
        if len(request.prompt) + request.limit > positions:
            raise UsageError(
                f"request {request.number}: {len(request.prompt)} prompt tokens and {request.limit} new ones are more "
                f"than the {positions} positions of the model: shorten the prompt, or ask for fewer tokens"
            )


def check_room(pages: Pages, requests: Sequence[Request]) -> None:
    """LimitError for a request that does not fit in the cache alone."""
    for request in requests:
        needed = pages.needed(len(request.prompt) + request.limit)
        if needed > pages.blocks:
            raise LimitError(
                f"request {request.number} needs {needed} blocks of {pages.size} tokens, and the cache has "
                f"{pages.blocks}: raise --kv-blocks or --gpu-memory, use more GPUs (--tp), or ask for fewer tokens"
            )


def serve(
    steps: Steps, requests: Sequence[Request], limits: Limits, tell: Callable[[Request], None] | None = None
) -> None:
    """Serve all requests to their ends; `tell` hears of every request that got a token."""
    gpus, pages = steps.gpus, steps.cache.pages
    check_room(pages, requests)
    waiting = sorted(requests, key=lambda request: (request.arrival, request.number))
    running: list[Request] = []
    now = gpus.meet()
    while waiting or running:
        admitted = _admit(steps, waiting, running, limits, now)
        if gpus.device.step_seconds and (admitted or running):
            gpus.wait_until(now + gpus.device.step_seconds)
        if admitted:
            tokens = steps.prompts([request.tokens() for request in admitted])
            running += admitted
            served = admitted
        elif running:
            _make_room(steps, waiting, running)
            tokens = steps.new_tokens([request.tokens() for request in running])
            served = [*running]
        else:
            gpus.wait_until(waiting[0].arrival)
            now = gpus.meet()
            continue
        now = gpus.meet()
        for request, token in zip(served, tokens, strict=True):
            request.new.append(token)
            request.times.append(now)
            if tell is not None:
                tell(request)
            if request.done:
                running.remove(request)
                pages.release(request.number)
        gpus.console.progress("requests", sum(request.done for request in requests), len(requests))


def _admit(steps: Steps, waiting: list[Request], running: list[Request], limits: Limits, now: float) -> list[Request]:
    """Take waiting requests, in order, as long as there is room for their tokens and the one that comes."""
    pages, tokens = steps.cache.pages, 0
    admitted: list[Request] = []
    while waiting and waiting[0].arrival <= now and len(running) + len(admitted) < limits.batch:
        request = waiting[0]
        if admitted and tokens + len(request) > limits.prefill_tokens:
            break
        if not pages.reserve(request.number, len(request) + 1):
            break
        tokens += len(request)
        admitted.append(waiting.pop(0))
    return admitted


def _make_room(steps: Steps, waiting: list[Request], running: list[Request]) -> None:
    """A slot for the new token of every running request; who came last makes room."""
    pages, at = steps.cache.pages, 0
    while at < len(running):
        if pages.reserve(running[at].number, len(running[at])):
            at += 1
            continue
        last = running.pop()
        pages.release(last.number)
        last.preemptions += 1
        waiting.insert(0, last)
