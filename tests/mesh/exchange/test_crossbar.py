"""The crossbar that is none: any core gets the tile of any other, hop by hop, and what that costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compiled import compiled
from measure import measured, numbered, one_core_each, own, whole
from runs import new_block

from meshrt.errors import LimitError, RouteError
from meshrt.mesh.clock import TIME
from meshrt.mesh.device import Device
from meshrt.mesh.exchange.exchange import crossbar, exchange
from meshrt.mesh.exchange.itinerary import Itinerary
from meshrt.mesh.exchange.legs import REQUEST_BYTES, Transfer, ways
from meshrt.mesh.mesh import EAST, NORTH, SOUTH, STEP, WEST
from meshrt.mesh.wires import fabric, tally
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import installed, overwrite

SLOW = Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=4.0, macs_per_cycle=2.0, call_cycles=11.0)
RANKS = [1, 3, 6]


def owners_of(pattern: str, axis: str | None, width: int, height: int) -> np.ndarray:
    """Who has the tile that each position of a line, or each core of the mesh, gets."""
    n = width * height if axis is None else width if axis == "x" else height
    at = np.arange(n)
    return {
        "next": (at + 1) % n,
        "same": at,
        "one": np.full(n, n // 2),
        "mirror": at[::-1].copy(),
        "any": np.random.default_rng(n).integers(0, n, n),
        "shuffle": np.random.default_rng(n).permutation(n),
    }[pattern]


def expected(axis: str | None, owners: np.ndarray, tiles: np.ndarray) -> np.ndarray:
    if axis == "x":
        return tiles[:, owners]
    if axis == "y":
        return tiles[owners]
    return tiles.reshape(-1, *tiles.shape[2:])[owners].reshape(tiles.shape)


def distances(axis: str | None, owners: np.ndarray, width: int) -> np.ndarray:
    """Hops from every owner to its reader."""
    at = np.arange(len(owners))
    if axis is not None:
        return np.abs(owners - at)
    return np.abs(owners % width - at % width) + np.abs(owners // width - at // width)


def run(
    comm: Any, mesh: tuple[int, int], axis: str | None, pattern: str, asks: bool, payload: bool = True,
    device: Device | str = SLOW,
) -> tuple[Any, dict[str, Any]]:  # fmt: skip
    """What every core of the mesh has in the end, and what was measured."""
    block = new_block(comm, mesh, device, payload)
    tiles = own(block, numbered(*mesh, 2, 3)) if payload else np.empty((1, 1, 2, 3), np.float32)
    with crossbar(block) as bar:
        (out,) = exchange(block, bar, Transfer(axis, owners_of(pattern, axis, *mesh), tiles, asks))
    return whole(block, out) if payload else None, measured(block)


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize(
    ("axis", "pattern"), [("x", "next"), ("x", "one"), ("y", "any"), (None, "any"), (None, "shuffle"), (None, "same")]
)
def test_every_core_gets_its_owners_tile_and_counts_do_not_depend_on_ranks(
    axis: str | None, pattern: str, asks: bool, comm
):
    from mpi4py import MPI

    mesh = (5, 3)
    owners = owners_of(pattern, axis, *mesh)
    out, report = run(comm, mesh, axis, pattern, asks)
    assert np.array_equal(out, expected(axis, owners, numbered(*mesh, 2, 3)))
    host = report.pop("host")
    _, alone = run(MPI.COMM_SELF, mesh, axis, pattern, asks)
    del alone["host"]
    assert report == alone
    _, none = run(comm, mesh, axis, pattern, asks, payload=False)
    for key in ("messages", "packets"):
        assert none["host"][key] == host[key]
    del none["host"]
    assert none == report
    # Every hop is a message of its own; a request takes as many as its answer.
    lines = 1 if axis is None else mesh[1] if axis == "x" else mesh[0]
    far = distances(axis, owners, mesh[0])
    legs = 2 if asks else 1
    assert report["hops"] == report["messages"] == lines * legs * far.sum()
    # All but the first hop are made by software that touched the packet.
    assert report["stages"] == lines * (legs * far.sum() - np.count_nonzero(far))
    assert report["link_bytes"]["total"] == lines * far.sum() * (24 + (REQUEST_BYTES if asks else 0))
    assert report["max_hops"] == min(1, far.max())
    assert report["route_entries"]["max"] == (4 if mesh[0] > 2 else 2) * 2


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("axis", ["x", "y", None])
def test_every_link_carries_what_crosses_it(axis: str | None, asks: bool, comm):
    """Every packet walked hop by hop, along x and then along y: a request to the owner, and the tile from there."""
    width, height = mesh = (6, 4)
    y, x = np.divmod(np.arange(width * height), width)
    length = {"x": width, "y": height, None: width * height}[axis]
    line = np.random.default_rng(7).integers(0, length, length)
    owners = line if axis is None else y * width + line[x] if axis == "x" else line[y] * width + x
    block = new_block(comm, mesh, SLOW)
    with crossbar(block) as bar:
        exchange(block, bar, Transfer(axis, line, own(block, numbered(*mesh, 2, 3)), asks))
    expected_bytes, expected_ramps = np.zeros((4, height, width), np.int64), np.zeros((2, height, width), np.int64)
    for reader, owner in enumerate(owners.tolist()):
        for start, end, size in [(owner, reader, 24), (reader, owner, REQUEST_BYTES)][: 1 + asks]:
            (at_y, at_x), (to_y, to_x) = divmod(start, width), divmod(end, width)
            while (at_y, at_x) != (to_y, to_x):
                port = (EAST if to_x > at_x else WEST) if at_x != to_x else (SOUTH if to_y > at_y else NORTH)
                expected_bytes[port, at_y, at_x] += size
                expected_ramps[0, at_y, at_x] += size  # every hop is a message of its own
                at_x, at_y = at_x + STEP[port][0], at_y + STEP[port][1]
                expected_ramps[1, at_y, at_x] += size
    tally.settle(block)
    block_of_rank = slice(block.mesh.y0, None), slice(block.mesh.x0, None)
    rows, columns = block.shape
    assert np.array_equal(block.link_bytes, expected_bytes[:, *block_of_rank][:, :rows, :columns])
    assert np.array_equal(block.ramp_bytes, expected_ramps[:, *block_of_rank][:, :rows, :columns])


@pytest.mark.mpi(ranks=[4, 6])
def test_with_a_core_a_rank_packets_at_the_mpi_calls_are_the_hops(comm):
    report = run(comm, one_core_each(comm.size), None, "shuffle", True)[1]
    assert report["hops"] == report["host"]["packets"] > 0


# ------------------------------------------------------------------------------------------------------------- time


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize(("axis", "owner"), [("x", 5), (None, 5), (None, 4 + 6)], ids=["line", "mesh", "turn"])
def test_a_lone_packet_waits_for_its_tail_at_every_core(axis: str | None, owner: int, asks: bool, comm):
    """24 bytes at 4 a cycle: 6 cycles a hop beside alpha, a request 2; and beta at every core on the way: 5 hops."""
    block = new_block(comm, (6, 2), SLOW)
    owners = np.arange(6 if axis else 12)
    owners[0] = owner
    with crossbar(block) as bar:
        exchange(block, bar, Transfer(axis, owners, own(block, numbered(6, 2, 2, 3)), asks))
    path = measured(block)["critical_path"]
    assert path["cycles"] == 5 * (1.5 + 6) + 4 * 7 + (5 * (1.5 + 2) + 5 * 7 if asks else 0)
    assert (path["hops"], path["stages"]) == ((10, 9) if asks else (5, 4))


@pytest.mark.mpi(ranks=[1])
def test_all_readers_of_one_owner_queue_at_its_links(comm):
    """The last of N - 1 packets from the end of a line leaves when the others have, and the link carries all."""
    n = 9
    block = new_block(comm, (n, 1), SLOW)
    with crossbar(block) as bar:
        exchange(block, bar, Transfer("x", np.zeros(n, int), own(block, numbered(n, 1, 2, 3))))
    report = measured(block)
    assert report["link_bytes"]["max"] == 24 * (n - 1)
    assert report["critical_path"]["cycles"] >= 6 * (n - 2) + (n - 1) * (1.5 + 6)
    # What was loaded, and, as a line never queues, one packet that passes through a core at a time.
    assert report["memory_bytes"]["max"] == 24 + 24


@pytest.mark.mpi(ranks=[1])
def test_transfers_along_both_axes_at_once_take_as_long_as_one(comm):
    times = []
    for axes in ("x", "xy"):
        block = new_block(comm, (8, 8), SLOW)
        tiles = own(block, numbered(8, 8, 2, 3))
        with crossbar(block) as bar:
            exchange(block, bar, *(Transfer(axis, (np.arange(8) + 1) % 8, tiles) for axis in axes))
        times.append(measured(block)["critical_path"]["cycles"])
    assert times[0] <= times[1] < 1.5 * times[0]


@pytest.mark.mpi(ranks=[1, 3])
@pytest.mark.parametrize("axis", ["x", None])
def test_what_is_under_way_has_its_ramp_before_an_exchange(axis: str | None, comm):
    """A packet from the west comes to core 1 while nobody waits for it; a tile from the east is put off by it."""
    block = new_block(comm, (3, 1), SLOW)
    tiles = own(block, numbered(3, 1, 2, 3))
    with installed(block, "x", [Route(0, (1,))]) as channel, crossbar(block) as bar:
        fabric.send(block, channel, tiles)
        exchange(block, bar, Transfer(axis, np.array([0, 2, 2]), tiles))
        assert whole(block, block.clock.state[TIME])[0].tolist() == [0, 1.5 + 6 + 6, 0]


# ----------------------------------------------------------------------------------------------------------- limits


@pytest.mark.mpi(ranks=[1, 2])
def test_what_waits_at_a_core_counts_as_its_memory(comm):
    """A row's tiles all turn at one core of a transpose; where they do not fit, that is said."""
    n, size = 6, 24
    at = np.arange(n * n)
    turned = at % n * n + at // n
    block = new_block(comm, (n, n), SLOW)
    with crossbar(block) as bar:
        exchange(block, bar, Transfer(None, turned, own(block, numbered(n, n, 2, 3))))
    most = measured(block)["memory_bytes"]["max"]
    assert most > size
    block = new_block(comm, (n, n), "wse2", core_memory=most - 1)
    with crossbar(block) as bar, pytest.raises(LimitError, match="crossbar packets 0"):
        exchange(block, bar, Transfer(None, turned, own(block, numbered(n, n, 2, 3))))


