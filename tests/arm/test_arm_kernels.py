"""Micro-kernels and instructions: the paper's listing, registers, spills; counts in closed form."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrt.arm.core import ArmCore
from meshrt.arm.device import N2X8, PHONE, ArmDevice, find_arm_device
from meshrt.arm.isa import OPERATIONS, contract, ld1, of, st1
from meshrt.arm.kernel import MicroKernel, execute
from meshrt.arm.spill import spills
from meshrt.errors import LimitError, UsageError
from meshrt.programs.arm.products.kernels import KernelForm, integer_kernel
from meshrt.programs.arm.products.packing import GroupRun, pack_inputs, pack_weights, padded, parts_of
from meshrt.programs.arm.tiles import UNITS, MicroTile, Unit, accesses, plan, row_tiles, traffic

SMMLA, SDOT = UNITS["smmla"], UNITS["sdot"]


def listing() -> MicroKernel:
    """The paper's, section IV.E, with its own register numbers, and stores of the sums as they are."""
    v = [f"v{number}" for number in range(32)]
    body = [
        ld1((v[8], v[9]), "x25"), ld1(tuple(v[4:8]), "x24"), of("ushr", v[0], v[8], at=4), of("and", v[1], v[8], v[10]),
        of("ushr", v[2], v[9], at=4), of("and", v[3], v[9], v[10]),
        *(of("smmla", v[16 + 4 * i + j], v[4 + i], v[j]) for i in range(4) for j in range(4)),
    ]  # fmt: skip
    before = [of("movi", v[10], at=15), *(of("movi", name, at=0) for name in v[16:])]
    return MicroKernel("LoopSz_TILE_8", tuple(before), tuple(body), (st1(tuple(v[16:]), "y"),))


def run_listing(codes: np.ndarray, x: np.ndarray) -> np.ndarray:
    """[8, l] x [8, l]^T by the listing: the 2 x 2 sums of its 16 registers put side by side."""
    length = codes.shape[1]
    part = GroupRun(0, 1, length)
    y = np.zeros((1, 1, 1, 1, 256), np.uint8)
    streams = {
        "x25": pack_weights(codes[:, None], SMMLA, 8, part, 4, "planes")[:, None].reshape(1, 1, 1, -1, 32),
        "x24": pack_inputs(x, SMMLA, 8, part, length)[:, None],
        "y": y,
    }
    execute(listing(), (1, 1, 1), part.steps, streams)
    return y.view(np.int32).reshape(4, 4, 2, 2).transpose(0, 2, 1, 3).reshape(8, 8)


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_the_papers_listing_gives_the_product(steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (8, 8 * steps), np.uint8)
    x = rng.integers(-127, 128, (8, 8 * steps), dtype=np.int8)
    assert (run_listing(codes, x) == x.astype(np.int64) @ codes.T.astype(np.int64)).all()


def test_the_listing_is_what_is_built_for_its_tile() -> None:
    """The same instructions in the same order, by other names, and the registers that it takes."""
    paper, built = listing(), integer_kernel(SMMLA, 8, 8)
    assert len(paper.registers) == len(built.registers) == 27
    assert [line.op for line in paper.body] == [line.op for line in built.body]
    assert dict(built.tallies[1].instructions) == {"ld1": 2, "ushr": 2, "and": 2, "smmla": 16, "subs": 1, "bne": 1}
    assert 16 * built.tallies[1].loads == 96
    names = dict(zip(paper.registers, paper.registers, strict=True))
    for line, other in zip(paper.body, built.body, strict=True):
        for register, other_register in zip((*line.to, *line.of), (*other.to, *other.of), strict=True):
            assert names.setdefault(other_register, register) == register


def test_halves_that_are_packed_first_are_in_another_order() -> None:
    """As the paper's text has it: [n, 16, 2] transposed to [n, 2, 16], of pairs."""
    rng = np.random.default_rng(1)
    codes, x = rng.integers(0, 16, (8, 8), np.uint8), rng.integers(-127, 128, (8, 8), dtype=np.int8)
    pairs = codes.reshape(-1, 16, 2).transpose(0, 2, 1).reshape(8, 8)
    truth = x.astype(np.int64) @ codes.T.astype(np.int64)
    assert (run_listing(codes, x) == truth).all() and (run_listing(pairs, x) != truth).any()


