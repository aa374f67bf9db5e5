"""Tables that were changed: whatever a packet then meets is counted, or ends the run with the router's name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any

import numpy as np
import pytest
from measure import gossip, measured, numbered, own
from runs import new_block

from meshrt.errors import RouteError
from meshrt.mesh.block import Block
from meshrt.mesh.exchange.exchange import Crossbar, crossbar, exchange
from meshrt.mesh.exchange.legs import Transfer
from meshrt.mesh.mesh import EAST, NORTH, RAMP, SOUTH, WEST
from meshrt.mesh.wires import fabric, routes, software
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import Channel, installed, overwrite

MESH = (5, 3)
STRAIGHT = ((0, 1), (1, 1), (2, 1), (3, 1), (4, 1))


def mask(*ports: int) -> int:
    return sum(1 << port for port in ports)


# ------------------------------------------------------------------------------------------------------ crossbar


def reverse(block: Block, bar: Crossbar) -> np.ndarray:
    """Every core of the mesh gets the tile of the one at the other side: 56 hops on 5 x 3."""
    owners = np.arange(15)[::-1].copy()
    return exchange(block, bar, Transfer(None, owners, own(block, numbered(*MESH, 2))))[0]


def lane(bar: Crossbar, port: int) -> Channel:
    return dict(zip((EAST, WEST, SOUTH, NORTH), bar.channels, strict=True))[port]


def colour_from(channel: Channel, at: int) -> int:
    """What the core at this place of its line sends by."""
    return int(channel.colours[channel.sources == at][0])


Tamper = Callable[[Block, Crossbar], None]


def swallows(block: Block, bar: Crossbar) -> None:
    overwrite(block.tables, (2, 1), colour_from(lane(bar, EAST), 1), mask(WEST), 0)


def sends_nowhere(block: Block, bar: Crossbar) -> None:
    overwrite(block.tables, (1, 1), colour_from(lane(bar, EAST), 1), mask(RAMP), 0)


def keeps_its_own(block: Block, bar: Crossbar) -> None:
    overwrite(block.tables, (1, 1), colour_from(lane(bar, EAST), 1), mask(RAMP), mask(RAMP))


def turns_back(block: Block, bar: Crossbar) -> None:
    colour = colour_from(lane(bar, EAST), 3)
    overwrite(block.tables, (3, 1), colour, mask(RAMP), mask(WEST))
    overwrite(block.tables, (2, 1), colour, mask(WEST, EAST), mask(RAMP))


def goes_on(block: Block, bar: Crossbar) -> None:
    colour = colour_from(lane(bar, WEST), 3)
    overwrite(block.tables, (2, 2), colour, mask(EAST), mask(WEST))
    overwrite(block.tables, (1, 2), colour, mask(RAMP, EAST), mask(WEST))


def forks(block: Block, bar: Crossbar) -> None:
    colour = colour_from(lane(bar, SOUTH), 0)
    overwrite(block.tables, (4, 0), colour, mask(RAMP), mask(SOUTH, WEST))
    overwrite(block.tables, (3, 0), colour, mask(RAMP, EAST), mask(SOUTH))


def forks_at_the_end(block: Block, bar: Crossbar) -> None:
    colour = colour_from(lane(bar, NORTH), 2)
    overwrite(block.tables, (0, 1), colour, mask(SOUTH), mask(RAMP, NORTH))
    overwrite(block.tables, (0, 0), colour, mask(SOUTH), mask(RAMP))


def deleted(block: Block, bar: Crossbar) -> None:
    overwrite(block.tables, (3, 2), colour_from(lane(bar, EAST), 2), 0, 0)


def all_emptied(block: Block, bar: Crossbar) -> None:
    for y, x in np.ndindex(3, 5):
        for colour in range(len(block.tables.enters)):
            overwrite(block.tables, (x, y), colour, int(block.tables.enters[colour, y, x]), 0)


TAMPERED: list[tuple[Tamper, str]] = [
    (swallows, r"core \(2, 1\) has a rule that leads a packet of colour \d from the west nowhere"),
    (sends_nowhere, r"core \(1, 1\) has a rule that leads a packet of colour \d from the ramp nowhere"),
    (keeps_its_own, r"core \(1, 1\) has a rule that leads a packet of colour \d from the ramp nowhere"),
    (turns_back, r"core \(3, 1\) sends a packet of colour \d west: on this lane of single hops packets go east"),
    (goes_on, r"core \(2, 2\) sends a packet of colour \d west: .* taken out at the next core"),
    (forks, r"core \(4, 0\) sends a packet of colour \d west: on this lane of single hops packets go south"),
    (forks_at_the_end, r"core \(0, 1\) sends a packet of colour \d north: .* taken out at the next core"),
    (deleted, r"core \(3, 2\) has no rule for a packet of colour \d from the west; its table lacks that colour"),
    (all_emptied, r"core \(0, 0\) has a rule that leads a packet of colour \d from the ramp nowhere"),
]


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("used", [False, True], ids=["before", "between"])
@pytest.mark.parametrize(("tamper", "message"), TAMPERED, ids=[tamper.__name__ for tamper, _ in TAMPERED])
def test_a_lane_that_is_no_longer_one_is_named(tamper: Tamper, message: str, used: bool, comm: Any) -> None:
    block = new_block(comm, MESH)
    with crossbar(block) as bar:
        if used:
            out = reverse(block, bar)
            assert (out.reshape(15, 2) == numbered(*MESH, 2).reshape(15, 2)[::-1]).all()
        before = block.counters.hops
        tamper(block, bar)
        for _ in range(2):  # who has passed over the error once is told again
            with pytest.raises(RouteError, match=message):
                reverse(block, bar)
        assert block.counters.hops == before == 56 * used


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("port", [EAST, WEST, SOUTH, NORTH])
def test_every_entry_of_every_router_is_walked(port: int, comm: Any) -> None:
    """Each of them, emptied for once, is noticed, and goes unnoticed when it is as it was."""
    block = new_block(comm, (4, 3))
    tiles = numbered(4, 3)
    with crossbar(block) as bar:
        for colour in sorted(set(lane(bar, port).colours.tolist())):
            for y, x in np.argwhere(block.tables.enters[colour]).tolist():
                enters, leaves = (int(part[colour, y, x]) for part in (block.tables.enters, block.tables.leaves))
                overwrite(block.tables, (x, y), colour, enters, 0)
                with pytest.raises(RouteError, match=rf"core \({x}, {y}\) .* of colour {colour} .* nowhere"):
                    exchange(block, bar, Transfer("x", np.arange(4)[::-1], tiles))
                overwrite(block.tables, (x, y), colour, enters, leaves)
                exchange(block, bar, Transfer("x", np.arange(4)[::-1], tiles))


@pytest.mark.mpi(ranks=[1])
def test_a_crossbar_that_was_left_carries_nothing(comm: Any) -> None:
    block = new_block(comm, MESH)
    with crossbar(block) as bar:
        reverse(block, bar)
    with pytest.raises(RouteError, match="route set 1 along x is used after its `with` block was left"):
        reverse(block, bar)


# --------------------------------------------------------------------------------------------- loops, and dead ends


def ring(block: Block, colour: int, *cores: tuple[int, int]) -> None:
    """Entries that lead from core to core and from the last to the first; they come in from the west there too."""
    sides = {(0, -1): NORTH, (1, 0): EAST, (0, 1): SOUTH, (-1, 0): WEST}
    for at, (x, y) in enumerate(cores):
        (u, v), (p, q) = cores[at - 1], cores[(at + 1) % len(cores)]
        came = mask(sides[u - x, v - y]) | (mask(WEST) if at == 0 else 0)
        overwrite(block.tables, (x, y), colour, came, mask(sides[p - x, q - y]))


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("used", [False, True], ids=["before", "between"])
def test_a_loop_ends_with_the_name_of_a_router_in_it(used: bool, comm: Any) -> None:
    block = new_block(comm, MESH)
    with installed(block, None, [STRAIGHT]) as channel:
        if used:
            fabric.transfer(block, channel, numbered(*MESH))
        ring(block, 0, (2, 1), (3, 1), (3, 2), (2, 2))
        message = r"core \((2|3), (1|2)\) gets a packet of colour 0 from the \w+ for the second time: .* in a loop"
        with pytest.raises(RouteError, match=message):
            fabric.transfer(block, channel, numbered(*MESH))


@pytest.mark.mpi(ranks=[1])
def test_two_routers_that_send_a_packet_to_and_fro_are_found(comm: Any) -> None:
    block = new_block(comm, MESH)
    with installed(block, "x", [Route(0, (4,))]) as channel:
        overwrite(block.tables, (2, 1), 0, mask(WEST, EAST), mask(EAST))
        overwrite(block.tables, (3, 1), 0, mask(WEST), mask(WEST))
        with pytest.raises(
            RouteError, match=r"core \((2|3), 1\) gets a packet of colour 0 from the \w+ for the second"
        ):
            fabric.transfer(block, channel, numbered(*MESH))


@pytest.mark.mpi(ranks=[1])
def test_a_fork_in_a_loop_does_not_fill_the_memory(comm: Any) -> None:
    """Two loops through one router, far along: every time round there are twice as many packets."""
    block = new_block(comm, (120, 3))
    with installed(block, "x", [Route(0, (119,))], lines=np.arange(3) == 1) as channel:
        ring(block, 0, (101, 1), (102, 1), (102, 2), (101, 2))
        overwrite(block.tables, (102, 1), 0, mask(WEST), mask(SOUTH, NORTH))
        overwrite(block.tables, (102, 0), 0, mask(SOUTH), mask(WEST))
        overwrite(block.tables, (101, 0), 0, mask(EAST), mask(SOUTH))
        overwrite(block.tables, (101, 1), 0, mask(WEST, SOUTH, NORTH), mask(EAST))
        with pytest.raises(RouteError, match=r"core \(10[12], [012]\) gets a packet of colour 0"):
            fabric.transfer(block, channel, numbered(120, 3))


@pytest.mark.mpi(ranks=[1])
def test_a_long_way_through_every_core_is_no_loop(comm: Any) -> None:
    """Up one row and down the next, past all that a loop would be looked for."""
    width, height = 40, 30
    snake = [(x if y % 2 == 0 else width - 1 - x, y) for y in range(height) for x in range(width)]
    block = new_block(comm, (width, height))
    with installed(block, None, [tuple(snake), tuple(snake[::-1])]) as channel:
        arrived = fabric.transfer(block, channel, numbered(width, height))
    assert (arrived[-1, 0], arrived[0, 0]) == (0, numbered(width, height)[-1, 0])
    assert measured(block)["hops"] == 2 * (width * height - 1)


LOOP = """
import numpy as np
from meshrt.mesh.wires import fabric
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import installed, overwrite

