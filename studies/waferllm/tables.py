"""Tables 2 to 8 of WaferLLM: what each of their cells describes as a run, and what that run says as a number.

A table is a function from an emulation to rows, so that tables share runs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import ceil
from typing import Any

from meshrt.mesh.device import Device
from meshrt.mesh.mesh import parse_mesh
from meshrt.studies.rows import Emulate, Row
from meshrt.studies.sweep import Job, Outcome
from meshrt.studies.waferllm import energy, published
from meshrt.studies.waferllm.energy import Joules
from meshrt.studies.waferllm.published import Cell

SIDES = (180, 240, 300, 360, 420, 480, 540, 600, 660, 720)  # core counts to choose from where the paper names none
PROMPT = CONTEXT = 4096  # tokens of Tables 3 and 7, and of 4 and 8 ("4K CTX")
DTYPE = "float16"  # of the published programs, which keep everything in it


def _row(cell: Cell, value: float | None, cycles: float | None, note: str, memory: int | None = None) -> Row:
    """A cell beside what was emulated of it."""
    return Row(
        str(cell.table), cell.model, cell.system, cell.column, cell.unit, cell.value, value, cycles, memory, note
    )


def _beside(cell: Cell) -> Row:
    """A row of GPUs: published context."""
    return Row(str(cell.table), cell.model, cell.system, cell.column, cell.unit, cell.value)


def _wafer(number: int) -> Iterator[Cell]:
    return (cell for cell in published.table(number) if cell.system != "a100")


def _models(number: int) -> Iterator[Cell]:
    """Those of whole models: WaferLLM's by our programs, and by its own as they were published."""
    for cell in _wafer(number):
        yield cell
        if cell.system == "waferllm":
            yield replace(cell, system="as-published")


def _gpus(number: int) -> list[Row]:
    return [_beside(cell) for cell in published.table(number) if cell.system == "a100"]


# -------------------------------------------------------------------------------------------------- whole models


def prefill_job(device: Device, model: str, system: str, side: int, tokens: int) -> Job:
    """Prefill of a prompt on side x side cores, one layer run for all of them.

    The baselines' takes so long to emulate that what is not looked at, embedding and head, is left out. Of the
    published programs' products four steps are run: with all they take the same time to 0.02 % (docs/waferllm.md).
    """
    steps = {"waferllm": {}, "as-published": {"steps_run": 4}}.get(system, {"steps_run": 2, "layers_only": True})
    return _llama(device, model, system, side, prompt_tokens=tokens, max_new_tokens=1, **steps)


def decode_job(device: Device, model: str, system: str, side: int, context: int) -> Job:
    """One token decoded after so many, on side x side cores."""
    return _llama(device, model, system, side, context=context, max_new_tokens=2)


def _llama(device: Device, model: str, system: str, side: int, **options: Any) -> Job:
    """A run by shape. The fp16 weights of most of these models are more than the memory of the cores that the tables
    name. The paper ran some of the layers and scaled; here all are there, and no core refuses: the rows say what it
    would take.
    """
    how: dict[str, Any] = {"system": system, "allreduces": "published"}
    if system == "as-published":
        how = {"as_published": True}
    arguments = {"model": model, "layers_run": 1, "dtype": DTYPE} | how
    return Job("llama", (side, side), replace(device, core_memory=None), arguments | options)


def held(report: dict[str, Any], device: Device) -> tuple[str, int]:
    """(a note where a core holds more than it can, bytes of the fullest core) of a run without that limit."""
    fullest = int(report["measured"]["memory_bytes"]["max"])
    over = device.core_memory is not None and fullest > device.core_memory
    return "more than fits into a core: by shape, as if it did" if over else "", fullest


def layers_path(report: dict[str, Any], name: str) -> tuple[float, float]:
    """(seconds, cycles) of all layers, in prefill or for one token in decode.

    As the published programs time them: a layer, times the layers; they have no embedding and no head.
    """
    result = report["result"]
    cycles = result["layer_cycles"][name] * result["layers"]
    return cycles / report["device"]["clock_hz"], cycles


