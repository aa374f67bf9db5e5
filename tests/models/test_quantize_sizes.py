"""Sizes that the paper prints, to the digits that its formulas give: `meshrt quantize NAME --sizes`."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from meshrt.commands.quantize import command

GIB, MIB = 2**30, 2**20


def sizes(*arguments: str) -> Any:
    done = CliRunner().invoke(command, [*arguments, "--sizes", "--json", "-"])
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


MODELS = {"mixtral": "mixtral-8x7b", "deepseek": "deepseek-moe-16b"}


@pytest.mark.parametrize(
    ("model", "quantized", "others", "before"),
    [
        ("mixtral", 46_439_333_888, 263_458_816, 93_405_585_408),
        ("deepseek", 15_952_642_048, 423_086_080, 32_751_456_256),
    ],
)
def test_weights(model: str, quantized: int, others: int, before: int) -> None:
    report = sizes(MODELS[model])
    assert (report["quantized_weights"], report["other_weights"], report["bytes_before"]) == (quantized, others, before)
    assert sum(group["weights"] for group in report["groups"]) == quantized
    assert before == 2 * (quantized + others)


@pytest.mark.parametrize(
    ("model", "method", "gib"),
    [
        ("mixtral", "rtn", 20.4939), ("mixtral", "hqq", 20.4939), ("mixtral", "gptq", 18.338),
        ("deepseek", "rtn", 7.6594), ("deepseek", "hqq", 7.6594), ("deepseek", "gptq", 6.948),
    ],
)  # fmt: skip
def test_table_3(model: str, method: str, gib: float) -> None:
    digits = len(str(gib).partition(".")[2])
    assert round(sizes(MODELS[model], "--method", method)["published_bytes"] / GIB, digits) == gib


@pytest.mark.parametrize(
    ("model", "ranks", "gib"),
    [
        ("mixtral", "dense-512+kurtosis-16", 20.7793), ("mixtral", "dense-1024+kurtosis-32", 21.0648),
        ("deepseek", "dense-800", 7.9667), ("deepseek", "dense-1024+frequency-32", 8.2997),
    ],
)  # fmt: skip
def test_table_3_with_compensators(model: str, ranks: str, gib: float) -> None:
    assert round(sizes(MODELS[model], "--ranks", ranks)["published_bytes"] / GIB, 4) == gib


@pytest.mark.parametrize(
    ("model", "ranks", "mib"),
    [
        ("mixtral", "uniform-28", 185.35), ("mixtral", "dense-512", 192.40), ("mixtral", "sparse-32", 199.80),
        ("deepseek", "uniform-22", 182.50), ("deepseek", "dense-512", 201.38), ("deepseek", "sparse-24", 189.65),
    ],
)  # fmt: skip
def test_table_4(model: str, ranks: str, mib: float) -> None:
    assert round(sizes(MODELS[model], "--ranks", ranks)["published_compensator_bytes"] / MIB, 2) == mib


@pytest.mark.parametrize(
    ("bits", "rank", "mib"),
    [("3", 16, 105.91), ("3", 32, 211.83), ("3", 64, 423.65), ("8", 16, 295.61), ("8", 32, 524.72), ("8", 64, 982.94)],
)
def test_table_6(bits: str, rank: int, mib: float) -> None:
    report = sizes("mixtral-8x7b", "--ranks", f"uniform-{rank}", "--compensator-bits", bits)
    assert round(report["published_compensator_bytes"] / MIB, 2) == mib


@pytest.mark.parametrize(("model", "gib"), [("mixtral", 19.4126), ("deepseek", 7.2880)])
def test_no_bit_is_wasted_in_our_folders(model: str, gib: float) -> None:
    report = sizes(MODELS[model])
    assert round(report["bytes"] / GIB, 4) == gib
    assert report["bits_per_weight"] == 3.5
    assert report["bytes"] == report["quantized_weights"] * 7 // 16 + 2 * report["other_weights"]
    assert sum(group["bytes"] for group in report["groups"]) + 2 * report["other_weights"] == report["bytes"]


def test_table_5s_ranks_by_kind() -> None:
    report = sizes("deepseek-moe-16b", "--ranks", "dense-1024+frequency-32")
    assert [(group["name"], group["matrices"], group["rank"]) for group in report["groups"]] == [
        ("attention", 112, 1024), ("mlp", 3, 1024), ("shared", 81, 1024), ("expert", 5184, 32),
    ]  # fmt: skip
    assert report["recipe"] == {
        "method": "milo", "bits": 3, "group": 64, "symmetric": False, "ranks": "dense-1024+frequency-32",
        "budget": None, "compensator_bits": 3, "larger_than_matrix": [],
    }  # fmt: skip


def test_other_bits_and_groups() -> None:
    """Four bits of a group of 32: five a weight with scale and zero, 4.5 symmetric."""
    for arguments, bits in (((), 5), (("--symmetric",), 4.5)):
        report = sizes("llama3-8b", "--method", "rtn", "--bits", "4", "--group", "32", *arguments)
        assert report["bits_per_weight"] == bits
        assert report["bytes"] == report["published_bytes"]


def test_a_budget_by_shape() -> None:
    report = sizes("mixtral-8x7b", "--ranks", "dense", "--budget", "200MiB")
    assert report["recipe"]["ranks"] == "dense-605"  # 851,968 numbers a rank at 3.25 bits: 338 KiB
    assert 199.5 * MIB < report["compensator_bytes"] <= 200 * MIB