MESH = (4, 2)

def run(block):
    "A packet that turns back at core (2, 0), and again at core (1, 0)."
    with installed(block, "x", [Route(0, (3,))]) as channel:
        overwrite(block.tables, (2, 0), int(channel.colours[0]), 1 << 3, 1 << 3)
        overwrite(block.tables, (1, 0), int(channel.colours[0]), 1 << 3 | 1 << 1, 1 << 1)
        fabric.transfer(block, channel, np.ones((*block.shape, 3), np.float32))
"""


@pytest.mark.parametrize("ranks", [1, 4, pytest.param(8, marks=pytest.mark.all)])
def test_a_loop_ends_the_whole_job_with_one_message(ranks: int, run_meshrt: Any, tmp_path: Any) -> None:
    program = tmp_path / "loop.py"
    program.write_text(LOOP)
    code, out, err, _ = run_meshrt("run", str(program), ranks=ranks)
    assert code == 3, err
    (line,) = [line for line in err.splitlines() if "meshrt:" in line]
    assert "gets a packet of colour 0 from the" in line and "in a loop" in line
    assert "core (1, 0)" in line or "core (2, 0)" in line
    assert "Traceback" not in err and out == ""


@pytest.mark.all
def test_the_watchdog_ends_packets_that_nobody_gets(run_meshrt: Any, tmp_path: Any) -> None:
    """The same loop, which nobody looks for: messages go on and on, and nothing is delivered."""
    program = tmp_path / "loop.py"
    program.write_text(LOOP + "\nfrom meshrt.mesh.wires import scouts\nscouts._refuse_loops = lambda *walk: None\n")
    code, out, err, _ = run_meshrt("run", str(program), ranks=4, env={"MESHRT_WATCHDOG_SECONDS": "1.5"})
    assert code == 124, err
    assert "deadlock" in err and "first use of a route set" in err
    assert out == ""


LATE = """
import time
import numpy as np
from meshrt.mesh.wires import fabric, routes
from meshrt.mesh.wires.tables import installed

