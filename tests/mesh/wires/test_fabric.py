"""Packets: delivered where the tables lead them, hop by hop, over neighbouring ranks only, in order and in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from measure import gossip, marks, measured, numbered, one_core_each, own, whole
from runs import new_block
from tiers import examples

from meshrt.errors import RouteError
from meshrt.mesh.block import Block
from meshrt.mesh.clock import TIME
from meshrt.mesh.device import Device
from meshrt.mesh.mesh import EAST, NORTH, RAMP, SOUTH, WEST
from meshrt.mesh.repeat import repeated
from meshrt.mesh.wires import fabric, receiving, routes, software, tally
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import installed, overwrite

RANKS = [1, 2, 3, 4, 6, 9, 16]
MESH = (7, 5)  # 2, 3, 4, 9 and 16 ranks get blocks of different sizes
SNAKE = ((0, 0), (1, 0), (1, 1), (1, 2), (2, 2), (3, 2), (3, 1), (4, 1), (5, 1), (5, 2), (5, 3), (5, 4), (6, 4))


class Recorder:
    """A communicator that writes down which rank gets how many bytes by Isend, and passes everything on."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.sent: list[tuple[int, int]] = []

    def Isend(self, spec: Any, dest: int, tag: int = 0) -> Any:
        self.sent.append((dest, spec[0].nbytes))
        return self.comm.Isend(spec, dest, tag)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.comm, name)


def by_line(axis: str, tiles: np.ndarray) -> np.ndarray:
    """[H, W, *tile] as [lines, positions, *tile]; a view."""
    return tiles if axis == "x" else tiles.swapaxes(0, 1)


# ------------------------------------------------------------------------------------------------------- delivery


@pytest.mark.mpi(ranks=RANKS)
def test_a_path_with_turns_delivers_at_its_end(comm):
    block = new_block(comm, MESH)
    tiles = numbered(*MESH, 3)
    with installed(block, None, [SNAKE]) as channel:
        arrived = whole(block, fabric.transfer(block, channel, own(block, tiles)))
    expected = np.full_like(tiles, np.nan)
    expected[4, 6] = tiles[0, 0]
    assert np.array_equal(arrived, expected, equal_nan=True)
    report = measured(block)
    hops = len(SNAKE) - 1
    assert (report["messages"], report["hops"], report["max_hops"], report["stages"]) == (1, hops, hops, 0)
    assert report["link_bytes"] == {"total": hops * 12, "max": 12}
    assert report["route_entries"]["max"] == 1


@pytest.mark.mpi(ranks=RANKS)
def test_software_of_a_path_is_at_the_cores_that_are_named(comm):
    """Of channels of paths a position is a core y * W + x of the mesh, on whatever ranks its block lies."""
    block = new_block(comm, MESH, "wse2")
    cores = np.zeros(MESH[0] * MESH[1], bool)
    cores[[4 * 7 + 6, 2 * 7 + 3]] = True
    with installed(block, None, [SNAKE]) as channel:
        software.stage(block, channel, 5, cores)
        busy = whole(block, (block.clock.state[TIME] > 0)[..., None].astype(np.float32))
    assert np.array_equal(busy[..., 0] == 1, cores.reshape(5, 7))
    report = measured(block)
    assert (report["stages"], report["adds"]) == (2, 10)


@pytest.mark.mpi(ranks=RANKS)
def test_paths_that_cross_do_not_mix(comm):
    block = new_block(comm, MESH)
    tiles = numbered(*MESH)
    crossing = [
        SNAKE,
        tuple(reversed(SNAKE)),
        tuple((x, 2) for x in range(7)),
        tuple((3, y) for y in range(4, -1, -1)),
    ]
    with installed(block, None, crossing) as channel:
        arrived = whole(block, fabric.transfer(block, channel, own(block, tiles)))
    expected = np.full_like(tiles, np.nan)
    for path in crossing:
        (x, y), (to_x, to_y) = path[0], path[-1]
        expected[to_y, to_x] = tiles[y, x]
    assert np.array_equal(arrived, expected, equal_nan=True)
    assert measured(block)["hops"] == sum(len(path) - 1 for path in crossing)


