"""Virtual time: what hops, stages, links and computing cost, what overlaps, and the critical path."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from measure import end, marks, measured, run_report, whole
from runs import new_block

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.clock import HOPS, STAGES, TIME
from meshrt.mesh.device import Device
from meshrt.mesh.wires import fabric, receiving, routes, software
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import Channel, installed

RANKS = [1, 2, 3, 4, 6, 9, 16]
MESH = (6, 4)
NUMBERS = 10  # of float32 in a tile


def tiles(block: Block) -> np.ndarray:
    return np.zeros((*block.shape, NUMBERS), np.float32)


def path_of(block: Block) -> tuple[float, int, int]:
    """(cycles, hops, stages) of the critical path of the whole run."""
    path = measured(block)["critical_path"]
    return path["cycles"], path["hops"], path["stages"]


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize(("alpha", "width"), [(1.0, None), (3.0, None), (0.5, 4.0), (2.0, 7.0), (0.0, 1.0)])
def test_a_packet_costs_alpha_a_hop_and_its_tail_once(alpha: float, width: float | None, comm):
    block = new_block(comm, MESH, Device(name="test", alpha=alpha, link_bytes_per_cycle=width))
    with installed(block, "x", [Route(1, (3, 5))]) as channel:
        fabric.transfer(block, channel, tiles(block))
    tail = ceil(4 * NUMBERS / width) if width else 0
    row = [0, 0, 0, 2 * alpha + tail, 0, 4 * alpha + tail]
    assert whole(block, block.clock.state[TIME]).tolist() == [row] * 4
    assert path_of(block) == (4 * alpha + tail, 4 if row[5] else 0, 0)


@pytest.mark.mpi(ranks=RANKS)
def test_a_stage_waits_for_the_tail_adds_beta_and_the_work(comm):
    device = Device(name="test", alpha=1.0, beta=5.0, link_bytes_per_cycle=4.0, macs_per_cycle=2.0, call_cycles=7.0)
    block = new_block(comm, MESH, device)
    with installed(block, "x", routes.chain(6)) as channel:
        carried = tiles(block)
        for core in range(5):
            carried = fabric.transfer(block, channel, carried, positions=marks(6, [core]))
            software.stage(block, channel, NUMBERS, marks(6, [core + 1]))
    each = 1 + NUMBERS * 4 / 4 + 5 + 7 + NUMBERS / 2  # hop, tail, stage, call, additions
    assert whole(block, block.clock.state[TIME]).tolist() == [[core * each for core in range(6)]] * 4
    assert whole(block, block.clock.state[HOPS]).tolist() == [[0, 1, 2, 3, 4, 5]] * 4
    assert whole(block, block.clock.state[STAGES]).tolist() == [[0, 1, 2, 3, 4, 5]] * 4
    report = measured(block)
    assert report["stages"] == 5 * 4
    path = report["critical_path"]
    assert (path["cycles"], path["hops"], path["stages"]) == (5 * each, 5, 5)


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize(("rate", "dtype"), [(1.0, "float32"), (0.25, "float32"), (1.0, "float16"), (None, "float32")])
def test_a_streamed_chain_costs_its_hops_its_stages_and_one_packet(rate: float | None, dtype: str, comm):
    """B + (2 T_R + 2)(P - 1), Near-Optimal Wafer-Scale Reduce, HPDC 2024, for B words, P cores and a ramp latency T_R.

    Where a core adds more slowly than words come, B is the time of the additions.
    """
    device = Device(name="test", alpha=1.0, beta=5.0, link_bytes_per_cycle=4.0, macs_per_cycle=rate)
    numbers, reports = 100, []
    for payload in (True, False):
        block = new_block(comm, MESH, device, payload)
        added = np.ones((*block.lead, numbers), dtype)
        with installed(block, "x", routes.chain(6)) as channel:
            for core in range(5):
                at, to = marks(6, [core]), marks(6, [core + 1])
                fabric.transfer(block, channel, added, added, positions=at, combine=np.add, stream=True)
                software.stage(block, channel, 0, to)
            heads = whole(block, block.clock.state.transpose(1, 2, 0))
            software.tail(block, channel, added, marks(6, range(1, 6)))
        if payload:
            assert whole(block, added)[..., 0].tolist() == [[1, 2, 3, 4, 5, 6]] * 4
        assert heads[..., TIME].tolist() == [[core * (1 + 5) for core in range(6)]] * 4
        assert heads[..., STAGES].tolist() == [[0, 1, 2, 3, 4, 5]] * 4
        words = max(numbers * added.itemsize / 4, numbers / rate if rate else 0)
        row = [core and words + (2 * 2 + 2) * core for core in range(6)]
        assert whole(block, block.clock.state[TIME]).tolist() == [row] * 4
        reports.append(measured(block))
        assert reports[-1].pop("host")
    assert reports[0] == reports[1]


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_two_streams_into_one_core_come_one_after_the_other(comm):
    device = Device(name="test", alpha=1.0, beta=5.0, link_bytes_per_cycle=4.0, macs_per_cycle=0.5)
    block = new_block(comm, MESH, device)
    words = NUMBERS / 0.5  # it adds more slowly than the link brings them
    with installed(block, "x", [Route(1, (2,)), Route(4, (2,))]) as channel:
        for source in (1, 4):
            fabric.transfer(block, channel, tiles(block), positions=marks(6, [source]), stream=True)
            software.stage(block, channel, 0, marks(6, [2]))
        assert whole(block, block.clock.state[TIME]).tolist() == [[0, 0, 1 + words + 5, 0, 0, 0]] * 4
        # The stream that is still on its way in keeps a packet that is not streamed waiting, too.
        fabric.transfer(block, channel, tiles(block), positions=marks(6, [1]))
    assert whole(block, block.clock.state[TIME])[0, 2] == 1 + 2 * words + NUMBERS
    assert path_of(block) == (1 + 2 * words + NUMBERS, 1, 0)


@pytest.mark.mpi(ranks=[1, 4])
def test_computing_costs_a_call_and_its_operations(comm):
    machine = Device(name="test", macs_per_cycle=4.0, macs_per_cycle_16=6.0, call_cycles=3.0, clock_hz=2e6)
    block = new_block(comm, (4, 4), machine)
    a, b = np.ones((*block.shape, 2, 5), np.float32), np.ones((*block.shape, 5, 6), np.float32)
    assert (block.matmul(a, b) == 5).all()
    cycles = 5 * 2 * (3 + 2)  # for each k and each of 2 rows, an instruction on 6 numbers: 2 cycles at 4 a cycle
    block.matmul(a.astype(np.float16), b)  # as wide as the wider operand
    cycles += 5 * 2 * (3 + 2)
    block.matmul(a.astype(np.float16), b.astype(np.float16))
    cycles += 5 * 2 * (3 + 1)
    block.elementwise(np.ones((*block.shape, 8)), calls=2)
    cycles += 2 * (3 + 8 / 4)
    block.work(np.full(block.shape, 20))
    cycles += 3 + 20 / 4
    report = measured(block)
    assert report["macs"] == 16 * (3 * 2 * 5 * 6 + 20)
    assert report["critical_path"] == {"cycles": cycles, "seconds": cycles / 2e6, "hops": 0, "stages": 0}


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("work", [3, 40])
def test_work_between_send_and_receive_overlaps(work: int, comm):
    """A core goes on at max(its own work's end, arrival), with the path of the later of the two."""
    block = new_block(comm, MESH, Device(name="test", alpha=2.0, macs_per_cycle=1.0))
    with installed(block, "x", [Route(0, (5,))]) as channel:
        flight = fabric.send(block, channel, tiles(block))
        block.clock.compute(work)
        assert (block.clock.state[TIME] == work).all(), "sending does not stop a core"
        receiving.receive(block, flight)
    arrival = 5 * 2
    assert whole(block, block.clock.state[TIME]).tolist() == [[work] * 5 + [max(work, arrival)]] * 4
    assert path_of(block) == (max(work, arrival), 5 if arrival > work else 0, 0)


@pytest.mark.mpi(ranks=RANKS)
def test_without_overlap_the_times_add_up(comm):
    block = new_block(comm, MESH, Device(name="test", alpha=2.0, macs_per_cycle=1.0))
    with installed(block, "x", [Route(0, (5,))]) as channel:
        block.clock.compute(7)
        fabric.transfer(block, channel, tiles(block))
        block.clock.compute(3)
    assert path_of(block) == (7 + 5 * 2 + 3, 5, 0)


@pytest.mark.mpi(ranks=[1, 2, 3, 6])
def test_what_is_under_way_elsewhere_does_not_change_whose_turn_it_is_at_a_ramp(comm):
    """Core (2, 0) waits for the second of two packets, and the first, which is over by then, can wait for it. So a
    third one that asks sooner is held up by none; on a block with row 1 it was, as more was under way there.
    """
    block = new_block(comm, (3, 2), Device(name="test", link_bytes_per_cycle=4.0, macs_per_cycle=1.0))
    block.work(12 * ((block.x == 1) & (block.y[:, None] == 0)))
    with installed(block, "x", routes.chain) as east, installed(block, "y", routes.chain, -1) as north:

        def sent(way: Channel, position: int, line: int) -> receiving.Flight:
            lines = marks(2 if way is east else 3, [line])
            one_number = np.zeros((*block.shape, 1), np.float32)
            return fabric.send(block, way, one_number, positions=marks(way.length, [position]), lines=lines)

        first, second, elsewhere = sent(east, 1, 0), sent(east, 1, 0), sent(east, 0, 1)
        receiving.receive(block, second)
        receiving.receive(block, sent(north, 1, 2), first, elsewhere)
    report = measured(block)
    assert report["out_of_order"] == {"packets": 0, "longest_wait": 0.0}
    assert report["critical_path"]["cycles"] == 12 + 1 + 1 + 1


@pytest.mark.mpi(ranks=RANKS)
def test_the_path_of_a_packet_is_taken_over_and_handed_on(comm):
    """East along row 0, then south along column 5: the last core's path has the hops of both packets."""
    block = new_block(comm, MESH)
    with (
        installed(block, "x", [Route(0, (5,))], lines=marks(4, [0])) as east,
        installed(block, "y", [Route(0, (3,))], lines=marks(6, [5])) as south,
    ):
        fabric.transfer(block, east, tiles(block))
        software.stage(block, east, 0, marks(6, [5]), marks(4, [0]))
        fabric.transfer(block, south, tiles(block))
    hops = np.zeros((4, 6))
    hops[0, 5], hops[3, 5] = 5, 8
    assert whole(block, block.clock.state[HOPS]).tolist() == hops.tolist()
    assert whole(block, block.clock.state[STAGES]).tolist() == (hops > 0).astype(int).tolist()
    assert path_of(block) == (8, 8, 1)


@pytest.mark.mpi(ranks=RANKS)
def test_a_core_that_was_later_keeps_its_own_path(comm):
    block = new_block(comm, MESH, Device(name="test", alpha=1.0, macs_per_cycle=1.0))
    with installed(block, "x", [Route(0, (1,))]) as near, installed(block, "x", [Route(5, (1,))]) as far:
        first = fabric.send(block, near, tiles(block))
        second = fabric.send(block, far, tiles(block))
        receiving.receive(block, second)
        receiving.receive(block, first)  # came earlier: core 1 has waited for the other already
    assert whole(block, block.clock.state[TIME]).tolist() == [[0, 4, 0, 0, 0, 0]] * 4
    assert path_of(block) == (4, 4, 0)


@pytest.mark.mpi(ranks=RANKS)
def test_phases_begin_together_and_add_up(comm):
    block = new_block(comm, MESH, Device(name="test", alpha=1.0, beta=4.0, macs_per_cycle=1.0))
    with installed(block, "x", [Route(0, (5,))]) as east, installed(block, "y", routes.chain(4)) as south:
        with block.phase("east"):
            fabric.transfer(block, east, tiles(block))
            software.stage(block, east, 6, marks(6, [5]))
        assert (block.clock.state[TIME] == 15).all()
        with block.phase("south"):
            fabric.transfer(block, south, tiles(block))
        fabric.transfer(block, south, tiles(block))
        with block.phase("work"):
            block.clock.compute(9)
    named = end(block)["phases"]
    paths = [tuple(phase["critical_path"][key] for key in ("cycles", "hops", "stages")) for phase in named]
    assert [phase["name"] for phase in named] == ["east", "south", "work"]
    assert paths == [(5 + 4 + 6, 5, 1), (1, 1, 0), (9, 0, 0)]
    assert [(phase["hops"], phase["messages"], phase["stages"]) for phase in named] == [
        (20, 4, 4),
        (18, 18, 0),
        (0, 0, 0),
    ]


@pytest.mark.mpi(ranks=RANKS)
def test_stretches_of_one_name_are_one_phase(comm):
    """What its busiest link carried, all of it, and what cores did, whichever stretch it was in."""
    block = new_block(comm, MESH, Device(name="test", alpha=1.0, link_bytes_per_cycle=4.0, macs_per_cycle=1.0))
    with installed(block, "x", [Route(0, (5,))]) as east, installed(block, "x", [Route(5, (0,))]) as west:
        for ways in ((east,), (west, east), (east,)):
            with block.phase("a", tokens=2):
                for way in ways:
                    fabric.transfer(block, way, tiles(block))
            block.clock.compute(9)
    report = end(block)
    (named,), nbytes = report["phases"], tiles(block)[0, 0].nbytes
    assert named["link_bytes"] == report["measured"]["link_bytes"] == {"total": 4 * 4 * 5 * nbytes, "max": 3 * nbytes}
    assert named["ramp_bytes"] == {"total": 4 * 4 * 2 * nbytes, "max": 3 * nbytes}
    assert (named["messages"], named["tokens"], named["cores_used"], named["max_hops"]) == (16, 6, 8, 5)
    path = report["measured"]["critical_path"]["cycles"] - 3 * 9
    assert named["critical_path"]["cycles"] == path and named["critical_path"]["hops"] == 20


@pytest.mark.mpi(ranks=RANKS)
def test_a_phase_that_an_exception_ends_has_what_was_done_in_it(comm):
    """And as long as it took the last core, wherever that is; what follows is in none, and nobody meets."""
    block = new_block(comm, MESH, Device(name="test", macs_per_cycle=1.0))
    last = np.broadcast_to(block.x == 5, block.shape)
    with pytest.raises(ZeroDivisionError), block.phase("a"):
        block.work(7 * last)
        raise ZeroDivisionError
    block.work(1)
    with block.phase("b"):
        block.work(2)
    report = end(block)
    assert [(part["macs"], part["critical_path"]["cycles"]) for part in report["phases"]] == [(28, 7), (48, 2)]
    assert report["measured"]["critical_path"]["cycles"] == 10


@pytest.mark.mpi(ranks=RANKS)
def test_the_whole_run_is_its_phases_and_what_is_between(comm):
    report = run_report(comm, "kvcache", MESH, "wse2", tokens=9, layers=1, heads=1)
    (fill,) = report["phases"]
    for key in ("messages", "hops", "stages", "macs"):
        assert report["measured"][key] == fill[key], "nothing moves outside the phase"
    assert report["measured"]["critical_path"] == fill["critical_path"]
    assert report["measured"]["link_bytes"] == fill["link_bytes"]


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("program", ["gemm", "gemv", "kvcache"])
def test_on_the_ideal_device_cycles_are_the_hops_of_the_critical_path(program: str, comm):
    path = run_report(comm, program, MESH)["measured"]["critical_path"]
    assert path["cycles"] == path["hops"] > 0
    assert path["seconds"] == path["cycles"] / 1e9


def test_a_devices_numbers_cannot_be_negative():
    for name in ("alpha", "beta", "core_memory", "route_entries", "clock_hz"):
        with pytest.raises(UsageError, match=name):
            Device(name="test", **{name: -1})


@pytest.mark.mpi(ranks=[1])
def test_transfers_of_all_sizes_use_the_same_memory_in_turn(comm):
    """As many pieces as were ever in use at once, and not one of each size: aligning has transfers of many sizes."""
    clock = new_block(comm, (2, 2), Device(name="test")).clock
    first, second = clock.borrow(800_000), clock.borrow(500_000)
    assert not np.shares_memory(first, second)
    clock.give_back(first)
    clock.give_back(second)
    for nbytes in range(800_000, 100_000, -70_000):  # one at a time, ever smaller: the smallest that does
        memory = clock.borrow(nbytes)
        assert memory is (first if nbytes > second.nbytes else second) and memory.nbytes >= nbytes
        clock.give_back(memory)
    clock.lent.clear()
    pieces = [clock.borrow(nbytes) for nbytes in (500_000, 600_000, 900_000)]
    for memory in pieces:
        clock.give_back(memory)
    large = clock.borrow(pieces[2].nbytes + 1)  # the largest give way to it, which it stands for, and no more of them
    assert large.nbytes > pieces[2].nbytes and clock.lent == pieces[:1]
    clock.give_back(large)
    assert clock.borrow(3_000_000).nbytes >= 3_000_000 and not clock.lent
