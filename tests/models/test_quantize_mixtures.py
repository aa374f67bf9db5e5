"""`meshrt quantize` of the packaged mixtures: sizes to the byte, ranks by frequency, rounds."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from meshrt.commands.quantize import command
from meshrt.models.calibrate import expert_tokens
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.reference import load_weights
from meshrt.models.texts import story_sequences
from meshrt.models.tokenizer import load_tokenizer

MIXTURES = ("mixtral-tiny", "deepseek-tiny")
QUICK = ("--held-out-stories", "0", "--calibration-stories", "4")


def quantized(model: str, out: Path, *arguments: str) -> Any:
    done = CliRunner().invoke(command, [model, "--out", str(out), "--json", "-", *arguments])
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.mark.sample(1)
@pytest.mark.parametrize("model", MIXTURES)
@pytest.mark.parametrize(
    "options",
    [
        ("--method", "hqq"),
        ("--method", "rtn", "--bits", "4", "--group", "32", "--symmetric"),
        ("--ranks", "dense-3+sparse-1", "--rounds", "1"),
        ("--ranks", "uniform-2", "--rounds", "1", "--compensator-bits", "8"),
        ("--ranks", "sparse-1", "--rounds", "1", "--compensator-bits", "16"),
    ],
    ids=" ".join,
)
def test_bytes_on_disk_are_those_predicted_by_shape(model: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Without weights, by what is written of them, and by the file: header, and every byte of every tensor."""
    report = quantized(model, tmp_path / "out", *options, "--held-out-stories", "0")
    by_shape = [option for option in options if option not in ("--rounds", "1")]
    predicted = json.loads(CliRunner().invoke(command, [model, "--sizes", "--json", "-", *by_shape]).stdout)
    file = tmp_path / "out" / "model.safetensors"
    header = 8 + int.from_bytes(file.read_bytes()[:8], "little")
    on_disk = sum(tensor.nbytes for tensor in load_file(file).values())
    assert predicted["bytes"] == report["bytes"] == on_disk == file.stat().st_size - header
    assert predicted["compensator_bytes"] == report["compensator_bytes"]
    assert predicted["published_bytes"] == report["published_bytes"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("model", MIXTURES)
def test_ranks_by_frequency_follow_what_was_counted(model: str, tmp_path: Path) -> None:
    report = quantized(model, tmp_path / "out", "--ranks", "dense-2+frequency-3", "--rounds", "1", *QUICK)
    folder = find_model(model)
    config = read_config(folder)
    texts = [ids[:-1] for ids in story_sequences(config, load_tokenizer(folder), 0, 4)]
    counts = expert_tokens(config, load_weights(folder), texts)
    assert report["expert_tokens"] == counts
    assert report["calibration"] == {"text": "4 stories of seed 0", "tokens": sum(map(len, texts))}
    layers: dict[str, list[tuple[int, int]]] = {}
    for matrix in report["matrices"]:
        if ".experts." in matrix["name"]:
            expert = matrix["name"].rpartition(".")[0]
            layers.setdefault(expert.rpartition(".")[0], []).append((counts[expert], matrix["rank"]))
        else:
            assert matrix["rank"] == 2
    for pairs in layers.values():
        assert sum(rank for _, rank in pairs) == 3 * len(pairs)
        for tokens, rank in pairs:
            assert abs(rank - 3 * len(pairs) / 3 * tokens / (sum(own for own, _ in pairs) / 3)) < 1
    key = json.loads((tmp_path / "out" / "config.json").read_text())["quantized"]
    assert key["ranks"] == {matrix["name"]: matrix["rank"] for matrix in report["matrices"] if matrix["rank"]}


@pytest.mark.all
def test_other_text_counts_otherwise(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("The storm was over, and the sun came out. " * 20)
    options = ("--ranks", "frequency-2", "--rounds", "1", "--held-out-stories", "0")
    report = quantized("mixtral-tiny", tmp_path / "a", *options, "--calibration", str(tmp_path / "text"))
    assert report["calibration"]["text"] == str(tmp_path / "text")
    other = quantized("mixtral-tiny", tmp_path / "b", *options, "--calibration-stories", "4", "--seed", "5")
    assert other["calibration"]["text"] == "4 stories of seed 5"
    assert (
        report["expert_tokens"] != other["expert_tokens"] and report["compensator_bytes"] == other["compensator_bytes"]
    )
    again = quantized("mixtral-tiny", tmp_path / "c", *options, "--calibration-stories", "4", "--seed", "5")
    assert {**again, "out": ""} == {**other, "out": ""}
    assert (tmp_path / "b/model.safetensors").read_bytes() == (tmp_path / "c/model.safetensors").read_bytes()
    without = quantized("mixtral-tiny", tmp_path / "d", "--ranks", "sparse-2", *options[2:])
    assert "expert_tokens" not in without and without["calibration"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "sparse-2", "--seed", "3"), "--seed goes with --method gptq and --ranks frequency-R"),
        (("--ranks", "frequency-2", "--seed", "1000003"), "that of the held-out stories"),
        (("--ranks", "frequency-2", "--calibration", "nowhere.txt"), "nowhere.txt: No such file or directory"),
    ],
)
def test_text_that_is_of_no_use(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["mixtral-tiny", "--out", str(tmp_path / "out"), *options])
    assert done.exit_code == 2 and message in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.all
@pytest.mark.parametrize("model", MIXTURES)
def test_the_kept_round_is_the_best_as_stored(model: str, tmp_path: Path) -> None:
    report = quantized(model, tmp_path / "out", "--ranks", "uniform-32", "--rounds", "4", "--held-out-stories", "0")
    kept = [matrix["kept"] for matrix in report["matrices"]]
    assert min(kept) < max(kept)  # not the last of all
    for matrix in report["matrices"]:
        stored = [error for _, error in matrix["rounds"]]
        assert stored[matrix["kept"] - 1] == min(stored) <= stored[0]
        assert matrix["weight_error"] == pytest.approx(min(stored), rel=1e-9)
        assert sum(matrix["residual_rank"]) == min(matrix["shape"])