@st.composite
def line_routes(draw: st.DrawFn, n: int) -> list[Route]:
    """Routes of a line with different sources, whose stops are all different."""
    targets = draw(
        st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), min_size=1, unique_by=lambda pair: pair[1])
    )
    stops: dict[int, set[int]] = {}
    for source, stop in targets:
        if source != stop:
            stops.setdefault(source, set()).add(stop)
    return [Route(source, tuple(sorted(to))) for source, to in stops.items()]


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("axis", ["x", "y"])
def test_routes_deliver_to_their_stops_on_the_chosen_lines(axis: str, comm):
    """Any routes, sources and lines: tiles where NumPy puts them, and hops counted on every chosen line."""
    block = new_block(comm, MESH)
    n, lines = (7, 5) if axis == "x" else (5, 7)
    tiles = numbered(*MESH, 2)

    @settings(max_examples=examples(25))
    @given(line_routes(n), st.sets(st.integers(0, n - 1)), st.sets(st.integers(0, lines - 1)))
    def check(made: list[Route], not_from: set[int], not_on: set[int]) -> None:
        positions = marks(n, set(range(n)) - not_from)
        on = marks(lines, set(range(lines)) - not_on)
        before = comm.allreduce(block.counters.hops), comm.allreduce(block.counters.messages)
        with installed(block, axis, made) as channel:
            arrived = fabric.transfer(block, channel, own(block, tiles), positions=positions, lines=on)
        by_lines = by_line(axis, whole(block, arrived))
        expected = np.full_like(by_line(axis, tiles), np.nan)
        sent = [route for route in made if positions[route.source]]
        for route in sent:
            for stop in route.stops:
                expected[on, stop] = by_line(axis, tiles)[on, route.source]
        assert np.array_equal(by_lines, expected, equal_nan=True)
        after = comm.allreduce(block.counters.hops), comm.allreduce(block.counters.messages)
        assert after[0] - before[0] == on.sum() * sum(route.high - route.low for route in sent)
        assert after[1] - before[1] == on.sum() * len(sent)

    check()


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_pattern_on_some_lines_leaves_the_others_alone(axis: str, comm):
    block = new_block(comm, MESH)
    n, lines = (7, 5) if axis == "x" else (5, 7)
    tiles = numbered(*MESH)
    only = marks(lines, [0, 1, 4])
    with installed(block, axis, routes.ring, lines=only) as channel:
        by_lines = by_line(axis, whole(block, fabric.transfer(block, channel, own(block, tiles))))
    assert (by_lines[only] == np.roll(by_line(axis, tiles), 1, axis=1)[only]).all()
    assert np.isnan(by_lines[~only]).all()
    assert measured(block)["hops"] == 3 * 2 * (n - 1)


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize(
    "pattern", [routes.ring, routes.interleaved_ring, routes.chain], ids=lambda pattern: pattern.__name__
)
@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_shift_in_place_keeps_every_tile(axis: str, pattern: Callable[[int], tuple[Route, ...]], comm):
    block = new_block(comm, MESH)
    n = block.mesh.length(axis)
    tiles = numbered(*MESH, 2)
    expected = tiles.copy()
    for route in pattern(n):
        by_line(axis, expected)[:, route.stops[0]] = by_line(axis, tiles)[:, route.source]
    mine = own(block, tiles)
    with installed(block, axis, pattern(n)) as channel:
        assert fabric.transfer(block, channel, mine, mine) is mine
    assert (whole(block, mine) == expected).all()


@pytest.mark.mpi(ranks=RANKS)
def test_arrivals_are_combined_with_what_is_there(comm):
    block = new_block(comm, MESH)
    tiles, before = numbered(*MESH), np.full((5, 7), 17, np.float32)
    with installed(block, "x", routes.chain(7)) as channel:
        for combine in (np.add, np.maximum):
            out = own(block, before)
            fabric.transfer(block, channel, own(block, tiles), out, combine=combine)
            expected = before.copy()
            expected[:, 1:] = combine(before[:, 1:], tiles[:, :-1])
            assert (whole(block, out) == expected).all()


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("axis", ["x", "y"])
def test_what_chosen_sources_send_is_combined_on_chosen_lines_alone(axis: str, comm):
    """Three cores on, by routes of which four meet at a router."""
    tiles, sources, lines = numbered(9, 9, 2), (0, 1, 2, 4, 5), (0, 2, 3, 7)
    block = new_block(comm, (9, 9), route_entries=4)
    out = np.full_like(own(block, tiles), 1)
    with installed(block, axis, routes.chain(9, 3)) as channel:
        options = {"positions": marks(9, sources), "lines": marks(9, lines)}
        fabric.transfer(block, channel, own(block, tiles), out, combine=np.add, **options)
    expected = np.ones_like(tiles)
    for source in sources:
        for line in lines:
            by_line(axis, expected)[line, source + 3] += by_line(axis, tiles)[line, source]
    assert (whole(block, out) == expected).all()
    report = measured(block)
    assert (report["hops"], report["stages"]) == (4 * 5 * 3, 0)


