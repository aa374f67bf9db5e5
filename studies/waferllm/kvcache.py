"""Table 5: tokens that a KV cache holds, by policy."""

from collections.abc import Sequence
from math import ceil

from meshrt.mesh.device import Device
from meshrt.studies.rows import Emulate, Row
from meshrt.studies.sweep import Job
from meshrt.studies.waferllm import published
from meshrt.studies.waferllm.cells import DTYPE, cell_row, wafer


def table5(device: Device, emulate: Emulate) -> list[Row]:
    """Tokens that fit by either policy, beside the weights (fp16), until a core refuses.

    The paper names the cores of decode, 360 x 360 and 375 x 375, and that layers are spread over the wafer for want of
    memory (section 7.5), not how: here over as many regions of that size as the wafer has room for.
    """
    rows = []
    for cell in wafer(5):
        side = published.DECODE_MESH[cell.model]
        regions = max(1, (device.width or side) // side) * max(1, (device.height or side) // side)
        job, note = kv_job(device, cell.model, cell.column, side, regions)
        outcome = emulate(job)
        if outcome.report is None:
            rows.append(cell_row(cell, None, None, outcome.refused or ""))
        else:
            memory, result = outcome.report["measured"]["memory_bytes"]["max"], outcome.report["result"]
            rows_there = 1 if cell.column == "concat" else side
            stated = ceil((cell.value or 0) / rows_there) * result["bytes_per_token"] + job.arguments["reserved"]
            note = f"{note}; as many tokens as published would make that {stated}"
            rows.append(cell_row(cell, float(result["tokens"]), None, note, memory))
    return [*rows, *_factors(rows)]


def kv_job(device: Device, model: str, policy: str, side: int, regions: int) -> tuple[Job, str]:
    """Fill a region's cache until a core refuses. One column of cores stands for all, which are alike."""
    from meshrt.models.catalogue import find_model
    from meshrt.models.config import read_config

    config = read_config(find_model(model))
    layers = ceil(config.layers / regions)
    heads = config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    numbers = config.hidden_size * (2 * heads + 2 * keys + 3 * config.intermediate_size)  # seven matrices of a layer
    reserved = ceil(2 * layers * numbers / side**2)
    arguments = {
        "policy": policy, "until_full": True, "dtype": DTYPE, "layers": layers, "columns": side, "reserved": reserved,
        "heads": config.kv_heads, "head_dim": config.head_dim, "groups": config.kv_heads,
    }  # fmt: skip
    note = (
        f"{layers} of {config.layers} layers in each of {regions} regions; their weights take {reserved} bytes a core"
    )
    return Job("kvcache", (1, side), device, arguments), note


def _factors(rows: Sequence[Row]) -> list[Row]:
    """How many times as many tokens shift holds (section 7.4)."""
    cells = {(row.subject, row.column): row for row in rows}
    factors = []
    for model in dict.fromkeys(row.subject for row in rows):
        shift, concat = cells[model, "shift"], cells[model, "concat"]
        stated = None if shift.published is None or concat.published is None else shift.published / concat.published
        emulated = None if shift.emulated is None or not concat.emulated else shift.emulated / concat.emulated
        factors.append(
            Row(
                "5",
                model,
                "waferllm",
                "shift / concat",
                "ratio",
                stated,
                emulated,
                note="of the two above",
                derived=True,
            )
        )
    return factors