@pytest.mark.parametrize(
    ("unit", "bits", "tile", "registers"),
    [("smmla", 4, "10x8", 32), ("smmla", 8, "10x8", 29), ("sdot", 4, "12x8", 32), ("sdot", 8, "12x8", 29),
     ("fmla", 32, "12x8", 29), ("fmla_8h", 16, "12x16", 28), ("scalar", 32, "5x4", 29)],
)  # fmt: skip
def test_the_planners_tiles(unit: str, bits: int, tile: str, registers: int) -> None:
    best = plan(UNITS[unit], 32, bits)
    assert (str(best), best.registers) == (tile, registers)


@pytest.mark.sample(4)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("unit", [SMMLA, SDOT])
def test_what_the_planner_lets_in_is_what_the_kernel_takes(unit: Unit, bits: int) -> None:
    for registers in (24, 32, 56, 100, 172, 256, 1 << 31):  # a device of one's own has as many as it says
        best = plan(unit, registers, bits)
        kernel = integer_kernel(unit, best.rows, best.columns, KernelForm(bits=bits))
        assert best.registers <= len(kernel.registers) <= registers, best  # what follows the loop may take more than it


def test_the_planner_counts_the_registers_that_kernels_name() -> None:
    for unit in (SMMLA, SDOT):
        best = plan(unit, 32, 4)
        assert len(integer_kernel(unit, best.rows, best.columns).registers) == best.registers == 32
    half = plan(SMMLA, 32, 4, weight=0.5)
    assert str(half) == "10x8" and traffic(half, 0.5) == 0.175


def test_accesses_of_the_papers_first_product() -> None:
    assert accesses(560, 2048, 6144, None) == 14_096_302_080
    assert accesses(560, 2048, 6144, MicroTile(8, 8, 27)) == 1_765_048_320
    assert accesses(560, 2048, 6144, MicroTile(10, 8, 32)) == 1_588_887_552


def test_rows_that_are_left_get_kernels_of_their_own() -> None:
    assert row_tiles(560, 10) == [10] * 56 and row_tiles(11, 10) == [10, 1] and row_tiles(7, 10) == [4, 2, 1]
    for rows in (8, 10, 12):
        for e in range(1, 60):
            assert sum(row_tiles(e, rows)) == e


def test_peaks_follow_from_the_numbers() -> None:
    peaks = [N2X8.peak(OPERATIONS[op].operations) / 1e9 for op in ("fmla", "smmla", "sdot", "fmla_8h")]
    assert peaks == [352, 2816, 1408, 704]
    assert PHONE.peak(8, 1) == 8 * 4 * 3.05e9 and len(PHONE.cores) == 8


@pytest.mark.parametrize("device", [N2X8, PHONE])
def test_each_number_has_a_source_or_is_assumed(device: ArmDevice) -> None:
    """By its name in the lines that tell of sources."""
    for part in (device, device.clusters[0]):
        for field in fields(part):
            if field.name not in ("name", "clusters", "sources") and getattr(part, field.name) is not None:
                assert re.search(rf"\b{field.name}\b", " ".join(device.sources)), field.name


def test_padding_counts() -> None:
    assert padded(70, 8, parts_of(100, 128)) == (72, 104)
    assert pack_weights(np.zeros((70, 1, 128), np.uint8), SMMLA, 8, GroupRun(0, 1, 100), 4, "planes").nbytes == 3744


@pytest.mark.parametrize("rows", [8, 10])
def test_smmla_count_is_e_h_l_over_32(rows: int) -> None:
    core = ArmCore(N2X8, 0, payload=False)
    core.count(integer_kernel(SMMLA, rows, 8), 1, 8, 0)
    assert core.instructions["smmla"] == {8: 128, 10: 160}[rows] == rows * 64 * 8 // 32


def test_the_33rd_register_is_refused() -> None:
    core = ArmCore(N2X8, 3, payload=False)
    with pytest.raises(
        LimitError, match="core 3: kernel smmla 12x8 w4 asks for 37 registers, the limit is 32"
    ) as refused:
        core.count(integer_kernel(SMMLA, 12, 8), 1, 1, 0)
    assert refused.value.exit_code == 3 and not core.instructions


@pytest.mark.parametrize("tile, registers, names", [((66, 8), 32, 33), ((2, 8), 2, 3)])
def test_what_one_instruction_names_cannot_be_spilled(tile: tuple[int, int], registers: int, names: int) -> None:
    """The rows of inputs come by one load; with as many registers as that names, all else is spilled."""
    kernel = integer_kernel(SMMLA, *tile)
    core = ArmCore(find_arm_device("n2x8", registers=registers), 2, payload=False, spill=True)
    said = f"core 2: .* smmla {tile[0]}x8 w4 names {names} registers, the limit is {registers} .*--tile"
    with pytest.raises(LimitError, match=said):
        core.count(kernel, 1, 1, 0)
    roomy = ArmCore(find_arm_device("n2x8", registers=names), 2, payload=False, spill=True)
    roomy.count(kernel, 1, 1, 0)
    assert roomy.counts["spill_loads"] > 0 and not core.instructions


