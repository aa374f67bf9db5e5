"""Models in codes on NeuronCores: logits of the dequantized matrices, and bytes of HBM on paper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import meet, on_one_rank
from neuron_cores import new_core, values
from random_models import CASES, case_seed, random_checkpoint
from runs import run_on_cores
from tiers import examples

from meshrt.errors import UsageError
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.matrix import Matrix
from meshrt.models.quantize.form import Quantized
from meshrt.models.quantize.model import quantize, read_model, statistics
from meshrt.models.quantize.packing import pack
from meshrt.models.quantize.sizes import CodeScheme
from meshrt.models.reference import forward, load_weights
from meshrt.neuron import isa as nisa
from meshrt.neuron import language as nl
from meshrt.programs.neuron.blocks import spans
from meshrt.programs.neuron.coded import PIECE, packed, place_codes
from meshrt.programs.neuron.linear import linear

PROMPT = [5, 93, 7, 30, 2, 77, 8, 60, 41, 12, 9]
SCHEMES = {
    "64": CodeScheme("w4a8", 4, 64, False, 16, "row"),
    "32 symmetric": CodeScheme("w4a8", 4, 32, True, 16, "block"),
    "row": CodeScheme("w4a8", 4, "row", False, 16),
    "zeros": CodeScheme("rtn", 4, 96, False, 16),
    "eight": CodeScheme("w4a8", 8, 32, False, 16, "row", True),
    "eight symmetric": CodeScheme("rtn", 8, "row", True, 16),
    "three": CodeScheme("hqq", 3, 32, False, 16),
    "three symmetric": CodeScheme("rtn", 3, 64, True, 16),
    "five": CodeScheme("rtn", 5, 96, True, 16),
}


def made(base: Path, out: Path, scheme: CodeScheme) -> Path:
    config, checkpoint = read_model(base)
    quantize(base, out, scheme, {}, 1, statistics(config, checkpoint))
    return out


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(6)
@pytest.mark.parametrize("case, cores", [("gqa82", 1), ("gqa82", 2), ("bias", 2), ("oddvocab", 3), ("untied", 1)])
@pytest.mark.parametrize("kind", SCHEMES)
def test_the_logits_are_those_of_the_dequantized_matrices(
    kind: str, case: str, cores: int, tmp_path: Path, comm: Any
) -> None:
    base = random_checkpoint(CASES[case], tmp_path / "base", case_seed(case))
    model, logits = made(base, tmp_path / "model", SCHEMES[kind]), tmp_path / "logits.npy"
    report = run_on_cores(
        comm, "llama", cores, model=str(model), prompt_ids=",".join(map(str, PROMPT)), max_new_tokens=3,
        ignore_eos=True, dtype="float32", logits=str(logits),
    )  # fmt: skip
    every = [*PROMPT, *report["result"]["token_ids"][:-1]]
    expected = forward(read_config(model, quantized=True), load_weights(model), every)
    assert np.abs(np.load(logits) - expected).max() < 1e-3


@pytest.mark.mpi(ranks=[2])
def test_several_ranks_report_what_one_does(tmp_path: Path, comm: Any) -> None:
    folder = Path(comm.bcast(str(tmp_path)))
    if comm.rank == 0:
        made(find_model("llama-tiny"), folder / "model", SCHEMES["64"])
    meet(comm)

    def run(ranks: Any) -> Any:
        report = run_on_cores(
            ranks,
            "llama",
            4,
            model=str(folder / "model"),
            prompt_ids="5,93,7",
            max_new_tokens=3,
            ignore_eos=True,
            layers=2,
        )
        return ranks.bcast(report and {key: value for key, value in report.items() if key != "host"})

    assert run(comm) == on_one_rank(comm, run)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(2)
@pytest.mark.parametrize("group", [64, "row"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_by_shape_and_bytes_of_a_token(group: Any, symmetric: bool, tmp_path: Path, comm: Any) -> None:
    """A token's pass reads every code and scale once in place of 16 bits a weight; the rest is as it was."""
    model = made(find_model("llama-tiny"), tmp_path / "model", CodeScheme("w4a8", 4, group, symmetric, 16, "row"))
    common: dict[str, Any] = {"prompt_tokens": 1, "max_new_tokens": 1, "payload": False, "dtype": "float16"}
    folder = run_on_cores(comm, "llama", model=str(model), **common)
    shape = run_on_cores(comm, "llama", bits=4, group=group, symmetric=symmetric, **common)
    whole = run_on_cores(comm, "llama", **common)
    assert folder["measured"]["hbm_bytes"] == shape["measured"]["hbm_bytes"]
    if symmetric:  # by shape there are zeros, and no offsets: they take other instructions
        assert folder["measured"] == shape["measured"]
    saved = 0
    for matrix in read_config(model, quantized=True).matrices().values():
        groups = -(-matrix.rows // matrix.form.group)
        saved += (
            matrix.rows * matrix.columns * 2
            - matrix.rows * matrix.columns // 2
            - groups * matrix.columns * (2 if symmetric else 4)
        )
    assert whole["measured"]["hbm_bytes"]["read"] - folder["measured"]["hbm_bytes"]["read"] == saved
    late = symmetric and group == "row"  # each sum times its scale; others are spread over rows by products
    assert (whole["measured"]["macs"] == folder["measured"]["macs"]) == late
    assert whole["measured"]["macs"] <= folder["measured"]["macs"]
    difference = whole["measured"]["memory_bytes"]["max"] - folder["measured"]["memory_bytes"]["max"]
    assert difference == pytest.approx(saved, rel=0.05)


@settings(max_examples=examples(8), deadline=None)
@given(st.integers(1, 40), st.integers(1, 2 * PIECE + 60), st.sampled_from([4, 8]), st.integers(0, 2**32 - 1))
def test_blocks_are_the_matrix(rows: int, columns: int, bits: int, seed: int) -> None:
    """Packed, loaded and unpacked by pieces, with scales of ones and no shift but the middle of the codes."""
    core, random = new_core(), np.random.default_rng(seed)
    codes = random.integers(0, 1 << bits, (rows, columns), np.uint8)

    class Written:
        def read(self, name: str, *_: Any) -> np.ndarray:
            if name.endswith("scale"):
                return np.ones((columns, 1), np.float16)
            filled = np.zeros((columns, 64), np.uint8)
            filled[:, :rows] = codes.T
            return pack(filled, bits)

    matrix = Matrix("w", rows, columns, form=Quantized(bits, 64, True))
    written: Any = Written()
    placed = place_codes(core, written, (matrix,), slice(None), (slice(None),), nl.float32)
    assert placed.codes.shape == packed(codes, bits, True).shape and placed.late
    for part in spans(columns, PIECE):
        (tile,) = placed.load_block(slice(0, rows), part)
        np.testing.assert_array_equal(values(tile), codes[:, part].astype(np.float32) - (1 << bits - 1))


@pytest.mark.mpi(ranks=[1])
def test_codes_take_four_or_eight_bits_each(comm: Any) -> None:
    """By shape, 2 and 3 bits read as many bytes as 4, and 5 to 7 as many as 8."""
    read = {
        bits: run_on_cores(comm, "llama", bits=bits, prompt_tokens=5, max_new_tokens=2, payload=False, ignore_eos=True)[
            "measured"
        ]["hbm_bytes"]["read"]
        for bits in range(2, 9)
    }
    assert read[2] == read[3] == read[4] < read[5] == read[6] == read[7] == read[8]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("bits", [3, 8, 16])
def test_matrices_with_compensators_are_multiplied_out(bits: int, tmp_path: Path, comm: Any) -> None:
    """Logits of the reference, and the bytes of a model that has never been quantized."""
    plain, model = random_checkpoint(CASES["gqa82"], tmp_path / "plain", case_seed("gqa82")), tmp_path / "model"
    config, checkpoint = read_model(plain)
    names = dict.fromkeys(config.matrices(), 3)
    quantize(plain, model, CodeScheme("milo", 3, 32, False, bits), names, 1, statistics(config, checkpoint))
    reports = [
        run_on_cores(
            comm, "llama", model=str(folder), prompt_ids="5,6,7,2", max_new_tokens=3, ignore_eos=True, dtype="float32",
            logits=str(tmp_path / "logits.npy"),
        )
        for folder in (plain, model)
    ]  # fmt: skip
    every = [5, 6, 7, 2, *reports[1]["result"]["token_ids"][:-1]]
    expected = forward(read_config(model, quantized=True), load_weights(model), every)
    assert np.abs(np.load(tmp_path / "logits.npy") - expected).max() < 1e-3
    assert reports[0]["measured"]["hbm_bytes"] == reports[1]["measured"]["hbm_bytes"]
    assert reports[1]["result"]["multiplied_out"] == len(names)


@pytest.mark.mpi(ranks=[1])
def test_heads_in_codes_are_padded_by_shape_alone(tmp_path: Path, comm: Any) -> None:
    plain, model = random_checkpoint(CASES["gqa82"], tmp_path / "plain", 3), tmp_path / "model"
    quantize(plain, model, CodeScheme("rtn", 4, 32, False, 16), {}, 1, statistics(*read_model(plain)))
    with pytest.raises(UsageError, match=r"codes are not padded, .* the 8 heads .* take 1, 2, 4, 8 cores"):
        run_on_cores(comm, "llama", 3, model=str(model), prompt_ids="1,2")
    report = run_on_cores(comm, "llama", 3, model=str(plain), bits=4, prompt_tokens=5, max_new_tokens=1, payload=False)
    assert report["result"]["padded_heads"] == 4  # 2 of keys and values become 3, of 4 query heads each


def test_bits_of_tiles() -> None:
    core = new_core()
    numbers = np.arange(256, dtype=np.float32).reshape(2, 128)
    tile = nl.load(core.tensor_of(numbers, nl.uint8))
    np.testing.assert_array_equal(values(nisa.tensor_scalar(tile, nl.bitwise_and, 15.0)), numbers % 16)
    np.testing.assert_array_equal(values(nisa.tensor_scalar(tile, nl.right_shift, 4.0)), numbers // 16)
    np.testing.assert_array_equal(
        values(nisa.tensor_scalar(tile, nl.right_shift, 4.0, False, nl.subtract, 8.0, dtype=nl.float32)),
        numbers // 16 - 8,
    )
    assert values(nisa.tensor_copy(nisa.tensor_scalar(tile, nl.add, 250.6), dtype=nl.uint8)).max() == 255


@pytest.mark.parametrize(
    ("bits", "symmetric", "each"), [(8, False, 2), (8, True, 1), (6, False, 2), (4, False, 3), (4, True, 2)]
)
def test_codes_of_a_byte_become_numbers_on_the_way(bits: int, symmetric: bool, each: int) -> None:
    """Cycles of the vector engine for a column of a tile: zeros subtracted, times scale; or times scale alone, where a
    byte has its sign. An and and a shift, by halves of a row, subtract half of the codes' range, and come first. 128
    ones say which rows are in a group.
    """
    core = new_core(payload=False)
    matrix = Matrix("w", 128, PIECE, form=Quantized(bits, 64, symmetric))
    placed = place_codes(core, None, (matrix,), slice(None), (slice(None),), nl.bfloat16)
    placed.load_block(slice(0, 128), slice(0, PIECE))
    assert core.vector.busy * core.vector.hz == pytest.approx(each * PIECE + 128)
    scales = 2 * 2 * PIECE * (1 if symmetric else 2)  # two groups, float16, and their zeros
    assert core.counts["hbm_read"] == 128 * PIECE * (1 if bits > 4 else 0.5) + scales


@pytest.mark.parametrize(("bits", "each"), [(8, 0), (4, 1)])
def test_one_scale_a_column_is_for_the_sums(bits: int, each: int) -> None:
    """Signed codes of a byte take no vector instruction, those of half a byte an and or a shift; the sums then one."""
    core, random = new_core(), np.random.default_rng(1)
    codes, scale = random.integers(0, 1 << bits, (128, PIECE)), random.uniform(0.01, 0.02, PIECE).astype(np.float16)

    class Written:
        def read(self, name: str, *_: Any) -> np.ndarray:
            return scale[:, None] if name.endswith("scale") else pack(codes.T.astype(np.uint8), bits)

    matrix = Matrix("w", 128, PIECE, form=Quantized(bits, 128, True))
    written: Any = Written()
    placed = place_codes(core, written, (matrix,), slice(None), (slice(None),), nl.bfloat16)
    placed.load_block(slice(0, 128), slice(0, PIECE))
    assert core.vector.busy * core.vector.hz == pytest.approx(each * PIECE)
    x = random.integers(-3, 4, (5, 128)).astype(np.float32)
    outputs = values(linear(core.tensor_of(x, nl.bfloat16), placed))
    expected = x @ (codes - (1 << bits - 1)) * scale.astype(np.float32)
    assert np.abs(outputs - expected).max() <= 2**-8 * np.abs(expected).max()  # rounded once, as it is stored
    assert core.counts["hbm_read"] == 2 * 128 * PIECE * bits // 8 + 2 * PIECE + 2 * 5 * 128
