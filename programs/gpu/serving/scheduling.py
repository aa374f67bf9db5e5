"""Who is served next: requests come, wait, run, and make room for each other (vLLM's scheduler, its first and second).

Whole prompts (the first): a step computes prompts that were waiting, if there is room for one, else one new token for
all that run. In parts (the second; Sarathi-Serve, OSDI 2024): a step has so many tokens, first those of all
that run, a new one or the next part of a prompt, then those of who waits.

Waiting requests are taken up by priority, then as they were sent; who was preempted comes first of its priority. Where
the cache has no block left for a running request, the one of the last priority that was admitted last gives its blocks
back and waits again. What it had in the cache is computed anew, its prompt and what it had said, or kept in the host's
memory, if that has room, and copied back.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import field

from meshrt.programs.gpu.batches.prompts import Tokens
from meshrt.programs.gpu.serving.request import BatchLimits, Request
from meshrt.programs.gpu.steps import CacheSteps
from meshrt.records import dataclass


@dataclass
class Scheduler:
    """`coming` were not sent yet, in order of arrival; `open` is how many were and are not done."""

    steps: CacheSteps
    limits: BatchLimits
    coming: deque[Request]
    waiting: list[Request] = field(default_factory=list)
    running: list[Request] = field(default_factory=list)
    open: int = 0

    @property
    def over(self) -> bool:
        return not (self.coming or self.waiting or self.running)


def new_scheduler(steps: CacheSteps, requests: Sequence[Request], limits: BatchLimits) -> Scheduler:
    return Scheduler(steps, limits, deque(sorted(requests, key=lambda request: (request.arrival, request.number))))


def send(scheduler: Scheduler, until: float, late: float | None = None) -> None:
    """Send what has arrived, as long as clients may have more requests open; `late`: those had to wait until then."""
    most = scheduler.limits.concurrency
    while scheduler.coming and scheduler.coming[0].arrival <= until and (most is None or scheduler.open < most):
        request = scheduler.coming.popleft()
        request.sent = request.arrival if late is None else max(late, request.arrival)
        scheduler.open += 1
        scheduler.waiting.insert(bisect_right(scheduler.waiting, request.priority, key=_priority), request)


def next_batch(scheduler: Scheduler, now: float) -> list[tuple[Request, Tokens]]:
    """Whose tokens the next step computes, and which; there are slots for them."""
    if scheduler.limits.chunked:
        return _in_parts(scheduler, now)
    if prompts := [
        request for request in _admit_whole(scheduler, now) if request.cached < len(request) - 1 or not request.new
    ]:
        return [(request, request.tokens()) for request in prompts]
    _slots(scheduler, [(request, len(request)) for request in scheduler.running])
    return [(request, request.tokens()) for request in scheduler.running]


def _admit_whole(scheduler: Scheduler, now: float) -> list[Request]:
    """Take waiting requests, in order, as long as there is room for their tokens and the one that comes."""
    limits, tokens = scheduler.limits, 0
    admitted: list[Request] = []
    while scheduler.waiting:
        request = scheduler.waiting[0]
        if admitted and tokens + len(request) - request.cached > limits.prefill_tokens:
            break
        if not _take_up(scheduler, request, None, now):
            break
        tokens += len(request) - request.cached
        admitted.append(request)
    return admitted


def _in_parts(scheduler: Scheduler, now: float) -> list[tuple[Request, Tokens]]:
    tables = scheduler.steps.cache.pages.tables
    left, wanted = scheduler.limits.prefill_tokens, []
    for request in scheduler.running:
        count = min(len(request) - request.cached, left)
        if count:
            wanted.append((request, request.cached + count))
            left -= count
    fitting = _slots(scheduler, [*wanted])
    if len(fitting) < len(wanted):  # somebody was preempted: there is no room for others
        return [(request, _until(request.tokens(), end)) for request, end in fitting]
    while scheduler.waiting and left:
        request = scheduler.waiting[0]
        if not _take_up(scheduler, request, left, now):
            break
        count = min(len(request) - request.cached, left)
        fitting = [pair for pair in fitting if pair[0].number in tables]  # who gave way to it does not run now
        fitting.append((request, request.cached + count))
        left -= count
    return [(request, _until(request.tokens(), end)) for request, end in fitting]


def _until(tokens: Tokens, end: int) -> Tokens:
    return tokens if end == len(tokens.tokens) else Tokens(tokens.number, tokens.tokens[:end], tokens.begin)


def _take_up(scheduler: Scheduler, request: Request, left: int | None, now: float) -> bool:
    """Let the first that waits run, with room for all its tokens and the next one, or for so many more (`left`) than it
    has in the cache; running ones of a later priority give way."""
    running = scheduler.running
    while (hit := _room(scheduler, request, left)) is None:
        last = _last(running)
        if last is None or last.priority <= request.priority:
            return False
        _preempt(scheduler, last)
    scheduler.waiting.remove(request)
    running.append(request)
    request.admitted = now if request.admitted is None else request.admitted
    if request.number in scheduler.steps.swapped:
        scheduler.steps.swap_in(request.number)
    else:
        request.cached = hit
        request.hit += hit
    return True


def _room(scheduler: Scheduler, request: Request, left: int | None) -> int | None:
    """Reserve it: the number of tokens that the cache has already. None where there is no room."""
    pages = scheduler.steps.cache.pages
    if len(scheduler.running) >= scheduler.limits.batch:
        return None
    if request.number not in scheduler.steps.swapped:
        return pages.admit(request.number, request.known(), left)
    tokens = len(request) + 1 if left is None else min(len(request), request.cached + left)
    return request.cached if pages.reserve(request.number, tokens) else None


def _slots(scheduler: Scheduler, wanted: list[tuple[Request, int]]) -> list[tuple[Request, int]]:
    """Room for so many tokens of running requests, in order; who comes last makes room. Those that still run."""
    pages, at = scheduler.steps.cache.pages, 0
    while at < len(wanted):
        request, tokens = wanted[at]
        if pages.reserve(request.number, tokens):
            at += 1
            continue
        last = _last(scheduler.running)
        assert last is not None  # a request has room alone
        _preempt(scheduler, last)
        gone = [number for number, (other, _) in enumerate(wanted) if other is last]
        for number in gone:
            del wanted[number]
            at -= number < at
    return wanted


def _preempt(scheduler: Scheduler, request: Request) -> None:
    """Its blocks are for others, and it waits again, as the first of its priority."""
    steps = scheduler.steps
    scheduler.running.remove(request)
    if not (scheduler.limits.swap and request.cached and steps.swap_out(request.number, request.cached)):
        request.discarded += request.cached
        request.cached = 0
    steps.cache.pages.release(request.number)
    request.preemptions += 1
    scheduler.waiting.insert(bisect_left(scheduler.waiting, request.priority, key=_priority), request)


def _last(running: Sequence[Request]) -> Request | None:
    """The last of the last priority."""
    return max(reversed(running), key=_priority, default=None)


def _priority(request: Request) -> int:
    return request.priority
