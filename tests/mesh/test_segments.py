"""Counters of a run on several blocks: in the phase in which packets move, and at the block where they do."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pytest
from measure import measured, whole
from runs import new_block, run_program

from meshrt.mesh.block import Block
from meshrt.mesh.clock import TIME
from meshrt.mesh.device import Device
from meshrt.mesh.meter import MOST, SUMS, Counters
from meshrt.mesh.repeat import repeated
from meshrt.mesh.wires import fabric, routes
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import installed

SLOW = Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=4.0, macs_per_cycle=2.0)
TILE = 12  # bytes


def shift(block: Block) -> None:
    """Every core sends 3 numbers to the next along x: a hop a core, but for the last of each line."""
    with installed(block, "x", routes.chain) as channel:
        fabric.transfer(block, channel, np.zeros((*block.lead, 3), np.float32))


def bytes_at(counters: Counters) -> dict[str, int]:
    return {place: int(links.sum()) for place, links in counters.links.items() if links.any()}


def test_every_counter_of_phases_is_one_of_the_whole_run() -> None:
    """What is in neither list would be nothing there, whatever the phases have."""
    numbers = [field.name for field in fields(Counters) if field.default is not MISSING]
    assert sorted(numbers) == sorted((*SUMS, *MOST))


@pytest.mark.mpi(ranks=[1])
def test_two_regions_count_the_bytes_of_a_token_in_its_phase(comm: Any) -> None:
    """272 hops of 8 bytes for the first token, and what both regions move before in the phase before."""
    options = {"regions": 2, "prompt_ids": "1,2,3,4", "max_new_tokens": 2, "ignore_eos": True}
    report = run_program(comm, "llama", (8, 8), "wse2", model="llama-tiny", **options)
    phases = {phase["name"]: phase for phase in report["phases"]}
    assert phases["first token"]["hops"] == 272
    assert phases["first token"]["link_bytes"] == {"total": 2176, "max": 16}
    assert phases["re-placement"]["link_bytes"]["total"] == 1024 * phases["re-placement"]["hops"]
    assert phases["re-placement"]["cores_used"] == 2 * 64
    assert sum(phase["link_bytes"]["total"] for phase in report["phases"]) == report["measured"]["link_bytes"]["total"]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("layers_run", [1, 2])
def test_layers_that_are_counted_for_all_count_at_every_block(layers_run: int, comm: Any) -> None:
    options = {"layers": 4, "regions": 2, "decode_mesh": "4x4", "decode_regions": 2, "prompt_tokens": 9}
    limits = {"core_memory": 10**8}
    every, part = (
        run_program(comm, "llama", (6, 6), "wse2", limits, False, model="llama-tiny", max_new_tokens=2, **more)
        for more in (options, options | {"layers_run": layers_run})
    )
    for counted, sampled in zip(
        [every["measured"], *every["phases"]], [part["measured"], *part["phases"]], strict=True
    ):
        for key in ("hops", "stages", "link_bytes", "cores_used", "memory_bytes", "route_entries"):
            assert counted[key] == sampled[key], (counted.get("name"), key)


@pytest.mark.mpi(ranks=[1, 2])
def test_a_phase_has_what_other_blocks_sent_in_it(comm: Any) -> None:
    block = new_block(comm, (4, 2), SLOW)
    other = block.another("there", 6, 2)
    with block.phase("one") as first:
        shift(block)
        shift(other)
    with block.phase("two") as second:
        shift(block)
    with block.phase("three") as third:
        shift(other)
    for segment, sent in ((first, [block, other]), (second, [block]), (third, [other])):
        expected = {at.site_key: TILE * 2 * (at.mesh.width - 1) for at in sent}
        shares = [bytes_at(segment.counters)] if comm.size == 1 else comm.allgather(bytes_at(segment.counters))
        assert {place: sum(part.get(place, 0) for part in shares) for place in expected} == expected
        assert {place for part in shares for place in part} == set(expected)
    assert not second.counters.used.get(other.site_key, np.zeros(1)).any()


@pytest.mark.mpi(ranks=[1])
def test_a_repeated_stretch_multiplies_the_bytes_of_every_block(comm: Any) -> None:
    outcomes = []
    for times, runs in ((5, 1), (1, 5)):
        block = new_block(comm, (4, 2), SLOW)
        other = block.another("there", 6, 2)
        shift(other)
        for _ in range(runs):
            with repeated(block, times):
                other.follow(block)
                shift(other)
                block.follow(other)
                shift(block)
        (segment,) = block.finish()
        outcomes.append((bytes_at(segment.counters), segment.counters.hops))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == {block.site_key: 5 * TILE * 6, other.site_key: 6 * TILE * 10}


@pytest.mark.mpi(ranks=[1])
def test_cores_that_idle_in_a_repeated_stretch_are_not_used(comm: Any) -> None:
    used = []
    for times in (1, 4):
        block = new_block(comm, (3, 1), SLOW)
        with repeated(block, times):
            block.work(np.array([[2, 0, 0]]))
            block.meet()
            block.work(np.array([[0, 2, 0]]))
        (segment,) = block.finish()
        used.append(segment.counters.used[block.site_key].tolist())
    assert used[0] == used[1] == [[True, True, False]]


@pytest.mark.mpi(ranks=[1])
def test_whoever_is_followed_has_entered_what_it_did(comm: Any) -> None:
    """Cores used, memory and entries of a block that is left and not seen again."""
    block = new_block(comm, (4, 2), SLOW)
    other = block.another("there", 6, 2)
    with block.phase("one") as phase:
        other.follow(block)
        other.work(np.array([[3, 0, 0, 0, 0, 0], [0] * 6]))
        with other.memory.hold("much", 1000), installed(other, "x", routes.chain(6)):
            pass
        block.follow(other)
    assert (phase.memory, phase.entries) == (1000, 2)
    assert phase.counters.used[other.site_key].tolist() == [[True] + [False] * 5, [False] * 6]


@pytest.mark.mpi(ranks=[1, 2])
def test_whoever_is_followed_has_moved_the_heads_that_nobody_waits_for(comm: Any) -> None:
    """Two packets share the link from core 1 to core 2 until cycle 6, and a third comes when the cores are taken up
    again, at cycle 2: it waits for them.
    """
    block = new_block(comm, (4, 2), SLOW)
    other = block.another("there", 4, 2)
    paths = [((0, 0), (1, 0), (2, 0)), ((1, 0), (2, 0), (3, 0))]
    tiles = np.zeros((*other.lead, 3), np.float32)
    with installed(other, None, paths) as crossed, installed(other, "x", [Route(1, (2, 3))]) as channel:
        fabric.send(other, crossed, tiles)
        other.clock.state[TIME] += 2.0
        block.follow(other)
        other.follow(block)
        fabric.transfer(other, channel, tiles)
    busy = TILE / 4  # the packet from core 1 has the link first, then that from core 0, then this
    assert whole(other, other.clock.state[TIME])[0, 3] == 3 * busy + 2 * 1.5
    assert measured(block)["out_of_order"]["packets"] == 0


@pytest.mark.mpi(ranks=[1])
def test_peaks_of_a_block_that_nobody_follows_are_those_of_the_phase(comm: Any) -> None:
    block = new_block(comm, (4, 2), SLOW)
    other = block.another("there", 6, 2)
    with block.phase("one") as first, other.memory.hold("much", 1000):
        shift(other)
    with block.phase("two") as second, other.memory.hold("little", 10):
        shift(other)
    tile = 4 * 3  # bytes of the tile that comes in
    assert (first.memory, second.memory) == (1000 + tile, 10 + tile)
    assert (first.entries, second.entries) == (2, 2)
