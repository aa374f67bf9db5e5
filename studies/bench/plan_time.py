"""`meshrt bench plan`: what a recorded plan saves the host, beside the same steps planned as they go."""

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

from meshrt.gpu.gpus import Gpus
from meshrt.gpu.presets import find_gpu
from meshrt.models.catalogue import find_model
from meshrt.models.family import read_family
from meshrt.programs.gpu.batches.prompts import Tokens
from meshrt.programs.gpu.opening import open_model, open_weights
from meshrt.programs.gpu.serving.request import Request
from meshrt.programs.gpu.steps import CacheSteps
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control
from meshrt.studies.grid import Cell, Grid, put

WAYS = (("dense", "dense"), ("base", "dense"), ("deinfer", "dense"), ("deinfer", "lowrank"))
ROUNDS, STEPS, PROMPT = 20, 10, 24


@dataclass(frozen=True)
class Saving:
    """Milliseconds of the host for one decoding step, the best of some rounds; bytes in a replay, by tracemalloc."""

    scheme: str
    kv: str
    eager_ms: float
    static_ms: float
    grown_bytes: int  # in use after replays that were not before
    peak_bytes: int  # in use at most while one ran

    @property
    def ratio(self) -> float:
        return self.eager_ms / self.static_ms

    def json(self) -> dict[str, Any]:
        return {**self.__dict__, "ratio": self.ratio}


def measure(model: str, tp: int, batch: int) -> list[Saving]:
    """Decoding steps with numbers, all GPUs in this process. The low-rank cache only where K and V have latents."""
    folder = find_model(model)
    family = read_family(folder)
    latent = all(matrix.rank is not None for layer in family.layers for matrix in (layer.k, layer.v))
    return [_saving(model, tp, batch, scheme, kv) for scheme, kv in WAYS if kv == "dense" or latent]


def _saving(model: str, tp: int, batch: int, scheme: str, kv: str) -> Saving:
    eager, (steps, sequences) = (_ready(model, tp, batch, scheme, kv, static) for static in (False, True))
    times = _best([partial(eager[0].new_tokens, eager[1]), partial(steps.new_tokens, sequences)])
    (recorded,) = steps.plans.values()
    recorded.plan.replay()
    tracemalloc.start()
    recorded.plan.replay()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    recorded.plan.replay()
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    steps.close()
    return Saving(scheme, kv, 1e3 * times[0], 1e3 * times[1], after - before, peak - before)


def _ready(model: str, tp: int, batch: int, scheme: str, kv: str, static: bool) -> tuple[CacheSteps, list[Tokens]]:
    """A model with prompts in its cache, and one new token of each."""
    folder = find_model(model)
    family = read_family(folder)
    gpus = Gpus(tp, find_gpu("a800"), Control(Alone(), Board.alone(), "control"), static=static)
    requests = [Request(at, tuple(range(3, 3 + PROMPT)), 8) for at in range(batch)]
    steps = open_model(gpus, family, open_weights(gpus, folder, family), scheme, kv, requests)
    for request in requests:
        steps.cache.pages.reserve(request.number, PROMPT + 8)
    steps.prompts([request.tokens() for request in requests])
    sequences = [Tokens(request.number, [*request.prompt, 3]) for request in requests]
    steps.new_tokens(sequences)
    return steps, sequences


def _best(steps: list[Callable[[], object]]) -> list[float]:
    """Seconds of each kind of step in its best round. They take turns, so that a busy machine is busy for all."""
    best = [inf for _ in steps]
    for _ in range(ROUNDS):
        for at, step in enumerate(steps):
            start = perf_counter()
            for _ in range(STEPS):
                step()
            best[at] = min(best[at], (perf_counter() - start) / STEPS)
    return best


def print_savings(savings: list[Saving], form: str = "table") -> None:
    header = ("scheme", "cache", "eager, ms a step", "replayed", "ratio", "bytes kept", "most at once")
    rows = [
        (
            saving.scheme, saving.kv,
            *(Cell(value, f"{value:.2f}") for value in (saving.eager_ms, saving.static_ms, saving.ratio)),
            saving.grown_bytes, saving.peak_bytes,
        )
        for saving in savings
    ]  # fmt: skip
    put([Grid(header, rows)], form)