@pytest.mark.mpi(ranks=[1, 4])
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32", "uint8"])
def test_tiles_of_any_type_arrive_as_they_are(dtype: str, comm):
    block = new_block(comm, (4, 3))
    tiles = numbered(4, 3, 2, 3).astype(dtype)
    with installed(block, "y", routes.chain(3)) as channel:
        arrived = whole(block, fabric.transfer(block, channel, own(block, tiles)))
    assert arrived.dtype == np.dtype(dtype)
    assert (arrived[1:] == tiles[:-1]).all()
    # Where nothing arrives there is no number that could be taken for one.
    blank = np.isnan(arrived[0]) if arrived.dtype.kind == "f" else arrived[0] == np.iinfo(dtype).max
    assert blank.all()


@pytest.mark.mpi(ranks=RANKS)
def test_transfers_are_delivered_in_the_order_they_are_sent(comm):
    """Several of one channel under way at once, of different sizes, and met by the cores in another order."""
    block = new_block(comm, MESH)
    tiles = numbered(*MESH, 6)
    with installed(block, "x", routes.ring(7)) as channel:
        flights = [fabric.send(block, channel, own(block, tiles[..., :size] + size)) for size in (1, 6, 6, 3)]
        for size, flight in reversed(list(zip((1, 6, 6, 3), flights, strict=True))):
            received = whole(block, receiving.receive(block, flight))
            assert (received == np.roll(tiles[..., :size] + size, 1, axis=1)).all()


# ---------------------------------------------------------------------------------------------------------- ranks


def exercise(block: Block) -> None:
    """Packets along both axes, near and far, and round a corner."""
    width, height = block.mesh.width, block.mesh.height
    tiles = own(block, numbered(width, height, 2))
    with (
        installed(block, "x", routes.ring) as x,
        installed(block, "y", gossip(height)[:1] or routes.chain(height)) as y,
        installed(block, "y", routes.interleaved_ring) as ring,
    ):
        for channel in (x, y, ring, x):
            fabric.transfer(block, channel, tiles)
    if width > 1 and height > 1:
        corner = (*((x, 0) for x in range(width)), *((width - 1, y) for y in range(1, height)))
        with installed(block, None, [corner]) as channel:
            fabric.transfer(block, channel, tiles)


@pytest.mark.mpi(ranks=RANKS)
def test_packets_go_to_neighbouring_ranks_only(comm):
    block = new_block(comm, MESH)
    block.comm = recorder = Recorder(block.comm)
    exercise(block)
    mesh = block.mesh
    rectangles = comm.allgather((mesh.x0, mesh.y0, mesh.x0 + mesh.block_width, mesh.y0 + mesh.block_height))
    x0, y0, x1, y1 = rectangles[comm.rank]
    touching = set()
    for rank, (left, top, right, bottom) in enumerate(rectangles):
        beside = (left == x1 or right == x0) and min(bottom, y1) > max(top, y0)
        above = (top == y1 or bottom == y0) and min(right, x1) > max(left, x0)
        if beside or above:
            touching.add(rank)
    everyone = comm.allgather((touching, block.host.sent_to, {dest for dest, _ in recorder.sent}))
    for near, counted, recorded in everyone:
        assert counted == recorded <= near
    assert comm.size == 1 or all(recorded for _, _, recorded in everyone)


@pytest.mark.mpi(ranks=RANKS)
def test_a_packet_visits_every_block_on_its_way(comm):
    """Packets at the MPI calls: one for each border between blocks that a route crosses, on every line."""
    block = new_block(comm, MESH)
    tile = own(block, numbered(*MESH))
    crossed = 0
    for axis, n, lines, cuts in (("x", 7, 5, block.mesh.column_cuts), ("y", 5, 7, block.mesh.row_cuts)):
        with installed(block, axis, routes.ring(n)) as channel:
            fabric.transfer(block, channel, tile)
        # A ring crosses each border between two cores once forth, and once back with the last core's tile.
        crossed += lines * 2 * (len(cuts) - 2)
    assert measured(block)["host"]["packets"] == crossed