@pytest.mark.mpi(ranks=[1])
def test_a_changed_entry_ends_the_run(comm):
    block = new_block(comm, (4, 2), SLOW)
    tiles = own(block, numbered(4, 2, 2, 3))
    with crossbar(block) as bar:
        exchange(block, bar, Transfer("x", np.arange(4), tiles))
        overwrite(block.tables, (2, 1), int(bar.channels[0].colours[1]), 0, 0)
        with pytest.raises(RouteError, match=r"core \(2, 1\) has no rule"):
            exchange(block, bar, Transfer("x", np.arange(4), tiles))


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("grid", [(7, 1), (1, 6), (6, 5)])
def test_a_core_sends_one_packet_by_a_port_in_a_round(grid: tuple[int, int], asks: bool):
    width, height = grid
    owners = np.random.default_rng(3).integers(0, width * height, width * height)
    arrived = np.zeros(width * height, int)
    legs = ways(width, height, owners, asks)
    for hops_of_round in Itinerary(width, height, legs):
        moving = hops_of_round.before != width * height
        assert moving.any()
        for lane in hops_of_round.spans:
            cores = hops_of_round.before[lane][moving[lane]]
            assert len(set(cores.tolist())) == len(cores)
        carried = hops_of_round.legs[moving]
        np.add.at(arrived, legs.packets[carried[legs.tiles[carried]]], 1)
    far = distances(None, owners, width)
    assert np.array_equal(arrived, far)