MESH = (4, 2)

def run(block):
    "One rank computes for long before its transfer; the others have scouts under way meanwhile."
    with installed(block, "x", routes.chain) as channel:
        end = time.process_time() + (1.6 if block.mesh.rank == 1 else 0)
        while time.process_time() < end:
            pass
        fabric.transfer(block, channel, np.ones((*block.shape, 3), np.float32))
"""


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.all)])
def test_computing_is_not_ended_by_the_watchdog(ranks: int, run_meshrt: Any, tmp_path: Any) -> None:
    program = tmp_path / "late.py"
    program.write_text(LATE)
    code, _, err, seconds = run_meshrt("run", str(program), ranks=ranks, env={"MESHRT_WATCHDOG_SECONDS": "1"})
    assert (code, err) == (0, "") and seconds > 1.6


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("payload", [True, False])
@pytest.mark.parametrize("used", [False, True], ids=["before", "between"])
def test_a_rule_that_leads_nowhere_is_named(used: bool, payload: bool, comm: Any) -> None:
    block = new_block(comm, MESH, payload=payload)
    tiles = np.zeros((*block.lead, 1), np.float32)
    with installed(block, None, [STRAIGHT]) as channel:
        if used:
            fabric.transfer(block, channel, tiles)
        overwrite(block.tables, (3, 1), 0, mask(WEST), 0)
        message = r"core \(3, 1\) has a rule that leads a packet of colour 0 from the west nowhere"
        with pytest.raises(RouteError, match=message):
            fabric.transfer(block, channel, tiles)


# ----------------------------------------------------------------------------------------- behind the fabric's back


def item(array: np.ndarray) -> None:
    array[0, 1, 2] = 0


def every(array: np.ndarray) -> None:
    array[...] = 0


def part(array: np.ndarray) -> None:
    array[0][1, :] = 0


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("used", [False, True], ids=["before", "between"])
@pytest.mark.parametrize("name", ["enters", "leaves"])
@pytest.mark.parametrize("write", [item, every, part])
def test_entries_cannot_be_written_without_the_fabric(write: Any, name: str, used: bool, comm: Any) -> None:
    block = new_block(comm, MESH)
    with installed(block, None, [STRAIGHT]) as channel:
        if used:
            fabric.transfer(block, channel, numbered(*MESH))
        with pytest.raises(
            RouteError, match=r"written behind the fabric's back.*: change entries by tables\.overwrite"
        ):
            write(getattr(block.tables, name))
        for other in (np.ndarray.fill, np.copyto, lambda array, value: np.add(array, value, out=array)):
            with pytest.raises(ValueError, match=r"read-only"):
                other(getattr(block.tables, name), 0)
        assert fabric.transfer(block, channel, numbered(*MESH))[1, 4] == 5


@pytest.mark.mpi(ranks=[1])
def test_tables_that_grew_are_closed_too(comm: Any) -> None:
    block = new_block(comm, (20, 1))
    with (
        installed(block, "x", gossip(20)),
        pytest.raises(RouteError, match="behind the fabric's back"),
    ):
        block.tables.leaves[17] = 0


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
@pytest.mark.parametrize("again", [False, True], ids=["empty", "installed again"])
def test_a_channel_that_was_left_moves_nothing(used: bool, again: bool, comm: Any) -> None:
    """Not even where the same entries are there again: they are another channel's."""
    block = new_block(comm, MESH)
    with installed(block, "x", routes.chain(5)) as channel:
        if used:
            fabric.transfer(block, channel, numbered(*MESH))
            software.stage(block, channel, 0, np.ones(5, bool))
    with installed(block, "x", routes.chain(5)) if again else nullcontext():
        for _ in range(2):
            with pytest.raises(RouteError, match="route set 1 along x is used after its `with` block was left"):
                fabric.transfer(block, channel, numbered(*MESH))
            with pytest.raises(RouteError, match="route set 1 along x is used after its `with` block was left"):
                software.stage(block, channel, 0, np.ones(5, bool))
    assert (block.counters.hops, block.counters.stages) == (12 * used, 15 * used)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("freed", [False, True], ids=["installed", "freed"])
def test_installing_over_a_hand_made_entry_is_noticed(freed: bool, comm: Any) -> None:
    """A packet was sent round a corner by hand; routes that are installed there, or freed, take the corner away."""
    block = new_block(comm, MESH)
    crossing = installed(block, None, [((1, 2), (2, 2), (3, 2))])
    with installed(block, None, [STRAIGHT]) as channel, ExitStack() as stack:
        overwrite(block.tables, (2, 1), 0, mask(WEST), mask(SOUTH))
        if freed:
            assert stack.enter_context(crossing).colours.tolist() == [0]  # as the other's: they share no router
        overwrite(block.tables, (2, 2), 0, mask(NORTH), mask(RAMP))
        assert fabric.transfer(block, channel, numbered(*MESH))[2, 2] == 5
        if freed:
            stack.close()
        else:
            stack.enter_context(crossing)
        with pytest.raises(RouteError, match=r"core \(2, 2\) has no rule for a packet of colour 0 from the north"):
            fabric.transfer(block, channel, numbered(*MESH))
    assert not block.tables.entries.any()