@pytest.mark.mpi(ranks=RANKS)
def test_with_one_core_a_rank_packets_at_the_mpi_calls_are_the_hops(comm):
    block = new_block(comm, one_core_each(comm.size))
    block.comm = recorder = Recorder(block.comm)
    exercise(block)
    # A message is headers of three float64 and tiles of two float32, and with 1 x 1 blocks one packet in each.
    recorded = comm.allreduce(sum(nbytes for _, nbytes in recorder.sent) // (3 * 8 + 2 * 4))
    report = measured(block)
    assert recorded == report["host"]["packets"] == report["hops"]
    assert comm.size == 1 or report["hops"] > 0
    assert report["host"]["messages"] <= report["host"]["packets"]


class Silent:
    """A communicator that must not be used, but for its size, which a rank knows by itself."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called between ranks that need not talk")


@pytest.mark.mpi(ranks=RANKS)
def test_after_the_first_transfer_ranks_plan_and_synchronise_no_more(comm):
    """The schedule is known: nothing but packets between neighbours is sent, for whatever tiles, sources and lines."""
    block = new_block(comm, MESH)
    control, scouts, tiles = block.control, block.scouts, numbered(*MESH, 2)
    with installed(block, "x", routes.ring(7)) as channel:
        fabric.transfer(block, channel, own(block, tiles))
        block.control = block.scouts = Silent(comm.size)
        again = fabric.transfer(block, channel, own(block, tiles + 1))
        wider = fabric.transfer(block, channel, own(block, np.repeat(tiles, 2, axis=-1)))
        options = {"positions": marks(7, [2, 5]), "lines": marks(5, [0, 3])}
        few = fabric.transfer(block, channel, own(block, tiles), **options)
        block.control, block.scouts = control, scouts
    assert (whole(block, again) == np.roll(tiles + 1, 1, axis=1)).all()
    assert (whole(block, wider) == np.roll(np.repeat(tiles, 2, axis=-1), 1, axis=1)).all()
    assert (whole(block, few)[[0, 0, 3, 3], [3, 6, 3, 6]] == tiles[[0, 0, 3, 3], [2, 5, 2, 5]]).all()


@pytest.mark.mpi(ranks=[1, 4, 6])
def test_control_traffic_is_not_counted(comm):
    block = new_block(comm, MESH)
    whole(block, own(block, numbered(*MESH)))
    with installed(block, "x", routes.ring(7)):  # routes alone move nothing either
        pass
    report = measured(block)
    counts = [report[key] for key in ("messages", "hops", "max_hops", "stages")]
    assert counts == [0, 0, 0, 0] and report["link_bytes"] == {"total": 0, "max": 0}
    assert [report["host"][key] for key in ("messages", "packets", "bytes")] == [0, 0, 0]


# --------------------------------------------------------------------------------------------- tables that were changed

STRAIGHT = ((0, 1), (1, 1), (2, 1), (3, 1), (4, 1))


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("used", [False, True], ids=["before", "after"])
def test_a_deleted_entry_ends_the_run_with_the_routers_name(used: bool, comm):
    block = new_block(comm, (5, 3))
    tiles = numbered(5, 3)
    with installed(block, None, [STRAIGHT]) as channel:
        if used:
            fabric.transfer(block, channel, tiles)
        colour = int(channel.colours[0])
        overwrite(block.tables, (3, 1), colour, 0, 0)
        with pytest.raises(
            RouteError, match=rf"core \(3, 1\) has no rule for a packet of colour {colour} from the west"
        ):
            fabric.transfer(block, channel, tiles)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(("axis", "port"), [("x", "west"), ("y", "north")])
def test_a_deleted_entry_of_one_line_is_named(axis: str, port: str, comm):
    block = new_block(comm, (4, 4))
    with installed(block, axis, [Route(0, (3,))]) as channel:
        core = (2, 1) if axis == "x" else (1, 2)
        overwrite(block.tables, core, int(channel.colours[0]), 0, 0)
        name = rf"core \({core[0]}, {core[1]}\) has no rule for a packet of colour 0 from the {port}; its table lacks"
        with pytest.raises(RouteError, match=name):
            fabric.transfer(block, channel, numbered(4, 4))


@pytest.mark.mpi(ranks=[1])
def test_an_entry_that_takes_another_port_does_not_take_the_packet(comm):
    block = new_block(comm, (5, 3))
    with installed(block, None, [STRAIGHT]) as channel:
        overwrite(block.tables, (2, 1), int(channel.colours[0]), 1 << NORTH | 1 << EAST, 1 << RAMP)
        with pytest.raises(
            RouteError, match=r"core \(2, 1\) .* from the west; its rule takes .* from north\+east only"
        ):
            fabric.transfer(block, channel, numbered(5, 3))


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("core", "way", "name"),
    [((2, 0), NORTH, "north"), ((4, 1), EAST, "east"), ((0, 2), SOUTH, "south"), ((0, 1), WEST, "west")],
)
def test_an_entry_that_leads_off_the_mesh_is_named(core: tuple[int, int], way: int, name: str, comm):
    block = new_block(comm, (5, 3))
    x, y = core
    path = (((x - 1 if x else x + 1), y), core)
    with installed(block, None, [path]) as channel:
        enters = int(routes.path_entries(path, 5)[1][1])
        overwrite(block.tables, core, int(channel.colours[0]), enters, 1 << way)
        with pytest.raises(RouteError, match=rf"core \({x}, {y}\) sends colour 0 {name}, off the mesh"):
            fabric.transfer(block, channel, numbered(5, 3))


@pytest.mark.mpi(ranks=RANKS)
def test_a_changed_entry_sends_the_packet_elsewhere(comm):
    """The packet turns south in the middle of its path, at whichever rank that router is."""
    block = new_block(comm, (7, 5))
    tiles = numbered(7, 5)
    with installed(block, None, [STRAIGHT]) as channel:
        colour = int(channel.colours[0])
        first = whole(block, fabric.transfer(block, channel, own(block, tiles)))
        overwrite(block.tables, (2, 1), colour, 1 << WEST, 1 << SOUTH)
        overwrite(block.tables, (2, 2), colour, 1 << NORTH, 1 << SOUTH)
        overwrite(block.tables, (2, 3), colour, 1 << NORTH, 1 << RAMP)
        elsewhere = whole(block, fabric.transfer(block, channel, own(block, tiles)))
    for arrived, (x, y) in ((first, (4, 1)), (elsewhere, (2, 3))):
        assert arrived[y, x] == tiles[1, 0]
        assert np.isfinite(arrived).sum() == 1
    report = measured(block)
    assert (report["hops"], report["max_hops"]) == (4 + 4, 4)


@pytest.mark.mpi(ranks=RANKS)
@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_changed_entry_of_one_line_changes_that_line_only(axis: str, comm):
    """On line 3 the tile of core 1 is taken out at core 2, not at core 4; so it has one hop and not three."""
    block = new_block(comm, (5, 5))
    tiles = numbered(5, 5)
    with installed(block, axis, [Route(1, (4,))]) as channel:
        fabric.transfer(block, channel, own(block, tiles))
        core = (2, 3) if axis == "x" else (3, 2)
        overwrite(block.tables, core, int(channel.colours[0]), 1 << (WEST if axis == "x" else NORTH), 1 << RAMP)
        by_lines = by_line(axis, whole(block, fabric.transfer(block, channel, own(block, tiles))))
    expected = np.full((5, 5), np.nan)
    expected[:, 4] = by_line(axis, tiles)[:, 1]
    expected[3, 4], expected[3, 2] = np.nan, by_line(axis, tiles)[3, 1]
    assert np.array_equal(by_lines, expected, equal_nan=True)
    assert measured(block)["hops"] == 5 * 3 + 4 * 3 + 1


TAMPERED = """
import numpy as np
from meshrt.mesh.wires import fabric, receiving
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import installed, overwrite

MESH = (4, 2)

def run(block):
    "A packet whose route is broken at core (2, 0)."
    tiles = np.ones((*block.shape, 3), np.float32)
    with installed(block, "x", [Route(0, (3,))]) as channel:
        fabric.transfer(block, channel, tiles)
        overwrite(block.tables, (2, 0), int(channel.colours[0]), 0, 0)
        fabric.transfer(block, channel, tiles)
"""


@pytest.mark.parametrize(
    ("ranks", "owner"),
    [(1, ""), (4, " on rank 1 of 4"), pytest.param(8, " on rank 2 of 8", marks=pytest.mark.all)],
)
def test_a_deleted_entry_ends_the_whole_job_with_one_message(ranks: int, owner: str, run_meshrt, tmp_path):
    program = tmp_path / "tampered.py"
    program.write_text(TAMPERED)
    code, out, err, _ = run_meshrt("run", str(program), ranks=ranks)
    assert code == 3, err
    lines = [line for line in err.splitlines() if "meshrt:" in line]
    router = "core (2, 0) has no rule for a packet of colour 0 from the west; its table lacks that colour"
    line = max(at for at, text in enumerate(TAMPERED.splitlines(), 1) if "fabric.transfer(" in text)
    assert lines == [f"meshrt: error{owner}: {router} ({program}, line {line})"]
    assert "Traceback" not in err and out == ""


# ----------------------------------------------------------------------------------------------------- contention

SLOW_LINKS = Device(name="slow links", alpha=2.0, link_bytes_per_cycle=4.0)


@pytest.mark.mpi(ranks=RANKS)
def test_two_packets_over_one_link_are_serialised(comm):
    block = new_block(comm, (6, 4), SLOW_LINKS)
    tiles = np.zeros((*block.shape, 8), np.float32)
    alpha, busy = 2, 8 * 4 // 4
    with installed(block, "x", [Route(0, (3,)), Route(1, (4,))]) as channel:
        fabric.transfer(block, channel, tiles)
    clock = whole(block, block.clock.state[0])
    # The second packet finds its links free: three hops, then the tail. The first reaches core 1 after one hop, waits
    # there for the second's tail to leave, and is never held up again.
    assert clock.tolist() == [[0, 0, 0, busy + 2 * alpha + busy, 3 * alpha + busy, 0]] * 4
    assert measured(block)["critical_path"]["cycles"] == 2 * busy + 2 * alpha


@pytest.mark.mpi(ranks=[1, 2, 4, 9])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_a_link_carries_every_packet_of_a_transfer_that_crosses_it(axis: str, comm):
    """Three packets, of which one, two or three cross each link of a line; 8 bytes each, twice."""
    block = new_block(comm, (6, 6))
    tiles = np.zeros((*block.shape, 2), np.float32)
    with installed(block, axis, [Route(0, (3,)), Route(1, (4,)), Route(2, (5,))]) as channel:
        for _ in range(2):
            fabric.transfer(block, channel, tiles)
        tally.settle(block)
    links = whole(block, block.link_bytes.transpose(1, 2, 0))
    along, ahead = by_line(axis, links), EAST if axis == "x" else SOUTH
    assert (along[..., ahead] == 2 * 8 * np.array([1, 2, 3, 2, 1, 0])).all()
    assert links.sum() == along[..., ahead].sum()


@pytest.mark.mpi(ranks=RANKS)
def test_a_link_stays_busy_for_the_next_transfer(comm):
    block = new_block(comm, (6, 4), SLOW_LINKS)
    tiles = np.zeros((*block.shape, 8), np.float32)
    alpha, busy = 2, 8
    with installed(block, "x", routes.chain(6)) as channel:
        flights = [fabric.send(block, channel, tiles) for _ in range(3)]
        for flight in flights:
            receiving.receive(block, flight)
    # Each packet leaves when the one before it has left the link with its tail.
    assert whole(block, block.clock.state[0]).tolist() == [[0] + [2 * busy + alpha + busy] * 5] * 4


@pytest.mark.mpi(ranks=RANKS)
def test_links_of_opposite_directions_do_not_hold_each_other_up(comm):
    block = new_block(comm, (6, 4), SLOW_LINKS)
    tiles = np.zeros((*block.shape, 8), np.float32)
    with installed(block, "x", [Route(0, (5,)), Route(5, (0,))]) as channel:
        fabric.transfer(block, channel, tiles)
    assert whole(block, block.clock.state[0]).tolist() == [[5 * 2 + 8, 0, 0, 0, 0, 5 * 2 + 8]] * 4


@pytest.mark.mpi(ranks=[1, 2, 4, 9])
def test_two_packets_out_of_one_core_share_its_ramp(comm):
    """One east, one south, sent at once: they cross no link together, but leave the core one after the other."""
    block = new_block(comm, (6, 4), SLOW_LINKS)
    tiles = np.zeros((*block.shape, 8), np.float32)
    alpha, busy = 2, 8
    with (
        installed(block, "x", [Route(0, (3,))], lines=marks(4, [1])) as east,
        installed(block, "y", [Route(1, (3,))], lines=marks(6, [0])) as south,
    ):
        flights = [fabric.send(block, channel, tiles) for channel in (east, south)]
        for flight in flights:
            receiving.receive(block, flight)
    clock = whole(block, block.clock.state[0])
    assert (clock[1, 3], clock[3, 0]) == (3 * alpha + busy, busy + 2 * alpha + busy)
    assert clock.sum() == clock[1, 3] + clock[3, 0]


@pytest.mark.mpi(ranks=[1, 2, 4, 9])
def test_two_packets_of_one_transfer_out_of_one_core_share_its_ramp(comm):
    block = new_block(comm, (4, 4), SLOW_LINKS)
    tiles = np.zeros((*block.shape, 8), np.float32)
    alpha, busy = 2, 8
    with installed(block, None, [((1, 1), (2, 1), (3, 1)), ((1, 1), (1, 2))]) as channel:
        fabric.transfer(block, channel, tiles)
    clock = whole(block, block.clock.state[0])
    assert (clock[1, 3], clock[2, 1]) == (2 * alpha + busy, busy + alpha + busy)
    assert clock.sum() == clock[1, 3] + clock[2, 1]


@pytest.mark.mpi(ranks=[1, 2, 4, 9])
def test_two_packets_into_one_core_share_its_ramp(comm):
    """From the west, three hops, and from the east, one: the later one is delivered when the earlier one is in."""
    block = new_block(comm, (6, 4), SLOW_LINKS)
    tiles = np.zeros((*block.shape, 8), np.float32)
    alpha, busy = 2, 8
    with installed(block, "x", [Route(4, (3,))]) as west, installed(block, "x", [Route(0, (3,))]) as east:
        first, second = (fabric.send(block, channel, tiles) for channel in (west, east))
        receiving.receive(block, second)
        clock = whole(block, block.clock.state.transpose(1, 2, 0))
        assert clock[..., 0].tolist() == [[0, 0, 0, (alpha + busy) + busy, 0, 0]] * 4
        assert clock[..., 1].tolist() == [[0, 0, 0, 3, 0, 0]] * 4, "the path is that of the packet that came last"
        receiving.receive(block, first)
        assert (whole(block, block.clock.state.transpose(1, 2, 0)) == clock).all()
    assert measured(block)["critical_path"]["cycles"] == alpha + 2 * busy


@pytest.mark.mpi(ranks=[1, 2, 4, 9])
def test_the_ramps_two_directions_do_not_hold_each_other_up(comm):
    block = new_block(comm, (6, 4), SLOW_LINKS)
    tiles = np.zeros((*block.shape, 8), np.float32)
    with installed(block, "x", routes.chain(6)) as east, installed(block, "y", routes.chain(4)) as south:
        receiving.receive(block, fabric.send(block, east, tiles))
        assert (whole(block, block.clock.state[0])[:, 1:] == 2 + 8).all()
        fabric.transfer(block, south, tiles)
    # Column 0 was not delivered anything yet; its cores sent at 0 and their ramps were free again at 8.
    assert whole(block, block.clock.state[0]).tolist() == [[0] + [10] * 5] + [[18] + [20] * 5] * 3


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("axis", ["x", "y"])
def test_cores_that_do_not_wait_keep_their_clocks_and_ramps(axis: str, comm):
    """Core 1 sends at cycle 11, so that core 2 gets a later packet before that: one from core 3, which has waited."""
    block = new_block(comm, (4, 1) if axis == "x" else (1, 4), SLOW_LINKS)
    tiles = np.zeros((*block.shape, 8), np.float32)
    clocks = by_line(axis, np.array([[0.0, 11.0, 0.0, 0.0]]))
    block.clock.state[0] += own(block, clocks)
    alpha, busy = 2, 8
    with (
        installed(block, axis, routes.chain(4)) as up,
        installed(block, axis, routes.chain(4, -1)) as down,
    ):
        flight = fabric.send(block, up, tiles)
        receiving.receive_at(block, up, flight, marks(4, [3]))
        assert whole(block, block.clock.state[0]).ravel().tolist() == [0, 11, 0, alpha + busy]
        back = fabric.send(block, down, tiles, positions=marks(4, [3]))
        receiving.receive(block, back)
        assert whole(block, block.clock.state[0]).ravel()[2] == 2 * (alpha + busy)
        receiving.receive(block, flight)
    assert whole(block, block.clock.state[0]).ravel().tolist() == [0, 11, 2 * (alpha + busy) + busy, alpha + busy]
    assert measured(block)["out_of_order"]["packets"] == 0


@pytest.mark.mpi(ranks=RANKS)
def test_packets_that_meet_at_a_router_leave_it_one_after_the_other(comm):
    """From the west and from the north, on to the east at the same tick: one waits for the other's tail.

    Which of them waits must not depend on how many ranks there are.
    """
    from mpi4py import MPI

    def clocks(ranks: Any) -> np.ndarray:
        block = new_block(ranks, (4, 4), SLOW_LINKS)
        tiles = np.zeros((*block.shape, 8), np.float32)
        meeting = [((0, 1), (1, 1), (2, 1), (3, 1)), ((1, 0), (1, 1), (2, 1))]
        with installed(block, None, meeting) as channel:
            fabric.transfer(block, channel, tiles)
        return whole(block, block.clock.state[0])

    times = clocks(comm)
    alpha, busy = 2, 8
    on_west, on_north = times[1, 3], times[1, 2]
    west_first = (3 * alpha + busy, alpha + busy + alpha + busy)
    north_first = (alpha + busy + 2 * alpha + busy, 2 * alpha + busy)
    assert (on_west, on_north) in (west_first, north_first)
    assert (times == clocks(MPI.COMM_SELF)).all()


@pytest.mark.mpi(ranks=[1])
def test_two_tiles_for_one_core_in_one_transfer_are_refused(comm):
    block = new_block(comm, (3, 2))
    tiles = numbered(3, 2)
    with installed(block, "x", [Route(0, (1,)), Route(2, (1,))]) as channel:
        with pytest.raises(RouteError, match=r"core \(1, 0\) would get two tiles in one transfer"):
            fabric.transfer(block, channel, tiles)
        # One after the other is fine.
        for source in (0, 2):
            arrived = fabric.transfer(block, channel, tiles, positions=marks(3, [source]))
            assert (arrived[:, 1] == tiles[:, source]).all()


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("patched", [{"BATCH": 1}, {"BATCH": 9}, {"BATCH": 9, "KEPT": 0}])
def test_clocks_do_not_depend_on_how_many_packets_are_replayed_together(patched: dict[str, int], comm):
    """Shifts along both axes under way at once, multicasts, packets that meet, from cores whose clocks differ."""

    def clocks(batch: int, kept: int) -> list[Any]:
        block = new_block(comm, MESH, Device(name="test", alpha=1.5, beta=3.0, link_bytes_per_cycle=3.0))
        rng = np.random.default_rng(5)
        sizes = [np.zeros((*block.shape, 3 * size), np.float32) for size in (1, 4)]
        with (
            patch("meshrt.mesh.wires.compiling.BATCH", batch),
            patch("meshrt.mesh.wires.lane.BATCH", batch),
            patch("meshrt.mesh.wires.replay.KEPT", kept),
            installed(block, "x", routes.interleaved_ring(7)) as x,
            installed(block, "y", routes.interleaved_ring(5)) as y,
            installed(block, "x", routes.multicast(7, 2)) as spread,
            installed(block, "y", [Route(0, (3,)), Route(1, (4,)), Route(4, (0,))]) as meeting,
        ):
            for _ in range(4):
                work = rng.integers(0, 30, (MESH[1], MESH[0], 1)).astype(np.float64)
                block.clock.state[0] += own(block, work)[..., 0]
                lines = rng.random(MESH[1]) < 0.7
                flights = [fabric.send(block, x, sizes[0]), fabric.send(block, y, sizes[1])]
                flights.append(fabric.send(block, x, sizes[1], lines=lines))
                software.stage(block, spread, 0, marks(7, [0, 2, 3]))
                for flight in (flights[1], flights[2], flights[0]):
                    receiving.receive(block, flight)
                fabric.transfer(block, spread, sizes[0])
                fabric.transfer(block, meeting, sizes[0])
        clock = block.clock
        every = (*clock.state, *clock.link_free, clock.ramp_in, clock.ramp_out)
        return [whole(block, state).tolist() for state in every] + [measured(block)["link_bytes"]]

    usual = {"BATCH": 64 * 1024, "KEPT": 64 * 1024}
    usual_clocks, patched_clocks = (clocks(numbers["BATCH"], numbers["KEPT"]) for numbers in (usual, usual | patched))
    assert usual_clocks == patched_clocks


@pytest.mark.mpi(ranks=[1, 2, 4, 6])
@pytest.mark.parametrize("times", [1, 3])
def test_a_ramp_carries_what_its_core_sends_and_gets(times: int, comm):
    """A packet leaves by the ramp once, however many get it; what only passes by uses no ramp."""
    block = new_block(comm, (6, 4), "wse2")
    tiles = own(block, numbered(6, 4, 3))
    with repeated(block, times), installed(block, "x", [Route(1, (3, 4, 5)), Route(0, (2,))]) as channel:
        fabric.transfer(block, channel, tiles)
    expected = np.zeros((2, 4, 6), np.int64)
    expected[0, :, :2] = expected[1, :, 2:] = times * tiles[0, 0].nbytes
    mesh = block.mesh
    mine = expected[:, mesh.y0 : mesh.y0 + mesh.block_height, mesh.x0 : mesh.x0 + mesh.block_width]
    tally.settle(block)
    assert np.array_equal(block.ramp_bytes, mine)
    ramp_bytes = measured(block)["ramp_bytes"]
    assert ramp_bytes == {"total": expected.sum(), "max": expected.max()}