def table2(device: Device, emulate: Emulate) -> list[Row]:
    """End to end: new tokens over the time of prefill and decode (section 7.1).

    Every decoded token is taken to cost what the one halfway costs: attention grows linearly with what is cached.
    """
    rows = []
    for cell in _models(2):
        before, new = map(int, cell.column.split("/"))
        halfway = before + new // 2
        prefill = emulate(prefill_job(device, cell.model, cell.system, published.PREFILL_MESH[cell.model], before))
        decode = emulate(decode_job(device, cell.model, cell.system, published.DECODE_MESH[cell.model], halfway))
        if prefill.report is None or decode.report is None:
            rows.append(_row(cell, None, None, prefill.refused or decode.refused or ""))
            continue
        start, start_cycles = layers_path(prefill.report, "prefill")
        step, step_cycles = layers_path(decode.report, "decode")
        note, memory = max(
            (held(report, device) for report in (prefill.report, decode.report)), key=lambda entry: entry[1]
        )
        rows.append(_row(cell, new / (start + new * step), start_cycles + new * step_cycles, note, memory))
    return rows + _gpus(2)


def table3(device: Device, emulate: Emulate) -> list[Row]:
    """Prefill of a prompt of 4096 tokens: prompt tokens a second."""
    return _rates(3, "prefill", PROMPT, partial(prefill_job, device, tokens=PROMPT), device, emulate)


def table4(device: Device, emulate: Emulate) -> list[Row]:
    """Decode: tokens a second with 4096 in the cache."""
    return _rates(4, "decode", 1, partial(decode_job, device, context=CONTEXT), device, emulate)


def _rates(
    table: int, part: str, tokens: int, job: Callable[..., Job], device: Device, emulate: Emulate
) -> list[Row]:  # fmt: skip
    """So many tokens in one part of a run on a square mesh, for each cell of a table: tokens a second."""

    def run(cell: Cell) -> Row:
        outcome = emulate(job(cell.model, cell.system, parse_mesh(cell.column)[0]))
        if outcome.report is None:
            return _row(cell, None, None, outcome.refused or "")
        seconds, cycles = layers_path(outcome.report, part)
        return _row(cell, tokens / seconds, cycles, *held(outcome.report, device))

    return [run(cell) for cell in _models(table)] + _gpus(table)


# ------------------------------------------------------------------------------------------------------ KV cache


