"""ONNX files that are hostile, damaged or of another kind: one line that names what it is, and code 2."""

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from onnx_graphs import FLOAT, Builder, decoder, mlp, save
from random_models import CASES, random_checkpoint

from meshrt.commands.import_ import command


def refused(file: Path, message: str, *options: str) -> None:
    arguments = options or ("--out", str(file.parent / "out"))
    result = CliRunner().invoke(command, [str(file), *arguments])
    assert result.exit_code == 2, result.output
    assert result.output.startswith("meshrt: error: ") and result.output.count("\n") == 1, result.output
    named = str(file) in result.output or "pip install" in message or options != ()
    assert message in result.output and named, result.output
    assert not (file.parent / "out").exists()


def changed(change: Callable[[Any], None], path: Path) -> Path:
    model = mlp()
    change(model)
    return save(model, path / "m.onnx")


def outside(**said: str) -> Callable[[Any], None]:
    """The first matrix, 1,092 bytes, lies elsewhere."""

    def change(model: Any) -> None:
        tensor = next(candidate for candidate in model.graph.initializer if list(candidate.dims) == [13, 21])
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in said.items():
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value

    return change


@pytest.mark.parametrize("said, message", [
    ({"location": "../w.bin"}, "own folder"), ({"location": "/etc/passwd"}, "own folder"), ({}, "own folder"),
    ({"location": "link.bin"}, "own folder"), ({"location": "a/../w.bin"}, "own folder"),
    ({"location": "."}, "own folder"),
    ({"location": "none.bin"}, "No such file"), ({"location": "w.bin", "offset": "-1"}, "no whole numbers"),
    ({"location": "w.bin", "offset": "909"}, "which has 2000"), ({"location": "w.bin", "length": "4"}, "asks for 1092"),
    ({"location": "w.bin", "offset": "9" * 30}, "no whole numbers"),
])  # fmt: skip
def test_numbers_outside_the_folder_are_not_read(said: dict[str, str], message: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for place in (tmp_path, home):
        (place / "w.bin").write_bytes(bytes(2000))
    os.symlink(tmp_path / "w.bin", home / "link.bin")
    refused(changed(outside(**said), home), message)


def test_numbers_in_the_folder_are_read(tmp_path: Path) -> None:
    file = changed(outside(location="w.bin", offset="64"), tmp_path)
    (tmp_path / "w.bin").write_bytes(bytes(64) + np.full(273, 0.5, np.float32).tobytes())
    result = CliRunner().invoke(command, [str(file), "--out", str(tmp_path / "out"), "--quiet"])
    assert result.exit_code == 0, result.output
    data = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert np.full(273, 0.5, np.float32).tobytes() in data


def dims(*shape: int) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        model.graph.initializer[0].dims[:] = shape

    return change


def node(at: int, **said: Any) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        target = model.graph.node[at]
        for key, value in said.items():
            if isinstance(value, list):
                getattr(target, key)[:] = value
            else:
                setattr(target, key, value)

    return change


def circle(model: Any) -> None:
    """The first node takes what the last one makes."""
    model.graph.node[0].input[0] = "y"


def with_functions(model: Any) -> None:
    domains = [helper.make_opsetid("", 18)]
    model.functions.append(
        helper.make_function("own", "F", ["a"], ["b"], [helper.make_node("Abs", ["a"], ["b"])], domains)
    )


def loop(model: Any) -> None:
    model.graph.node[1].op_type = "If"


def words(model: Any) -> None:
    model.graph.initializer.append(helper.make_tensor("text", TensorProto.STRING, [1], [b"x"]))


@pytest.mark.parametrize("change, message", [
    (dims(2**62), "limits are"), (dims(2**31, 2**31), "limits are"), (dims(-5), "limits are"),
    (dims(1, 1, 1, 1, 1, 1, 1, 1, 273), "limits are"), (dims(5, 5), "asks for 100"), (circle, "is it in a circle?"),
    (node(1, domain="evil"), "custom operator of 'evil'"), (node(1, op_type="Conv"), "Conv) is no operator"),
    (node(1, op_type="PyOp", domain="ai.onnx.contrib"), "custom operator"),
    (with_functions, "functions of its own (F)"),
    (loop, "If) is no operator"), (node(1, input=[]), "is not as ONNX has it"), (node(1, output=["x"]), "made twice"),
    (words, "STRING"), (lambda model: model.opset_import[0].__setattr__("version", 5), "version 5"),
    (lambda model: model.graph.output[0].__setattr__("name", "none"), "no node makes its output"),
    (lambda model: model.graph.input[0].type.tensor_type.__setattr__("elem_type", 8), "of type 8"),
    (lambda model: model.graph.initializer[0].segment.__setattr__("begin", 0), "in segments"),
    (lambda model: model.graph.input[0].type.tensor_type.shape.dim[1].__setattr__("dim_value", 7), "contradict"),
])  # fmt: skip
def test_a_hostile_file_ends_with_one_line(change: Any, message: str, tmp_path: Path) -> None:
    refused(changed(change, tmp_path), message)


def test_a_name_that_is_no_text_ends_with_one_line(tmp_path: Path) -> None:
    file = save(mlp(), tmp_path / "m.onnx")
    data = file.read_bytes()
    assert data.count(b"alpha") == 1
    file.write_bytes(data.replace(b"alpha", b"al\xe4ha"))
    refused(file, "(Gemm) is not as ONNX has it")


@pytest.mark.parametrize("said, message", [
    ({"location": "w.bin"}, r"lies in 'w.b\\xffn': only files"),
    ({"location": "w", "offset": "w.bin"}, r"lies at 'w.b\\xffn', of '1092' bytes: no whole numbers"),
    ({"location": "w", "w.bin": "1"}, "No such file"),
])  # fmt: skip
def test_so_does_a_place_that_is_no_text(said: dict[str, str], message: str, tmp_path: Path) -> None:
    file = changed(outside(**said), tmp_path)
    data = file.read_bytes()
    assert data.count(b"w.bin") == 1
    file.write_bytes(data.replace(b"w.bin", b"w.b\xffn"))
    refused(file, message)


@pytest.mark.parametrize("op", ["Div", "Pow", "MatMul"])
def test_whole_numbers_where_floats_are_needed_are_refused(op: str, tmp_path: Path) -> None:
    """ONNX divides them towards 0, which would be another number."""
    b = Builder()
    b(op, "ids", np.ones((3, 3), np.int64), name="y")
    model = b.model({"ids": (TensorProto.INT64, [3, 3])}, {"y": (TensorProto.INT64, [3, 3])})
    refused(save(model, tmp_path / "m.onnx"), f"node {op}_0 ({op}) is of INT64; it can be of floats")


@pytest.mark.parametrize("constant, message", [
    (np.array([1e300]), "(Add) takes a constant of 1e+300, and numbers are kept in float32"),
    (np.array([-np.inf, -1e39]), "takes a constant of 1e+39"),
    (np.array([2**63 + 5], np.uint64), "takes a constant of 9223372036854775813, and whole numbers are kept in int64"),
    (np.array([2**63 - 1]), "whole numbers beyond 2^24"),
])  # fmt: skip
def test_a_constant_that_cannot_be_kept_is_refused(constant: Any, message: str, tmp_path: Path) -> None:
    b = Builder()
    b("Add", "x", constant, name="y")
    kind = helper.np_dtype_to_tensor_dtype(constant.dtype)
    refused(save(b.model({"x": (kind, [2])}, {"y": (kind, [2])}), tmp_path / "m.onnx"), message)


@pytest.mark.parametrize("data", [b"", b"\x00", b"GGUF", b"\xff" * 1000, b"\x08" * 99])
def test_what_is_no_onnx_file_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(data)
    refused(tmp_path / "m.onnx", str(tmp_path / "m.onnx"))


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    data = mlp().SerializeToString()
    (tmp_path / "m.onnx").write_bytes(data[: len(data) // 2])
    refused(tmp_path / "m.onnx", "damaged")


@pytest.mark.parametrize("op, given", [
    ("ConstantOfShape", [np.array([2**40])]), ("Expand", [np.float32(1), np.array([2**20, 2**20])]),
    ("Range", [np.int64(0), np.int64(2**40), np.int64(1)]), ("Tile", [np.ones(64, np.float32), np.array([2**40])]),
])  # fmt: skip
def test_constants_that_ask_for_too_much_are_not_made(op: str, given: list[Any], tmp_path: Path) -> None:
    """No more than 256 MiB are touched."""
    b = Builder()
    made = b(op, *given)
    y = b("Add", "x", b("ReduceSum", b("Cast", made, to=FLOAT), keepdims=0))
    b.nodes[-1].output[0] = "y"
    assert y
    file = save(b.model({"x": (FLOAT, [2])}, {"y": (FLOAT, None)}), tmp_path / "m.onnx")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(file, "m.onnx")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10, "in KiB"


# ----------------------------------------------------------------------------------------------- decoders that are none


def base(path: Path, case: str = "gqa82") -> Path:
    return random_checkpoint(CASES[case], path / "base", 0)


def constants(model: Any, change: Callable[[np.ndarray], np.ndarray | None]) -> Any:
    """Each constant that `change` gives another for is replaced."""
    for tensor in model.graph.initializer:
        new = change(numpy_helper.to_array(tensor))
        if new is not None:
            tensor.CopyFrom(numpy_helper.from_array(new, tensor.name))
    return model


def least(array: np.ndarray) -> np.ndarray | None:
    return np.float32(-1.0) if array.shape == () and array.dtype == np.float32 and array < -1e8 else None


def test_a_window_of_attention_is_refused(tmp_path: Path) -> None:
    """Tokens that look at the last 3,000 alone."""
    model = decoder(base(tmp_path))
    nodes = [*model.graph.node]
    at = next(at for at, candidate in enumerate(nodes) if candidate.op_type == "LessOrEqual")
    every, own = nodes[at].input
    before = helper.make_node("Sub", [own, "window"], ["first seen"], name="window")
    near = helper.make_node("Greater", [every, "first seen"], ["near"], name="near")
    both = helper.make_node("And", ["near", "causal"], [nodes[at].output[0]], name="both")
    nodes[at].output[0] = "causal"
    del model.graph.node[:]
    model.graph.node.extend([*nodes[: at + 1], before, near, both, *nodes[at + 1 :]])
    for window, message in ((3000, "not the causal one"), (40000, None)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(window), "window"))
        file = save(model, tmp_path / "m.onnx")
        if message is not None:
            refused(file, message)
        else:
            result = CliRunner().invoke(command, [str(file), "--out", str(tmp_path / "out"), "--quiet"])
            assert result.exit_code == 0, "a window that nothing shows"
        model.graph.initializer.pop()


def turns(array: np.ndarray) -> np.ndarray | None:
    """Of a head's four pairs, by numbers that no formula has."""
    return np.array([1.0, 0.7, 0.2, 0.1], np.float32) if array.shape == (4,) and array[0] == 1 else None


def other_scale(array: np.ndarray) -> np.ndarray | None:
    return np.float32(2.0) if array.shape == () and abs(float(array) - 8**0.5) < 1e-6 else None


@pytest.mark.parametrize("change, message", [
    (least, "not the causal one"), (turns, "rotary tables of none"), (other_scale, "scales by 0.5"),
])  # fmt: skip
def test_a_decoder_that_computes_otherwise_is_refused(change: Any, message: str, tmp_path: Path) -> None:
    refused(save(constants(decoder(base(tmp_path)), change), tmp_path / "m.onnx"), message)


@pytest.mark.parametrize("kind", ["UINT4", "INT32"])
def test_weights_that_are_no_floats_are_refused(kind: str, tmp_path: Path) -> None:
    """Those of the last norm; a folder with the first could not even be written."""
    model = decoder(base(tmp_path))
    weight = next(
        candidate
        for candidate in reversed(model.graph.initializer)
        if len(candidate.dims) == 1 and candidate.data_type == FLOAT
    )
    weight.data_type = getattr(TensorProto, kind)
    if kind == "UINT4":
        weight.raw_data = weight.raw_data[: (weight.dims[0] + 1) // 2]
    refused(save(model, tmp_path / "m.onnx"), f"weights of {kind.lower()}; a decoder's are floats")


def scale(value: float) -> Callable[[np.ndarray], np.ndarray | None]:
    def change(array: np.ndarray) -> np.ndarray | None:
        if array.dtype != np.float32 or array.ndim != 1 or array.size < 128:
            return None
        array = array.copy()
        array[5] = value
        return array

    return change


@pytest.mark.parametrize("value, message", [
    (np.nan, "NaN or infinite"), (np.inf, "NaN or infinite"), (1e6, "cannot keep"), (1e-9, "cannot keep"),
])  # fmt: skip
def test_bad_scales_are_refused_with_the_nodes_name(value: float, message: str, tmp_path: Path) -> None:
    model = constants(decoder(base(tmp_path), "plain", 32), scale(value))
    file = save(model, tmp_path / "m.onnx")
    refused(file, message)
    refused(file, "MatMulNBits")


@pytest.mark.parametrize("said, message", [
    ({"bits": 3}, "3 bits"), ({"block_size": 48}, "block_size"), ({"K": 4096}, "bytes and"),
])  # fmt: skip
def test_sizes_of_codes_that_do_not_fit_are_refused(said: dict[str, int], message: str, tmp_path: Path) -> None:
    model = decoder(base(tmp_path), "gemm", 32)
    product = next(candidate for candidate in model.graph.node if candidate.op_type == "MatMulNBits")
    for attribute in product.attribute:
        attribute.i = said.get(attribute.name, attribute.i)
    refused(save(model, tmp_path / "m.onnx"), message)


def test_operators_that_do_not_run_alone_are_named(tmp_path: Path) -> None:
    b = Builder()
    b("CumSum", "x", np.int64(0), name="y")
    b.nodes[-1].name = "running total"
    refused(save(b.model({"x": (FLOAT, [3])}, {"y": (FLOAT, [3])}), tmp_path / "m.onnx"), "node running total (CumSum)")


def test_options_of_other_files_are_refused(tmp_path: Path) -> None:
    file = save(mlp(), tmp_path / "m.onnx")
    refused(file, "leave --out away", "--passes", "--out", str(tmp_path / "out"))
    refused(file, "--out is missing", "--quiet")
    refused(file, "--activations is for models", "--activations", "row", "--out", str(tmp_path / "out"))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    refused(tmp_path / "m.gguf", "are for ONNX files", "--passes")


def test_passes_alone_write_a_graph_and_no_folder(tmp_path: Path) -> None:
    file = save(decoder(base(tmp_path)), tmp_path / "m.onnx")
    options = ["--passes", "--dump", str(tmp_path / "fused.onnx"), "--json", "-"]
    result = CliRunner().invoke(command, [str(file), *options])
    assert result.exit_code == 0, result.output
    fused = onnx.load(tmp_path / "fused.onnx")
    assert len(fused.graph.node) == json.loads(result.output)["passes"][-1]["nodes"]
    kinds = [fused_node.op_type for fused_node in fused.graph.node if fused_node.domain == "meshrt"]
    layers = CASES["gqa82"]["num_hidden_layers"]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "RMSNorm": 2 * layers + 1, "Attention": layers, "SwiGLU": layers,
    }  # fmt: skip


def test_without_the_libraries_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("meshrt.models.onnx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("meshrt.models.onnx", raising=False)
    monkeypatch.setitem(sys.modules, "onnx_ir", None)
    refused(save(mlp(), tmp_path / "m.onnx"), "need the package onnx_ir: pip install onnx onnx-ir onnxscript")
