"""Small steps on a graph of onnx_ir: what a value is, who makes it, and how it is replaced."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

OURS = "meshrt"  # the domain of fused operators (fuse.py, attention.py)
STANDARD = ("", "ai.onnx")


def is_op(node: ir.Node | None, *names: str, domain: str | None = None) -> bool:
    """Is the node one of these operators of ONNX itself, or of `domain`?"""
    if node is None or node.op_type not in names:
        return False
    return node.domain in STANDARD if domain is None else node.domain == domain


def maker(value: ir.Value | None, *names: str, domain: str | None = None) -> ir.Node | None:
    """The node that makes the value, if it is one of these operators."""
    node = None if value is None else value.producer()
    return node if is_op(node, *names, domain=domain) else None


def constant(value: ir.Value | None) -> NDArray[Any] | None:
    """The numbers of a constant."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    numbers: NDArray[Any] = value.const_value.numpy()
    return numbers


def scalar(value: ir.Value | None) -> float | None:
    """The number of a constant that has one."""
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    numbers = constant(value)
    return None if numbers is None or numbers.dtype.kind not in "iufbV" else float(numbers.reshape(())[()])


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """An attribute's value; tuples for lists."""
    attr = node.attributes.get(name)
    return default if attr is None else attr.value


def ints(node: ir.Node, name: str, at: int) -> list[int] | None:
    """A list that is an attribute in early versions of an operator, and input `at`, a constant, in later ones."""
    values = attribute(node, name)
    if values is not None:
        return [int(n) for n in values]
    value = node.inputs[at] if at < len(node.inputs) else None
    numbers = constant(value)
    return None if numbers is None or numbers.dtype.kind not in "iu" else [int(n) for n in numbers.reshape(-1)]


def sizes(value: ir.Value) -> list[int | str | None] | None:
    """A shape: numbers, names, None for what is not known."""
    if value.shape is None:
        return None
    return [size if isinstance(size, int) else size.value for size in value.shape]


def last_size(value: ir.Value) -> int | None:
    shape = sizes(value)
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def replace(old: ir.Value, new: ir.Value) -> None:
    """`new` wherever `old` is used; as an output of the graph, it takes over its name."""
    if old.is_graph_output():
        if new.is_graph_output() or new.is_graph_input() or new.is_initializer():
            return  # an output has one name, and is made by a node
        old.name, new.name = (old.name or "") + "_", old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def add_constant(graph: ir.Graph, array: NDArray[Any]) -> ir.Value:
    """A constant of the graph."""
    for number in count(len(graph.initializers)):
        name = f"meshrt_{number}"
        if name not in graph.initializers:
            break
    value = ir.Value(
        name=name, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        const_value=ir.tensor(array, name=name),
    )  # fmt: skip
    graph.register_initializer(value)
    return value


def put(before: ir.Node, op: str, inputs: Sequence[ir.Value | None], outputs: int = 1, **attributes: Any) -> ir.Node:
    """A fused operator in front of a node."""
    node = ir.node(op, inputs, attributes, domain=OURS, num_outputs=outputs)
    graph = before.graph
    assert isinstance(graph, ir.Graph)
    graph.opset_imports.setdefault(OURS, 1)
    graph.insert_before(before, node)
    return node


def users(value: ir.Value) -> list[ir.Node]:
    return [use.node for use in value.uses()]


def only_user(value: ir.Value) -> ir.Node | None:
    nodes = users(value)
    return nodes[0] if len(nodes) == 1 and not value.is_graph_output() else None


def above(values: Sequence[ir.Value], stop: Sequence[ir.Value] = ()) -> Iterator[ir.Node]:
    """All nodes that values are made of, up to those of `stop`; each once."""
    seen: set[int] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        node = value.producer()
        if node is None or id(node) in seen or any(value is end for end in stop):
            continue
        seen.add(id(node))
        yield node
        todo += [operand for operand in node.inputs if operand is not None]
