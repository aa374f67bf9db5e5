"""The cells of MiLo's tables that cannot be had without the published weights: printed with that note, no figure."""

from meshrt.studies.milo.published import (
    MODELS,
    TABLE1,
    TABLE2,
    TABLE3,
    TABLE4,
    TABLE6,
    TABLE8_PERPLEXITY,
)
from meshrt.studies.rows import PaperRow

NOTE = "needs the published weights; the packaged mixtures' own figures are below"
TASKS = "needs the published weights and the benchmark"


def rows(table: str) -> list[PaperRow]:
    """Of this table; figures have none."""
    return {"1": _table1, "2": _table2, "3": _table3, "4": _table4, "6": _table6, "8": _table8}.get(table, list)()


def _table1() -> list[PaperRow]:
    return [
        PaperRow("1", MODELS[model], system, column, unit, value, note=NOTE)
        for model, systems in TABLE1.items()
        for system, quality in systems.items()
        for column, unit, value in (
            ("quantizing", "s", quality.seconds), ("fp16", "perplexity", quality.fp16),
            ("INT4", "perplexity", quality.int4), ("INT3", "perplexity", quality.int3),
        )
    ]  # fmt: skip


def _table2() -> list[PaperRow]:
    return [
        PaperRow("2", MODELS[model], kind, column, unit, value, note=NOTE)
        for model, kinds in TABLE2.items()
        for kind, (kurtosis, rank) in kinds.items()
        for column, unit, value in (("kurtosis", "excess", kurtosis), ("residual rank", "values", rank))
    ]


def _table3() -> list[PaperRow]:
    rows = []
    for model, systems in TABLE3.items():
        for system, quality in systems.items():
            scores = {"HellaSwag": quality.hellaswag, "Lambada": quality.lambada, "PIQA": quality.piqa,
                      "zero-shot": quality.average, "MMLU": quality.mmlu, "TriQA": quality.triqa}  # fmt: skip
            rows.append(PaperRow("3", MODELS[model], system, "WikiText-2", "perplexity", quality.perplexity, note=NOTE))
            rows += [
                PaperRow("3", MODELS[model], system, task, "%", score, note=TASKS) for task, score in scores.items()
            ]
    return rows


def _table4() -> list[PaperRow]:
    rows = []
    for model, policies in TABLE4.items():
        for policy, (perplexity, mmlu) in policies.items():
            rows.append(PaperRow("4", MODELS[model], policy, "WikiText-2", "perplexity", perplexity, note=NOTE))
            rows.append(PaperRow("4", MODELS[model], policy, "MMLU", "%", mmlu, note=TASKS))
    return rows


def _table6() -> list[PaperRow]:
    return [
        PaperRow(
            "6", MODELS["mixtral-8x7b"], f"INT{bits}", f"WikiText-2 at rank {rank}", "perplexity", value, note=NOTE
        )
        for rank, columns in TABLE6.items()
        for bits, (_, value) in columns.items()
    ]


def _table8() -> list[PaperRow]:
    return [
        PaperRow("8", MODELS[model], policy, "WikiText-2", "perplexity",
            TABLE8_PERPLEXITY.get(model, {}).get(policy, perplexity), note=NOTE)
        for model, policies in TABLE4.items()
        for policy, (perplexity, _) in policies.items()
    ]  # fmt: skip
