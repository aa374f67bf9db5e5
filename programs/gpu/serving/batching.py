"""Continuous batching: requests come and go, the batch changes from step to step (Orca, OSDI 2022; vLLM).

Every rank takes the same decisions (scheduling.py), from the same virtual time.
"""

from collections.abc import Callable, Sequence

from meshrt.programs.gpu.serving.request import BatchLimits, Request, check_room
from meshrt.programs.gpu.serving.scheduling import new_scheduler, next_batch, send
from meshrt.programs.gpu.steps import CacheSteps


def serve(
    steps: CacheSteps, requests: Sequence[Request], limits: BatchLimits, tell: Callable[[Request], None] | None = None
) -> None:
    """Serve all requests to their ends; `tell` hears of every request that got a token."""
    gpus, pages = steps.gpus, steps.cache.pages
    check_room(pages, requests)
    scheduler = new_scheduler(steps, requests, limits)
    now, done = gpus.meet(), 0
    send(scheduler, now)
    while not scheduler.over:
        if not (scheduler.waiting or scheduler.running):
            gpus.wait_until(scheduler.coming[0].arrival)
            now = gpus.meet()
            send(scheduler, now)
            continue
        if gpus.device.step_seconds:
            gpus.wait_until(now + gpus.device.step_seconds)
        batch = next_batch(scheduler, now)
        tokens = steps.run([part for _, part in batch])
        now = gpus.meet()
        send(scheduler, now)
        for (request, part), token in zip(batch, tokens, strict=True):
            request.cached = len(part.tokens)
            if pages.keeps:
                pages.learn(request.number, request.ids, request.cached)
            if request.cached < len(request):
                continue  # a part of a prompt, which others follow
            request.new.append(token)
            request.times.append(now)
            if tell is not None:
                tell(request)
            if request.done:
                scheduler.running.remove(request)
                pages.release(request.number)
                scheduler.open -= 1
                done += 1
        send(scheduler, now, late=now)
        gpus.console.progress("requests", done, len(requests))
