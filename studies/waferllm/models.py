"""Tables 2 to 4: prefill and decode of whole models, as runs, and what those say as numbers."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from meshrt.mesh.device import Device
from meshrt.mesh.mesh import parse_mesh
from meshrt.studies.rows import Emulate, PaperRow
from meshrt.studies.sweep import RunJob
from meshrt.studies.waferllm import published
from meshrt.studies.waferllm.cells import DTYPE, cell_row, gpus, wafer
from meshrt.studies.waferllm.published import PublishedCell

PROMPT = CONTEXT = 4096  # tokens of Tables 3 and 7, and of 4 and 8 ("4K CTX")


def both_programs(number: int) -> list[PublishedCell]:
    """Those of whole models: WaferLLM's by our programs, and by its own as they were published; a baseline's as it is
    described, and as the tables suggest.
    """
    return [other for cell in wafer(number) for other in (cell, replace(cell, system=published.OTHERS[cell.system]))]


def prefill_job(device: Device, model: str, system: str, side: int, tokens: int) -> RunJob:
    """Prefill of a prompt on side x side cores, one layer run for all of them.

    The baselines' takes so long to emulate that what is not looked at, embedding and head, is left out. Of the
    published programs' products four steps are run: with all they take the same time to 0.02 % (docs/waferllm.md).
    """
    steps = {"waferllm": {}, "as-published": {"steps_run": 4}}.get(system, {"steps_run": 2, "layers_only": True})
    return _llama(device, model, system, side, prompt_tokens=tokens, max_new_tokens=1, **steps)


def decode_job(device: Device, model: str, system: str, side: int, context: int) -> RunJob:
    """One token decoded after so many, on side x side cores."""
    return _llama(device, model, system, side, context=context, max_new_tokens=2)


def _llama(device: Device, model: str, system: str, side: int, **options: Any) -> RunJob:
    """A run by shape. The fp16 weights of most of these models are more than the memory of the cores that the tables
    name. The paper ran some of the layers and scaled; here all are there, and no core refuses: the rows say what it
    would take.
    """
    how: dict[str, Any] = {"system": system, "allreduces": "published"}
    if system == "as-published":
        how = {"as_published": True}
    arguments = {"model": model, "layers_run": 1, "dtype": DTYPE} | how
    return RunJob("llama", (side, side), replace(device, core_memory=None), arguments | options)


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


def table2(device: Device, emulate: Emulate) -> list[PaperRow]:
    """End to end: new tokens over the time of prefill and decode (section 7.1).

    Every decoded token is taken to cost what the one halfway costs: attention grows linearly with what is cached.
    """
    rows = []
    for cell in both_programs(2):
        before, new = map(int, cell.column.split("/"))
        halfway = before + new // 2
        prefill = emulate(prefill_job(device, cell.model, cell.system, published.PREFILL_MESH[cell.model], before))
        decode = emulate(decode_job(device, cell.model, cell.system, published.DECODE_MESH[cell.model], halfway))
        if prefill.report is None or decode.report is None:
            rows.append(cell_row(cell, None, None, prefill.refused or decode.refused or ""))
            continue
        start, start_cycles = layers_path(prefill.report, "prefill")
        step, step_cycles = layers_path(decode.report, "decode")
        note, memory = max(
            (held(report, device) for report in (prefill.report, decode.report)), key=lambda entry: entry[1]
        )
        rows.append(cell_row(cell, new / (start + new * step), start_cycles + new * step_cycles, note, memory))
    return rows + gpus(2)


def table3(device: Device, emulate: Emulate) -> list[PaperRow]:
    """Prefill of a prompt of 4096 tokens: prompt tokens a second."""
    return prefill_rates(both_programs(3), device, emulate) + gpus(3)


def table4(device: Device, emulate: Emulate) -> list[PaperRow]:
    """Decode: tokens a second with 4096 in the cache."""
    return decode_rates(both_programs(4), device, emulate) + gpus(4)


def prefill_rates(cells: Iterable[PublishedCell], device: Device, emulate: Emulate) -> list[PaperRow]:
    """Of these cells of Table 3."""
    return _rates(cells, "prefill", PROMPT, partial(prefill_job, device, tokens=PROMPT), device, emulate)


def decode_rates(cells: Iterable[PublishedCell], device: Device, emulate: Emulate) -> list[PaperRow]:
    """Of these cells of Table 4."""
    return _rates(cells, "decode", 1, partial(decode_job, device, context=CONTEXT), device, emulate)


def _rates(
    cells: Iterable[PublishedCell], part: str, tokens: int, job: Callable[..., RunJob], device: Device,
    emulate: Emulate,
) -> list[PaperRow]:  # fmt: skip
    """So many tokens in one part of a run on a square mesh, for each of the cells: tokens a second."""

    def run(cell: PublishedCell) -> PaperRow:
        outcome = emulate(job(cell.model, cell.system, parse_mesh(cell.column)[0]))
        if outcome.report is None:
            return cell_row(cell, None, None, outcome.refused or "")
        seconds, cycles = layers_path(outcome.report, part)
        return cell_row(cell, tokens / seconds, cycles, *held(outcome.report, device))

    return [run(cell) for cell in cells]