def test_spills_are_loads_and_stores_and_change_no_number() -> None:
    """Of 12 x 8, 35 registers are in use at once: three sums and a mask make room in each step."""
    kernel = integer_kernel(SMMLA, 12, 8)
    assert [spills(kernel, 8, registers) for registers in (37, 35, 32)] == [(0, 0), (8, 8), (32, 32)]
    core = ArmCore(N2X8, 0, payload=False, spill=True)
    core.count(kernel, 5 * 7 * 3, 8, 0)
    assert core.counts["spill_loads"] == core.counts["spill_stores"] == 5 * 7 * 3 * 32
    plain = ArmCore(find_arm_device("n2x8", registers=40), 0, payload=False)
    plain.count(kernel, 5 * 7 * 3, 8, 0)
    assert core.instructions["ld1"] - plain.instructions["ld1"] == 5 * 7 * 3 * 32
    assert core.counts["l1_bytes"] - plain.counts["l1_bytes"] == 5 * 7 * 3 * 64 * 16
    assert core.registers == 32 and plain.registers == 37


def test_a_spill_saves_only_what_is_needed_again() -> None:
    """Two registers: a is read twice and b, c between; b is never needed again."""
    lines = [of("movi", "a", at=1), of("movi", "b", at=2), of("movi", "c", at=3), of("and", "c", "a", "c")]
    assert spills(MicroKernel("k", tuple(lines), (), ()), 0, 2) == (0, 0)
    lines.insert(3, of("and", "b", "b", "c"))
    assert spills(MicroKernel("k", tuple(lines), (), ()), 0, 2) == (1, 1)


def test_what_has_not_changed_since_it_was_saved_is_not_saved_again() -> None:
    """Two registers: a makes room twice and is read after each time; it is written once."""
    lines = [of("movi", "a", at=1), of("movi", "b", at=2)]
    for name in "cd":
        lines += [of("movi", name, at=3), of("and", "b", "b", name), of("and", "b", "a", "b")]
    assert spills(MicroKernel("k", tuple(lines), (), ()), 0, 2) == (2, 1)


def test_fresh_registers_are_poisoned() -> None:
    y = np.zeros((1, 1, 1, 16), np.uint8)
    execute(MicroKernel("k", (), (), (st1(("v0",), "y"),)), (1, 1), 1, {"y": y})
    assert np.isnan(y.view(np.float32)).all() and np.isnan(y.view(np.float16)).all() and (y.view(np.int8) != 0).all()


def test_an_instruction_that_the_cores_do_not_have_is_refused() -> None:
    core = ArmCore(find_arm_device("n2x8", isa=("fp16", "dotprod")), 0)
    with pytest.raises(UsageError, match=r"no smmla \(extension i8mm\)"):
        core.count(integer_kernel(SMMLA, 8, 8), 1, 1, 0)


