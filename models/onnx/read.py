"""An ONNX file, checked before anything is made of it: operators, order, types, and where its numbers lie.

What a file says is not trusted. It may name other files only if they are in its own folder; it has no code: operators
are those of ONNX without subgraphs, and a few of onnxruntime's, each known here by name. Sizes of tensors are compared
with the bytes that are there, and what a constant asks for with MAX_NUMBERS.
"""

import os
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from meshrt.models.errors import ModelError

MAX_BYTES = (1 << 31) - 1  # of the file itself, protobuf's own limit; more numbers lie in other files
MAX_NODES, MAX_AXES = 200_000, 8
MAX_NUMBERS = 1 << 32  # of one tensor: the embedding of a model with 250,000 words and 16,384 numbers each
OPSETS = range(11, 25)
OPERATORS = frozenset((
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Clip", "Concat", "Constant", "ConstantOfShape", "Cos", "CumSum",
    "DequantizeLinear", "Div", "Equal", "Erf", "Exp", "Expand", "Flatten", "Floor", "Gather", "GatherElements",
    "GatherND", "Gelu", "Gemm", "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "LayerNormalization",
    "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul", "Max", "Mean", "Min", "Mod", "Mul", "Neg",
    "Not", "Or", "Pow", "RMSNormalization", "Range", "Reciprocal", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Round", "Shape", "Sigmoid", "Sign", "Sin",
    "Size", "Slice", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze", "Sub", "Swish", "Tanh", "Tile", "Transpose",
    "Trilu", "Unsqueeze", "Where", "Xor",
))  # fmt: skip
RUNTIME = "com.microsoft"
RUNTIMES = frozenset(("MatMulNBits", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "QuickGelu"))
TYPES = {
    "FLOAT": 32, "FLOAT16": 16, "BFLOAT16": 16, "DOUBLE": 64, "INT64": 64, "INT32": 32, "INT16": 16, "INT8": 8,
    "UINT8": 8, "UINT16": 16, "UINT32": 32, "UINT64": 64, "BOOL": 8, "INT4": 4, "UINT4": 4,
}  # fmt: skip


