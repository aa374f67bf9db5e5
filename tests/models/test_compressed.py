"""Folders of compressed-tensors: what the library itself packed and rebuilt, whole models, and folders that are bad."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from random_models import BASE, random_checkpoint
from safetensors.numpy import load_file, save_file

from meshrt.commands.import_ import command
from meshrt.models.config import read_config
from meshrt.models.errors import ModelError
from meshrt.models.folders.checkpoint import check_shapes, open_checkpoint
from meshrt.models.foreign.compressed import CompressedScheme, read_codes, read_compressed
from meshrt.models.matrix import Matrix
from meshrt.models.quantize.halves import halves
from meshrt.models.reference import forward, load_weights

GOLDEN = {**np.load(Path(__file__).parents[1] / "golden" / "foreign" / "compressed.npz")}
SCHEMES = {  # of tests/make_compressed.py
    "group": CompressedScheme(4, True, 32, None),
    "asymmetric": CompressedScheme(4, False, 64, None),
    "channel": CompressedScheme(4, True, None, None),
    "asymmetric-channel": CompressedScheme(4, False, None, None),
    "tensor": CompressedScheme(4, True, None, None),
    "eight": CompressedScheme(8, True, 32, None),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_a_matrix_is_what_the_library_rebuilds(name: str, tmp_path: Path) -> None:
    """To the bit in the scale's own type, in which the library multiplies; float32 scales are rounded to float16."""
    golden = {key.partition("/")[2]: GOLDEN[key] for key in GOLDEN if key.startswith(name + "/")}
    tensors = {f"m.{end}": tensor for end, tensor in golden.items() if end not in ("weight", "rebuilt")}
    kind: Any = tensors["m.weight_scale"].dtype
    if kind == np.uint16:
        kind = ml_dtypes.bfloat16
        tensors["m.weight_scale"] = tensors["m.weight_scale"].view(kind)
    save_file(tensors, tmp_path / "model.safetensors")
    rows, columns = golden["weight"].shape
    codes = read_codes(open_checkpoint(tmp_path), SCHEMES[name], Matrix("m", columns, rows))
    assert (codes.zero is None) == SCHEMES[name].symmetric
    whole = codes.dequantized()
    assert np.abs(whole - golden["weight"]).max() < 0.03
    if kind == np.float32:
        np.testing.assert_allclose(whole, golden["rebuilt"], rtol=2.0**-11, atol=0)
    else:
        np.testing.assert_array_equal(whole.astype(kind).astype(np.float32), golden["rebuilt"])


# ------------------------------------------------------------------------------------------------------ whole models

SIZES = BASE | {"hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2}
IDS = [5, 77, 31, 4, 90, 12]
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "dynamic": False,
           "actorder": None, "observer": "mse"}  # fmt: skip
INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True, "group_size": None}


def words(codes: Any) -> Any:
    """Codes of 4 bits [n, k] to int32 [n, ceil(k / 8)], the first in the lowest bits."""
    padded = np.pad(codes.astype(np.uint32), ((0, 0), (0, -codes.shape[1] % 8))).reshape(len(codes), -1, 8)
    return (padded << (4 * np.arange(8, dtype=np.uint32))).sum(axis=-1, dtype=np.uint32).view(np.int32)