# ---- instructions, against loops over lanes


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_contract_is_a_sum_over_steps(rows: int, columns: int, both: int, steps: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(-128, 128, (rows, 1, both, steps, 2, 8), dtype=np.int8)
    b = rng.integers(-128, 128, (1, columns, both, steps, 2, 8), dtype=np.int8)
    truth = np.einsum("rcgsik,rcgsjk->rcgij", *(
        np.broadcast_to(operand.astype(np.int64), (rows, columns, both, steps, 2, 8)) for operand in (a, b)
    ))[:, :, :, None]  # fmt: skip
    assert contract(a, b).shape == truth.shape and (contract(a, b) == truth).all()


def run(op: str, *operands: np.ndarray, at: int | None = None) -> np.ndarray:
    """An instruction on single registers, given as 16 bytes of any dtype."""
    arrays = [np.ascontiguousarray(each).view(np.uint8).reshape(1, 16) for each in operands]
    result: np.ndarray = OPERATIONS[op].run(*arrays, at).reshape(16)
    return result


@given(st.integers(0, 2**32 - 1))
def test_integer_instructions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.integers(-128, 128, (2, 16), dtype=np.int8)
    total = rng.integers(-(2**31), 2**31, 4, dtype=np.int32)

    def wrapped(lane: int, products: Any) -> int:
        return (int(total[lane]) + int(products) + 2**31) % 2**32 - 2**31

    wide = a.astype(int), b.astype(int)
    smmla = [wrapped(2 * i + j, wide[0].reshape(2, 8)[i] @ wide[1].reshape(2, 8)[j]) for i in (0, 1) for j in (0, 1)]
    assert run("smmla", total, a, b).view(np.int32).tolist() == smmla
    for at in range(4):
        sdot = [wrapped(lane, wide[0].reshape(4, 4)[lane] @ wide[1].reshape(4, 4)[at]) for lane in range(4)]
        assert run("sdot", total, a, b, at=at).view(np.int32).tolist() == sdot
    bytes_a, bytes_b = a.view(np.uint8), b.view(np.uint8)
    assert run("ushr", a, at=4).tolist() == [value >> 4 for value in bytes_a]
    assert run("and", a, b).tolist() == [x & y for x, y in zip(bytes_a, bytes_b, strict=True)]
    assert run("sub", a, b).tolist() == [(int(x) - int(y)) % 256 for x, y in zip(bytes_a, bytes_b, strict=True)]
    mixed = [int(total[2 * i + j]) for j in (0, 1) for i in (0, 1)]
    usmmla = [int(x @ y) for x in bytes_a.astype(int).reshape(2, 8) for y in wide[1].reshape(2, 8)]
    assert run("usmmla", np.zeros(4, np.int32), a, b).view(np.int32).tolist() == usmmla
    usdot = [int(x @ wide[1].reshape(4, 4)[1]) for x in bytes_a.astype(int).reshape(4, 4)]
    assert run("usdot", np.zeros(4, np.int32), a, b, at=1).view(np.int32).tolist() == usdot
    assert run("uzp1_4s", total, total)[:8].view(np.int32).tolist() == mixed[:2]
    assert run("uzp2_4s", total, total)[8:].view(np.int32).tolist() == mixed[2:]
    zipped = [value for pair in zip(bytes_a, bytes_b, strict=True) for value in pair]
    assert run("zip1_16b", a, b).tolist() == zipped[:16] and run("zip2_16b", a, b).tolist() == zipped[16:]
    assert run("zip1_2d", a, b).tolist() == [*bytes_a[:8], *bytes_b[:8]]
    assert run("zip2_2d", a, b).tolist() == [*bytes_a[8:], *bytes_b[8:]]
    assert run("scvtf", total).view(np.float32).tolist() == [np.float32(value) for value in total]
    assert run("movi", at=15).tolist() == [15] * 16 and run("mov", a).tolist() == bytes_a.tolist()


@given(st.integers(0, 2**32 - 1))
def test_float_instructions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    c, a, b = rng.standard_normal((3, 4), np.float32)
    halves = rng.standard_normal((3, 8)).astype(np.float16)
    for at in range(4):
        exact = a.astype(np.longdouble) * np.longdouble(b[at]) + c  # 64 bits hold product and sum of numbers near 1
        assert run("fmla", c, a, b, at=at).view(np.float32).tolist() == exact.astype(np.float32).tolist()
        assert run("fmul", a, b, at=at).view(np.float32).tolist() == (a * b[at]).tolist()
    for at in range(8):
        fused = halves[1].astype(np.float64) * float(halves[2, at]) + halves[0]
        assert run("fmla_8h", *halves, at=at).view(np.float16).tolist() == fused.astype(np.float16).tolist()
    assert run("fadd", a, b).view(np.float32).tolist() == (a + b).tolist()
    assert run("fneg", a).view(np.float32).tolist() == (-a).tolist()
    assert run("fmov", at=-8).view(np.float32).tolist() == [-8.0] * 4
    assert run("fsub", a, b).view(np.float32).tolist() == (a - b).tolist()
    assert run("fcvtl", halves[0]).view(np.float32).tolist() == halves[0][:4].tolist()
    assert run("fcvtl2", halves[0]).view(np.float32).tolist() == halves[0][4:].tolist()


def test_floats_are_added_in_the_order_of_the_steps() -> None:
    """1e8 + 1 - 1e8: in this order the 1 is lost."""
    a = np.array([[1e8] * 4, [1] * 4, [-1e8] * 4], np.float32).view(np.uint8)
    ones = np.ones((3, 4), np.float32).view(np.uint8)
    total = np.zeros((1, 16), np.uint8)
    assert OPERATIONS["fmla"].run(total, a, ones, 0).view(np.float32).tolist() == [[0.0] * 4]
    assert OPERATIONS["fmla"].run(total, a[[0, 2, 1]], ones, 0).view(np.float32).tolist() == [[1.0] * 4]
