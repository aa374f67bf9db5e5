"""ONNX files, to fuzz `meshrt import` with: a decoder of one layer and a small graph of operators, with changes."""

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from meshrt.models.foreign.model import write
from meshrt.models.graph import read_graph, run_graph, shapes_of
from meshrt.models.onnx.model import read_onnx, write_graph
from meshrt.models.onnx.read import OPERATORS, RUNTIMES
from meshrt.studies.fuzz.imports import check
from meshrt.studies.fuzz.models import FuzzCase, refused
from meshrt.studies.fuzz.mutate import INTEGERS, mutated_bytes

FILE, OTHER = "model.onnx", "weights.bin"
HEAD = '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]>\n'
NORM = """
    {0}s = Mul({0}, {0})  {0}m = ReduceMean <keepdims = 1> ({0}s, last)  {0}e = Add({0}m, eps)  {0}r = Sqrt({0}e)
    {0}d = Div({0}, {0}r)  {0}n = Mul({0}d, weight)
"""
TURN = """
    {0}0 = MatMul(xn, w{0})  {0}1 = Reshape({0}0, by{0})  {0}2 = Transpose <perm = [0, 2, 1, 3]> ({0}1)
    {0}l, {0}h = Split <axis = -1, num_outputs = 2> ({0}2)
    {0}a = Mul({0}l, cos)  {0}b = Mul({0}h, sin)  {0}c = Sub({0}a, {0}b)
    {0}f = Mul({0}h, cos)  {0}g = Mul({0}l, sin)  {0}i = Add({0}f, {0}g)  {0} = Concat <axis = -1> ({0}c, {0}i)
"""
DECODER = (
    HEAD
    + """
decoder (int64[B, S] ids, float[B, 1, P, 4] pk, float[B, 1, P, 4] pv) => (float[B, S, 11] logits, float[B, 1, T, 4] nk)
{
    x = Gather(table, ids)
    is = Shape(ids)  s = Gather <axis = 0> (is, one)  ps = Shape(pk)  p = Gather <axis = 0> (ps, two)  t = Add(s, p)
    at = Range(p, t, one)  all = Range(zero, t, one)  af = Cast <to = 1> (at)  ac = Unsqueeze(af, first)
    angle = Mul(ac, turns)  cos = Cos(angle)  sin = Sin(angle)
    ai = Unsqueeze(at, first)  seen = LessOrEqual(all, ai)  mask = Where(seen, null, low)
"""
    + NORM.format("x")
    + TURN.format("q")
    + TURN.format("k")
    + """
    v0 = MatMul(xn, wv)  v1 = Reshape(v0, byk)  v2 = Transpose <perm = [0, 2, 1, 3]> (v1)
    nk = Concat <axis = 2> (pk, k)  nv = Concat <axis = 2> (pv, v2)
    tt = Unsqueeze(t, zeros)  wide = Concat <axis = 0> (ones, heads, tt, size)
    ke = Expand(nk, wide)  ve = Expand(nv, wide)  kt = Transpose <perm = [0, 1, 3, 2]> (ke)
    raw = MatMul(q, kt)  half = Div(raw, root)  added = Add(half, mask)  shares = Softmax <axis = -1> (added)
    mixed = MatMul(shares, ve)  back = Transpose <perm = [0, 2, 1, 3]> (mixed)  merged = Reshape(back, flat)
    o = MatMul(merged, wo)  y = Add(x, o)
"""
    + NORM.format("y")
    + """
    gate = MatMul(yn, wg)  up = MatMul(yn, wu)  sig = Sigmoid(gate)  act = Mul(gate, sig)  inner = Mul(act, up)
    down = MatMul(inner, wd)  z = Add(y, down)
"""
    + NORM.format("z")
    + "\n    logits = MatMul(zn, head)\n}"
)
OPERATORS_ONLY = (
    HEAD
    + """
graph (float[S, 6] x) => (float[S, 5] y)
{
    a = MatMul(x, w1)  r = Relu(a)  g = Gemm <transB = 1, alpha = 0.5> (r, w2, b2)  n = LayerNormalization(g, b2, b2)
    l, h = Split <axis = 1> (n, parts)  c = Concat <axis = 1> (h, l)  u = Unsqueeze(c, zeros)  s = Squeeze(u, zeros)
    m = ReduceMax <keepdims = 1> (s, last)  e = Sub(s, m)  y = Softmax (e)
}"""
)
SHAPES = {
    "table": (11, 8), "weight": (8,), "wq": (8, 8), "wk": (8, 4), "wv": (8, 4), "wo": (8, 8), "wg": (8, 12),
    "wu": (8, 12), "wd": (12, 8), "head": (8, 11), "w1": (6, 7), "w2": (5, 7), "b2": (5,),
}  # fmt: skip
WHOLE: dict[str, Any] = {
    "one": 1, "two": 2, "zero": 0, "first": [1], "zeros": [0], "last": [-1], "byq": [1, -1, 2, 4], "byk": [1, -1, 1, 4],
    "flat": [1, -1, 8], "ones": [1], "heads": [2], "size": [4], "parts": [2, 3],
}  # fmt: skip
REALS: dict[str, Any] = {"eps": 1e-5, "turns": [1.0, 0.01], "null": 0.0, "low": -1e9, "root": 2.0}