def make(base: Path, out: Path, weights: dict[str, Any], inputs: Any = None, head: bool = False) -> dict[str, Any]:
    """`base` in such a folder; what its weights are then, in float64."""
    tensors, rebuilt = {}, {}
    matrices = set(read_config(base).matrices()) | ({"lm_head"} if head else set())
    for name, w in load_file(base / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        if stem not in matrices:
            tensors[name] = rebuilt[name] = w
            continue
        size = weights["group_size"] if weights["strategy"] == "group" else w.shape[1]
        parts = w.reshape(len(w), -1, size)
        low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
        if weights["symmetric"]:
            scale, zero = (np.maximum(-low, high) / 7.5).astype(np.float16), np.zeros(low.shape, int)
        else:
            scale = ((high - low) / 15).astype(np.float16)
            zero = np.clip(np.rint(-8 - low / scale), -8, 7).astype(int)
            tensors[stem + ".weight_zero_point"] = np.ascontiguousarray(words((zero + 8).T).T)
        q = np.clip(np.rint(parts / scale[..., None].astype(float)) + zero[..., None], -8, 7)
        tensors[stem + ".weight_packed"] = words((q + 8).reshape(w.shape))
        tensors[stem + ".weight_scale"] = scale
        tensors[stem + ".weight_shape"] = np.array(w.shape, np.int64)
        rebuilt[name] = ((q - zero[..., None]) * scale[..., None].astype(float)).reshape(w.shape)
    out.mkdir()
    save_file(tensors, out / "model.safetensors")
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    said = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed",
    }  # fmt: skip
    data = json.loads((base / "config.json").read_text()) | {"quantization_config": said}
    (out / "config.json").write_text(json.dumps(data))
    return {name: tensor.astype(float) for name, tensor in rebuilt.items()}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return random_checkpoint(SIZES, tmp_path / "base", 1)


