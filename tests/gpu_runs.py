"""Running `lowrank` inside a test: on the ranks of a communicator, or in this process alone."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from meshrt.gpu.gpus import Gpus
from meshrt.gpu.presets import find_gpu
from meshrt.models.family import read_family
from meshrt.program import load_program
from meshrt.programs.gpu.experts.mixing import mixing_of
from meshrt.programs.gpu.opening import open_model, open_weights
from meshrt.programs.gpu.options import GpuOptions
from meshrt.programs.gpu.quantizing import hold_of
from meshrt.programs.gpu.serving.batching import serve
from meshrt.programs.gpu.serving.request import BatchLimits, Request
from meshrt.programs.gpu.steps import CacheSteps
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control
from meshrt.reports.report import gather_report


class Alone:
    """Stands for a communicator of one rank, where MPI is not needed."""

    size, rank = 1, 0

    def bcast(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]


def new_gpus(
    tp: int, comm: Any = None, payload: bool = True, static: bool = False, device: str = "a800", pp: int = 1,
    dp: int = 1, node_size: int | None = None, collectives: str = "auto", **numbers: Any,
) -> Gpus:  # fmt: skip
    control, numbered = Control(comm or Alone(), Board.alone(), "test"), find_gpu(device, **numbers)
    groups: dict[str, Any] = {"node_size": node_size, "collectives": collectives, "pp": pp, "dp": dp}
    return Gpus(tp * pp * dp, numbered, control, payload, static, **groups)


def run_lowrank(gpus: Gpus, model: Path | str, **options: Any) -> dict[str, Any]:
    return run_gpus(gpus, model, "lowrank", **options)


def run_gpus(gpus: Gpus, model: Path | str, name: str, **options: Any) -> dict[str, Any]:
    """The report of a program's run with its default options but for these; the same on all ranks."""
    program = load_program(name, "gpu")
    given = program.complete({"model": str(model)} | options)
    gathered = gather_report("gpu", gpus, program.name, given, program.run(gpus, **given), {"wall_seconds": 0.0})
    shared: dict[str, Any] = gpus.control.bcast(gathered)
    return shared


def how_of(**options: Any) -> GpuOptions:
    """The options of `lowrank`, but for these at their defaults."""
    values = load_program("lowrank", "gpu").complete(options)
    return GpuOptions(**{field.name: values[field.name] for field in fields(GpuOptions)})


def logits_of(
    gpus: Gpus, model: Path, scheme: str, ids: list[int], prompt: int, kv: str = "dense", **options: Any
) -> np.ndarray:
    """Logits [tokens, vocabulary]: the first `prompt` ids at once, the others one by one."""
    family = read_family(model, quantized=True)
    how = how_of(scheme=scheme, **options)
    request = Request(0, tuple(ids), 1)
    steps = open_model(
        gpus, family, open_weights(gpus, model, family), scheme, kv, [request], block_size=4, wanted=True,
        hold=hold_of(family, how), mixing=mixing_of(gpus, family, how),
    )  # fmt: skip
    rows = []
    steps.cache.pages.reserve(0, len(ids))
    from meshrt.programs.gpu.batches.prompts import Tokens

    steps.prompts([Tokens(0, ids[:prompt])])
    rows += [*_rows(steps)]
    for end in range(prompt + 1, len(ids) + 1):
        steps.new_tokens([Tokens(0, ids[:end])])
        rows += _rows(steps)[:1]
    steps.close()
    return np.array(rows)


def _rows(steps: CacheSteps) -> list[np.ndarray]:
    rows = steps.logits()
    return [] if rows is None else [*rows]


def serve_all(
    gpus: Gpus, model: Path, scheme: str, prompts: list[tuple[int, ...]], new: int, kv: str = "dense",
    limits: BatchLimits | None = None, arrivals: list[float] | None = None, **options: Any,
) -> tuple[list[Request], CacheSteps]:  # fmt: skip
    """Serve these prompts together: the requests with their new tokens."""
    family = read_family(model, quantized=True)
    times = arrivals or [0.0 for _ in prompts]
    requests = [Request(at, ids, new, time) for at, (ids, time) in enumerate(zip(prompts, times, strict=True))]
    checkpoint = open_weights(gpus, model, family)
    steps = open_model(gpus, family, checkpoint, scheme, kv, requests, **{"block_size": 4} | options)
    serve(steps, requests, limits or BatchLimits())
    return requests, steps