def table5(device: Device, emulate: Emulate) -> list[Row]:
    """Tokens that fit by either policy, beside the weights (fp16), until a core refuses.

    The paper names the cores of decode, 360 x 360 and 375 x 375, and that layers are spread over the wafer for want of
    memory (section 7.5), not how: here over as many regions of that size as the wafer has room for.
    """
    rows = []
    for cell in _wafer(5):
        side = published.DECODE_MESH[cell.model]
        regions = max(1, (device.width or side) // side) * max(1, (device.height or side) // side)
        job, note = kv_job(device, cell.model, cell.column, side, regions)
        outcome = emulate(job)
        if outcome.report is None:
            rows.append(_row(cell, None, None, outcome.refused or ""))
        else:
            memory, result = outcome.report["measured"]["memory_bytes"]["max"], outcome.report["result"]
            rows_there = 1 if cell.column == "concat" else side
            stated = ceil((cell.value or 0) / rows_there) * result["bytes_per_token"] + job.arguments["reserved"]
            note = f"{note}; as many tokens as published would make that {stated}"
            rows.append(_row(cell, float(result["tokens"]), None, note, memory))
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


# --------------------------------------------------------------------------------------- against GPUs, and energy


def table6(device: Device, emulate: Emulate) -> list[Row]:
    """A vector times a matrix, on the best of the core counts that hold it."""
    rows = []
    for name, size in published.TABLE6_SIZES.items():
        runs = {side: emulate(gemv_job(device, size, side)) for side in SIDES}
        times = {side: run.report["measured"]["critical_path"] for side, run in runs.items() if run.report is not None}
        best = min(times, key=lambda side: times[side]["cycles"], default=None)
        value = cycles = None
        note = next((run.refused for run in runs.values() if run.refused), "") or ""
        if best is not None:
            value, cycles = 1e3 * times[best]["seconds"], times[best]["cycles"]
            note = f"{best}x{best}, the best of {len(times)} core counts from {min(times)} to {max(times)} a side"
        report = None if best is None else runs[best].report
        found = None if report is None else energy.wafer_joules(device, report["measured"])
        rows += _against(6, name, value, cycles, note, found)
    return rows


def gemv_job(device: Device, size: int, side: int, allreduce: str = "ktree") -> Job:
    """[1, size] x [size, size] on side x side cores."""
    return Job("gemv", (side, side), device, {"k": size, "n": size, "dtype": DTYPE, "allreduce": allreduce})


def table7(device: Device, emulate: Emulate) -> list[Row]:
    """Table 3's best core counts, and energy."""

    def found(model: str, mesh: str) -> Joules | None:
        return _of_phase(emulate(prefill_job(device, model, "waferllm", parse_mesh(mesh)[0], PROMPT)), device, PROMPT)

    return _best(7, table3(device, emulate), published.TABLE3_COLUMNS, found)


def table8(device: Device, emulate: Emulate) -> list[Row]:
    """Table 4's best core counts, and energy."""

    def found(model: str, mesh: str) -> Joules | None:
        return _of_phase(emulate(decode_job(device, model, "waferllm", parse_mesh(mesh)[0], CONTEXT)), device)

    return _best(8, table4(device, emulate), published.TABLE4_COLUMNS, found)


def _of_phase(outcome: Outcome, device: Device, prompt: int | None = None) -> Joules | None:
    """Joules of a token: of a prompt of so many, or of the one that is decoded; with embedding and head."""
    if outcome.report is None:
        return None
    name = "decode" if prompt is None else "prefill"
    (phase,) = (phase for phase in outcome.report["phases"] if phase["name"] == name)
    return energy.wafer_joules(device, phase, prompt or 1)


def _best(
    number: int, rows: Sequence[Row], columns: Sequence[str], found: Callable[[str, str], Joules | None]
) -> list[Row]:
    table_rows = []
    for model in ("llama3-8b", "llama2-13b"):
        for system in ("waferllm", "as-published"):
            of_model = [
                row for row in rows if row.subject == model and row.system == system and row.column in columns
            ]  # fmt: skip
            known = [row for row in of_model if row.emulated is not None]
            best = max(known, key=lambda row: row.emulated or 0.0, default=None)
            note = f"the best of table {of_model[0].table}: {best.column}" if best else of_model[0].note
            value, cycles = (best.emulated, best.cycles) if best else (None, None)
            joules = found(model, best.column) if best and system == "waferllm" else None
            block = _against(number, model, value, cycles, note, joules)
            if system == "as-published":
                block = [replace(row, system=system) for row in block if row.column == "WSE-2"]
            table_rows += block
    return table_rows


def _against(
    number: int, name: str, value: float | None, cycles: float | None, method: str, found: Joules | None
) -> list[Row]:
    """One block of Tables 6 to 8. Energy follows from the published power and the emulated time; then as counted."""
    cells = [cell for cell in published.table(number) if cell.model == name]
    gpus = {cell.column: cell.value for cell in cells if cell.system == "a100"}
    rows = []
    for cell in cells:
        if cell.system == "a100":
            rows.append(_beside(cell))
        elif cell.unit != "ratio":
            rows.append(
                Row(str(number), name, "waferllm", cell.column, cell.unit, cell.value, value, cycles, None, method)
            )
        else:
            count = cell.column.removeprefix("energy, ").removesuffix(" / WSE-2")
            other = gpus[count]
            ratio = None
            if value is not None and other is not None:
                ratio = energy_ratio(published.GPUS[count], other, value, cell.table == 6)
            note = f"derived from emulated time, with {published.WSE_A100_POWER:g} times an A100's power"
            rows.append(
                Row(str(number), name, "waferllm", cell.column, "ratio", cell.value, ratio, note=note, derived=True)
            )
    return rows + energy.rows(cells, found)


def energy_ratio(gpus: int, gpu_value: float, wafer_value: float, times: bool) -> float:
    """Energy of so many A100 over that of a WSE-2, from times or (times=False) from rates."""
    return gpus * (gpu_value / wafer_value if times else wafer_value / gpu_value) / published.WSE_A100_POWER


TABLES: dict[str, Callable[[Device, Emulate], list[Row]]] = {
    "2": table2, "3": table3, "4": table4, "5": table5, "6": table6, "7": table7, "8": table8,
}  # fmt: skip