def read_graph(path: Path) -> ir.Model:
    """The file as a graph of onnx_ir, whose large tensors are read when they are looked at. Raises ModelError."""
    try:
        size = os.stat(path).st_size
        if size > MAX_BYTES:
            raise ModelError(f"{path}: has {size} bytes; the limit is {MAX_BYTES}: save its tensors as external data")
        proto = onnx.load_model_from_string(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (DecodeError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is no ONNX file, or a damaged one: {_line(error)}") from None
    check(proto, path)
    try:
        # Without its propagation of data, which makes a list of all sizes that a constant asks for.
        inferred = onnx.shape_inference.infer_shapes(proto, strict_mode=True) if size < MAX_BYTES // 4 else proto
        model = ir.serde.deserialize_model(inferred)
    except Exception as error:  # of libraries, on a file that may say anything
        raise ModelError(f"{path}: its shapes contradict each other: {_line(error)}") from None
    ir.external_data.set_base_dir(model.graph, str(path.parent))
    return model


def check(proto: onnx.ModelProto, path: Path) -> None:
    """Raises ModelError naming the node or tensor."""
    graph, versions = proto.graph, {opset.domain: opset.version for opset in proto.opset_import}
    version = versions.get("", versions.get("ai.onnx"))
    if version not in OPSETS:
        raise ModelError(f"{path}: has operators of version {version}; {OPSETS[0]} to {OPSETS[-1]} can be read")
    if proto.functions:
        raise ModelError(f"{path}: defines functions of its own ({proto.functions[0].name}), which cannot be read")
    if len(graph.node) > MAX_NODES or graph.sparse_initializer:
        problem = "sparse tensors" if graph.sparse_initializer else f"{len(graph.node)} nodes"
        raise ModelError(f"{path}: has {problem}, which cannot be read")
    names: set[str] = set()
    for tensor in graph.initializer:
        _new(tensor.name, names, path)
        check_tensor(tensor, path)
    for value in graph.input:
        if value.name not in names:
            _new(value.name, names, path)
        kind = value.type.tensor_type.elem_type
        if kind not in _KINDS or onnx.TensorProto.DataType.Name(kind) not in TYPES:
            raise ModelError(f"{path}: input {value.name} is of type {kind}, which cannot be read")
    for value in (*graph.input, *graph.value_info, *graph.output):
        _check_dims([dim.dim_value for dim in value.type.tensor_type.shape.dim], path, value.name)
    context = onnx.checker.DEFAULT_CONTEXT
    context = type(context)()
    context.ir_version, context.opset_imports = proto.ir_version or 8, {"": version or 0}
    for at, node in enumerate(graph.node):
        name = f"node {node.name or at} ({node.op_type})"
        _check_node(node, name, path, context)
        for operand in node.input:
            if operand and operand not in names:
                raise ModelError(f"{path}: {name} uses {operand!r}, which no node before it makes: is it in a circle?")
        for result in node.output:
            if result:
                _new(result, names, path)
    for value in graph.output:
        if value.name not in names:
            raise ModelError(f"{path}: no node makes its output {value.name!r}")


def _check_node(node: onnx.NodeProto, name: str, path: Path, context: Any) -> None:
    if node.domain == "" and node.op_type == "SimplifiedLayerNormalization":
        pass  # onnxruntime's own, but without its domain
    elif node.domain in ("", "ai.onnx"):
        if node.op_type not in OPERATORS:
            raise ModelError(f"{path}: {name} is no operator that can be read; docs/onnx.md has those that can")
        try:
            onnx.checker.check_node(node, context)
        except (onnx.checker.ValidationError, UnicodeDecodeError) as error:  # names may be any bytes
            raise ModelError(f"{path}: {name} is not as ONNX has it: {_line(error)}") from None
    elif node.domain != RUNTIME or node.op_type not in RUNTIMES:
        raise ModelError(f"{path}: {name} is a custom operator of {node.domain!r}, which cannot be read")
    for attribute in node.attribute:
        if attribute.HasField("g") or attribute.graphs or attribute.ref_attr_name:
            raise ModelError(f"{path}: {name} has a graph inside, which cannot be read")
        for tensor in (attribute.t, *attribute.tensors) if attribute.HasField("t") or attribute.tensors else ():
            check_tensor(tensor, path, name)


def check_tensor(tensor: onnx.TensorProto, path: Path, name: str = "") -> None:
    """Raises ModelError where a tensor is not filled by the bytes that it has, here or in a file of the folder."""
    label = name or f"tensor {tensor.name}"
    kind = onnx.TensorProto.DataType.Name(tensor.data_type) if tensor.data_type in _KINDS else str(tensor.data_type)
    if kind not in TYPES:
        raise ModelError(f"{path}: {label} has numbers of kind {kind}; {', '.join(TYPES)} can be read")
    count = _check_dims(tensor.dims, path, label)
    nbytes = -(-count * TYPES[kind] // 8)
    if tensor.HasField("segment"):
        raise ModelError(f"{path}: {label} is in segments, which cannot be read")
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        if name:
            raise ModelError(f"{path}: {label} has a constant in another file, which cannot be read")
        _check_external(tensor, nbytes, path, label)
    elif tensor.HasField("raw_data"):
        if len(tensor.raw_data) != nbytes:
            raise ModelError(f"{path}: {label} has {len(tensor.raw_data)} bytes; its shape asks for {nbytes}")
    else:
        stored = max(len(getattr(tensor, field)) for field in _FIELDS)
        per_field = 8 // TYPES[kind] if TYPES[kind] < 8 else 1
        if stored not in {-(-count // n) for n in (1, per_field)}:
            raise ModelError(f"{path}: {label} has {stored} numbers; its shape asks for {count}")


_KINDS = frozenset(onnx.TensorProto.DataType.values())
_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def _check_external(tensor: onnx.TensorProto, nbytes: int, path: Path, label: str) -> None:
    said = {_text(entry.key): _text(entry.value) for entry in tensor.external_data}
    location, offset, length = said.get("location", ""), said.get("offset", "0"), said.get("length", str(nbytes))
    root = os.path.realpath(path.parent)
    plain = location and not os.path.isabs(location) and not set(location) & set("\\\0")
    file = os.path.realpath(os.path.join(root, location)) if plain else ""
    if not plain or ".." in location.split("/") or not file.startswith(root.rstrip("/") + "/"):
        raise ModelError(f"{path}: {label} lies in {location!r}: only files of the model's own folder are read")
    if not offset.isdecimal() or not length.isdecimal() or len(offset) > 18 or len(length) > 18:
        raise ModelError(f"{path}: {label} lies at {offset!r}, of {length!r} bytes: no whole numbers")
    try:
        size = os.stat(file).st_size
    except OSError as error:
        raise ModelError(f"{path}: {label} lies in {location}, which cannot be read: {error.strerror}") from error
    if not os.path.isfile(file) or int(length) != nbytes or int(offset) + nbytes > size:
        raise ModelError(
            f"{path}: {label} has bytes {offset} to {int(offset) + int(length)} of {location}, which has {size}; its"
            f" shape asks for {nbytes}"
        )


def _text(given: str | bytes) -> str:
    """What is no text in a file comes as bytes: with a backslash then, which no name of a file may have here."""
    return given if isinstance(given, str) else given.decode(errors="backslashreplace")


def _check_dims(dims: Iterable[int], path: Path, label: str) -> int:
    """How many numbers that is."""
    shape = [*dims]
    if len(shape) > MAX_AXES or any(size < 0 for size in shape) or prod(size or 1 for size in shape) > MAX_NUMBERS:
        raise ModelError(f"{path}: {label} has shape {shape}; limits are {MAX_AXES} axes and {MAX_NUMBERS} numbers")
    return prod(shape)


def _new(name: str, names: set[str], path: Path) -> None:
    if not name or name in names:
        raise ModelError(f"{path}: {name!r} is made twice, or has no name")
    names.add(name)


def _line(error: BaseException) -> str:
    """What a library says, in a line."""
    return " ".join(str(error).split())[:200] or type(error).__name__
