"""Decoders as ONNX: exports of torch, and a graph that is built by hand, to the logits of who made them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnx_graphs import FLOAT, Builder, bits4, decoder, packed, save
from random_models import BASE, CASES, case_ids, case_seed, random_checkpoint

from meshrt.commands.import_ import command
from meshrt.models.config import Config, read_config
from meshrt.models.folders.checkpoint import check_shapes, open_checkpoint
from meshrt.models.integer import linear
from meshrt.models.onnx.rotary import LLAMA3, known
from meshrt.models.quantize.folder import read_parts
from meshrt.models.reference import forward, load_weights
from meshrt.models.rope import cos_sin

GOLDEN = Path(__file__).parents[1] / "golden" / "onnx"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.npz"))


def imported(file: Path, out: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, [str(file), "--out", str(out), "--json", "-", *options])
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.output)
    return report


def logits_of(folder: Path, ids: Any) -> Any:
    config = read_config(folder, quantized=True)
    check_shapes(open_checkpoint(folder), config)
    return forward(config, load_weights(folder, config=config), [int(token) for token in ids])


def test_there_are_all_exports() -> None:
    kinds = [f"{model}-{by}{past}" for model in ("llama", "qwen2") for by in ("dynamo", "legacy")
             for past in ("", "-past")]  # fmt: skip
    assert sorted([*kinds, "llama3-dynamo"]) == NAMES


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", NAMES)
def test_a_torch_export_has_the_logits_of_torch(name: str, tmp_path: Path) -> None:
    golden = {**np.load(GOLDEN / f"{name}.npz")}
    (tmp_path / "m.onnx").write_bytes(golden["model"].tobytes())
    report = imported(tmp_path / "m.onnx", tmp_path / "out")
    np.testing.assert_allclose(logits_of(tmp_path / "out", golden["ids"]), golden["logits"], atol=2e-5)
    config = read_config(tmp_path / "out")
    assert (config.model_type, config.heads, config.kv_heads) == ("qwen2" if "qwen2" in name else "llama", 4, 2)
    assert config.tie_word_embeddings == ("qwen2" in name)
    assert config.rope.kind == ("llama3" if "llama3" in name else "default")
    assert config.rope.theta == {"llama": 1e4, "qwen2": 5e3, "llama3": 5e5}[name.split("-")[0]]
    nodes = [each_pass["nodes"] for each_pass in report["passes"]]
    assert nodes == sorted(nodes, reverse=True) and nodes[0] == len(onnx.load(tmp_path / "m.onnx").graph.node)
    layers = config.layers
    fused = dict(zip((each_pass["name"] for each_pass in report["passes"]), nodes, strict=True))
    # A norm is 6 nodes, of which one is left; SiLU and its product 3; a turn of halves 7.
    assert fused["slices and transposes"] - fused["RMSNorm"] >= 5 * (2 * layers + 1)
    assert fused["RMSNorm"] - fused["SwiGLU"] == 2 * layers
    assert fused["SwiGLU"] - fused["rotary embedding"] == 2 * layers * 6
    assert fused["rotary embedding"] - fused["attention"] >= layers * 15


@pytest.mark.parametrize(
    "rope",
    [
        *({"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"factor": factor}} for factor in (8.0, 32.0, 40.0)),
        *({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": factor}} for factor in (2.5, 4.0, 16.0)),
        *({"rope_theta": theta} for theta in (1e4, 1.5e6, 8192.0)),
    ],
)
def test_factors_are_told_apart_that_are_alike_on_a_few_positions(rope: dict[str, Any]) -> None:
    """LLaMA 3.2 has 32: a table of 30 differs by less than a thousandth on 24 positions, and by far on 8,000."""
    positions = np.arange(24)
    for size in (16, 64, 128):
        config = BASE | {"head_dim": size, "rope_parameters": None, "max_position_embeddings": 1 << 20}
        assert known(cos_sin(Config.from_dict(config | rope), positions), positions, config) == rope


# ------------------------------------------------------------------------------------------------------- built by hand


@pytest.mark.sample(6)
@pytest.mark.parametrize("spelling", ["plain", "runtime", "gemm"])
@pytest.mark.parametrize("case", ["gqa82", "mha", "bias", "qwen2", "linear", "headdim"])
def test_a_graph_built_by_hand_has_the_logits_of_its_model(case: str, spelling: str, tmp_path: Path) -> None:
    base = random_checkpoint(CASES[case], tmp_path / "base", case_seed(case))
    imported(save(decoder(base, spelling), tmp_path / "m.onnx"), tmp_path / "out")
    ids = case_ids(case)
    np.testing.assert_allclose(logits_of(tmp_path / "out", ids), logits_of(base, ids), atol=1e-6)
    before, after = (open_checkpoint(tmp_path / name) for name in ("base", "out"))
    assert before.tensors.keys() == after.tensors.keys()
    for name in before.tensors:
        np.testing.assert_array_equal(before.read(name), after.read(name))


def test_onnxruntime_computes_what_the_hand_built_graph_says(tmp_path: Path) -> None:
    """The graphs of these tests are right: with tokens before and without."""
    import onnxruntime

    base = random_checkpoint(CASES["gqa82"], tmp_path / "base", 0)
    config, ids = read_config(base), case_ids("gqa82")
    want = logits_of(base, ids)
    for spelling in ("plain", "runtime", "gemm"):
        model = decoder(base, spelling).SerializeToString()
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        past = {
            entry.name: np.zeros((1, config.kv_heads, 0, config.head_dim), np.float32)
            for entry in session.get_inputs()[1:]
        }
        first = dict(zip(names, session.run(None, {"input_ids": [ids[:5]]} | past), strict=True))
        held = {name: first[name.replace("past", "present")] for name in past}
        second = session.run(None, {"input_ids": [ids[5:]]} | held)[0]
        np.testing.assert_allclose(np.concatenate((first["logits"], second), axis=1)[0], want, atol=1e-4)


@pytest.mark.parametrize("group", [32, 64])
def test_matmulnbits_becomes_a_folder_of_codes(group: int, tmp_path: Path) -> None:
    base = random_checkpoint(CASES["gqa82"], tmp_path / "base", 3)
    report = imported(
        save(decoder(base, "plain", group), tmp_path / "m.onnx"), tmp_path / "out", "--activations", "block"
    )
    key = report["quantized"]
    assert (key["bits"], key["group"], key["symmetric"], key["activations"]) == (4, group, False, "block")
    config = read_config(tmp_path / "out", quantized=True)
    assert len(config.quantized) == 7 * config.layers
    for name, matrix in config.matrices().items():
        parts = read_parts(open_checkpoint(tmp_path / "out"), name, config.quantized[name], matrix.columns, matrix.rows)
        want = bits4(open_checkpoint(base).read(name + ".weight"), group)
        np.testing.assert_array_equal(parts.codes.dequantized(), want.dequantized())


def test_dequantize_linear_by_blocks_is_codes(tmp_path: Path) -> None:
    """Matrices [in, out] in blocks of 32 along the inputs, and whole rows; int4 with scales of its own."""
    from meshrt.models.onnx.linear import linear_of
    from meshrt.models.onnx.read import read_graph

    rng = np.random.default_rng(0)
    q, scale = rng.integers(-8, 8, (64, 10)), rng.uniform(0.01, 0.02, (2, 10)).astype(np.float16).astype(np.float32)
    b = Builder()
    b.tensors["q"] = helper.make_tensor("q", TensorProto.INT4, q.shape, q.astype(np.int8).reshape(-1))
    w = b("DequantizeLinear", "q", scale, axis=0, block_size=32)
    b("MatMul", "x", w, name="y")
    eight = rng.integers(0, 256, (64, 9)).astype(np.uint8)
    zero, steps = rng.integers(0, 256, 9).astype(np.uint8), np.full(9, 0.25, np.float32)
    b("MatMul", "x", b("DequantizeLinear", eight, steps, zero, axis=1), name="z")
    shape = {"x": (FLOAT, [3, 64])}
    model = b.model(shape, {"y": (FLOAT, [3, 10]), "z": (FLOAT, [3, 9])}, 21)
    graph = read_graph(save(model, tmp_path / "m.onnx")).graph
    x = rng.standard_normal((3, 64)).astype(np.float32)
    want = ReferenceEvaluator(model).run(None, {"x": x})
    for value, expected in zip(graph.outputs, want, strict=True):
        product = linear_of(value)
        assert product is not None and product.codes is not None
        np.testing.assert_allclose(x @ product.codes.dequantized().T, expected, atol=1e-4)
    four = linear_of(graph.outputs[0])
    assert four is not None and four.codes is not None and four.codes.zero is None and four.codes.bits == 4


@pytest.mark.parametrize("spelled", ["zeros", "none", "bias"])
@pytest.mark.parametrize("group, inputs", [(32, 256), (64, 200), (128, 300)])
def test_what_is_read_of_matmulnbits_is_what_onnxruntime_multiplies(group: int, inputs: int, spelled: str) -> None:
    """At accuracy level 4 activations are in 8 bits by blocks: the block-wise products of whole numbers, to 1e-6."""
    import onnx_ir
    import onnxruntime

    from meshrt.models.onnx.packed import codes_of

    rng = np.random.default_rng(group)
    codes, bias = bits4(0.1 * rng.standard_normal((48, inputs)), group), rng.standard_normal(48).astype(np.float32)
    q, scale, zeros = packed(codes)
    b, said = Builder(), {"K": inputs, "N": 48, "bits": 4, "block_size": group, "accuracy_level": 4}
    more = {"zeros": [zeros], "none": [], "bias": [zeros, "", bias]}[spelled]
    b("MatMulNBits", "x", q, scale, *more, domain="com.microsoft", name="y", **said)
    model = b.model({"x": (FLOAT, [5, inputs])}, {"y": (FLOAT, [5, 48])})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    x = rng.standard_normal((5, inputs)).astype(np.float32)
    want = session.run(None, {"x": x})[0]
    node = next(iter(onnx_ir.from_proto(model).graph))
    coded, found_bias = codes_of(node)
    assert (coded.zero is None, found_bias is None) == (spelled == "none", spelled != "bias")
    y = linear(x, coded, "block") + (0 if found_bias is None else found_bias)
    assert np.linalg.norm(y - want) / np.linalg.norm(want) < 1e-6
    assert np.linalg.norm(linear(x, coded, "row") + (0 if found_bias is None else found_bias) - want) > 1e-3
