"""`meshrt import`: a model that others quantized, as a model folder that every machine runs."""

from __future__ import annotations

import sys
from typing import Any

import click

from meshrt.commands import shared
from meshrt.ranks import failure


@click.command("import")
@click.argument("source")
@click.option("--out", required=True, metavar="DIR", help="The folder to write; it must not exist yet.")
@click.option(
    "--activations", type=click.Choice(["row", "block", "float"]),
    help="Inputs of products: 8 bits with a scale a token or a group, or as they are.  [default: as the model says]",
)  # fmt: skip
@shared.json_to("the report")
@shared.quiet
def command(**options: Any) -> None:
    """Write SOURCE, a model that others quantized, as a model folder, with its codes as they are.

    SOURCE is a GGUF file (architectures llama and qwen2, matrices in Q4_0, Q4_1, Q8_0, or not quantized) or a Hugging
    Face folder of compressed-tensors (pack-quantized, 4 or 8 bits). Nothing is rounded anew but scales to float16 where
    they are in bfloat16 or float32, and, to float16, an embedding or head that is in blocks.

    \b
    Examples:
      meshrt import tinyllama.Q4_0.gguf --out tinyllama-q4
      meshrt import Llama-3.2-1B-W4A8 --out llama-w4a8
      meshrt run llama --model tinyllama-q4
    """
    try:
        shared.refuse_ranks("this writes one folder, in one process")
        import_model(**options)
    except Exception as error:
        sys.exit(failure.report_alone(error))


def import_model(*, source: str, out: str, activations: str | None, json_path: str | None, quiet: bool) -> None:
    """Read, check, write, tell."""
    import os
    from pathlib import Path

    from meshrt import report
    from meshrt.errors import UsageError
    from meshrt.models.folder import check_new_folder
    from meshrt.models.foreign.compressed import is_compressed, read_compressed
    from meshrt.models.foreign.ggufmodel import read_gguf
    from meshrt.models.foreign.model import write
    from meshrt.ranks.console import make_console
    from meshrt.ranks.files import check_target

    if json_path and json_path != "-":
        check_target("--json", json_path)
    console = make_console(0, 1, quiet or json_path == "-")
    check_new_folder(out)
    path = Path(os.path.expanduser(source))
    if path.is_dir() and is_compressed(path):
        foreign = read_compressed(path)
    elif path.is_file():
        foreign = read_gguf(path)
    else:
        what = "is a folder whose config.json has no quantization_config" if path.is_dir() else "is not there"
        raise UsageError(f"{source} {what}: give a GGUF file, or a folder of compressed-tensors")
    chosen: Any = foreign.activations if activations is None else None if activations == "float" else activations
    told = write(out, foreign, chosen)
    document = {
        "schema": report.SCHEMA, "source": source, "out": out, "model_type": foreign.config["model_type"],
        "tokenizer": (Path(out) / "tokenizer.json").is_file(), **told,
    }  # fmt: skip
    report.deliver_json(document, json_path)
    if console.loud:
        print_report(document)


def print_report(document: dict[str, Any]) -> None:
    """One line of what was written, and one of what is missing."""
    key = document["quantized"]
    what = "not quantized"
    if key:
        kind = "symmetric" if key["symmetric"] else "with offsets" if key.get("offset") else "with zeros"
        what = f"{document['matrices']} matrices of {key['bits']} bits in groups of {key['group']}, {kind}"
        if key.get("activations"):
            what += f", activations of 8 bits by {key['activations']}"
    print(f"{document['out']}: {document['model_type']}, {what}; {document['bytes']:,} bytes of weights")
    if not document["tokenizer"]:
        print("no tokenizer that is known: give prompts as --prompt-ids, or copy a tokenizer.json into the folder")
