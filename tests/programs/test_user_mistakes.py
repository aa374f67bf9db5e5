"""Mistakes in a user's own program: tiles of another shape, routes beside the mesh, sizes of nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from runs import new_block

from meshrt.errors import UsageError
from meshrt.mesh.collectives.allreduce import allreduce, ktree, pipeline
from meshrt.mesh.collectives.broadcast import spreads, start, start_allgather
from meshrt.mesh.collectives.rings import interleaved_rings
from meshrt.mesh.collectives.scatter import ring
from meshrt.mesh.collectives.shifts import start_shift
from meshrt.mesh.exchange.exchange import crossbar, exchange
from meshrt.mesh.exchange.legs import Transfer
from meshrt.mesh.wires import fabric, routes
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import installed, overwrite

MESH = (5, 3)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("payload", [True, False])
@pytest.mark.parametrize("shape", [(4, 8), (3,), (), (5, 3, 2), (3, 5, 2), (1, 1, 2)], ids=str)
def test_tiles_are_those_of_all_cores(shape: tuple[int, ...], payload: bool, comm: Any) -> None:
    """What came, and what is needed; by shape alone too, where (1, 1) stands for all cores."""
    block = new_block(comm, MESH, payload=payload)
    tiles = np.zeros(shape, np.float32)
    with installed(block.tables, "x", routes.chain(5)) as channel, crossbar(block) as bar:
        if shape[:2] == block.lead:
            fabric.transfer(block, channel, tiles)
            return
        needed = "[3, 5]" if payload else "[1, 1]"
        for move in (
            lambda: fabric.transfer(block, channel, tiles),
            lambda: exchange(block, bar, Transfer("x", np.arange(5), tiles)),
        ):
            with pytest.raises(UsageError) as raised:
                move()
            assert f"tiles of shape {list(shape)}" in str(raised.value) and f"{needed} here" in str(raised.value)
    assert block.counters.messages == 0


@pytest.mark.mpi(ranks=[1])
def test_collectives_want_the_tiles_of_all_cores_too(comm: Any) -> None:
    block = new_block(comm, (4, 4))
    tiles = np.ones((4, 4, 8), np.float32)[0]
    with (
        ktree(block, "x") as tree,
        pipeline(block, "y") as line,
        ring(block, "x") as around,
        interleaved_rings(block) as rings,
        spreads(block) as (_, along_y),
    ):
        for work in (
            lambda: allreduce(block, tree, tiles),
            lambda: allreduce(block, line, tiles),
            lambda: allreduce(block, around, tiles),
            lambda: start_shift(block, rings.x, tiles, np.empty_like(tiles)),
            lambda: start_allgather(block, along_y, tiles),
            lambda: start(block, along_y, 0, tiles, np.empty_like(tiles)),
        ):
            with pytest.raises(UsageError, match=r"tiles of shape \[4, 8\]: .* \[4, 4\] here \(block.lead\)"):
                work()


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (4, -1)], ids=str)
def test_a_tile_has_numbers(shape: tuple[int, ...], comm: Any) -> None:
    block = new_block(comm, MESH)
    with pytest.raises(UsageError, match=r"'x' is to have tiles of \[.*\] at every core: give sizes of 1 or more"):
        block.tiles("x", shape, np.float32)
    assert block.tiles("y", (), np.float32).shape == (3, 5)


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    ("axis", "made", "lines", "text"),
    [
        ("z", [Route(0, (1,))], None, "routes along axis 'z': lines of the mesh are rows, axis 'x', and columns"),
        (None, [Route(0, (1,))], None, "routes along axis None are paths, each the"),
        (None, [[(0, 0), (1, 0)], [(0, 0), (1,)]], None, "routes along axis None are paths"),
        (None, [(0, 0), (1, 0)], None, "routes along axis None are paths"),
        (None, [[(0, 0), (1.0, 0)]], None, "routes along axis None are paths"),
        (None, routes.chain, None, "routes along axis None are paths"),
        (None, [((0, 0), (1, 0))], np.ones(3, bool), "routes along axis None are paths"),
        ("x", [((0, 0), (1, 0))], None, "a line along x has routes of Route; for a path, .* the axis is None"),
        ("x", lambda n: routes.chain(n + 1), None, r"from core 4 to \[5\] of a line along x"),
        ("x", [Route(0, (5,))], None, r"from core 0 to \[5\] of a line along x, which has cores 0 to 4"),
        ("y", [Route(0, (1,)), Route(1, (-1, 2))], None, r"from core 1 to \[-1, 2\] of a line along y, .* 0 to 2"),
        ("x", [Route(9, (1,))], None, r"from core 9 to \[1\]"),
        ("x", [Route(3, ())], None, r"from core 3 to \[\]"),
        ("x", [Route(0, (1,))], np.ones(5, bool), r"lines along x are chosen by 3 bools, .* not by bool \[5\]"),
        ("y", [Route(0, (1,))], np.arange(3), r"lines along y are chosen by 5 bools, .* not by int64 \[3\]"),
    ],
)  # fmt: skip
def test_routes_lie_on_lines_of_the_mesh(axis: Any, made: Any, lines: Any, text: str, comm: Any) -> None:
    block = new_block(comm, MESH)
    with pytest.raises(UsageError, match=text), installed(block.tables, axis, made, lines=lines):
        pass
    assert not block.tables.book.any()


@pytest.mark.mpi(ranks=[1])
def test_what_follows_routes_is_for_a_pattern(comm: Any) -> None:
    """Lines are not chosen by their place: behind routes that are there it would say nothing."""
    block = new_block(comm, MESH)
    text = "only a pattern, a function of a line's length, takes more than routes; `lines=` chooses lines"
    with pytest.raises(UsageError, match=text), installed(block, "x", routes.chain(5), np.arange(3) == 1):
        pass
    assert not block.tables.book.any()


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(
    "cores", [((4, 1), (5, 1)), ((0, 0), (-1, 0)), ((2, 2), (2, 3)), ((1, 0), (1, -1))], ids=["e", "w", "s", "n"]
)
def test_paths_stay_on_the_mesh(cores: tuple[tuple[int, int], ...], comm: Any) -> None:
    """Past the east end of a row the next number is that of another row's core, which is no neighbour."""
    block = new_block(comm, MESH)
    x, y = cores[1]
    text = rf"a path goes over core \({x}, {y}\), outside the mesh of 5 x 3"
    with pytest.raises(UsageError, match=text), installed(block.tables, None, [((0, 0), (1, 0)), cores]):
        pass


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(("core", "colour"), [((5, 0), 0), ((0, -1), 0), ((0, 0), 99)])
def test_only_entries_that_there_are_can_be_changed(core: tuple[int, int], colour: int, comm: Any) -> None:
    block = new_block(comm, MESH)
    with pytest.raises(UsageError, match=rf"colour {colour} of core .*: the mesh has 5 x 3 cores"):
        overwrite(block.tables, core, colour, 0, 0)


