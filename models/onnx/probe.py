"""Parts of a graph, run on small numbers: what a mask, a rotary table or a chain of reshapes is, however it is spelled.

onnx's own reference runs them, a node at a time, in NumPy.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from meshrt.models.onnx.graphs import STANDARD, above

Array = NDArray[Any]


def evaluate(wanted: Sequence[ir.Value], feeds: Mapping[ir.Value, Array]) -> list[Array] | None:
    """The values, made of those that are given, and of constants. None where they need others, or cannot be run."""
    nodes = [*above(wanted, [*feeds])]
    graph = wanted[0].producer()
    if graph is None or graph.graph is None or any(node.domain not in STANDARD for node in nodes):
        return None
    order = {id(node): at for at, node in enumerate(graph.graph)}
    nodes.sort(key=lambda node: order[id(node)])
    made = {id(value) for node in nodes for value in node.outputs}
    given = {id(value) for value in feeds}
    tensors = {}
    for node in nodes:
        for value in node.inputs:
            if value is None or id(value) in made or id(value) in given:
                continue
            if value.const_value is None or value.is_graph_input():
                return None
            tensors[value.name] = numpy_helper.from_array(value.const_value.numpy(), value.name)
    inputs = [
        helper.make_tensor_value_info(str(value.name), _kind(array), array.shape) for value, array in feeds.items()
    ]
    outputs = [onnx.ValueInfoProto(name=value.name) for value in wanted]
    protos = [ir.serde.serialize_node(node) for node in nodes]
    whole = helper.make_graph(protos, "part", inputs, outputs, [*tensors.values()])
    versions = [helper.make_opsetid(name, number) for name, number in graph.graph.opset_imports.items()]
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runner = ReferenceEvaluator(helper.make_model(whole, opset_imports=versions))
            results = runner.run(None, {str(value.name): array for value, array in feeds.items()})
    except Exception:  # whatever it is that the reference cannot do with this file's nodes
        return None
    return [np.asarray(result) for result in results]


def _kind(array: Array) -> onnx.TensorProto.DataType:
    kind: onnx.TensorProto.DataType = helper.np_dtype_to_tensor_dtype(array.dtype)
    return kind
