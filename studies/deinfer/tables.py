"""DeInfer's Tables 1 and 3 to 6 cell by cell: published, emulated by shape."""

from collections.abc import Callable

from meshrt.models.catalogue import find_model
from meshrt.models.family import Family, evenly, read_family
from meshrt.studies.bench.serve import WAYS, job
from meshrt.studies.deinfer import runs
from meshrt.studies.deinfer.published import (
    LINKS,
    MODELS,
    RATIO,
    SYSTEMS,
    TABLE1,
    TABLE3,
    TABLE4,
    TABLE5,
    TABLE6,
    TPS,
)
from meshrt.studies.rows import Emulate, PaperRow

BATCH, CONTEXT = 512, 64  # of Table 5, of which the paper does not say: those of section 5.2, half-way


def table1(emulate: Emulate) -> list[PaperRow]:
    """Numbers a token and layer: all-gathered ones once, summed ones twice. Measured at the collectives of 8 GPUs.

    A ring of n sends (n-1)/n of what it gathers and twice that of what it sums, from each GPU: bytes of all GPUs over
    (n-1), over the size of a number.
    """
    rows = []
    for model, name in MODELS.items():
        family = evenly(read_family(find_model(model)), RATIO)
        for system in ("Base", "DeInfer"):
            total = 0.0
            for part, printed in (("attention", _attention(family, system)), ("MLP", _mlp(family, system))):
                value, note = _sent(emulate, model, system, part.lower())
                rows.append(_row("1", name, system, f"{part}, by the paper's row", printed, value, note, "numbers"))
                total += value or 0.0
            printed = _attention(family, system) + _mlp(family, system)
            rows.append(_row("1", name, system, "both, the rows' sum", printed, total or None, "", "numbers"))
            if model == "llama3-70b":
                rows.append(_row("1", name, system, "both, as printed", TABLE1[system], total or None, "", "numbers"))
    return rows


def _attention(family: Family, system: str) -> int:
    """Table 1's row. The second term of DeInfer's, 2h, is no cost of section 4.1, which sums in the low-rank space."""
    layer = family.layers[0]
    if system == "Base":
        return 4 * family.hidden + 4 * layer.k.columns
    return sum(matrix.rank or 0 for matrix in (layer.q, layer.k, layer.v)) + 2 * family.hidden


def _mlp(family: Family, system: str) -> int:
    layer = family.layers[0]
    if system == "Base":
        return 2 * (sum(matrix.columns for matrix in layer.dense_mlp.inner) + family.hidden)
    return sum(matrix.rank or 0 for matrix in layer.mlp.matrices()) + 2 * family.hidden


def _sent(emulate: Emulate, model: str, system: str, part: str) -> tuple[float | None, str]:
    tp, prompt, new = 8, 8, 5
    run = job(
        WAYS[runs.WAY[system]], tp, runs.machine("a800", "nvlink"), False,
        {"model": model, "ratio": RATIO, "requests": 1, "prompt_tokens": str(prompt), "output_tokens": str(new),
         "layers": 2},
    )  # fmt: skip
    # Bytes of a number, of 2 layers, of all tokens that went through.
    unit_bytes = 2 * (tp - 1) * 2 * (prompt + new - 1)
    return runs.read(emulate, run, lambda report: report["measured"][f"{part}_link_bytes"] / unit_bytes)


def table3(emulate: Emulate) -> list[PaperRow]:
    device = runs.machine("a6000", "pcie")
    rows = []
    for model, systems in TABLE3.items():
        for at, (column, metric) in enumerate((("TTFT", runs.ttft), ("ITL", runs.itl))):
            for system in SYSTEMS:
                value, note = runs.read(emulate, runs.served(system, model, "serving", 8, device), metric)
                rows.append(_row("3", MODELS[model], system, column, systems[system][at], value, note, "ms"))
    return rows


def table4(emulate: Emulate) -> list[PaperRow]:
    rows = []
    for (column, link), models in TABLE4.items():
        metric = runs.ttft if column == "TTFT" else runs.itl
        device = runs.machine("a800", link)
        for model, systems in models.items():
            for at, tp in enumerate(TPS):
                for system in SYSTEMS:
                    value, note = runs.read(emulate, runs.served(system, model, "serving", tp, device), metric)
                    cell = f"{column}, TP={tp}, {LINKS[link]}"
                    rows.append(_row("4", MODELS[model], system, cell, systems[system][at], value, note, "ms"))
    return rows


def table5(emulate: Emulate) -> list[PaperRow]:
    rows = []
    for link, sizes in TABLE5.items():
        device = runs.machine("a800", link)
        for tp, systems in sizes.items():
            for system, (compute, comm) in systems.items():
                run = runs.one_batch(system, "llama3-70b", BATCH, CONTEXT, tp, device)
                for column, key, printed in (
                    ("compute", "compute_seconds", compute),
                    ("comm.", "collective_seconds", comm),
                    ("total", "", compute + comm),
                ):
                    value, note = runs.read(emulate, run, _of_a_layer(key))
                    cell = f"{column}, TP={tp}, {LINKS[link]}"
                    rows.append(_row("5", MODELS["llama3-70b"], system, cell, printed, value, note, "ms"))
    return rows


def _of_a_layer(key: str) -> runs.ReadNumber:
    layers = len(read_family(find_model("llama3-70b")).layers)
    if key:
        return lambda report: runs.decode_layer(report, key, layers)
    return lambda report: sum(
        runs.decode_layer(report, name, layers) for name in ("compute_seconds", "collective_seconds")
    )


def table6(emulate: Emulate) -> list[PaperRow]:
    rows = []
    for model, links in TABLE6.items():
        for link, loads in links.items():
            device = runs.machine("a800", link)
            for load, printed in loads.items():
                name, metric = ("serving", runs.itl) if load == "ITL" else (load, runs.throughput)
                for system, published in zip(("DeInfer† eager", "DeInfer†"), printed, strict=True):
                    value, note = runs.read(emulate, runs.served(system, model, name, 8, device), metric)
                    unit = "ms" if load == "ITL" else "tokens/s"
                    cell = f"{load}, {LINKS[link]}"
                    rows.append(_row("6", MODELS[model], system, cell, published, value, note, unit))
    return rows


def _row(
    table: str, subject: str, system: str, column: str, published: float, emulated: float | None, note: str, unit: str
) -> PaperRow:
    return PaperRow(table, subject, system, column, unit, float(published), emulated, note=note)


TABLES: dict[str, Callable[[Emulate], list[PaperRow]]] = {
    "1": table1, "3": table3, "4": table4, "5": table5, "6": table6,
}  # fmt: skip
