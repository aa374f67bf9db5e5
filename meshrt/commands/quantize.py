"""`meshrt quantize`: a model's matrices in a few bits, as a new model folder; or what that takes, by shape."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.ranks import failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from meshrt.models.quantize.form import Activations, Group
    from meshrt.models.quantize.sizes import Scheme
    from meshrt.ranks.console import Console

UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@click.command("quantize")
@click.argument("model")
@click.option("--out", metavar="DIR", help="The folder to write; it must not exist yet.")
@click.option("--sizes", is_flag=True, help="Write nothing: tell the bytes, by shape, without weights.")
@click.option(
    "--method",
    type=click.Choice(["rtn", "hqq", "gptq", "milo", "w4a8"]),
    default="milo",
    show_default=True,
    help="How.",
)
@click.option("--bits", type=shared.WholeRange(2, 8), help="Of a weight's code.  [default: 3; w4a8 has 4]")
@click.option(
    "--group", "--block", type=shared.Whole("row"), default=64, show_default=True, metavar="N|row",
    help="Weights that share a scale: so many neighbours of a row, or all.",
)  # fmt: skip
@click.option("--symmetric", is_flag=True, help="rtn, w4a8: no zeros are stored, grids lie around 0.")
@click.option(
    "--activations", type=click.Choice(["row", "block"]),
    help="w4a8: what of a product's input shares a scale, a token or its part of a group.  [default: row]",
)  # fmt: skip
@click.option(
    "--head", type=click.Choice(["8", "float"]), help="w4a8: the head in 8 bits, or as it is.  [default: float]"
)
@click.option("--ranks", metavar="POLICY", help="milo: compensators, such as uniform-8 or dense-512+kurtosis-16.")
@click.option("--budget", metavar="BYTES", help="milo: of the compensators, as 200MiB; --ranks leaves a rank open.")
@click.option(
    "--compensator-bits", type=click.Choice(["3", "8", "16"]), help="milo: of the compensators.  [default: 3]"
)
@click.option("--rounds", type=shared.WholeRange(1), help="milo: of the loop, at most.  [default: 20]")
@click.option("--calibration", metavar="FILE", help="gptq, frequencies: text to run.  [default: stories]")
@click.option(
    "--calibration-stories", type=shared.WholeRange(1), help="gptq, frequencies: their number.  [default: 256]"
)
@click.option("--seed", type=shared.WholeRange(0), help="gptq, frequencies: of these stories.  [default: 0]")
@click.option("--held-out", metavar="FILE", help="Text to measure perplexity on.  [default: stories of another seed]")
@click.option("--held-out-stories", type=shared.WholeRange(0), help="0: measure no perplexity.  [default: 200]")
@shared.json_to("the report")
@shared.quiet
def command(**options: Any) -> None:
    """Write MODEL with the matrices of its layers in a few bits a weight: rounded, HQQ, GPTQ, MiLo, or W4A8.

    MODEL is a packaged model's name or a Hugging Face folder. A group of neighbouring weights of a row shares a scale
    and a zero in float16. MiLo adds low-rank compensators of what the codes miss, in 3, 8 or 16 bits, and finds codes
    and compensators in turns; --ranks says which matrix gets how large a one: uniform-R, dense-R, sparse-R,
    frequency-R, kurtosis-R, frequency-kurtosis-R, kurtosis-steps-16, or a sum of them.

    W4A8 is for products of whole numbers: weights in 4 bits, code * scale + offset, and activations in 8 bits, found as
    they come. Its perplexity is that of such products (docs/w4a8.md).

    Frequencies are how often the experts are chosen on the calibration's text.

    The report has errors, kurtosis, rank and bytes of every matrix, the bytes of the whole as they are stored and as
    the papers' codes would store them, and perplexity before and after.

    \b
    Examples:
      meshrt quantize llama-tiny --method hqq --out tiny3
      meshrt quantize llama-tiny --method w4a8 --out tiny4
      meshrt quantize llama-tiny --ranks uniform-8 --out tiny3m
      meshrt quantize llama-tiny --ranks kurtosis --budget 64KiB --out tiny3k
      meshrt quantize mixtral-8x7b --ranks dense-512+kurtosis-16 --sizes
    """
    try:
        shared.refuse_ranks("this writes one folder, in one process")
        quantize(**options)
    except Exception as error:
        sys.exit(failure.report_alone(error))


def quantize(
    *, model: str, out: str | None, sizes: bool, method: str, bits: int | None, group: Group, symmetric: bool,
    activations: Activations | None, head: str | None, ranks: str | None, budget: str | None,
    compensator_bits: str | None, rounds: int | None, calibration: str | None,
    calibration_stories: int | None, seed: int | None, held_out: str | None, held_out_stories: int | None,
    json_path: str | None, quiet: bool,
) -> None:  # fmt: skip
    """Check what was asked; then tell sizes, or quantize, write and measure."""
    from threadpoolctl import threadpool_limits

    from meshrt import report
    from meshrt.errors import UsageError
    from meshrt.models.catalogue import find_model
    from meshrt.models.quantize.choice import choose
    from meshrt.models.quantize.form import check_group
    from meshrt.models.quantize.policies import needs_text, parse
    from meshrt.models.quantize.shapes import read_shapes
    from meshrt.models.quantize.sizes import Scheme
    from meshrt.models.quantize.sizes import sizes as sizes_of
    from meshrt.ranks.console import make_console
    from meshrt.ranks.files import check_target

    if (out is None) != sizes:
        raise UsageError("give --out DIR to write a folder, or --sizes to be told its bytes, one of the two")
    only: dict[str, dict[str, Any]] = {
        "milo": {"--ranks": ranks, "--budget": budget, "--compensator-bits": compensator_bits, "--rounds": rounds},
        "rtn or w4a8": {"--symmetric": symmetric or None},
        "w4a8": {"--activations": activations, "--head": head},
    }
    for owners, values in only.items():
        for name, value in values.items():
            if value is not None and method not in owners.split(" or "):
                raise UsageError(f"{name} goes with --method {owners}; {method} has no use for it")
    if method == "w4a8" and bits not in (None, 4):
        raise UsageError(f"--bits {bits}: w4a8 has 4 bits a weight; leave it away, or take --method rtn")
    text = {"--calibration": calibration, "--calibration-stories": calibration_stories, "--seed": seed}
    reads_text = method == "gptq" or (ranks is not None and needs_text(parse(ranks)))
    for name, value in text.items():
        if value is not None and not reads_text:
            raise UsageError(f"{name} goes with --method gptq and --ranks frequency-R; {method} has no use for it")
    of_a_folder = {
        "--rounds": rounds, "--held-out": held_out, "--held-out-stories": held_out_stories, **text,
    }  # fmt: skip
    for name, value in of_a_folder.items():
        if sizes and value is not None:
            raise UsageError(f"{name} goes with --out; --sizes quantizes nothing and has no use for it")
    if ranks is None and (budget is not None or compensator_bits is not None or (method == "milo" and not sizes)):
        raise UsageError("--method milo needs --ranks, such as uniform-8; without compensators it is --method hqq")
    try:
        if group != "row":
            check_group(group)
    except ValueError as error:
        raise UsageError(f"--group: {str(error).removeprefix('has ')}") from error
    if json_path and json_path != "-":
        check_target("--json", json_path)
    console = make_console(0, 1, quiet or json_path == "-")
    folder = find_model(model)
    eight = activations or "row" if method == "w4a8" else None
    bits = bits or (4 if eight else 3)
    scheme = Scheme(method, bits, group, symmetric, int(compensator_bits or 3) if ranks else 16, eight, head == "8")
    most = None if budget is None else _bytes(budget)
    recipe: dict[str, Any] = {"method": method, "bits": bits, "group": group, "symmetric": symmetric}
    recipe |= {"activations": eight, "head": head or "float"} if eight else {}
    document: dict[str, Any] = {"schema": report.SCHEMA, "model": model}
    if sizes:
        shapes = read_shapes(folder)
        chosen, policy = choose(shapes, scheme, ranks, most, None) if ranks else ({}, {})
        document |= {"recipe": recipe | policy, **sizes_of(shapes, scheme, chosen)}
    else:
        assert out is not None
        count = 256 if calibration_stories is None else calibration_stories
        with threadpool_limits(1, "blas"):  # bits are those of any number of threads; more are slower on small matrices
            document |= {"out": out} | _write(
                console, folder, out, scheme, recipe, ranks, most, rounds or 20,
                (calibration, count, seed or 0) if reads_text else None,
                (held_out, 200 if held_out_stories is None else held_out_stories),
            )  # fmt: skip
    console.clear()
    report.deliver_json(document, json_path)
    if console.loud:
        print_report(document)


def _write(
    console: Console, folder: Path, out: str, scheme: Scheme, recipe: dict[str, Any], ranks: str | None,
    most: int | None, rounds: int, calibration: tuple[str | None, int, int] | None, held_out: tuple[str | None, int],
) -> dict[str, Any]:  # fmt: skip
    """Choose ranks, calibrate, quantize, write, measure; what the report says of it."""
    from dataclasses import asdict

    from meshrt.errors import UsageError
    from meshrt.models.folder import check_new_folder
    from meshrt.models.quantize import model as models
    from meshrt.models.quantize.choice import choose
    from meshrt.models.quantize.shapes import shapes_of
    from meshrt.models.quantize.sizes import sizes
    from meshrt.models.stories import HELD_OUT_SEED
    from meshrt.models.texts import file_sequences, story_sequences
    from meshrt.models.tokenizer import load_tokenizer

    text, stories, seed = calibration or (None, 0, 0)
    if seed == HELD_OUT_SEED and text is None:
        raise UsageError(f"--seed {seed} is that of the held-out stories: calibrate with any other")
    check_new_folder(out)
    config, checkpoint = models.read_model(folder)
    shapes = shapes_of(config)

    def sequences(path: str | None, seed: int, stories: int) -> list[list[int]]:
        if path is not None:
            return file_sequences(config, load_tokenizer(folder), path)
        return story_sequences(config, load_tokenizer(folder), seed, stories)

    test = sequences(held_out[0], HELD_OUT_SEED, held_out[1]) if held_out[0] or held_out[1] else None
    calibrating = [ids[:-1] for ids in sequences(text, seed, stories)] if calibration else None
    gptq = scheme.method == "gptq"
    known = models.statistics(config, checkpoint, None if gptq else calibrating)
    chosen, policy = choose(shapes, scheme, ranks, most, known) if ranks else ({}, {})
    if ranks:
        policy |= {"rounds": rounds}
    outcomes = models.quantize(
        folder, out, scheme, chosen, rounds, known, calibrating if gptq else None,
        lambda done, total: console.progress("quantizing", done, total),
    )  # fmt: skip
    scores, errors = (None, {}) if test is None else _perplexities(console, folder, out, test)
    return {
        "recipe": recipe | policy,
        "calibration": None if calibrating is None else {"text": text or f"{stories} stories of seed {seed}"}
        | {"tokens": sum(map(len, calibrating))},
        **({"expert_tokens": known.frequency} if known.frequency else {}),
        "matrices": [asdict(outcome) | ({"activation_error": errors.get(outcome.name)} if scheme.activations else {})
                     for outcome in outcomes],
        **sizes(shapes, scheme, chosen),
        "perplexity": scores and scores | {"text": held_out[0] or f"{held_out[1]} stories, held out"},
    }  # fmt: skip


def _perplexities(
    console: Console, before: Path, after: str, test: list[list[int]]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Of the model that was read and of the folder that was written, and their difference in nats a token; and, where
    products are of whole numbers, what that rounding changes in the inputs of each matrix on this text, relative to
    them.
    """
    import numpy as np

    from meshrt.models.config import read_config
    from meshrt.models.integer import Errors, projection
    from meshrt.models.perplexity import Loss, difference, losses, of_losses
    from meshrt.models.reference import load_weights

    errors: Errors = {}

    def of(folder: Any, name: str) -> list[Loss]:
        config = read_config(folder, quantized=True)
        return losses(
            config, load_weights(folder, np.float32), test,
            progress=lambda done, total: console.progress(name, done, total),
            project=projection(folder, config, errors),
        )  # fmt: skip

    before_losses, after_losses = of(before, "perplexity before"), of(after, "perplexity after")
    nats, error = difference(before_losses, after_losses)
    told = {
        "before": of_losses(before_losses),
        "after": of_losses(after_losses),
        "nats_more": nats,
        "standard_error": error,
        "tokens": sum(tokens for _, tokens in before_losses),
    }
    return told, {name: (lost / (whole or 1.0)) ** 0.5 for name, (lost, whole) in errors.items()}


