"""What a graph of operators is given, and what is said of what it gives."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from meshrt.errors import UsageError
from meshrt.models.graph import Graph, read_graph, run_graph, shapes_of
from meshrt.ranks import hostmemory
from meshrt.ranks.files import check_target, write_file


def graph_of(model: str | None) -> Graph:
    """UsageError, ModelError."""
    if model is None:
        raise UsageError("--model is missing: name a folder that `meshrt import MODEL.onnx --out DIR` made")
    return read_graph(Path(model).expanduser())


def feeds_of(graph: Graph, sizes: str | None, inputs: str | None, seed: int | None) -> dict[str, np.ndarray]:
    """Inputs by name: those of a file, or normal numbers, ids 0 and true. UsageError, ModelError."""
    if inputs is not None and seed is not None:
        raise UsageError("--seed is of random inputs, and --inputs has others: leave one of them away")
    chosen = parse_sizes(sizes)
    if unknown := [name for name in chosen if name not in graph.names]:
        raise UsageError(
            f"--sizes {sizes}: the graph has no size {unknown[0]!r}; it has {', '.join(graph.names) or 'none'}"
        )
    shapes = shapes_of(graph, chosen)
    rng = np.random.default_rng(seed or 0)
    given = read_arrays(inputs) if inputs is not None else {}
    feeds = {}
    for tensor in graph.inputs:
        shape = shapes[tensor.name]
        hostmemory.require(f"input {tensor.name}", 16 * int(np.prod(shape, dtype=object)))
        if inputs is not None and tensor.name not in given:
            raise UsageError(f"--inputs {inputs} has no array {tensor.name!r}; the graph needs {list(shape)}")
        if tensor.name in given and (given[tensor.name].shape != shape or given[tensor.name].dtype.kind not in "fiub"):
            raise UsageError(
                f"--inputs {inputs}: {tensor.name!r} is {list(given[tensor.name].shape)}, not {list(shape)}"
            )
        if tensor.name in given:
            feeds[tensor.name] = given[tensor.name].astype(tensor.dtype)
        elif tensor.dtype == "float32":
            feeds[tensor.name] = rng.standard_normal(shape, np.float32)
        else:
            feeds[tensor.name] = np.full(shape, tensor.dtype == "bool", tensor.dtype)
    return feeds


def check_outputs(outputs: str | None, payload: bool) -> None:
    """UsageError where there will be no numbers to write, or where they cannot be written."""
    if outputs is None:
        return
    if not payload:
        raise UsageError("--outputs is for numbers, and --payload none has none: leave one of them away")
    check_target("--outputs", outputs and str(Path(outputs).expanduser()))


def read_arrays(name: str) -> dict[str, np.ndarray]:
    """The arrays of an .npz file, which has no pickles. UsageError."""
    try:
        with np.load(Path(name).expanduser(), allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (OSError, ValueError, AttributeError, EOFError, MemoryError, BadZipFile) as error:
        raise UsageError(f"--inputs {name}: cannot be read as an .npz file of arrays: {error}") from None


def parse_sizes(text: str | None) -> dict[str, int]:
    """'S=4,T=9' -> {'S': 4, 'T': 9}. UsageError."""
    sizes = {}
    for part in text.split(",") if text else ():
        name, sign, number = part.rpartition("=")
        if not sign or not number.isdecimal() or not 0 < int(number[:9]) < 1 << 24 or len(number) > 8:
            raise UsageError(f"--sizes {text}: give names and whole numbers, such as S=4,T=9")
        sizes[name] = int(number)
    return sizes


def told(
    graph: Graph, feeds: dict[str, np.ndarray], results: dict[str, np.ndarray | None], outputs: str | None
) -> dict[str, Any]:
    """What the report says of the outputs, at rank 0: errors against float64."""
    arrays = {name: array for name, array in results.items() if array is not None}
    if not arrays:
        return {}
    want = run_graph(graph, feeds)
    wide = {name: array.astype(np.float64) for name, array in want.items()}  # truth values as well
    most = max(_apart(array, wide[name]) for name, array in arrays.items())
    largest = max(float(np.abs(array[np.isfinite(array)]).max(initial=0)) for array in wide.values())
    if outputs is not None:
        path = str(Path(outputs).expanduser())
        named: dict[str, Any] = arrays  # else one of them could be savez's own allow_pickle, for all that mypy knows
        write_file("--outputs", path, lambda stream: np.savez(stream, **named))
    errors = (most, most / (largest or 1.0)) if most < np.inf else (None, None)
    return {"outputs": {name: list(array.shape) for name, array in arrays.items()}, "max_abs_error": errors[0],
            "max_rel_error": errors[1]}  # fmt: skip


def _apart(result: np.ndarray, truth: np.ndarray) -> float:
    """The largest difference; what is infinite or no number has to be so in both, else it is infinite."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(result - truth)
    apart[(result == truth) | (np.isnan(result) & np.isnan(truth))] = 0
    return float(np.nan_to_num(apart, nan=np.inf, posinf=np.inf).max(initial=0))
