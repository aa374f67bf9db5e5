"""Table 5: tokens that a KV cache holds, by policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from meshrt.mesh.device import Device
from meshrt.studies.rows import Emulate, PaperRow
from meshrt.studies.sweep import RunJob
from meshrt.studies.waferllm import published
from meshrt.studies.waferllm.cells import DTYPE, cell_row, wafer
from meshrt.studies.waferllm.published import PublishedSystem

if TYPE_CHECKING:
    from meshrt.models.config import Config


def table5(device: Device, emulate: Emulate) -> list[PaperRow]:
    """Tokens that fit by either policy, beside the weights (fp16), until a core refuses.

    The paper names the cores of decode, 360 x 360 and 375 x 375, and that layers are spread over the wafer for want of
    memory (section 7.5), not how: here over as many regions of that size as the wafer has room for; as published, over
    as many as there are by area.
    """
    rows = []
    for cell in wafer(5):
        side = published.DECODE_MESH[cell.model]
        programs: dict[PublishedSystem, tuple[RunJob, str]] = {
            "waferllm": kv_job(device, cell.model, cell.column, side, squares(device, side)),
            "as-published": area_job(device, cell.model, cell.column, side),
        }
        for system, (job, note) in programs.items():
            of = replace(cell, system=system)
            outcome = emulate(job)
            if outcome.report is None:
                rows.append(cell_row(of, None, None, outcome.refused or ""))
                continue
            memory, result = outcome.report["measured"]["memory_bytes"]["max"], outcome.report["result"]
            rows_there = 1 if cell.column == "concat" else side
            stated = ceil((cell.value or 0) / rows_there) * result["bytes_per_token"] + job.arguments["reserved"]
            note = f"{note}; as many tokens as published would make that {stated}"
            rows.append(cell_row(of, float(result["tokens"]), None, note, memory))
    return [*rows, *_factors(rows)]


def squares(device: Device, side: int) -> int:
    """Regions of side x side cores that lie on a wafer, side by side."""
    return max(1, (device.width or side) // side) * max(1, (device.height or side) // side)


def kv_job(device: Device, model: str, policy: str, side: int, regions: int) -> tuple[RunJob, str]:
    """Fill a region's cache until a core refuses. One column of cores stands for all, which are alike."""
    config = _config(model)
    layers = ceil(config.layers / regions)
    heads = config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    numbers = config.hidden_size * (2 * heads + 2 * keys + 3 * config.intermediate_size)  # seven matrices of a layer
    reserved = ceil(2 * layers * numbers / side**2)
    arguments = {"layers": layers, "heads": config.kv_heads, "head_dim": config.head_dim, "groups": config.kv_heads}
    note = (
        f"{layers} of {config.layers} layers in each of {regions} regions; their weights take {reserved} bytes a core"
    )
    return _full(device, policy, side, reserved, arguments), note


def area_job(device: Device, model: str, policy: str, side: int) -> tuple[RunJob, str]:
    """The same with as many regions as the wafer's nominal cores come to, whether or not there is room for such
    squares; every matrix padded at each core, and keys and values cut evenly, not by heads, as the published programs
    cut them.
    """
    config = _config(model)
    regions = published.NOMINAL_CORES // side**2
    layers = ceil(config.layers / regions)
    wide = {"x": config.hidden_size, "q": config.heads * config.head_dim, "k": config.kv_heads * config.head_dim}
    x, q, k = (ceil(size / side) for size in wide.values())
    numbers = x * (2 * q + 2 * k + 3 * ceil(config.intermediate_size / side))  # of a layer, at a core
    reserved = 2 * layers * numbers
    note = (
        f"{layers} of {config.layers} layers in each of {regions} regions, which there are by area, of"
        f" {published.NOMINAL_CORES:,} cores; their padded weights take {reserved} bytes a core"
    )
    return _full(device, policy, side, reserved, {"layers": layers, "heads": 1, "head_dim": wide["k"]}), note


def _full(device: Device, policy: str, side: int, reserved: int, of_a_token: dict[str, int]) -> RunJob:
    shared = {"policy": policy, "until_full": True, "dtype": DTYPE, "columns": side, "reserved": reserved}
    return RunJob("kvcache", (1, side), device, shared | of_a_token)


def _config(model: str) -> Config:
    from meshrt.models.catalogue import find_model
    from meshrt.models.config import read_config

    return read_config(find_model(model))


def _factors(rows: Sequence[PaperRow]) -> list[PaperRow]:
    """How many times as many tokens shift holds (section 7.4)."""
    cells = {(row.subject, row.system, row.column): row for row in rows}
    factors = []
    for model, system in dict.fromkeys((row.subject, row.system) for row in rows):
        shift, concat = cells[model, system, "shift"], cells[model, system, "concat"]
        stated = None if shift.published is None or concat.published is None else shift.published / concat.published
        emulated = None if shift.emulated is None or not concat.emulated else shift.emulated / concat.emulated
        note = "of the two above"
        factors.append(
            PaperRow("5", model, system, "shift / concat", "ratio", stated, emulated, note=note, derived=True)
        )
    return factors