@compiled
@pytest.mark.mpi(ranks=[1, 6])
@pytest.mark.parametrize("payload", [True, False])
@pytest.mark.parametrize("device", [SLOW, "ideal"])
def test_compiled_rounds_leave_the_machine_as_numpy_does(
    payload: bool, device: Device | str, comm: Any, monkeypatch: pytest.MonkeyPatch
):
    """Four transfers at once, twice, on cores whose clocks differ: all that is kept of the machine, to the byte."""
    width, height = mesh = (11, 7)
    states = []
    for name in ("numpy", "compiled"):
        monkeypatch.setenv("MESHRT_CORE", name)
        block = new_block(comm, mesh, device, payload)
        skew = own(block, np.random.default_rng(5).integers(0, 60, (height, width, 9)).astype(float))
        block.clock.cells[:, :-1].reshape(9, *block.shape)[...] = np.moveaxis(skew, -1, 0)
        tiles = own(block, numbered(*mesh, 2, 3)) if payload else np.empty((1, 1, 2, 3), np.float32)
        with crossbar(block) as bar:
            for _ in range(2):
                moves = [(None, "any", True), ("x", "any", True), (None, "one", False), ("y", "one", True)]
                outs = exchange(
                    block, bar, *(Transfer(axis, owners_of(way, axis, *mesh), tiles, asks) for axis, way, asks in moves)
                )
        tally.settle(block)
        kept = (block.clock.cells[:, :-1], block.link_bytes, block.ramp_bytes, *outs)
        counts = vars(block.counters) | {"links": None, "ramps": None}
        sent = block.host.packets, block.host.bytes, block.host.sent_to
        states.append(([array.tobytes() for array in kept], str(counts), sent, block.memory.peak))
    assert states[0] == states[1]


@pytest.mark.mpi(ranks=[1])
def test_an_exchange_that_was_refused_holds_nothing(comm) -> None:
    """The first of two transfers kept its name, which the next exchange then asked for in vain."""
    block = new_block(comm, (3, 2), core_memory=100)
    tiles, larger = block.tiles("A", (6,), np.float32), np.zeros((2, 3, 15), np.float32)
    transfers = Transfer("x", np.zeros(3, int), tiles), Transfer(None, np.arange(6), larger)
    with crossbar(block) as bar:
        for _ in range(2):
            with pytest.raises(LimitError, match="'tile loaded' asks for 60 bytes, 48 are"):
                exchange(block, bar, *transfers)
            assert not block.memory.names
