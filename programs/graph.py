"""A graph of operators on the mesh: what `meshrt import` makes of an ONNX file that is no decoder."""

from contextlib import ExitStack
from functools import partial
from typing import Annotated, Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import allreduce, ktree
from meshrt.options import FILE, HOST, WRITTEN, AtLeast
from meshrt.programs.feeding import check_outputs, feeds_of, graph_of, told
from meshrt.programs.mesh.graph.operators import run_operators
from meshrt.programs.mesh.graph.values import Axis, MeshMachine, gathered

MESH = (4, 4)


def run(
    block: Block,
    *,
    model: Annotated[str | None, "a folder that `meshrt import` made of an ONNX file", FILE] = None,
    sizes: Annotated[str | None, "of what the graph has a name for, as S=4,T=9"] = None,
    inputs: Annotated[str | None, "FILE.npz with arrays by the names of inputs  [default: random ones]", FILE] = None,
    outputs: Annotated[str | None, "FILE.npz to write the outputs to", HOST, WRITTEN] = None,
    phases: Annotated[int, "K: phases of the trees that sums are made by", AtLeast(1)] = 2,
    seed: Annotated[int | None, "of the random inputs  [default: 0]", AtLeast(0)] = None,
) -> dict[str, Any]:
    """Run a graph of operators: each product changes the axis that numbers are cut along, and ends in an allreduce.

    The report has the largest error of the outputs against the same graph in float64.

    \b
    Examples:
      meshrt import mlp.onnx --out mlp
      meshrt run graph --model mlp --mesh 4x4
      meshrt run graph --model mlp --sizes batch=3 --on arm
    """
    check_outputs(outputs, block.payload)
    graph = graph_of(model)
    feeds = feeds_of(graph, sizes, inputs, seed)
    with ExitStack() as stack:
        axes: tuple[Axis, Axis] = ("x", "y")
        trees = {axis: stack.enter_context(ktree(block, axis, phases)) for axis in axes}
        sums = {axis: partial(_in_place, block, tree) for axis, tree in trees.items()}
        machine = MeshMachine(block, sums)
        with block.phase("graph"):
            values = run_operators(machine, graph, feeds)
        if not block.payload:
            return {"operators": len(graph.nodes)}
        whole = {name: gathered(machine, value) for name, value in values.items()}
    return {"operators": len(graph.nodes)} | told(graph, feeds, whole, outputs)


def _in_place(block: Block, tree: Any, tiles: np.ndarray, combine: Any = np.add) -> np.ndarray:
    return allreduce(block, tree, tiles, combine, None, tiles)