def _bytes(text: str) -> int:
    """'200MiB' -> 209715200: a whole number of bytes, KiB, MiB or GiB. UsageError."""
    from meshrt.errors import UsageError

    match = re.fullmatch(r"([0-9]{1,12})(KiB|MiB|GiB|)", text)
    if match is None:
        raise UsageError(f"--budget {text!r}: give a whole number of bytes, or of KiB, MiB or GiB, such as 200MiB")
    return int(match[1]) * UNITS[match[2]]


def print_report(document: dict[str, Any]) -> None:
    """A line for each matrix or, by shape, each kind of matrix; then the model's sizes and perplexities."""
    from rich.table import Table

    from meshrt.report import show
    from meshrt.units import short, size

    table = Table(box=None, pad_edge=False, header_style="bold")
    if "matrices" in document:
        method = document["recipe"]["method"]
        columns: dict[str, Callable[[dict[str, Any]], str]] = {
            "out x in": lambda matrix: "{} x {}".format(*matrix["shape"]),
            "kurtosis": lambda matrix: f"{matrix['kurtosis']:.2f}",
            "bytes": lambda matrix: size(matrix["bytes"][1]),
            "error W": lambda matrix: f"{matrix['weight_error']:.4f}",
        }
        if method == "milo":
            columns["rank"] = lambda matrix: str(matrix["rank"])
            columns["round"] = lambda matrix: f"{matrix['kept']} of {len(matrix['rounds'])}"
        if method == "w4a8" and document["perplexity"]:
            columns["error X"] = lambda matrix: f"{matrix['activation_error']:.4f}"
        if method == "gptq":
            columns["error XW"] = lambda matrix: f"{matrix['feature_error']:.4f}"
        table.add_column("matrix", no_wrap=True)
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for matrix in document["matrices"]:
            table.add_row(matrix["name"].removeprefix("model.layers."), *(cell(matrix) for cell in columns.values()))
    else:
        table.add_column("kind", no_wrap=True)
        for name in ("matrices", "weights", "rank", "bytes"):
            table.add_column(name, justify="right", no_wrap=True)
        for group in document["groups"]:
            table.add_row(
                group["name"],
                f"{group['matrices']:,}",
                short(group["weights"]),
                f"{group['rank']:g}",
                size(group["bytes"]),
            )
    show(table)
    print(
        f"{document.get('out', document['model'])}: {_exact(document['bytes'])} of {_exact(document['bytes_before'])},"
        f" {document['bits_per_weight']:.4g} bits a quantized weight"
    )
    added = document["compensator_bytes"], document["published_compensator_bytes"]
    if added[0]:
        print("compensators: {}, as published {}".format(*map(_exact, added)))
    print(f"as published: {_exact(document['published_bytes'])}")
    wide = document["recipe"].get("larger_than_matrix")
    if wide:
        print(f"{len(wide)} compensators have more numbers than their matrix, such as that of {wide[0]}")
    scores = document.get("perplexity")
    if scores:
        error = "" if scores["standard_error"] is None else f" +- {scores['standard_error']:.5f}"
        print(
            f"perplexity {scores['before']:.4f} before, {scores['after']:.4f} after, {scores['nats_more']:.5f}{error}"
            f" nats a token more ({scores['tokens']:,} tokens, {scores['text']})"
        )


def _exact(nbytes: int) -> str:
    """Four digits in GiB, two in MiB: those of the papers' tables and more."""
    if nbytes >= 2**30:
        return f"{nbytes / 2**30:.4f} GiB"
    return f"{nbytes / 2**20:.2f} MiB"