@pytest.mark.parametrize("inputs, activations", [(None, None), (INPUTS, "row"), (
    INPUTS | {"strategy": "group", "group_size": 32}, "block",
)])  # fmt: skip
@pytest.mark.parametrize("change", [
    {}, {"symmetric": False}, {"strategy": "channel", "group_size": None}, {"strategy": "channel", "symmetric": False},
])  # fmt: skip
def test_a_folder_computes_what_it_meant(
    change: Any, inputs: Any, activations: str | None, base: Path, tmp_path: Path
) -> None:
    weights = WEIGHTS | change
    if activations == "block" and weights["strategy"] == "channel":
        weights |= {"strategy": "group", "group_size": 32}
    rebuilt = make(base, tmp_path / "model", weights, inputs)
    done = CliRunner().invoke(command, [str(tmp_path / "model"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.stderr
    config = read_config(tmp_path / "out", quantized=True)
    check_shapes(open_checkpoint(tmp_path / "out"), config)
    assert {form.activations for form in config.quantized.values()} == {activations}
    loaded = load_weights(tmp_path / "out")
    for name, want in rebuilt.items():
        np.testing.assert_array_equal(loaded[name], want, err_msg=name)
    np.testing.assert_array_equal(forward(config, loaded, IDS), forward(read_config(base), rebuilt, IDS))


def test_a_head_that_is_quantized_is_rebuilt(base: Path, tmp_path: Path) -> None:
    rebuilt = make(base, tmp_path / "model", WEIGHTS, head=True)
    checkpoint = read_compressed(tmp_path / "model")
    np.testing.assert_array_equal(checkpoint.tensors["lm_head.weight"], rebuilt["lm_head.weight"].astype(np.float16))


def test_scales_that_float16_does_not_have() -> None:
    good = np.array([[0.1, -2e-5 * 2**10, 65504, 0.0, 2.0**-24]], np.float32)  # a subnormal one that is exact
    np.testing.assert_allclose(halves("s", good), good, rtol=2.0**-11)
    for bad in (1e-7, 7e4, 3.3e-6):
        with pytest.raises(ModelError, match="which float16 cannot keep"):
            halves("s", np.array([bad], np.float32))
    with pytest.raises(ModelError, match="NaN or infinite"):
        halves("s", np.array([np.nan], np.float32))


# ------------------------------------------------------------------------------------------------------------ bad ones


@pytest.mark.parametrize(
    "place, change, message",
    [
        ("", {"format": "int-quantized"}, "pack-quantized of compressed-tensors can be read"),
        ("", {"format": "nvfp4-pack-quantized"}, "pack-quantized of compressed-tensors can be read"),
        ("", {"quant_method": "gptq"}, "of 'gptq'"),
        ("", {"kv_cache_scheme": {"num_bits": 8}}, "'quantization_config.kv_cache_scheme' is set"),
        ("", {"transform_config": {"config_groups": {"u": {}}}}, "'quantization_config.transform_config' is set"),
        ("", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.format' is 'sparse-24-bitmask'"),
        ("", {"config_groups": {}}, "has 0 groups of matrices"),
        ("", {"config_groups": {"a": {}, "b": {}}}, "has 2 groups of matrices"),
        ("group_0", {"output_activations": {"num_bits": 8}}, "output_activations' is set"),
        ("weights", {"num_bits": 3}, "is 3 of 'int'; int of 4 and 8 can be read"),
        ("weights", {"type": "float"}, "is 4 of 'float'"),
        ("weights", {"strategy": "block"}, "strategy' is 'block'"),
        ("weights", {"actorder": "group"}, "groups out of order"),
        ("weights", {"group_size": 16}, "'group' 16; it must be a multiple of 32"),
        ("weights", {"group_size": 128}, r"weight_scale has shape \[\d+, \d\]; \[\d+, 1\] is needed"),
        ("weights", {"symmetric": False}, "no tensor model.layers.0.*weight_zero_point"),
        ("input", {"num_bits": 8, "strategy": "token"}, "8 bits, int, symmetric and dynamic"),
        ("input", INPUTS | {"num_bits": 4}, "8 bits, int, symmetric and dynamic"),
        ("input", INPUTS | {"strategy": "tensor"}, "strategy' is 'tensor'; token can be read"),
    ],
)
def test_schemes_that_cannot_be_read(place: str, change: Any, message: str, base: Path, tmp_path: Path) -> None:
    make(base, tmp_path / "model", WEIGHTS)
    data = json.loads((tmp_path / "model" / "config.json").read_text())
    said = data["quantization_config"]
    group = said["config_groups"]["group_0"]
    if place == "input":
        group["input_activations"] = change
    else:
        {"": said, "group_0": group, "weights": group["weights"]}[place].update(change)
    (tmp_path / "model" / "config.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match=message):
        read_compressed(tmp_path / "model")


NAME = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    "end, tensor, message",
    [
        ("weight_packed", None, f"{NAME} has no weight_packed"),
        ("weight_scale", None, "no tensor"),
        ("weight_shape", None, "no tensor"),
        ("weight_packed", np.zeros((96, 7), np.int32), r"I32 \[96, 7\]; I32 \[96, 8\] is needed"),
        ("weight_packed", np.zeros((96, 8), np.float32), "is F32"),
        ("weight_shape", np.array([64, 96]), r"weight_shape is \[64, 96\]; config.json asks for \[96, 64\]"),
        ("weight_scale", np.ones((96, 4), np.float16), r"has shape \[96, 4\]; \[96, 2\] is needed"),
        ("weight_scale", np.full((96, 2), np.nan, np.float32), "NaN or infinite"),
        ("weight_scale", np.ones((96, 2), np.int32), "dtype I32"),
        ("weight_g_idx", np.arange(64)[::-1] // 32, "groups out of order"),
    ],
)
def test_tensors_that_are_wrong(end: str, tensor: Any, message: str, base: Path, tmp_path: Path) -> None:
    make(base, tmp_path / "model", WEIGHTS)
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors.pop(f"{NAME}.{end}", None)
    if tensor is not None:
        tensors[f"{NAME}.{end}"] = np.ascontiguousarray(tensor)
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    done = CliRunner().invoke(command, [str(tmp_path / "model"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2 and done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()
    with pytest.raises(ModelError, match=message):
        read_compressed(tmp_path / "model")


def test_groups_that_are_in_order_are_read(base: Path, tmp_path: Path) -> None:
    make(base, tmp_path / "model", WEIGHTS)
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors[f"{NAME}.weight_g_idx"] = (np.arange(64) // 32).astype(np.int32)
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    assert NAME in read_compressed(tmp_path / "model").forms
