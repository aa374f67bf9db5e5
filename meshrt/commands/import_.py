"""`meshrt import`: a model that others wrote, as a model folder that every machine runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from meshrt.commands import shared
from meshrt.ranks.failing import failure

if TYPE_CHECKING:
    from pathlib import Path

    from meshrt.models.foreign.model import Foreign


@click.command("import")
@click.argument("source")
@click.option("--out", metavar="DIR", help="The folder to write; it must not exist yet.")
@click.option(
    "--activations", type=shared.Name(["row", "block", "float"]),
    help="Inputs of products: 8 bits with a scale a token or a group, or as they are.  [default: as the model says]",
)  # fmt: skip
@click.option("--passes", is_flag=True, help="Of an ONNX file: stop after the passes, and write no folder.")
@click.option("--dump", metavar="FILE", help="Of an ONNX file: write the graph as it is after the passes.")
@shared.json_to("the report")
@shared.quiet
def command(**options: Any) -> None:
    """Write SOURCE, a model that others wrote, as a model folder, with its codes as they are.

    SOURCE is a GGUF file (architectures llama and qwen2, matrices in Q4_0, Q4_1, Q8_0, or not quantized), a Hugging
    Face folder of compressed-tensors (pack-quantized, 4 or 8 bits), or an ONNX file. Nothing is rounded anew but scales
    to float16 where they are in bfloat16 or float32, and, to float16, an embedding or head that is in blocks.

    An ONNX file (`pip install onnx onnx-ir onnxscript`) goes through passes that fold, merge and fuse its nodes; a
    table of them is printed. A LLaMA or Qwen2 becomes a model folder, another graph one of operators for `meshrt run
    graph`.

    \b
    Examples:
      meshrt import tinyllama.Q4_0.gguf --out tinyllama-q4
      meshrt import Llama-3.2-1B-W4A8 --out llama-w4a8
      meshrt import decoder.onnx --out decoder
      meshrt import decoder.onnx --passes --dump fused.onnx
      meshrt run llama --model tinyllama-q4
    """
    try:
        shared.refuse_ranks("this writes one folder, in one process")
        import_model(**options)
    except Exception as error:
        sys.exit(failure.report_alone(error))


def import_model(
    *, source: str, out: str | None, activations: str | None, passes: bool, dump: str | None, json_path: str | None,
    quiet: bool,
) -> None:  # fmt: skip
    """Read, check, write, tell."""
    import os
    from pathlib import Path

    from meshrt.errors import UsageError
    from meshrt.models.folders.writing import check_new_folder
    from meshrt.models.foreign.compressed import is_compressed, read_compressed
    from meshrt.models.foreign.ggufmodel import read_gguf
    from meshrt.ranks.console import make_console
    from meshrt.ranks.files import check_target
    from meshrt.reports import report

    if json_path and json_path != "-":
        check_target("--json", json_path)
    console = make_console(0, 1, quiet or json_path == "-")
    path = Path(os.path.expanduser(source))
    if passes and out is not None:
        raise UsageError("--passes stops before a folder is written: leave --out away")
    if out is None and not passes:
        raise UsageError("--out is missing: name the folder to write")
    if out is not None:
        check_new_folder(out)
    if path.suffix == ".onnx" and path.is_file():
        document = import_onnx(path, out, activations, dump)
    elif passes or dump is not None:
        raise UsageError(f"--passes and --dump are for ONNX files, and {source} is none")
    else:
        assert out is not None
        if path.is_dir() and is_compressed(path):
            foreign = read_compressed(path)
        elif path.is_file():
            foreign = read_gguf(path)
        else:
            problem = "is a folder whose config.json has no quantization_config" if path.is_dir() else "is not there"
            raise UsageError(f"{source} {problem}: give a GGUF or ONNX file, or a folder of compressed-tensors")
        document = as_folder(out, foreign, activations)
    document = {"schema": report.SCHEMA, "source": source} | document
    report.deliver_json(document, json_path)
    if console.loud:
        print_report(document)


def as_folder(out: str, foreign: Foreign, activations: str | None) -> dict[str, Any]:
    """Writes a model; what the report says of it."""
    from pathlib import Path

    from meshrt.models.foreign.model import write

    chosen: Any = foreign.activations if activations is None else None if activations == "float" else activations
    figures = write(out, foreign, chosen)
    has_tokenizer = (Path(out) / "tokenizer.json").is_file()
    return {"out": out, "model_type": foreign.config["model_type"], "tokenizer": has_tokenizer, **figures}


def import_onnx(path: Path, out: str | None, activations: str | None, dump: str | None) -> dict[str, Any]:
    """Reads a graph, runs the passes, writes what it is."""
    from meshrt.errors import UsageError
    from meshrt.ranks.files import check_target

    try:
        from meshrt.models.onnx import model as onnx
    except ModuleNotFoundError as error:
        raise UsageError(f"ONNX files need the package {error.name}: pip install onnx onnx-ir onnxscript") from None
    if dump is not None:
        check_target("--dump", dump)
    read = onnx.read_onnx(path)
    passes = [{"name": pass_.name, "by": pass_.by, "nodes": pass_.nodes} for pass_ in read.passes]
    document: dict[str, Any] = {"passes": passes}
    if dump is not None:
        onnx.save(read, dump)
    if out is None:
        return document
    if read.decoder is not None:
        return as_folder(out, read.decoder, activations) | document
    if activations is not None:
        raise UsageError(f"{path}: --activations is for models, and this graph is none that is known")
    return {"out": out, "model_type": "graph", **onnx.write_graph(out, read)} | document


def print_report(document: dict[str, Any]) -> None:
    """The passes, if there are; one line of what was written, and one of what is missing."""
    for row in document.get("passes", ()):
        print(f"{row['name']:24} {row['by']:12} {row['nodes']:7,} nodes")
    if "out" not in document:
        return
    if document["model_type"] == "graph":
        print(f"{document['out']}: {document['nodes']} operators, {document['bytes']:,} bytes of constants;"
              f" meshrt run graph --model {document['out']}")  # fmt: skip
        return
    key = document["quantized"]
    description = "not quantized"
    if key:
        kind = "symmetric" if key["symmetric"] else "with offsets" if key.get("offset") else "with zeros"
        description = f"{document['matrices']} matrices of {key['bits']} bits in groups of {key['group']}, {kind}"
        if key.get("activations"):
            description += f", activations of 8 bits by {key['activations']}"
    print(f"{document['out']}: {document['model_type']}, {description}; {document['bytes']:,} bytes of weights")
    if not document["tokenizer"]:
        print("no tokenizer that is known: give prompts as --prompt-ids, or copy a tokenizer.json into the folder")
