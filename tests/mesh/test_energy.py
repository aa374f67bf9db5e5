"""Joules of a mesh: what was counted, by hand, times the device's numbers; the phases add up to the run."""

from __future__ import annotations

from dataclasses import fields, replace
from math import fsum
from typing import Any

import numpy as np
import pytest
from measure import end, run_report
from runs import new_block

from meshrt.errors import UsageError
from meshrt.mesh.collectives.allreduce import allreduce, pattern
from meshrt.mesh.device import ENERGY, Device
from meshrt.mesh.presets import WORMHOLE, WSE2
from meshrt.mesh.repeat import repeated

PRICED = Device(
    name="priced", alpha=2.0, macs_per_cycle=1.0, clock_hz=1e6, hop_picojoules=(1.0, 3.0),
    memory_picojoules=(10.0, 30.0), mac_picojoules=(100.0, 300.0), mac_picojoules_16=(1000.0, 1000.0),
    add_picojoules=(10_000.0, 20_000.0), idle_watts=(0.5, 1.5),
)  # fmt: skip
IDS = {"prompt_ids": "1,2,3,4,5", "max_new_tokens": 3, "ignore_eos": True}
KEYS = ("low", "mean", "high", "links", "memory", "compute", "idle")


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("operands", [0, 1, 2])
def test_an_operation_moves_the_vectors_that_it_reads_and_one_that_it_writes(operands: int, comm: Any) -> None:
    """8 cores, 6 numbers of 2 bytes: 3 operations on tiles, then 2 instructions on vectors, and 5 that rebuild.

    Of a chunk of one number, two cycles where operands' banks may be in each other's way.
    """
    block = new_block(comm, (4, 2), replace(PRICED, adds_per_cycle=1.0, chunk_cycles=2.0))
    block.elementwise(block.tiles("A", (2, 3), "float16"), 3, operands=operands)
    block.vectors(6, 2, 2, operands=operands)
    block.rebuild(6, [(6, 5, 2, operands)])
    report = end(block)["measured"]
    assert (report["adds"], report["operand_bytes"]) == (8 * 6 * 10, 8 * 6 * 10 * 2 * (operands + 1))
    assert report["critical_path"]["cycles"] == 10 * 6 * (2 if operands == 2 else 1)


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_sum_and_a_product_cost_what_they_move(dtype: str, stream: bool, comm: Any) -> None:
    """4 x 2 cores multiply 3 x 5 by 5 x 2, and chains along x add up 6 numbers: by hand, each with its price."""
    block = new_block(comm, (4, 2), replace(PRICED, stream_adds=stream))
    a, b = block.tiles("A", (3, 5), dtype), block.tiles("B", (5, 2), dtype)
    a[...], b[...] = 1, 1
    with pattern(block, "pipeline", "x", 1) as way:
        allreduce(block, way, block.matmul(a, b))
    report = end(block)["measured"]
    macs, adds, itemsize = 8 * 30, 2 * 3 * 6, a.itemsize
    assert (report["macs"], report["adds"]) == (macs, adds)
    assert report["operand_bytes"] == 3 * itemsize * macs + (4 if stream else 12) * adds
    link, ramps = report["link_bytes"]["total"], report["ramp_bytes"]["total"]
    assert link == 2 * (3 + 3) * 6 * 4 and ramps == 2 * (3 + 3 + 1 + 3) * 6 * 4
    seconds = report["critical_path"]["seconds"]
    energy = report["energy"]
    assert set(energy) == set(KEYS)
    mac = {4: (100, 300), 2: (1000, 1000)}[itemsize]
    for name, at in (("low", 0), ("high", 1)):
        picojoules = (
            8 * link * (1, 3)[at] + 8 * (report["operand_bytes"] + ramps) * (10, 30)[at] + macs * mac[at]
            + adds * (10_000, 20_000)[at] + 1e12 * 8 * seconds * (0.5, 1.5)[at]
        )  # fmt: skip
        assert energy[name] == pytest.approx(1e-12 * picojoules, rel=1e-12)
    assert energy["mean"] == pytest.approx((energy["low"] + energy["high"]) / 2, rel=1e-12)
    assert energy["links"] == pytest.approx(1e-12 * 8 * link * 2, rel=1e-12)
    assert energy["memory"] == pytest.approx(1e-12 * 8 * (report["operand_bytes"] + ramps) * 20, rel=1e-12)
    assert energy["idle"] == pytest.approx(8 * seconds, rel=1e-12)
    assert energy["mean"] == pytest.approx(fsum(energy[part] for part in KEYS[3:]), rel=1e-12)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "numbers"), [("pipeline", 8), ("ring", 4)])
