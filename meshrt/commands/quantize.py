"""`meshrt quantize`: a model's matrices in a few bits, as a new model folder; or what that takes, by shape."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.ranks import failure

if TYPE_CHECKING:
    from meshrt.models.quantize.form import Activations, GroupSize

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
        quantize(**options)
    except Exception as error:
        sys.exit(failure.report_alone(error))


def quantize(
    *, model: str, out: str | None, sizes: bool, method: str, bits: int | None, group: GroupSize, symmetric: bool,
    activations: Activations | None, head: str | None, ranks: str | None, budget: str | None,
    compensator_bits: str | None, rounds: int | None, calibration: str | None,
    calibration_stories: int | None, seed: int | None, held_out: str | None, held_out_stories: int | None,
    form: str, json_path: str | None, quiet: bool,
) -> None:  # fmt: skip
    """Check what was asked; then tell sizes, or quantize, write and measure."""
    from threadpoolctl import threadpool_limits

    from meshrt import report
    from meshrt.errors import UsageError
    from meshrt.models.catalogue import find_model
    from meshrt.models.quantize.choice import choose
    from meshrt.models.quantize.policies import needs_text, parse
    from meshrt.models.quantize.shapes import read_shapes
    from meshrt.models.quantize.sizes import CodeScheme
    from meshrt.models.quantize.sizes import sizes as sizes_of
    from meshrt.ranks.console import make_console
    from meshrt.ranks.files import check_target
    from meshrt.studies import quantized

    if (out is None) != sizes:
        raise UsageError("give --out DIR to write a folder, or --sizes to be told its bytes, one of the two")
    only: dict[str, dict[str, Any]] = {
        "milo": {"--ranks": ranks, "--budget": budget, "--compensator-bits": compensator_bits, "--rounds": rounds},
        "rtn or w4a8": {"--symmetric": symmetric or None},
        "w4a8": {"--activations": activations, "--head": head},
    }
    for owners, values in only.items():
        if method not in owners.split(" or "):
            refuse(values, f"--method {owners}; {method} has no use for it")
    if method == "w4a8" and bits not in (None, 4):
        raise UsageError(f"--bits {bits}: w4a8 has 4 bits a weight; leave it away, or take --method rtn")
    text = {"--calibration": calibration, "--calibration-stories": calibration_stories, "--seed": seed}
    reads_text = method == "gptq" or (ranks is not None and needs_text(parse(ranks)))
    if not reads_text:
        refuse(text, f"--method gptq and --ranks frequency-R; {method} has no use for it")
    if sizes:
        of_a_folder = {"--rounds": rounds, "--held-out": held_out, "--held-out-stories": held_out_stories, **text}
        refuse(of_a_folder, "--out; --sizes quantizes nothing and has no use for it")
    if ranks is None and (budget is not None or compensator_bits is not None or (method == "milo" and not sizes)):
        raise UsageError("--method milo needs --ranks, such as uniform-8; without compensators it is --method hqq")
    check_group_option(group)
    if json_path and json_path != "-":
        check_target("--json", json_path)
    console = make_console(0, 1, quiet or json_path == "-" or shared.for_programs(form))
    folder = find_model(model)
    eight = activations or "row" if method == "w4a8" else None
    bits = bits or (4 if eight else 3)
    scheme = CodeScheme(method, bits, group, symmetric, int(compensator_bits or 3) if ranks else 16, eight, head == "8")
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
            document |= {"out": out} | quantized.write(
                console, folder, out, scheme, recipe, ranks, most, rounds or 20,
                (calibration, count, seed or 0) if reads_text else None,
                (held_out, 200 if held_out_stories is None else held_out_stories),
            )  # fmt: skip
    console.clear()
    report.deliver_json(document, json_path)
    if not quiet and json_path != "-":
        quantized.print_report(document, form)


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


def _bytes(text: str) -> int:
    """'200MiB' -> 209715200: a whole number of bytes, KiB, MiB or GiB. UsageError."""
    from meshrt.errors import UsageError

    match = re.fullmatch(r"([0-9]{1,12})(KiB|MiB|GiB|)", text)
    if match is None:
        raise UsageError(f"--budget {text!r}: give a whole number of bytes, or of KiB, MiB or GiB, such as 200MiB")
    return int(match[1]) * UNITS[match[2]]
