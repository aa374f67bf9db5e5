"""Tables 6 to 8: products of a vector, and the best of prefill and decode, against GPUs, with energy."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from meshrt.mesh.device import Device
from meshrt.mesh.mesh import parse_mesh
from meshrt.studies.rows import Emulate, PaperRow
from meshrt.studies.sweep import Outcome, RunJob
from meshrt.studies.waferllm import energy, published
from meshrt.studies.waferllm.cells import DTYPE, beside
from meshrt.studies.waferllm.energy import Joules
from meshrt.studies.waferllm.models import (
    CONTEXT,
    PROMPT,
    both_programs,
    decode_job,
    decode_rates,
    prefill_job,
    prefill_rates,
)
from meshrt.studies.waferllm.published import PublishedCell

SIDES = (180, 240, 300, 360, 420, 480, 540, 600, 660, 720)  # core counts to choose from where the paper names none
REPEATED = ("llama3-8b", "llama2-13b")  # of which models Tables 7 and 8 have the best of Tables 3 and 4


def table6(device: Device, emulate: Emulate) -> list[PaperRow]:
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
        spent = None if report is None else energy.wafer_joules(device, report["measured"])
        rows += _against(6, name, value, cycles, note, spent)
    return rows


def gemv_job(device: Device, size: int, side: int, allreduce: str = "ktree") -> RunJob:
    """[1, size] x [size, size] on side x side cores."""
    return RunJob("gemv", (side, side), device, {"k": size, "n": size, "dtype": DTYPE, "allreduce": allreduce})


def table7(device: Device, emulate: Emulate) -> list[PaperRow]:
    """Table 3's best core counts, and energy."""

    def found(model: str, mesh: str) -> Joules | None:
        return _of_phase(emulate(prefill_job(device, model, "waferllm", parse_mesh(mesh)[0], PROMPT)), device, PROMPT)

    return _best(7, prefill_rates(_repeated(3), device, emulate), found)


def table8(device: Device, emulate: Emulate) -> list[PaperRow]:
    """Table 4's best core counts, and energy."""

    def found(model: str, mesh: str) -> Joules | None:
        return _of_phase(emulate(decode_job(device, model, "waferllm", parse_mesh(mesh)[0], CONTEXT)), device)

    return _best(8, decode_rates(_repeated(4), device, emulate), found)


def _repeated(number: int) -> list[PublishedCell]:
    """Of Table 3 or 4 the cells of which Table 7 or 8 has the best: two models, WaferLLM's programs."""
    return [cell for cell in both_programs(number) if cell.model in REPEATED and cell.system in published.PROGRAMS]


def _of_phase(outcome: Outcome, device: Device, prompt: int | None = None) -> Joules | None:
    """Joules of a token: of a prompt of so many, or of the one that is decoded; with embedding and head."""
    if outcome.report is None:
        return None
    name = "decode" if prompt is None else "prefill"
    (phase,) = (phase for phase in outcome.report["phases"] if phase["name"] == name)
    return energy.wafer_joules(device, phase, prompt or 1)


def _best(number: int, rows: Sequence[PaperRow], joules_of: Callable[[str, str], Joules | None]) -> list[PaperRow]:
    table_rows = []
    for model in REPEATED:
        for system in published.PROGRAMS:
            of_model = [row for row in rows if row.subject == model and row.system == system]
            emulated = [row for row in of_model if row.emulated is not None]
            best = max(emulated, key=lambda row: row.emulated or 0.0, default=None)
            note = f"the best of table {of_model[0].table}: {best.column}" if best else of_model[0].note
            value, cycles = (best.emulated, best.cycles) if best else (None, None)
            joules = joules_of(model, best.column) if best and system == "waferllm" else None
            block = _against(number, model, value, cycles, note, joules)
            if system == "as-published":
                block = [replace(row, system=system) for row in block if row.column == "WSE-2"]
            table_rows += block
    return table_rows


def _against(
    number: int, name: str, value: float | None, cycles: float | None, method: str, spent: Joules | None
) -> list[PaperRow]:
    """One block of Tables 6 to 8. Energy follows from the published power and the emulated time; then as counted."""
    cells = [cell for cell in published.table(number) if cell.model == name]
    gpus = {cell.column: cell.value for cell in cells if cell.system == "a100"}
    rows = []
    for cell in cells:
        if cell.system == "a100":
            rows.append(beside(cell))
        elif cell.unit != "ratio":
            rows.append(
                PaperRow(str(number), name, "waferllm", cell.column, cell.unit, cell.value, value, cycles, None, method)
            )
        else:
            count = cell.column.removeprefix("energy, ").removesuffix(" / WSE-2")
            other = gpus[count]
            ratio = None
            if value is not None and other is not None:
                ratio = energy_ratio(published.GPUS[count], other, value, cell.table == 6)
            note = f"derived from emulated time, with {published.WSE_A100_POWER:g} times an A100's power"
            rows.append(
                PaperRow(
                    str(number), name, "waferllm", cell.column, "ratio", cell.value, ratio, note=note, derived=True
                )
            )
    return rows + energy.rows(cells, spent)


def energy_ratio(gpus: int, gpu_value: float, wafer_value: float, times: bool) -> float:
    """Energy of so many A100 over that of a WSE-2, from times or (times=False) from rates."""
    return gpus * (gpu_value / wafer_value if times else wafer_value / gpu_value) / published.WSE_A100_POWER