@cache
def base(text: str) -> onnx.ModelProto:
    """A valid file."""
    model = onnx.parser.parse_model(text)
    used = {name for node in model.graph.node for name in node.input}
    rng = np.random.default_rng(0)
    arrays = {name: 0.3 * rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    arrays |= {name: np.array(value, np.int64) for name, value in WHOLE.items()}
    arrays |= {name: np.array(value, np.float32) for name, value in REALS.items()}
    model.graph.initializer.extend(numpy_helper.from_array(arrays[name], name) for name in sorted(used & arrays.keys()))
    return model


def make_onnx(rng: Random) -> FuzzCase:
    """Changes of nodes, of tensors, of where their numbers lie, or of bytes."""
    model = onnx.ModelProto()
    model.CopyFrom(base(rng.choice((DECODER, OPERATORS_ONLY))))
    files = {OTHER: bytes(256)}
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice((change_node, change_node, change_tensor, change_tensor, move_outside, change_head))(rng, model)
    data = model.SerializeToString()
    return FuzzCase(files | {FILE: mutated_bytes(rng, data) if rng.random() < 0.25 else data})


def change_node(rng: Random, model: onnx.ModelProto) -> None:
    """Another operator, other inputs, order, attributes; one more, one less."""
    nodes = model.graph.node
    node = rng.choice([*nodes]) if nodes else nodes.add()
    names = [name for other in nodes for name in (*other.input, *other.output)] or [""]
    match rng.randrange(8):
        case 0:
            node.op_type = rng.choice((*sorted(OPERATORS), *sorted(RUNTIMES), "Loop", "If", "Scan", "", "x" * 400))
        case 1 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice((*names, "", "nothing"))
        case 2 if node.output:
            node.output[rng.randrange(len(node.output))] = rng.choice((*names, "", "new"))
        case 3:
            nodes.remove(node)
        case 4:
            other = onnx.NodeProto()
            other.CopyFrom(node)
            nodes.insert(rng.randrange(len(nodes) + 1), other)
        case 5:
            node.domain = rng.choice(("com.microsoft", "ai.onnx", "my.own", "meshrt", ""))
        case 6 if node.attribute:
            attribute = rng.choice([*node.attribute])
            attribute.i, attribute.f = rng.choice(INTEGERS) % 2**63, rng.choice((0.0, 1e38, float("nan"), -1.0))
            if attribute.ints:
                attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice((0, 1, -1, 5, 2**40, -(2**62)))
        case _:
            name = rng.choice(("axis", "perm", "to", "axes", "keepdims", "bits", "block_size", "N", "K", "value"))
            value = rng.choice((0, 1, -1, 7, 2**40, [0], [1, 0], [3, 3], 1.5, "x"))
            node.attribute.append(helper.make_attribute(name, value))


def change_tensor(rng: Random, model: onnx.ModelProto) -> None:
    """Other sizes, types, numbers; cut, twice, gone."""
    if not model.graph.initializer:
        return
    tensor = rng.choice([*model.graph.initializer])
    match rng.randrange(6):
        case 0:
            tensor.dims[:] = [rng.choice((0, 1, -1, 3, 8, 2**31, 2**62)) for _ in range(rng.randrange(5))]
        case 1:
            tensor.data_type = rng.choice((0, 1, 6, 7, 8, 9, 10, 11, 14, 16, 21, 22, 99))
        case 2:
            tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
        case 3:
            kind = {1: "<f4", 7: "<i8"}.get(tensor.data_type, "u1")
            numbers = np.frombuffer(tensor.raw_data[: len(tensor.raw_data) // 8 * 8], kind).copy()
            if numbers.size and kind == "u1":
                numbers[0] ^= 255
            elif numbers.size and kind == "<i8":
                numbers[rng.randrange(numbers.size)] = rng.choice((0, -1, 1, 2**31, 2**40, -(2**63), 2**63 - 1))
            elif numbers.size:
                numbers[rng.randrange(numbers.size)] = rng.choice((np.nan, np.inf, 0.0, 1e38, -1e-40))
            tensor.raw_data = numbers.tobytes()
        case 4:
            model.graph.initializer.remove(tensor)
        case _:
            model.graph.initializer.add().CopyFrom(tensor)


def move_outside(rng: Random, model: onnx.ModelProto) -> None:
    """A tensor's numbers in a file: of this folder, of another, of none."""
    if not model.graph.initializer:
        return
    tensor = rng.choice([*model.graph.initializer])
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    where = rng.choice((OTHER, FILE, "../" + OTHER, "/etc/passwd", "", ".", "a/../" + OTHER, "x\0y", "nothing"))
    said = {"location": where, "offset": rng.choice(("0", "8", "-1", "x", str(2**64))), "length": rng.choice(("", "4"))}
    for key, value in said.items():
        if value:
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value


def change_head(rng: Random, model: onnx.ModelProto) -> None:
    """What the graph takes and gives, and its versions."""
    graph = model.graph
    values = [*graph.input, *graph.output]
    match rng.randrange(4):
        case 0 if values:
            shape = rng.choice(values).type.tensor_type.shape
            if shape.dim:
                dim = rng.choice([*shape.dim])
                dim.dim_value = rng.choice((0, 1, 2, -1, 3, 2**31, 2**62))
        case 1 if values:
            rng.choice(values).type.tensor_type.elem_type = rng.choice((0, 1, 7, 8, 9, 10, 99))
        case 2:
            model.opset_import[0].version = rng.choice((0, 1, 7, 11, 13, 17, 21, 23, 24, 30, 2**40))
        case _ if values:
            rng.choice(values).name = rng.choice(("ids", "x", "", "logits", "table"))


def import_an_onnx_file(folder: Path, arguments: tuple[str | None, ...]) -> None:
    """What was accepted is a folder that can be read, and a graph of operators one that can be run."""
    with refused():
        read = read_onnx(folder / FILE)
        out = folder / "out"
        if read.decoder is not None:
            write(out, read.decoder, None)
            check(out)
            return
        write_graph(str(out), read)
        graph = read_graph(out)
        shapes = shapes_of(graph, dict.fromkeys(graph.names, 2))
        if sum(int(np.prod(shape, dtype=object)) for shape in shapes.values()) < 1 << 16:
            kinds = {tensor.name: tensor.dtype for tensor in graph.inputs}
            run_graph(graph, {name: np.ones(shape, kinds[name]) for name, shape in shapes.items()})