def test_a_sum_of_16_bit_numbers_moves_two_bytes_of_each(kind: str, numbers: int, stream: bool, comm: Any) -> None:
    """Two cores add 8 numbers, thrice (from the second time on by tables): a chain all of them at one, a ring 4 each.

    Where they do not stream, at the 16-bit rate.
    """
    device = Device(name="wide", alpha=0.0, adds_per_cycle=1.0, adds_per_cycle_16=4.0, stream_adds=stream)
    block = new_block(comm, (2, 1), device)
    tiles = block.tiles("A", (8,), "float16")
    tiles[...] = 1
    with pattern(block, kind, "x", 1) as way:
        for _ in range(3):
            allreduce(block, way, tiles)
    report = end(block)["measured"]
    assert (report["adds"], report["operand_bytes"]) == (3 * 8, 3 * 8 * 2 * (1 if stream else 3))
    assert stream or report["critical_path"]["cycles"] == 3 * numbers / 4


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("payload", [True, False])
def test_the_phases_of_a_model_add_up_to_its_joules(payload: bool, comm: Any) -> None:
    report = run_report(comm, "llama", (8, 8), "wse2", payload=payload, **IDS)
    for key in KEYS:
        assert sum(phase["energy"][key] for phase in report["phases"]) == report["measured"]["energy"][key] > 0
    for part in (report["measured"], *report["phases"]):
        assert part["energy"]["low"] <= part["energy"]["mean"] <= part["energy"]["high"]


@pytest.mark.mpi(ranks=[1, 2])
def test_what_is_done_outside_of_phases_is_in_the_run(comm: Any) -> None:
    block = new_block(comm, (4, 3), PRICED, payload=False)
    tiles = block.tiles("A", (6, 6), "float32")
    for named in (True, False, True):
        if named:
            with block.phase(f"part {block.counters.macs}"):
                block.matmul(tiles, tiles)
        else:
            block.matmul(tiles, tiles)
    report = end(block)
    whole, phases = report["measured"]["energy"], [phase["energy"] for phase in report["phases"]]
    for key in KEYS:
        assert whole[key] == pytest.approx(1.5 * sum(phase[key] for phase in phases), rel=1e-9)


@pytest.mark.mpi(ranks=[1])
def test_a_stretch_that_stands_for_others_takes_as_often(comm: Any) -> None:
    def run(times: int) -> dict[str, float]:
        block = new_block(comm, (4, 3), PRICED, payload=False)
        tiles = block.tiles("A", (6, 6), "float32")
        with repeated(block, times):
            block.matmul(tiles, tiles)
            block.elementwise(tiles)
        return dict(end(block)["measured"]["energy"])

    once, five = run(1), run(5)
    for key in set(KEYS) - {"links"}:
        assert five[key] == pytest.approx(5 * once[key], rel=1e-12) and once[key] > 0


@pytest.mark.mpi(ranks=[1])
def test_a_device_without_joules_has_no_energy(comm: Any) -> None:
    for name in ("ideal", "wormhole", "dojo"):
        report = run_report(comm, "gemv", (4, 4), name)
        assert "energy" not in report["measured"]
    idle_alone = replace(WSE2, **{name: None for name in ENERGY if name != "idle_watts"})
    energy = run_report(comm, "gemv", (4, 4), idle_alone)["measured"]["energy"]
    assert energy["mean"] == energy["idle"] > 0 and energy["links"] == 0


def test_a_matrix_unit_reads_the_operands_of_its_passes() -> None:
    rows, depth, columns = WORMHOLE.matrix_unit or (0, 0, 0)
    m, k, n = 9, 33, 17  # 2 x 3 x 2 passes
    a, b = np.zeros((2 * rows, 3 * depth), np.float16), np.zeros((3 * depth, 2 * columns), np.float16)
    read = 2 * a.nbytes + 2 * b.nbytes  # A again for each strip of columns, B for each of rows
    assert WORMHOLE.operand_bytes(m, k, n, 2) == read + 2 * m * n
    assert WORMHOLE.operand_bytes(m, k, n, 4) == 3 * 4 * m * k * n


@pytest.mark.parametrize("name", ENERGY)
@pytest.mark.parametrize("value", [(2.0, 1.0), (-1.0, 1.0), (0.0, float("inf")), (float("nan"), 1.0)], ids=str)
def test_joules_that_are_no_range_are_refused(name: str, value: tuple[float, float]) -> None:
    with pytest.raises(UsageError, match=f"device wse2: {name} is .*the lowest and the highest"):
        replace(WSE2, **{name: value})


def test_all_joules_of_a_device_are_checked() -> None:
    assert {field.name for field in fields(Device) if "joules" in field.name or "watts" in field.name} == set(ENERGY)
