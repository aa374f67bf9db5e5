"""Graphs of operators as folders: what `meshrt import` makes of an ONNX file that is no decoder.

`graph.json` has inputs (name, dtype, shape with names for sizes that a run chooses), outputs, and nodes in order:
operator, the names of what it takes, of what it makes, and its attributes. Constants are in model.safetensors. The
operators are a few of ONNX's, each in one spelling, with axes that are not negative; `compute` is their definition.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import open_checkpoint
from meshrt.models.folders.files import find_file, read_object
from meshrt.models.keys import Keys
from meshrt.records import dataclass

Array = NDArray[Any]
FILE = "graph.json"
MAX_NODES, MAX_NUMBERS = 100_000, 1 << 28

_erf: Callable[[Array], Array] = np.vectorize(math.erf, otypes=[np.float64])
UNARY: dict[str, Callable[[Array], Array]] = {
    "Abs": np.abs, "Neg": np.negative, "Exp": np.exp, "Log": np.log, "Sqrt": np.sqrt, "Reciprocal": lambda x: 1 / x,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Tanh": np.tanh, "Relu": lambda x: np.maximum(x, 0), "Sin": np.sin,
    "Cos": np.cos, "Erf": lambda x: np.asarray(_erf(x), x.dtype), "Identity": lambda x: x, "Not": np.logical_not,
}  # fmt: skip
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power, "Max": np.maximum,
    "Min": np.minimum, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater, "Equal": np.equal,
    "GreaterOrEqual": np.greater_equal, "And": np.logical_and, "Or": np.logical_or,
}  # fmt: skip
REDUCE: dict[str, Callable[..., Array]] = {
    "ReduceMean": np.mean, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min,
}  # fmt: skip
MOVES = ("Reshape", "Transpose", "Concat", "Slice", "Gather", "Expand")
# Of floats alone; the others take whole numbers and truth values where ONNX's do.
FLOATS = ("MatMul", "Softmax", "Div", "Pow", "ReduceMean", "Exp", "Log", "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "Sin",
          "Cos", "Erf")  # fmt: skip
OPERATORS = ("MatMul", "Where", "Softmax", *UNARY, *BINARY, *REDUCE, *MOVES)


@dataclass(frozen=True)
class Node:
    op: str
    name: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True)
class Input:
    name: str
    dtype: str  # float32, int64 or bool
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Graph:
    """`constants` by name, float32, int64 or bool."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]

    @property
    def names(self) -> list[str]:
        """The sizes that a run chooses."""
        return sorted({size for value in self.inputs for size in value.shape if isinstance(size, str)})


def read_graph(folder: Path) -> Graph:
    """Raises ModelError."""
    source = find_file(folder, FILE)
    if source is None:
        raise ModelError(f"{folder}: has no {FILE}: `meshrt import MODEL.onnx --out DIR` writes such folders")
    read = Keys(read_object(source), str(source))
    inputs = tuple(_input(Keys(entry, str(source), "inputs.")) for entry in _objects(read, "inputs"))
    nodes = tuple(_node(Keys(entry, str(source), "nodes.")) for entry in _objects(read, "nodes"))
    outputs, tensors = _names(read, "outputs"), _names(read, "constants")
    dtypes = read.get("dtypes", dict, {})
    checkpoint = open_checkpoint(folder)
    constants = {}
    for at, name in enumerate(tensors):
        kind = dtypes.get(name, "float32")
        if kind not in ("float32", "int64", "bool"):
            raise read.bad("dtypes", f"has {kind!r} for {name}")
        constants[name] = checkpoint.read(f"t{at}").astype(kind)
        if not np.isfinite(constants[name]).all() and kind != "float32":
            raise ModelError(f"{folder}: constant {name} is not finite")
    made = {value.name for value in inputs} | set(constants)
    for node in nodes:
        if missing := [name for name in node.inputs if name not in made]:
            raise read.bad("nodes", f"{node.name} takes {missing[0]!r}, which nothing before it makes")
        made.add(node.output)
    if missing := [name for name in outputs if name not in made]:
        raise read.bad("outputs", f"has {missing[0]!r}, which nothing makes")
    return Graph(inputs, outputs, nodes, constants)


def _objects(read: Keys, key: str) -> list[dict[str, Any]]:
    objects = read.get(key, list)
    if len(objects) > MAX_NODES or not all(isinstance(entry, dict) for entry in objects):
        raise read.bad(key, f"is no list of up to {MAX_NODES} objects")
    return list(objects)


def _names(read: Keys, key: str) -> tuple[str, ...]:
    names = read.get(key, list)
    if not all(isinstance(name, str) for name in names):
        raise read.bad(key, "is no list of names")
    return tuple(names)


def _input(read: Keys) -> Input:
    shape, dtype = read.get("shape", list), read.get("dtype", str)
    if dtype not in ("float32", "int64", "bool") or not all(
        (type(size) is int and 0 < size < MAX_NUMBERS) or isinstance(size, str) for size in shape
    ):
        raise read.bad("shape", f"is {shape} of {dtype}")
    return Input(read.get("name", str), dtype, tuple(shape))


