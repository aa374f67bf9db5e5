"""An ONNX file as what it is: a decoder, or a graph of operators."""

from pathlib import Path
from typing import Any

import onnx_ir as ir

from meshrt.models.errors import ModelError
from meshrt.models.foreign.model import Foreign
from meshrt.models.onnx.decoder import is_decoder, read_decoder
from meshrt.models.onnx.passes import CLEAN, FUSE, Done, run_passes
from meshrt.models.onnx.read import read_graph
from meshrt.records import dataclass


@dataclass(frozen=True)
class ReadGraph:
    """A graph after its passes; the decoder that it is, or, as it was before fusion, a graph of operators."""

    path: Path
    graph: ir.Model
    passes: list[Done]
    decoder: Foreign | None


def read_onnx(path: Path) -> ReadGraph:
    """Raises ModelError."""
    model = read_graph(path)
    done = [Done("as read", "", len(model.graph)), *run_passes(model, CLEAN, path)]
    plain = model.clone()
    done += run_passes(model, FUSE, path)
    if is_decoder(model.graph):
        return ReadGraph(path, model, done, read_decoder(model, path))
    return ReadGraph(path, plain, done[: len(CLEAN) + 1], None)


def save(read: ReadGraph, name: str) -> None:
    """The graph as it is after the passes; fused operators are of the domain `meshrt`. ModelError."""
    try:
        ir.save(read.graph, name)
    except Exception as error:  # of protobuf, whose files end at 2 GiB, or of the disk
        raise ModelError(f"{name}: cannot be written: {error}") from None


def write_graph(out: str, read: ReadGraph) -> dict[str, Any]:
    from meshrt.models.onnx.operators import write

    return write(out, read.graph.graph, read.path)
