"""W4A8 products on Arm cores: against whole numbers and float64; any tile, cores, ranks and order; by shape."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from gpu_runs import Alone
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import run_on_arm
from tiers import examples

from meshrt.arm.device import find_arm_device
from meshrt.arm.soc import Soc
from meshrt.models.eightbits import quantize_rows
from meshrt.models.errors import ModelError
from meshrt.models.integer import linear
from meshrt.models.quantize import codes as grids
from meshrt.programs.arm.products.inputs import RowSource, quantized, span_of
from meshrt.programs.arm.products.kernels import KernelForm
from meshrt.programs.arm.products.linear import product
from meshrt.programs.arm.products.weights import choose, panels_of, place
from meshrt.programs.arm.split import equal
from meshrt.ranks.board import Board
from meshrt.ranks.control import Control


def new_soc(cores: int = 8, device: str = "n2x8", payload: bool = True, **options: Any) -> Soc:
    spill = options.pop("spill", False)
    control = Control(Alone(), Board.alone(), "test")
    return Soc(find_arm_device(device, **options), cores, control, payload, spill)


def multiply(
    x: np.ndarray, codes: grids.Codes, group: int, cores: int = 8, unit: str = "smmla", tile: str | None = None,
    layout: str = "planes", shift: Any = None, blocks: bool = False, order: Any = "columns", device: str = "n2x8",
) -> np.ndarray:  # fmt: skip
    """x W^T on the cores."""
    soc = new_soc(cores, device, spill=True)
    stored = "zero" if codes.zero is not None else "half" if codes.offset is None else "offset"
    shift = shift or stored
    how = choose(soc, KernelForm(codes.bits, layout, shift, blocks), unit, tile, order)
    weights = place(soc, how, "w", len(codes.codes), x.shape[1], group, codes)
    source = RowSource(lambda team: (None, x[span_of(team)]), ((soc.buffer("x", 1), range(x.shape[1])),))
    rows, _ = quantized(soc, source, (len(x), x.shape[1]), group, how.rows, soc.buffer("q", 1), blocks)
    out = product(soc, rows, weights, how, equal(panels_of(weights.columns, how), cores), soc.buffer("y", 1))
    assert out is not None
    return out


def expected(x: np.ndarray, codes: grids.Codes, group: int, blocks: bool = False) -> np.ndarray:
    """The same by the integer reference."""
    assert codes.codes.shape[2] == group
    return linear(x, codes, "block" if blocks else "row")


SIZES = st.tuples(st.integers(1, 27), st.integers(1, 150), st.integers(1, 40))


def operands(sizes: tuple[int, int, int], seed: int, group: int, even: bool, bits: int = 4) -> tuple[Any, Any, int]:
    m, k, n = sizes
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((m, k)).astype(np.float32)
    group = min(group, k)
    return x, (grids.symmetric if even else grids.nearest)(rng.standard_normal((n, k)), bits, group), group


@settings(max_examples=examples(40))
@given(
    SIZES, st.sampled_from([32, 64, 4096]), st.booleans(), st.booleans(), st.sampled_from(range(2, 9)),
    st.sampled_from(["smmla", "sdot"]), st.integers(0, 99),
)  # fmt: skip
def test_products_are_those_of_whole_numbers(
    sizes: tuple[int, int, int], group: int, even: bool, blocks: bool, bits: int, unit: str, seed: int
) -> None:
    """To the bit: sums are exact, and float32 has one order."""
    x, codes, group = operands(sizes, seed, group, even, bits)
    assert (multiply(x, codes, group, unit=unit, blocks=blocks) == expected(x, codes, group, blocks)).all()
    if not even:  # with offsets in place of zeros
        assert codes.zero is not None
        codes = replace(codes, zero=None, offset=(-codes.zero * codes.scale).astype(np.float16))
        assert (multiply(x, codes, group, unit=unit, blocks=blocks) == expected(x, codes, group, blocks)).all()


@settings(max_examples=examples(15))
@given(SIZES, st.integers(0, 99))
def test_no_way_to_compute_it_changes_a_bit(sizes: tuple[int, int, int], seed: int) -> None:
    x, codes, group = operands(sizes, seed, 32, True)
    first = multiply(x, codes, group)
    ways: list[dict[str, Any]] = [
        {"cores": 1}, {"cores": 5}, {"unit": "sdot"}, {"tile": "4x8"}, {"tile": "2x16"}, {"tile": "14x8"},
        {"order": "rows"}, {"device": "phone"}, {"layout": "pairs"}, {"unit": "sdot", "layout": "pairs"},
    ]  # fmt: skip
    for way in ways:
        assert (multiply(x, codes, group, **way) == first).all(), way
    near = multiply(x, codes, group, shift="none")  # whose correction is in the sum and not after it
    assert np.abs(near - first).max() <= 1e-5 * np.abs(first).max()


def test_rows_of_zeros_and_the_largest_numbers() -> None:
    x = np.zeros((3, 64), np.float32)
    x[1] = 3e38
    x[2, 5] = -1e-30
    codes, scale, totals = quantize_rows(x, None)
    assert scale[0, 0] == 1 and not codes[0].any() and (codes[1] == 127).all() and codes.min() == -127
    assert totals.tolist() == [[0], [127 * 64], [-127]]
    x[1, 3] = np.nan
    with pytest.raises(ModelError, match="NaN or infinite"):
        quantize_rows(x, 64)


CASES: dict[str, dict[str, Any]] = {
    "plain": {}, "odd": {"m": 11, "k": 100, "n": 70}, "one row": {"m": 1}, "sdot": {"unit": "sdot", "m": 13},
    "rows": {"group": 0, "order": "rows"}, "eight": {"bits": "8"}, "blocks": {"activations": "block", "k": 200},
    "spill": {"tile": "12x8", "spill": True},
}  # fmt: skip


@pytest.mark.mpi(ranks=[1, 2, 3, 8])
@pytest.mark.parametrize("name", CASES)
def test_ranks_and_payload_change_no_counter(name: str, comm: Any) -> None:
    whole = run_on_arm(comm, "linear", **CASES[name])
    shape = run_on_arm(comm, "linear", payload=False, **CASES[name])
    if comm.rank == 0:
        assert whole["result"].pop("max_rel_error") < 1e-6 and whole["result"].pop("max_abs_error") < 1e-5
        whole.pop("host"), shape.pop("host")
        assert whole == shape
        alone = run_on_arm(_alone(), "linear", payload=False, **CASES[name])
        alone.pop("host")
        assert alone == shape


def _alone() -> Any:
    from mpi4py import MPI

    return MPI.COMM_SELF


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("unit", ["smmla", "sdot"])
def test_instructions_in_closed_form(unit: str, comm: Any) -> None:
    """e = 23 = 2 x 10 + 2 + 1 rows of smmla, 12 + 8 + 2 + 1 of sdot; h = 30 in 4 panels of 8; l = 100 in 64 and 36."""
    report = run_on_arm(comm, "linear", payload=False, m=23, k=100, n=30, group=64, unit=unit)
    ran, panels, steps = report["phases"][1]["instructions"], 4, 8 + 5
    tiles = {"smmla": {10: 2, 2: 1, 1: 1}, "sdot": {12: 1, 8: 1, 2: 1, 1: 1}}[unit]
    if unit == "smmla":
        assert ran["smmla"] == sum(count * ceil(rows / 2) * 4 for rows, count in tiles.items()) * panels * steps
    else:
        assert ran["sdot"] == sum(count * rows * 2 for rows, count in tiles.items()) * panels * steps * 2
    loops = sum(tiles.values()) * panels
    assert ran["ushr"] == 2 * steps * loops and ran["subs"] == ran["bne"] == steps * loops
    assert ran["scvtf"] == 23 * 2 * panels * 2
    assert ran["st1"] == 23 * 2 * panels * 2
    operations = {"smmla": 64, "sdot": 32}[unit] * ran[unit]
    assert (
        report["phases"][1]["operations"] == operations
        and report["measured"]["useful_operations"]["total"] == 2 * 23 * 100 * 30
    )


@pytest.mark.mpi(ranks=[1])
def test_bytes_of_the_first_product_of_the_paper(comm: Any) -> None:
    """By the registers of 10 x 8: what all micro-tiles load of codes and weights is the tile formula's, in bytes."""
    report = run_on_arm(comm, "linear", payload=False, m=560, k=2048, n=6144, group=0)
    ran, tiles = report["phases"][1]["instructions"], 56 * 768
    assert ran["smmla"] == 560 * 2048 * 6144 // 32
    loads = 2048 * (10 + 8 // 2) // 16 + 2 + 2 * 3  # inputs and half bytes; scale and zero; of rows, in fours
    stores = 10 * 8 * 4 // 16
    assert report["phases"][1]["l1_bytes"] == tiles * 16 * (loads + stores)
    assert report["phases"][1]["dram_bytes"]["read"] == 2048 * 6144 // 2 + 4 * 6144  # weights once; codes are there