def _node(read: Keys) -> Node:
    op = read.get("op", str)
    if op not in OPERATORS:
        raise read.bad("op", f"is {op!r}; there are {', '.join(OPERATORS)}")
    name = read.get("name", str)
    return Node(op, name, _names(read, "inputs"), read.get("output", str), read.get("attributes", dict, {}))


# ------------------------------------------------------------------------------------------------------- definition


def compute(node: Node, given: Sequence[Array], lead: int = 0) -> Array:
    """What a node makes of arrays. ModelError naming it. `lead`: so many axes in front are none of the operator's."""
    try:
        with np.errstate(all="ignore"):
            result = np.asarray(_compute(node, given, lead))
    except (ValueError, IndexError, TypeError, KeyError, ZeroDivisionError) as error:
        shapes = ", ".join(str(list(array.shape[lead:])) for array in given)
        raise ModelError(f"node {node.name} ({node.op}) does not go with {shapes}: {error}") from None
    if result.size > MAX_NUMBERS:
        raise ModelError(f"node {node.name} ({node.op}) makes {result.size} numbers; the limit is {MAX_NUMBERS}")
    return result


def _compute(node: Node, given: Sequence[Array], lead: int) -> Array:
    op, said = node.op, node.attributes
    if op in FLOATS and (other := next((array.dtype for array in given if array.dtype.kind != "f"), None)):
        raise TypeError(f"it is of floats, not {other}")
    if op in UNARY:
        return UNARY[op](given[0])
    if op in BINARY or op == "Where":
        same = aligned(given, lead)
        return np.where(*same) if op == "Where" else BINARY[op](*same)
    if op == "MatMul":
        return np.matmul(*aligned(given, lead))
    if op in REDUCE:
        axes = tuple(axis + lead for axis in said["axes"])
        return REDUCE[op](given[0], axis=axes, keepdims=bool(said["keepdims"]))
    if op == "Softmax":
        axis = said["axis"] + lead
        raised = np.exp(given[0] - given[0].max(axis=axis, keepdims=True))
        return np.asarray(raised / raised.sum(axis=axis, keepdims=True))
    front = given[0].shape[:lead]
    if op == "Reshape":
        new = [given[0].shape[lead + at] if size == 0 else size for at, size in enumerate(said["shape"])]
        return given[0].reshape(*front, *new)
    if op == "Transpose":
        return given[0].transpose(*range(lead), *(axis + lead for axis in said["perm"]))
    if op == "Concat":
        most = np.broadcast_shapes(*(array.shape[:lead] for array in given))
        full = [np.broadcast_to(array, (*most, *array.shape[lead:])) for array in given]
        return np.concatenate(full, said["axis"] + lead)
    if op == "Slice":
        index: list[slice] = [slice(None)] * given[0].ndim
        for axis, low, high, step in said["parts"]:
            index[axis + lead] = slice(low, high, step)
        return given[0][tuple(index)]
    if op == "Gather":
        indices = given[1].reshape(given[1].shape[lead:]) if lead else given[1]
        limit = given[0].shape[said["axis"] + lead]
        if indices.size and not -limit <= indices.min() <= indices.max() < limit:
            raise ValueError(f"index outside 0..{limit - 1}")
        return np.take(given[0], indices, said["axis"] + lead)
    shape = np.broadcast_shapes(given[0].shape[lead:], tuple(said["shape"]))  # Expand
    return np.broadcast_to(aligned([given[0], np.empty((1,) * lead + shape)], lead)[0], (*front, *shape))


def aligned(given: Sequence[Array], lead: int) -> list[Array]:
    """Of one rank, with axes of 1 put in behind the first `lead`."""
    rank = max(array.ndim for array in given)
    if not lead:
        return list(given)
    return [array.reshape(*array.shape[:lead], *(1,) * (rank - array.ndim), *array.shape[lead:]) for array in given]


def run_graph(graph: Graph, feeds: Mapping[str, Array], dtype: Any = np.float64) -> dict[str, Array]:
    """The outputs, all arithmetic in `dtype`. Raises ModelError."""
    values = {name: _cast(array, dtype) for name, array in {**graph.constants, **feeds}.items()}
    for node in graph.nodes:
        values[node.output] = compute(node, [values[name] for name in node.inputs])
    return {name: values[name] for name in graph.outputs}


def _cast(array: Array, dtype: Any) -> Array:
    with np.errstate(invalid="ignore"):  # NaN of the kind that a processor signals stays NaN
        return array.astype(dtype) if array.dtype.kind == "f" else array


def shapes_of(graph: Graph, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Of the inputs, with numbers for names. ModelError for a name without one."""
    if missing := [name for name in graph.names if name not in sizes]:
        raise ModelError(f"the graph has a size {missing[0]!r}: say how much, such as --sizes {missing[0]}=4")
    return {
        value.name: tuple(size if isinstance(size, int) else sizes[size] for size in value.shape)
        for value in graph.inputs
    }
