"""`meshrt compress`: a model's matrices in two factors each, as a new model folder."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.ranks.failing import failure

if TYPE_CHECKING:
    from meshrt.ranks.console import Console


@click.command("compress")
@click.argument("model")
@click.option("--out", required=True, metavar="DIR", help="The folder to write; it must not exist yet.")
@click.option("--method", type=shared.Name(["svd", "afm"]), default="svd", show_default=True, help="How to factor.")
@click.option("--whiten/--no-whiten", default=True, help="svd: of the features, or of the weights.  [default: whiten]")
@click.option("--ratio", type=click.FloatRange(0, 1, max_open=True), help="The share of parameters that goes.")
@click.option("--block", type=shared.WholeRange(1), help="Of --ratio: ranks are multiples of it.  [default: 128]")
@click.option(
    "--matrices", type=shared.Name(["mlp", "attention", "all"]), help="What --ratio is applied to.  [default: mlp]"
)
@click.option(
    "--ranks",
    multiple=True,
    metavar="NAME=R|FILE",
    help="Ranks by name (gate_proj, layers.0.mlp.*), or a JSON file of them; may be given again. Wins over --ratio.",
)
@click.option("--calibration", metavar="FILE", help="Text to record activations on.  [default: generated stories]")
@click.option("--calibration-stories", type=shared.WholeRange(1), help="Their number.  [default: 256]")
@click.option("--seed", type=shared.WholeRange(0), help="Of the calibration's stories.  [default: 0]")
@click.option("--held-out", metavar="FILE", help="Text to measure perplexity on.  [default: stories of another seed]")
@click.option("--held-out-stories", type=shared.WholeRange(0), help="0: measure no perplexity.  [default: 200]")
@shared.form()
@shared.json_to("the report")
@shared.quiet
def command(**options: Any) -> None:
    """Write MODEL with matrices in two factors: block-aligned SVD (NeuronMM, section 4.1) or AFM.

    MODEL is a packaged model's name or a Hugging Face folder. A matrix [in, out] becomes U [in, r] and V [r, out], with
    r the multiple of --block next to what --ratio leaves (eq. 5): small matrices need small blocks. Whitening makes the
    error small on activations that were recorded on a text, not on the weights. The folder that comes out runs wherever
    MODEL runs.

    The report has rank, size and relative errors of every matrix, and perplexity before and after on text that was not
    calibrated on. `python -m meshrt.models.training.lora` trains the factors on, with torch.

    \b
    Examples:
      meshrt compress llama-tiny --ratio 0.2 --block 8 --out small
      meshrt compress llama-tiny --ranks gate_proj=64 --ranks layers.0.*=32 --out mixed
      meshrt run llama --on neuron --model small
    """
    try:
        shared.refuse_ranks("this writes one folder, in one process")
        compress(**options)
    except Exception as error:
        sys.exit(failure.report_alone(error))


def compress(
    *, model: str, out: str, method: str, whiten: bool, ratio: float | None, block: int | None, matrices: str | None,
    ranks: tuple[str, ...], calibration: str | None, calibration_stories: int | None, seed: int | None,
    held_out: str | None, held_out_stories: int | None, form: str, json_path: str | None, quiet: bool,
) -> None:  # fmt: skip
    """Choose ranks, calibrate, factor, write, measure, tell."""
    from meshrt.errors import UsageError
    from meshrt.models.catalogue import find_model
    from meshrt.models.compress import model as models
    from meshrt.models.compress.ranks import aligned_ranks, named_ranks, parse_ranks
    from meshrt.models.config import read_config
    from meshrt.models.folders.checkpoint import check_shapes, open_checkpoint
    from meshrt.models.folders.writing import check_new_folder
    from meshrt.models.tokenizer import FOR_TEXT, load_tokenizer
    from meshrt.ranks.console import make_console
    from meshrt.ranks.files import check_target
    from meshrt.reports import report

    if method == "afm" and not whiten:
        raise UsageError("--no-whiten goes with --method svd: afm is about features, there is nothing to leave out")
    if ratio is None and not ranks:
        raise UsageError("nothing says how far to compress: give --ratio 0.2, or --ranks gate_proj=64")
    for name, value in {"--block": block, "--matrices": matrices}.items():
        if ratio is None and value is not None:
            raise UsageError(f"{name} {value} is of the ranks of --ratio: give that too, or leave it away")
    block, matrices = block or 128, matrices or "mlp"
    text = shared.calibration_text(calibration, calibration_stories, seed)
    measured = shared.held_out_text(held_out, held_out_stories)
    check_new_folder(out)
    if json_path and json_path != "-":
        check_target("--json", json_path)
    console = make_console(0, 1, quiet or json_path == "-" or shared.for_programs(form))
    folder = find_model(model)
    config = read_config(folder)
    check_shapes(open_checkpoint(folder, config), config)
    tokenizer = load_tokenizer(folder, FOR_TEXT)
    chosen = {} if ratio is None else aligned_ranks(config, matrices, ratio, block)
    chosen |= named_ranks(config, parse_ranks(ranks))
    sequences = [ids[:-1] for ids in text.sequences(config, tokenizer)]
    test = measured.sequences(config, tokenizer) if measured else None
    recipe: dict[str, Any] = {"method": method, **({"whiten": whiten} if method == "svd" else {})}
    recipe |= {} if ratio is None else {"ratio": ratio, "block": block}
    outcome = models.compress(
        folder, out, chosen, "afm" if method == "afm" else "svd" if whiten else "plain-svd", sequences, recipe,
        lambda done, total: console.progress("factoring", done, total),
    )  # fmt: skip
    document = {
        "schema": report.SCHEMA,
        "model": model,
        "out": out,
        "recipe": recipe,
        "calibration": {"text": str(text), "tokens": sum(map(len, sequences))},
        **models.summary(folder, out, outcome),
        "perplexity": None if test is None else _perplexities(console, folder, out, test)
        | {"text": str(measured)},
    }  # fmt: skip
    console.clear()
    report.deliver_json(document, json_path)
    if not quiet and json_path != "-":
        print_report(document, form)


def _perplexities(console: Console, before: Any, after: str, test: list[list[int]]) -> dict[str, Any]:
    """Of the model that was read and of the folder that was written."""
    import numpy as np

    from meshrt.models.config import read_config
    from meshrt.models.perplexity import perplexity
    from meshrt.models.reference import load_weights

    def of(folder: Any, name: str) -> float:
        weights = load_weights(folder, np.float32)
        return perplexity(
            read_config(folder), weights, test, progress=lambda done, total: console.progress(name, done, total)
        )

    tokens = sum(len(ids) - 1 for ids in test)
    return {"before": of(before, "perplexity before"), "after": of(after, "perplexity after"), "tokens": tokens}


def print_report(document: dict[str, Any], form: str) -> None:
    """A line for each matrix, then the model's sizes and perplexities."""
    from meshrt.studies.grid import Cell, Grid, put
    from meshrt.units import size

    def error(value: float | None) -> Cell:
        return Cell(value, "-" if value is None else f"{value:.4f}")

    rows = [
        [
            matrix["name"].removeprefix("model.layers."), "{} x {}".format(*matrix["shape"]), matrix["rank"],
            matrix["parameters"][1], Cell(matrix["bytes"][1], size(matrix["bytes"][1])),
            error(matrix["weight_error"]), error(matrix["feature_error"]),
        ]
        for matrix in document["matrices"]
    ]  # fmt: skip
    parameters, ratio = document["parameters"], document["ratio"]
    texts = [
        f"{document['out']}: {parameters['after']:,} parameters of {parameters['before']:,};"
        f" ratio {ratio['matrices']:.3f} of these matrices, {ratio['model']:.3f} of the model"
    ]
    share = document["recipe"].get("ratio")
    if share and ratio["matrices"] < 0:
        texts.append(
            f"larger than before, and --ratio {share:g} was asked for: ranks are multiples of --block"
            f" {document['recipe']['block']}; give a smaller one"
        )
    scores = document["perplexity"]
    if scores:
        texts.append(
            f"perplexity {scores['before']:.4f} before, {scores['after']:.4f} after ({scores['tokens']:,} tokens,"
            f" {scores['text']})"
        )
    header = ["matrix", "in x out", "rank", "parameters", "bytes", "error W", "error XW"]
    put([Grid(header, rows, right=True), *texts], form)