MISTAKEN = """
import numpy as np
from meshrt.mesh.wires import fabric, software
from meshrt.mesh.wires.routes import Route
from meshrt.mesh.wires.tables import installed

MESH = (4, 4)

def run(block, *, mistake: str = ""):
    "One of a user's mistakes."
    if mistake == "size":
        block.tiles("x", (0,), np.float32)
    t = np.ones((*block.shape, 8), np.float32)
    axis, route = ("z" if mistake == "axis" else "x"), Route(0, (4 if mistake == "route" else 3,))
    with installed(block.tables, axis, [route]) as channel:
        fabric.transfer(block, channel, t[0] if mistake == "tiles" else t)
        if mistake == "stage":
            software.stage(block, channel, 1, np.ones(3, bool))
        if mistake == "every":
            software.run(block, channel, 1, None)
    if mistake == "number":
        block.tiles("x", 8, np.float32)
    if mistake == "kind":
        block.tiles("x", (8,), "floot32")
    if mistake == "path":
        with installed(block.tables, None, [((3, 0), (4, 0))]) as channel:
            fabric.transfer(block, channel, t)
"""


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("size", "'x' is to have tiles of [0] at every core"),
        ("axis", "routes along axis 'z'"),
        ("route", "a route from core 0 to [4]"),
        ("tiles", "tiles of shape [4, 8]"),
        ("path", "a path goes over core (4, 0)"),
        ("stage", "`positions` is bool [3]: an array of 4 bools over the whole mesh is wanted"),
        ("every", "`positions` is None: an array of 4 bools"),
        (
            "number",
            "'x' is to have tiles of 8, <class 'numpy.float32'>: a shape is a tuple of whole numbers, such as (8,)",
        ),
        ("kind", "'x' is to have tiles of (8,), 'floot32': a shape is a tuple"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(mistake: str, text: str, run_meshrt: Any, tmp_path: Any) -> None:
    program = tmp_path / "mistaken.py"
    program.write_text(MISTAKEN)
    code, out, err, _ = run_meshrt("run", str(program), "--mistake", mistake)
    assert code == 2, err
    assert text in err and "Traceback" not in err and "bug" not in err and out == ""
    assert run_meshrt("run", str(program)).code == 0
