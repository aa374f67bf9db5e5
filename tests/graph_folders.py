"""Folders of graphs of operators, without the libraries for ONNX: two products with a ReLU between them."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


def lay_graph(folder: Path, width: int) -> Path:
    """x [S, 12] -> y [S, 8], `width` numbers between."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(width)
    shapes = {"a": (12, width), "b": (width, 8)}
    names = [("MatMul", ["x", "a"], "h"), ("Relu", ["h"], "r"), ("MatMul", ["r", "b"], "y")]
    said = {
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["S", 12]}], "outputs": ["y"], "constants": [*shapes],
        "nodes": [
            {"op": op, "name": made, "inputs": given, "output": made, "attributes": {}} for op, given, made in names
        ],
    }  # fmt: skip
    (folder / "graph.json").write_text(json.dumps(said))
    tensors = {f"t{at}": rng.standard_normal(shape, np.float32) for at, shape in enumerate(shapes.values())}
    save_file(tensors, folder / "model.safetensors")
    return folder
