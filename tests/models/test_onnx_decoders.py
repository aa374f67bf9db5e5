"""Decoders as ONNX: exports of torch, and a graph that is built by hand, to the logits of who made them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from meshrt.commands.import_ import command
from meshrt.models.checkpoint import check_shapes, open_checkpoint
from meshrt.models.config import read_config
from meshrt.models.reference import forward, load_weights

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
    return forward(config, load_weights(folder, config=config), [int(one) for one in ids])


def test_there_are_all_exports() -> None:
    kinds = [f"{model}-{by}{past}" for model in ("llama", "qwen2") for by in ("dynamo", "legacy")
             for past in ("", "-past")]  # fmt: skip
    assert sorted([*kinds, "llama3-dynamo"]) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_torch_export_has_the_logits_of_torch(name: str, tmp_path: Path) -> None:
    golden = np.load(GOLDEN / f"{name}.npz")
    (tmp_path / "m.onnx").write_bytes(golden["model"].tobytes())
    report = imported(tmp_path / "m.onnx", tmp_path / "out")
    np.testing.assert_allclose(logits_of(tmp_path / "out", golden["ids"]), golden["logits"], atol=2e-5)
    config = read_config(tmp_path / "out")
    assert (config.model_type, config.heads, config.kv_heads) == ("qwen2" if "qwen2" in name else "llama", 4, 2)
    assert config.tie_word_embeddings == ("qwen2" in name)
    assert config.rope.kind == ("llama3" if "llama3" in name else "default")
    assert config.rope.theta == {"llama": 1e4, "qwen2": 5e3, "llama3": 5e5}[name.split("-")[0]]
    nodes = [one["nodes"] for one in report["passes"]]
    assert nodes == sorted(nodes, reverse=True) and nodes[0] == len(onnx.load(tmp_path / "m.onnx").graph.node)
    layers = config.layers
    fused = dict(zip((one["name"] for one in report["passes"]), nodes, strict=True))
    # A norm is 6 nodes, of which one is left; SiLU and its product 3; a turn of halves 7.
    assert fused["slices and transposes"] - fused["RMSNorm"] >= 5 * (2 * layers + 1)
    assert fused["RMSNorm"] - fused["SwiGLU"] == 2 * layers
    assert fused["SwiGLU"] - fused["rotary embedding"] == 2 * layers * 6
    assert fused["rotary embedding"] - fused["attention"] >= layers * 15
