"""Stretches that are measured once and counted many times: equal to running them as often."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from measure import measured, numbered, own
from runs import new_block

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import allreduce, ktree
from meshrt.mesh.collectives.rings import interleaved_rings
from meshrt.mesh.collectives.shifts import start_shift
from meshrt.mesh.device import Device
from meshrt.mesh.repeat import drifting, repeated, sampled, spread
from meshrt.mesh.wires.receiving import receive

SLOW = Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=4.0, macs_per_cycle=2.0, call_cycles=11.0)
MESHES = [(7, 5), (4, 4)]
WARM = 8  # repetitions after which the clocks only shift


def stretch(block: Block, rings: Any, tree: Any, tiles: np.ndarray) -> None:
    """Shifts both ways, a product meanwhile, and an allreduce: links, stages, compute and waiting."""
    flights = [start_shift(block, ring, tiles, np.empty_like(tiles)) for ring in (rings.x, rings.y)]
    block.matmul(tiles, tiles)
    receive(block, *flights)
    allreduce(block, tree, tiles[:, :, 0, 0])


def run(comm: Any, mesh: tuple[int, int], once: int, times: int, payload: bool = True) -> tuple[dict[str, Any], Any]:
    """Measure `once` single stretches, then one that is counted `times` times; with the clocks at the end."""
    block = new_block(comm, mesh, SLOW, payload)
    side = int(np.lcm(*mesh))
    each = side // mesh[1], side // mesh[0]
    tiles = own(block, numbered(*mesh, *each, 3, 3)) if payload else np.empty((1, 1, *each, 3, 3), np.float32)
    with interleaved_rings(block) as rings, ktree(block, "x") as tree:
        for _ in range(once):
            stretch(block, rings, tree, tiles)
        with repeated(block, times):
            stretch(block, rings, tree, tiles)
        stretch(block, rings, tree, tiles)  # whatever comes after finds clocks and links alike
    ends = block.clock.state[0].copy()
    report = measured(block)
    del report["host"]
    return report, ends


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("payload", [True, False])
def test_a_repeated_stretch_counts_as_if_it_had_run_as_often(mesh: tuple[int, int], payload: bool, comm):
    every, all_ends = run(comm, mesh, WARM + 12, 1, payload)
    once, ends = run(comm, mesh, WARM, 13, payload)
    assert once == every
    assert np.array_equal(ends, all_ends)
    assert every["stages"] == (WARM + 14) * (mesh[0] - 1) * mesh[1]


@pytest.mark.mpi(ranks=[1])
def test_repetitions_multiply_when_they_are_nested(comm):
    def nested(outer: int, inner: int) -> dict[str, Any]:
        block = new_block(comm, (4, 4), SLOW)
        tiles = own(block, numbered(4, 4, 1, 1, 3, 3))
        with interleaved_rings(block) as rings, ktree(block, "x") as tree:
            for _ in range(WARM):
                stretch(block, rings, tree, tiles)
            with repeated(block, outer), repeated(block, inner):
                stretch(block, rings, tree, tiles)
        return measured(block)

    outermost, other = nested(6, 1), nested(2, 3)
    del outermost["host"], other["host"]
    assert outermost == other


@pytest.mark.mpi(ranks=[1])
def test_peaks_and_the_host_are_counted_once(comm):
    reports = []
    for times in (1, 9):
        block = new_block(comm, (2, 1), SLOW)
        tiles = own(block, numbered(2, 1, 2, 1, 3, 3))[:, :, :1]
        with interleaved_rings(block), ktree(block, "x") as tree, repeated(block, times):
            allreduce(block, tree, tiles)
        reports.append(measured(block))
    once, often = reports
    for key in ("max_hops", "route_entries", "memory_bytes"):
        assert once[key] == often[key]
    assert once["host"]["messages"] == often["host"]["messages"]
    assert often["stages"] == 9 * once["stages"] > 0


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("sample", [1, 3, 7, 8])
def test_a_sample_of_a_loop_counts_for_all_its_steps(sample: int, comm):
    def loop(sample: int | None, payload: bool) -> tuple[int, dict[str, Any]]:
        block = new_block(comm, (3, 3), SLOW, payload)
        tiles = own(block, numbered(3, 3, 1, 1, 3, 3)) if payload else np.empty((1, 1, 1, 1, 3, 3), np.float32)
        ran = 0
        for _ in sampled(block, 7, sample):
            block.matmul(tiles, tiles)
            ran += 1
        return ran, measured(block)

    (ran, part), (every, all_steps), (payloads, numbers) = loop(sample, False), loop(None, False), loop(sample, True)
    assert (ran, every, payloads) == (min(sample, 7), 7, 7)
    assert part["macs"] == all_steps["macs"] == numbers["macs"] == 7 * 9 * 27
    assert part["critical_path"] == all_steps["critical_path"] == numbers["critical_path"]


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize(("sample", "steps"), [(1, 2), (2, 4), (5, 10), (10, 20)])
def test_a_sample_spread_over_a_loop_counts_for_all_its_steps(sample: int, steps: int, comm):
    """Steps of rising cost, 1 to 20 products: what lies in the middle of a stretch stands for it."""

    def loop(sample: int | None) -> tuple[list[int], dict[str, Any]]:
        block = new_block(comm, (3, 3), SLOW, payload=False)
        ran = []
        for step in spread(block, 20, sample):
            for _ in range(step + 1):
                block.matmul(np.empty((1, 1, 3, 3)), np.empty((1, 1, 3, 3)))
            ran.append(step)
        return ran, measured(block)

    (ran, part), (every, whole) = loop(sample), loop(None)
    assert every == list(range(20))
    assert len(ran) == steps
    assert ran == sorted(set(ran))
    for key in ("macs", "critical_path"):
        sampled, other = (report["macs"] if key == "macs" else report[key]["cycles"] for report in (part, whole))
        assert sampled == pytest.approx(other, rel=0.05)


@pytest.mark.mpi(ranks=[1, 3])
def test_stretches_go_by_what_cores_take_in_the_mean_and_not_by_how_they_got_there(comm):
    """Columns work for 90 cycles in turns, and all cores for 400 more where the sample has leapt to another step."""

    def loop(sample: int | None) -> tuple[list[int], dict[str, Any]]:
        block, ran = new_block(comm, (3, 3), SLOW, payload=False), [-1]
        columns = block.mesh.x0 + np.arange(block.mesh.block_width)
        for step in drifting(block, 60, sample, 3):
            if step != ran[-1] + 1:
                block.clock.software(400.0)
            block.clock.software(90.0, (slice(None), columns == step % 3))
            ran.append(step)
        return ran[1:], measured(block)

    (ran, part), (every, whole) = loop(2), loop(None)
    assert every == list(range(60))
    assert ran == [*range(10, 16), *range(40, 46)]
    assert part["critical_path"]["cycles"] == whole["critical_path"]["cycles"] == 20 * 90


@pytest.mark.mpi(ranks=[1])
def test_cores_that_had_nothing_to_do_stay_where_they_were(comm):
    block = new_block(comm, (3, 2), SLOW)
    with repeated(block, 5):
        block.work(np.array([[0, 4, 0], [0, 0, 0]]))
    assert block.clock.state[0].tolist() == [[0, 5 * 13, 0], [0, 0, 0]]
    measured(block)


@pytest.mark.mpi(ranks=[1])
def test_what_cannot_be_repeated_is_refused(comm):
    block = new_block(comm, (2, 2))
    with pytest.raises(ValueError, match="once or more often, not 0 times"), repeated(block, 0):
        pass
    with pytest.raises(ValueError, match="one step or more, not 0"):
        list(sampled(block, 5, 0))
    with pytest.raises(ValueError, match="one step or more, not 0"):
        list(spread(block, 5, 0))
    with pytest.raises(ValueError, match="one step or more, not 0"):
        list(drifting(block, 5, 0, 1))
    with pytest.raises(ValueError, match="a phase began or ended"), repeated(block, 2), block.phase("inside"):
        pass
    measured(block)
