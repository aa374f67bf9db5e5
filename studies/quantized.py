"""A model in a few bits, made and measured: what `meshrt quantize` writes, reports and prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from meshrt.models.config import read_config
from meshrt.models.folders.writing import check_new_folder
from meshrt.models.integer import ProjectionErrors, projection
from meshrt.models.perplexity import Loss, difference, losses, of_losses
from meshrt.models.quantize import model as models
from meshrt.models.quantize.choice import choose
from meshrt.models.quantize.shapes import shapes_of
from meshrt.models.quantize.sizes import CodeScheme, sizes
from meshrt.models.reference import load_weights
from meshrt.models.texts import SampleText
from meshrt.models.tokenizer import FOR_TEXT, load_tokenizer
from meshrt.ranks.console import Console
from meshrt.studies.grid import Cell, Grid, put
from meshrt.units import short, size


def write(
    console: Console, folder: Path, out: str, scheme: CodeScheme, recipe: dict[str, Any], ranks: str | None,
    budget: int | None, rounds: int, calibration: SampleText | None, held_out: SampleText | None,
) -> dict[str, Any]:  # fmt: skip
    """Choose ranks, calibrate, quantize, write, measure; what the report says of it."""
    check_new_folder(out)
    config, checkpoint = models.read_model(folder)
    shapes = shapes_of(config)
    way = FOR_TEXT if calibration else f"{FOR_TEXT}, or measure nothing: --held-out-stories 0"
    test = held_out.sequences(config, load_tokenizer(folder, way)) if held_out else None
    calibrating = (
        [ids[:-1] for ids in calibration.sequences(config, load_tokenizer(folder, way))] if calibration else None
    )
    gptq = scheme.method == "gptq"
    stats = models.statistics(config, checkpoint, None if gptq else calibrating)
    chosen, policy = choose(shapes, scheme, ranks, budget, stats) if ranks else ({}, {})
    if ranks:
        policy |= {"rounds": rounds}
    outcomes = models.quantize(
        folder, out, scheme, chosen, rounds, stats, calibrating if gptq else None,
        lambda done, total: console.progress("quantizing", done, total),
    )  # fmt: skip
    scores, errors = (None, {}) if test is None else _perplexities(console, folder, out, test)
    return {
        "recipe": recipe | policy,
        "calibration": calibrating and {"text": str(calibration), "tokens": sum(map(len, calibrating))},
        **({"expert_tokens": stats.frequency} if stats.frequency else {}),
        "matrices": [asdict(outcome) | ({"activation_error": errors.get(outcome.name)} if scheme.activations else {})
                     for outcome in outcomes],
        **sizes(shapes, scheme, chosen),
        "perplexity": scores and scores | {"text": str(held_out)},
    }  # fmt: skip


def _perplexities(
    console: Console, before: Path, after: str, test: list[list[int]]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Of the model that was read and of the folder that was written, and their difference in nats a token; and, where
    products are of whole numbers, what that rounding changes in the inputs of each matrix on this text, relative to
    them.
    """
    errors: ProjectionErrors = {}

    def of(folder: Any, name: str) -> list[Loss]:
        config = read_config(folder, quantized=True)
        return losses(
            config, load_weights(folder, np.float32), test,
            progress=lambda done, total: console.progress(name, done, total),
            project=projection(folder, config, errors),
        )  # fmt: skip

    before_losses, after_losses = of(before, "perplexity before"), of(after, "perplexity after")
    nats, error = difference(before_losses, after_losses)
    figures = {
        "before": of_losses(before_losses),
        "after": of_losses(after_losses),
        "nats_more": nats,
        "standard_error": error,
        "tokens": sum(tokens for _, tokens in before_losses),
    }
    return figures, {name: (lost / (whole or 1.0)) ** 0.5 for name, (lost, whole) in errors.items()}


def print_report(document: dict[str, Any], form: str = "table") -> None:
    put(said(document), form)


def said(document: dict[str, Any]) -> Iterator[str | Grid]:
    """A line for each matrix or, by shape, each kind of matrix; then the model's sizes and perplexities."""
    if "matrices" in document:
        method = document["recipe"]["method"]
        columns: dict[str, Callable[[dict[str, Any]], Any]] = {
            "out x in": lambda matrix: "{} x {}".format(*matrix["shape"]),
            "kurtosis": lambda matrix: Cell(matrix["kurtosis"], f"{matrix['kurtosis']:.2f}"),
            "bytes": lambda matrix: Cell(matrix["bytes"][1], size(matrix["bytes"][1])),
            "error W": lambda matrix: _error(matrix["weight_error"]),
        }
        if method == "milo":
            columns["rank"] = lambda matrix: matrix["rank"]
            columns["round"] = lambda matrix: f"{matrix['kept']} of {len(matrix['rounds'])}"
        if method == "w4a8" and document["perplexity"]:
            columns["error X"] = lambda matrix: _error(matrix["activation_error"])
        if method == "gptq":
            columns["error XW"] = lambda matrix: _error(matrix["feature_error"])
        rows = [
            [matrix["name"].removeprefix("model.layers."), *(cell(matrix) for cell in columns.values())]
            for matrix in document["matrices"]
        ]
        yield Grid(["matrix", *columns], rows, right=True)
    else:
        rows = [
            [
                group["name"], group["matrices"], Cell(group["weights"], short(group["weights"])),
                Cell(group["rank"], f"{group['rank']:g}"), Cell(group["bytes"], size(group["bytes"])),
            ]
            for group in document["groups"]
        ]  # fmt: skip
        yield Grid(["kind", "matrices", "weights", "rank", "bytes"], rows, right=True)
    yield (
        f"{document.get('out', document['model'])}: {_exact(document['bytes'])} of {_exact(document['bytes_before'])},"
        f" {document['bits_per_weight']:.4g} bits a quantized weight"
    )
    added = document["compensator_bytes"], document["published_compensator_bytes"]
    if added[0]:
        yield "compensators: {}, as published {}".format(*map(_exact, added))
    yield (f"as published: {_exact(document['published_bytes'])}")
    wide = document["recipe"].get("larger_than_matrix")
    if wide:
        yield (f"{len(wide)} compensators have more numbers than their matrix, such as that of {wide[0]}")
    scores = document.get("perplexity")
    if scores:
        error = "" if scores["standard_error"] is None else f" +- {scores['standard_error']:.5f}"
        yield (
            f"perplexity {scores['before']:.4f} before, {scores['after']:.4f} after, {scores['nats_more']:.5f}{error}"
            f" nats a token more ({scores['tokens']:,} tokens, {scores['text']})"
        )


def _error(value: float | None) -> Cell:
    """A dash where no token of the text came to the matrix."""
    return Cell(value, "-" if value is None else f"{value:.4f}")


def _exact(nbytes: int) -> str:
    """Four digits in GiB, two in MiB: those of the papers' tables and more."""
    if nbytes >= 2**30:
        return f"{nbytes / 2**30:.4f} GiB"
    return f"{nbytes / 2**20:.2f} MiB"
