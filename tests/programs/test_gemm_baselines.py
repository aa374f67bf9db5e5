"""Cannon, SUMMA and GEMM by allgather: right on any mesh, and as dear as section 5.1 of waferllm has them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil, lcm, prod
from typing import Any

import numpy as np
import pytest
from measure import on_one_rank, run_report
from runs import NETWORK

from meshrt.errors import LimitError, UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.clock import TIME
from meshrt.mesh.collectives import broadcast
from meshrt.mesh.collectives.broadcast import cut
from meshrt.mesh.device import Device
from meshrt.mesh.presets import WSE2
from meshrt.mesh.wires import fabric, ramps
from meshrt.mesh.wires.lane import Lane
from meshrt.mesh.wires.lines import Positions
from meshrt.programs.gemm import random_matrices
from meshrt.programs.mesh.baselines import summa as baseline

BASELINES = ["cannon", "summa", "allgather"]
MESHES = [(1, 1), (2, 2), (3, 3), (4, 2), (3, 5), (8, 8), (1, 7), (6, 4)]
SIZES = [(13, 7, 9), (1, 1, 1), (5, 31, 2)]
# Every part of the machine costs time, none of it a round number of the others; its tables are too small for 5 + 5.
SLOW = Device(
    name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=3.0, macs_per_cycle=2.0, call_cycles=11.0, route_entries=12
)


def assert_right(report: dict[str, Any], m: int, k: int, n: int, dtype: str = "float32") -> None:
    """Within what K additions in float32 can lose of the largest number."""
    a, b = (np.abs(draw().astype(np.float64)) for draw in random_matrices(0, (m, k), (k, n), dtype))
    assert 0 <= report["result"]["max_abs_error"] <= (k + 1) * 2.0**-24 * (a @ b).max()


# ---------------------------------------------------------------------------------------------------------- results


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(12)
@pytest.mark.parametrize("algorithm", BASELINES)
@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_the_product_is_numpys(mesh: tuple[int, int], algorithm: str, comm):
    for m, k, n in SIZES:
        assert_right(run_report(comm, "gemm", mesh, algorithm=algorithm, m=m, k=k, n=n), m, k, n)
    for segment in (1, 2, 3) if algorithm != "cannon" else ():
        options: dict[str, Any] = {"algorithm": algorithm, "segment": segment}
        assert_right(run_report(comm, "gemm", mesh, m=11, k=14, n=9, **options), 11, 14, 9)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("algorithm", BASELINES)
def test_narrow_types_are_stored_and_summed_in_float32(algorithm: str, comm):
    wide = run_report(comm, "gemm", (3, 3), algorithm=algorithm, m=10, k=33, n=7)
    for dtype in ("float16", "bfloat16"):
        report = run_report(comm, "gemm", (3, 3), algorithm=algorithm, m=10, k=33, n=7, dtype=dtype)
        assert_right(report, 10, 33, 7, dtype)
        assert 2 * report["measured"]["link_bytes"]["total"] == wide["measured"]["link_bytes"]["total"]


@pytest.mark.mpi(ranks=[1, 2, 3, 4, 6, 9])
@pytest.mark.parametrize("algorithm", BASELINES)
def test_reports_are_those_of_one_rank_and_those_without_payloads(algorithm: str, comm):
    for mesh in ((6, 6), (4, 6)) if comm.size != 9 else ((6, 6),):
        options: dict[str, Any] = {"algorithm": algorithm, "m": 11, "k": 14, "n": 9}

        def run(ranks: Any, mesh: tuple[int, int] = mesh, options: dict[str, Any] = options) -> dict[str, Any]:
            return run_report(ranks, "gemm", mesh, SLOW, **options)

        together, alone = run(comm), on_one_rank(comm, run)
        assert_right(together, 11, 14, 9)
        assert {key: together[key] for key in together if key != "host"} == {
            key: alone[key] for key in alone if key != "host"
        }
        none = run_report(comm, "gemm", mesh, SLOW, payload=False, **options)
        assert none["measured"] == together["measured"]
        assert none["host"]["packets"] == together["host"]["packets"]


# ---------------------------------------------------------------------------------------------------------- counts


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("mesh", [*((n, n) for n in (1, 2, 3, 5, 8, 16)), (4, 2), (2, 6), (3, 5), (1, 7)], ids=str)
def test_cannon_pays_the_hops_of_plain_rings(mesh: tuple[int, int], comm):
    """P = lcm(W, H) places on a ring. Aligning takes P^2 // 4 shifts of a line of tiles, the loop P - 1 of all lines of
    cores. In a shift every core of a line sends one tile: N - 1 of them a hop on, the last one N - 1 hops back."""
    places, hops, messages = lcm(*mesh), 0, 0
    for n, lines in (mesh, mesh[::-1]):
        shifts = places**2 // 4 + (places - 1) * lines if n > 1 else 0
        hops, messages = hops + shifts * 2 * (n - 1), messages + shifts * n
    report = run_report(comm, "gemm", mesh, algorithm="cannon", m=1, k=places, n=places)["measured"]
    assert (report["hops"], report["messages"], report["stages"]) == (hops, messages, 0)
    assert report["max_hops"] == max(mesh) - 1
    # A ring and its reverse: each core has its own route, its neighbour's, and the wrap-around, if that is a third.
    assert report["route_entries"]["max"] == sum({1: 0, 2: 4}.get(n, 6) for n in mesh)


def broadcasts(mesh: tuple[int, int], segments: tuple[int, int]) -> dict[str, int]:
    """Hops and stages when each core sends to its row and to its column, on lines of segments of so many cores.

    A tile crosses every link of its line once. Ends of segments with another one behind them relay it, in either
    direction from its source.
    """
    counts = {"hops": 0, "stages": 0}
    for n, longest, lines in ((mesh[0], segments[0], mesh[1]), (mesh[1], segments[1], mesh[0])):
        counts["hops"] += lines * n * (n - 1)
        inner = cut(n, longest)[1:-1]  # both cores at an inner bound relay, but not what is their own
        counts["stages"] += lines * len(inner) * (n - 2)
    return counts


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("algorithm", ["summa", "allgather"])
@pytest.mark.parametrize("mesh", [(1, 1), (2, 2), (5, 5), (16, 16), (4, 2), (3, 5), (1, 7)], ids=str)
def test_where_there_is_room_routes_grow_with_the_line_and_there_are_no_stages(
    mesh: tuple[int, int], algorithm: str, comm
):
    places = lcm(*mesh)
    report = run_report(comm, "gemm", mesh, algorithm=algorithm, m=1, k=places, n=places)["measured"]
    expected = broadcasts(mesh, mesh)
    if algorithm == "summa":  # of a core's tiles, those of one step at a time
        expected["hops"] = sum(lines * places * (n - 1) for n, lines in (mesh, mesh[::-1]))
    assert {key: report[key] for key in expected} == expected
    assert report["max_hops"] == max(mesh) - 1
    assert report["route_entries"]["max"] == sum(n for n in mesh if n > 1)
    assert report["macs"] == places**2 * places  # tiles of 1 x 1


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(1)
@pytest.mark.parametrize("largest", [24, pytest.param(32, marks=pytest.mark.all)])
@pytest.mark.parametrize("algorithm", ["summa", "allgather"])
def test_where_there_is_no_room_software_relays(algorithm: str, largest: int, comm):
    """On wse2, with 24 entries for both axes: every core's own route up to N = 12, segments of 8 beyond, and chains."""
    stages = {}
    for n in (8, 12, 16, largest):
        options: dict[str, Any] = {"algorithm": algorithm, "m": n, "k": n, "n": n}
        report = run_report(comm, "gemm", (n, n), "wse2", payload=False, **options)["measured"]
        longest = n if n <= 12 else 8
        expected = broadcasts((n, n), (longest, longest))
        assert {key: report[key] for key in expected} == expected
        assert report["max_hops"] == (n - 1 if n <= 12 else 8)
        assert report["route_entries"]["max"] == (2 * n if n <= 12 else 2 * (8 + (2 if n == 16 else 3)))
        stages[n] = report["stages"]
        chain = run_report(comm, "gemm", (n, n), "wse2", payload=False, segment=1, **options)["measured"]
        assert chain["stages"] == broadcasts((n, n), (1, 1))["stages"] == 2 * n * (n - 1) * (n - 2)
        assert (chain["max_hops"], chain["route_entries"]["max"]) == (1, 8)
    assert stages[8] == stages[12] == 0
    assert stages[largest] == 2 * largest * (largest // 8 - 1) * (largest - 2) > stages[16] > 0


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("mesh", [(2, 2), (4, 4), (4, 6)], ids=str)
def test_memory_is_what_each_algorithm_holds(mesh: tuple[int, int], comm):
    """All hold A, B and C. Cannon has A and B twice in flight, SUMMA two pairs of panels, a column of a core's tiles of
    A and a row of those of B; allgather what all cores of the row and the column have, itself among them."""
    width, height = mesh
    places = lcm(*mesh)
    rows, columns = places // height, places // width
    m, k, n = 13, 25, 10
    mt, kt, nt = (ceil(size / places) for size in (m, k, n))
    a, b, c = (4 * rows * columns * prod(tile) for tile in ((mt, kt), (kt, nt), (mt, nt)))
    expected = {
        "cannon": 3 * (a + b) + c,
        "summa": a + b + c + 2 * (a // columns + b // rows),
        "allgather": (width + 1) * a + (height + 1) * b + c,
    }
    for algorithm, most in expected.items():
        report = run_report(comm, "gemm", mesh, m=m, k=k, n=n, algorithm=algorithm)["measured"]
        assert report["memory_bytes"]["max"] == most


@pytest.mark.mpi(ranks=[1])
def test_allgather_is_the_first_to_run_out_of_memory(comm):
    options: dict[str, Any] = {"m": 512, "k": 512, "n": 512}
    for algorithm in ("meshgemm", "cannon", "summa"):
        run_report(comm, "gemm", (32, 32), "wse2", payload=False, algorithm=algorithm, **options)
    with pytest.raises(LimitError, match=r"'B of the column' asks for 32768 bytes, .* 'A of the row': 32768 bytes"):
        run_report(comm, "gemm", (32, 32), "wse2", payload=False, algorithm="allgather", **options)


# ---------------------------------------------------------------------------------------------------------- cycles


@pytest.mark.mpi(ranks=[1])
def test_products_hide_shifts_and_broadcasts(comm):
    """On links so slow that a step's two tiles take half as long to come as to multiply, all but the first are hidden.

    Cannon's loop comes after aligning, N // 2 steps of half a product. Nothing hidden would be N // 2 products more.
    """
    n, side = 8, 8
    product = side**3
    device = replace(NETWORK, call_cycles=0.0, link_bytes_per_cycle=2 * 2 * 4 * side**2 / product)
    for algorithm, before in (("summa", 1), ("cannon", 1 + n // 4)):
        options: dict[str, Any] = {"m": n * side, "k": n * side, "n": n * side, "algorithm": algorithm}
        path = run_report(comm, "gemm", (n, n), device, payload=False, **options)["measured"]["critical_path"]
        assert n * product < path["cycles"] < (n + before) * product


@pytest.mark.mpi(ranks=[1])
def test_with_tiny_tiles_meshgemm_is_the_fastest_where_software_costs_nothing(comm):
    """Software takes longer than all of that traffic: then MeshGEMM's 16 steps that align A, and as many of B, cost."""
    options: dict[str, Any] = {"payload": False, "m": 64, "k": 64, "n": 64}
    cycles, with_software = (
        {
            algorithm: run_report(comm, "gemm", (32, 32), device, algorithm=algorithm, **options)["measured"][
                "critical_path"
            ]["cycles"]
            for algorithm in ("meshgemm", *BASELINES)
        }
        for device in (NETWORK, WSE2)
    )
    assert cycles["meshgemm"] == min(cycles.values())
    assert cycles["summa"] > 1.5 * cycles["meshgemm"]
    align = 16 * 2 * WSE2.shift_cycles
    assert with_software["meshgemm"] - with_software["allgather"] == pytest.approx(align, rel=0.2)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.sample(3)
@pytest.mark.parametrize("tile", [2, 6])
@pytest.mark.parametrize("algorithm", ["meshgemm", "cannon", "summa"])
def test_two_buffers_an_operand_are_enough(
    algorithm: str, tile: int, comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory that is counted is two tiles an operand, but packets never wait for room at their receivers.

    Here they do: none is delivered before its core is done with the tile before the last, which is when it calls for
    this one. That takes not one cycle more, although some packets do have to wait. Only with SUMMA's broadcasts, where
    a packet that is held back lets the other one of its core go first, the time changes, both ways: by 1 % at most.
    """
    options = {"algorithm": algorithm, **dict.fromkeys("mkn", 16 * tile)}
    free = run_report(comm, "gemm", (16, 16), WSE2, payload=False, **options)
    called: dict[int, np.ndarray] = {}  # when the cores called for what a broadcast brings
    waited = 0

    def start(block: Block, *arguments: Any) -> broadcast.Broadcast:
        now, begun = block.clock.state[TIME].copy(), start_as_it_is(block, *arguments)
        called[id(begun.flights)] = now
        return begun

    def relay(block: Block, begun: broadcast.Broadcast) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(fabric, "replay", partial(hold_back, called[id(begun.flights)]))
            relay_as_it_is(block, begun)

    def hold_back(since: np.ndarray | None, block: Block, lane: Lane, *arguments: Any) -> Any:
        nonlocal waited
        came, pending = replay_as_it_is(block, lane, *arguments)
        if came is not None:
            room = Positions(
                lane.view.of(block.clock.state[TIME] if since is None else since), lane.schedule.delivered
            ).get()
            waited += int((came.landing.time < room).sum())
            np.maximum(came.landing.time, room, out=came.landing.time)  # when they ask for the ramp
        return came, pending

    start_as_it_is, relay_as_it_is, replay_as_it_is = broadcast.start, broadcast.relay, fabric.replay
    monkeypatch.setattr(broadcast, "start", start)
    monkeypatch.setattr(broadcast, "relay", relay)
    monkeypatch.setattr(fabric, "replay", partial(hold_back, None))
    held = run_report(comm, "gemm", (16, 16), WSE2, payload=False, **options)
    assert waited
    for report in (held, free):
        del report["measured"]["out_of_order"]  # who is held back asks later
    if algorithm == "summa":
        paths = [report["measured"].pop("critical_path") for report in (held, free)]
        assert paths[0]["cycles"] == pytest.approx(paths[1]["cycles"], rel=0.01)
        joules = [report["measured"].pop("energy")["mean"] for report in (held, free)]  # idle cores' among them
        assert joules[0] == pytest.approx(joules[1], rel=0.01)
    assert held["measured"] == free["measured"]


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.sample(2)
@pytest.mark.parametrize("lockstep", [False, True])
@pytest.mark.parametrize("segment", [1, 3])
def test_a_part_of_summas_steps_stands_for_all_of_them(
    segment: int, lockstep: bool, comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 31 steps two stretches of 6 to 9 run, where those of a segment are alike. All move as much."""
    monkeypatch.setattr(baseline, "SETTLED", 2)
    n, options = 32, {"algorithm": "summa", "segment": segment, "lockstep": lockstep}

    def run(comm: Any, steps_run: int | None) -> dict[str, Any]:
        sizes = dict.fromkeys("mkn", 3 * n)
        return run_report(comm, "gemm", (n, n), "wse2", payload=False, **options, **sizes, steps_run=steps_run)

    part_of_them, every = run(comm, 1), run(comm, None)
    part, whole = part_of_them["measured"], every["measured"]
    assert part_of_them["host"]["packets"] < every["host"]["packets"] or comm.size == 1
    for key in ("macs", "messages", "hops", "memory_bytes", "route_entries"):
        assert part[key] == whole[key]
    assert part["link_bytes"]["total"] == whole["link_bytes"]["total"]
    assert part["stages"] == pytest.approx(whole["stages"], rel=0.02)
    assert part["critical_path"]["cycles"] == pytest.approx(whole["critical_path"]["cycles"], rel=0.03)
    assert (part_of_them["kinds"]["measured.hops"], every["kinds"]["measured.hops"]) == ("extrapolated", "counted")
    alone = on_one_rank(comm, partial(run, steps_run=1))
    assert {**alone, "host": None} == {**part_of_them, "host": None}


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("how", [{}, {"algorithm": "cannon"}, {"lockstep": True}, {"transpose_b": True}], ids=str)
def test_the_first_steps_of_rings_stand_for_all_of_them(how: dict[str, Any], comm: Any) -> None:
    part_of_them, every = (
        run_report(comm, "gemm", (16, 16), "wse2", payload=False, m=48, k=32, n=64, steps_run=steps_run, **how)
        for steps_run in (4, None)
    )
    for key in ("macs", "messages", "hops", "stages", "link_bytes"):
        assert part_of_them["measured"][key] == every["measured"][key]
    cycles = [report["measured"]["critical_path"]["cycles"] for report in (part_of_them, every)]
    assert cycles[0] == pytest.approx(cycles[1], rel=5e-4)
    assert part_of_them["kinds"]["measured.hops"] == "extrapolated"


@pytest.mark.all
@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("segment", [None, 1])
@pytest.mark.parametrize("lockstep", [False, True])
def test_so_it_does_on_more_cores(lockstep: bool, segment: int | None, comm: Any) -> None:
    """Tiles of 3 x 3 on 96 x 96 cores; on 128 x 128 it is within 0.7 %."""
    options = {"algorithm": "summa", "segment": segment, "lockstep": lockstep, "dtype": "float16"}
    options |= dict.fromkeys("mkn", 96 * 3)
    part_of_them, every = (
        run_report(comm, "gemm", (96, 96), "wse2", payload=False, **options, steps_run=steps_run)["measured"]
        for steps_run in (1, None)
    )
    assert part_of_them["hops"] == every["hops"]
    assert part_of_them["critical_path"]["cycles"] == pytest.approx(every["critical_path"]["cycles"], rel=0.015)


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("mesh", [(12, 12), (8, 12)], ids=str)
def test_whoever_few_cores_wait_for_ramps_go_to_the_same_heads(
    mesh: tuple[int, int], comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relays are few of the cores that get a packet. Looking at them alone, or at all, finds the same times."""
    reports = []
    for few in (0, ramps.FEW, 10**9):
        monkeypatch.setattr(ramps, "FEW", few)
        options: dict[str, Any] = {"algorithm": "summa", "segment": 3, "m": 48, "k": 24, "n": 72, "payload": False}
        reports.append(run_report(comm, "gemm", mesh, "wse2", **options)["measured"])
    assert reports[0] == reports[1] == reports[2]


# ----------------------------------------------------------------------------------------------------------- options


@pytest.mark.mpi(ranks=[1])
def test_options_that_do_not_go_together_are_refused(comm):
    for algorithm in BASELINES:
        with pytest.raises(UsageError, match="leave out --transpose-b"):
            run_report(comm, "gemm", (2, 2), algorithm=algorithm, transpose_b=True)
    for algorithm in ("meshgemm", "cannon"):
        with pytest.raises(UsageError, match="--segment 2 is for"):
            run_report(comm, "gemm", (2, 2), algorithm=algorithm, segment=2)
    with pytest.raises(UsageError, match="leaves numbers out: add --payload none"):
        run_report(comm, "gemm", (2, 2), algorithm="summa", steps_run=1)
    with pytest.raises(UsageError, match="--steps-run is for the loops of"):
        run_report(comm, "gemm", (2, 2), payload=False, transpose_b=True, reduce="ktree", steps_run=1)
    with pytest.raises(UsageError, match="--segment is 0; it starts at 1"):
        run_report(comm, "gemm", (2, 2), algorithm="summa", segment=0)
