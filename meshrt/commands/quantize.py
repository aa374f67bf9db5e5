"""`meshrt quantize`: a model's matrices in a few bits, as a new model folder; or what that takes, by shape."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.ranks.failing import failure
from meshrt.records import dataclass

if TYPE_CHECKING:
    from pathlib import Path

    from meshrt.models.quantize.form import Activations, GroupSize
    from meshrt.models.quantize.sizes import CodeScheme
    from meshrt.ranks.console import Console

UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@click.command("quantize")
@click.argument("model")
@click.option("--out", metavar="DIR", help="The folder to write; it must not exist yet.")
@click.option("--sizes", is_flag=True, help="Write nothing: tell the bytes, by shape, without weights.")
@click.option(
    "--method",
    type=shared.Name(["rtn", "hqq", "gptq", "milo", "w4a8"]),
    default="milo",
    show_default=True,
    help="How.",
)
@click.option("--bits", type=shared.WholeRange(2, 8), help="Of a weight's code.  [default: 3; w4a8 has 4]")
@click.option(
    "--group", "--block", type=shared.WholeNumber("row"), default=64, show_default=True, metavar="N|row",
    help="Weights that share a scale: so many neighbours of a row, or all.",
)  # fmt: skip
@click.option("--symmetric", is_flag=True, help="rtn, w4a8: no zeros are stored, grids lie around 0.")
@click.option(
    "--activations", type=shared.Name(["row", "block"]),
    help="w4a8: what of a product's input shares a scale, a token or its part of a group.  [default: row]",
)  # fmt: skip
@click.option(
    "--head", type=shared.Name(["8", "float"]), help="w4a8: the head in 8 bits, or as it is.  [default: float]"
)
@click.option("--ranks", metavar="POLICY", help="milo: compensators, such as uniform-8 or dense-512+kurtosis-16.")
@click.option("--budget", metavar="BYTES", help="milo: of the compensators, as 200MiB; --ranks leaves a rank open.")
@click.option("--compensator-bits", type=shared.Name(["3", "8", "16"]), help="milo: of the compensators.  [default: 3]")
@click.option("--rounds", type=shared.WholeRange(1), help="milo: of the loop, at most.  [default: 20]")
@click.option("--calibration", metavar="FILE", help="gptq, frequencies: text to run.  [default: stories]")
@click.option(
    "--calibration-stories", type=shared.WholeRange(1), help="gptq, frequencies: their number.  [default: 256]"
)
@click.option("--seed", type=shared.WholeRange(0), help="gptq, frequencies: of these stories.  [default: 0]")
@click.option("--held-out", metavar="FILE", help="Text to measure perplexity on.  [default: stories of another seed]")
@click.option("--held-out-stories", type=shared.WholeRange(0), help="0: measure no perplexity.  [default: 200]")
@shared.form()
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
        quantize(QuantizeOptions(**options))
    except Exception as error:
        sys.exit(failure.report_alone(error))


@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """What the command is given; None is what is left away."""

    model: str
    out: str | None
    sizes: bool
    method: str
    bits: int | None
    group: GroupSize
    symmetric: bool
    activations: Activations | None
    head: str | None
    ranks: str | None
    budget: str | None
    compensator_bits: str | None
    rounds: int | None
    calibration: str | None
    calibration_stories: int | None
    seed: int | None
    held_out: str | None
    held_out_stories: int | None
    form: str
    json_path: str | None
    quiet: bool


def quantize(options: QuantizeOptions) -> None:
    """Check what was asked; then tell sizes, or quantize, write and measure."""
    from meshrt.models.catalogue import find_model
    from meshrt.ranks.console import make_console
    from meshrt.ranks.files import check_target
    from meshrt.reports import report
    from meshrt.studies import quantized

    check(options)
    if options.json_path and options.json_path != "-":
        check_target("--json", options.json_path)
    console = make_console(0, 1, options.quiet or options.json_path == "-" or shared.for_programs(options.form))
    folder = find_model(options.model)
    document: dict[str, Any] = {"schema": report.SCHEMA, "model": options.model}
    document |= sizes_of(options, folder) if options.sizes else written(options, folder, console)
    console.clear()
    report.deliver_json(document, options.json_path)
    if not options.quiet and options.json_path != "-":
        quantized.print_report(document, options.form)


def check(options: QuantizeOptions) -> None:
    """UsageError for what a method or another option has no use for, and for what it lacks."""
    from meshrt.errors import UsageError

    method, ranks = options.method, options.ranks
    if (options.out is None) != options.sizes:
        raise UsageError("give --out DIR to write a folder, or --sizes to be told its bytes, one of the two")
    of_compensators = {"--budget": options.budget, "--compensator-bits": options.compensator_bits}
    only: dict[str, dict[str, Any]] = {
        "milo": {"--ranks": ranks, **of_compensators, "--rounds": options.rounds},
        "rtn or w4a8": {"--symmetric": options.symmetric or None},
        "w4a8": {"--activations": options.activations, "--head": options.head},
    }
    for owners, values in only.items():
        if method not in owners.split(" or "):
            refuse(values, f"--method {owners}; {method} has no use for it")
    if method == "w4a8" and options.bits not in (None, 4):
        raise UsageError(f"--bits {options.bits}: w4a8 has 4 bits a weight; leave it away, or take --method rtn")
    of_text = {"--calibration": options.calibration, "--calibration-stories": options.calibration_stories}
    of_text |= {"--seed": options.seed}
    if not reads_text(options):
        refuse(of_text, f"--method gptq and --ranks frequency-R; {method} has no use for it")
    if options.sizes:
        of_held_out = {"--held-out": options.held_out, "--held-out-stories": options.held_out_stories}
        refuse({"--rounds": options.rounds, **of_held_out, **of_text},
               "--out; --sizes quantizes nothing and has no use for it")  # fmt: skip
    if ranks is None and ([*of_compensators.values()] != [None, None] or (method == "milo" and not options.sizes)):
        raise UsageError("--method milo needs --ranks, such as uniform-8; without compensators it is --method hqq")
    check_group_option(options.group)


def reads_text(options: QuantizeOptions) -> bool:
    """Is a text run first: for gptq, or to see how often experts are chosen?"""
    from meshrt.models.quantize.policies import needs_text, parse

    return options.method == "gptq" or (options.ranks is not None and needs_text(parse(options.ranks)))


def scheme_of(options: QuantizeOptions) -> CodeScheme:
    """How the matrices are coded, with what was left away."""
    from meshrt.models.quantize.sizes import CodeScheme

    eight = options.activations or "row" if options.method == "w4a8" else None
    bits = options.bits or (4 if eight else 3)
    compensator_bits = int(options.compensator_bits or 3) if options.ranks else 16
    return CodeScheme(
        options.method, bits, options.group, options.symmetric, compensator_bits, eight, options.head == "8"
    )


def recipe_of(scheme: CodeScheme) -> dict[str, Any]:
    """What the report says of a scheme, beside its compensators."""
    of_codes = {name: getattr(scheme, name) for name in ("method", "bits", "group", "symmetric")}
    if scheme.activations is None:
        return of_codes
    return of_codes | {"activations": scheme.activations, "head": "8" if scheme.head else "float"}


def sizes_of(options: QuantizeOptions, folder: Path) -> dict[str, Any]:
    """What the report says of a model by its shapes alone. UsageError, ModelError."""
    from meshrt.models.quantize.choice import choose
    from meshrt.models.quantize.shapes import read_shapes
    from meshrt.models.quantize.sizes import sizes

    scheme, shapes, budget = scheme_of(options), read_shapes(folder), budget_of(options)
    chosen, policy = choose(shapes, scheme, options.ranks, budget, None) if options.ranks else ({}, {})
    return {"recipe": recipe_of(scheme) | policy, **sizes(shapes, scheme, chosen)}


def written(options: QuantizeOptions, folder: Path, console: Console) -> dict[str, Any]:
    """Write the folder; what the report says of it. UsageError, ModelError."""
    from threadpoolctl import threadpool_limits

    from meshrt.studies import quantized

    assert options.out is not None
    calibration = None
    if reads_text(options):
        calibration = shared.calibration_text(options.calibration, options.calibration_stories, options.seed)
    held_out = shared.held_out_text(options.held_out, options.held_out_stories)
    scheme = scheme_of(options)
    with threadpool_limits(1, "blas"):  # bits are those of any number of threads; more are slower on small matrices
        return {"out": options.out} | quantized.write(
            console, folder, options.out, scheme, recipe_of(scheme), options.ranks, budget_of(options),
            options.rounds or 20, calibration, held_out,
        )  # fmt: skip


def refuse(options: Mapping[str, object], owner: str) -> None:
    """UsageError for those that are given: they go with something else."""
    from meshrt.errors import UsageError

    for name, value in options.items():
        if value is not None:
            raise UsageError(f"{name} goes with {owner}")


def check_group_option(group: GroupSize) -> None:
    """UsageError for a number of weights that no group can have."""
    from meshrt.errors import UsageError
    from meshrt.models.quantize.form import check_group

    try:
        if group != "row":
            check_group(group)
    except ValueError as error:
        raise UsageError(f"--group: {str(error).removeprefix('has ')}") from error


def budget_of(options: QuantizeOptions) -> int | None:
    """The bytes of --budget, a whole number of bytes, KiB, MiB or GiB: '200MiB' is 209715200. UsageError."""
    from meshrt.errors import UsageError

    text = options.budget
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,12})(KiB|MiB|GiB|)", text)
    if match is None:
        raise UsageError(f"--budget {text!r}: give a whole number of bytes, or of KiB, MiB or GiB, such as 200MiB")
    return int(match[1]) * UNITS[match[2]]
