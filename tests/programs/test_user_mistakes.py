"""Mistakes in a user's own program: tiles of another shape, routes beside the mesh, sizes of nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lines import run_lines
from runs import new_block

import meshrt
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
    with installed(block, "x", routes.chain(5)) as channel, crossbar(block) as bar:
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
        ("x", [Route(3, (3,))], None, r"from core 3 to \[3\]: what a core has does not go over its router to itself"),
        ("x", lambda n: routes.chain(n, 0), None, r"from core 0 to \[0\]: what a core has does not go"),
        ("x", [Route(0, 1)], None, r"Route\(0, 1\): the stops are a tuple, of one core as well: \(1,\)"),
        ("x", [Route(0, (1.5,))], None, r"Route\(0, \(1.5,\)\): cores of a line are whole numbers"),
        ("x", [Route(0, (1,))], np.ones(5, bool), r"lines along x are chosen by 3 bools, .* not by bool \[5\]"),
        ("y", [Route(0, (1,))], np.arange(3), r"lines along y are chosen by 5 bools, .* not by int64 \[3\]"),
    ],
)  # fmt: skip
def test_routes_lie_on_lines_of_the_mesh(axis: Any, made: Any, lines: Any, text: str, comm: Any) -> None:
    block = new_block(comm, MESH)
    with pytest.raises(UsageError, match=text), installed(block, axis, made, lines=lines):
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
    with pytest.raises(UsageError, match=text), installed(block, None, [((0, 0), (1, 0)), cores]):
        pass


@pytest.mark.mpi(ranks=[1])
@pytest.mark.parametrize(("core", "colour"), [((5, 0), 0), ((0, -1), 0), ((0, 0), 99)])
def test_only_entries_that_there_are_can_be_changed(core: tuple[int, int], colour: int, comm: Any) -> None:
    block = new_block(comm, MESH)
    with pytest.raises(UsageError, match=rf"colour {colour} of core .*: the mesh has 5 x 3 cores"):
        overwrite(block.tables, core, colour, 0, 0)


@pytest.mark.mpi(ranks=[1])
def test_one_route_alone_is_a_list_of_one(comm: Any) -> None:
    block = new_block(comm, MESH)
    tiles = np.ones((3, 5, 2), np.float32)
    with installed(block, "x", Route(0, (1,))) as channel:
        fabric.transfer(block, channel, tiles)
    assert block.counters.messages == 3


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
    with installed(block, axis, [route]) as channel:
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
        with installed(block, None, [((3, 0), (4, 0))]) as channel:
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


HEAD = """
import numpy as np
from meshrt.mesh import *
from meshrt.mesh.collectives import allreduce as allreduces, broadcast, remap, rings, scatter, shifts
from meshrt.mesh.exchange.exchange import exchange
from meshrt.mesh.exchange.legs import Transfer
MESH = (4, 2)

def run(block):
    t = block.tiles("t", (4, 4), np.float32)
    t[...] = 1
    with installed(block, "x", chain) as way:
        {}
    return {{}}
"""
WORDS = {  # one line of a program, and what is said of it
    "transfer(block, 'x', t)": "`channel` of transfer is 'x'; it is what `installed` gives: with installed(...) as way",
    "transfer(block, t, t)": "`channel` of transfer is float32 [2, 4, 4, 4]; it is what `installed` gives",
    "transfer(way, block, t)": "`block` of transfer is a Channel; it is the block that `run` got",
    "transfer(block, way, [1, 2])": "`tiles` of transfer is [1, 2]; it is an array, [bh, bw, *tile]",
    "transfer(block, way, t, [0])": "`out` of transfer is [0]; it is an array, [bh, bw, *tile]",
    "transfer(block, way, t, t.astype(int))": "`out` of int64 for tiles of float32: what arrives would be cut",
    "transfer(block, way, t, t, combine=lambda a, b: None)": "`combine` returned None: it returns what the core has",
    "transfer(block, way, t, t, combine=lambda a, b: a[:1])": "`combine` returned an array of shape [1, 3, 4, 4] for",
    "receive(block, None)": "`flight` of receive is None; it is what `send` has returned",
    "receive(block, send(block, way, t), 3)": "`others` of receive is 3; it is what `send` has returned",
    "installed('x', chain, block).__enter__()": "`block` of installed is 'x'; it is the block that `run` got",
    "installed(block, 'x', chain, lines=[0]).__enter__()": "`lines` of installed is [0]; it is an array of bools",
    "allreduce(block, way, t)": "`way` of allreduce is a Channel; it is what a collective gives",
    "block.elementwise(np.ones(7))": "tiles of shape [7]: the first two dimensions are the cores of the block, [2, 4]",
    "block.work('many')": "work of 'many': give a number of multiply-accumulates, or one for each core, [2, 4]",
    "block.work(float('nan'))": "work of nan: give a number of multiply-accumulates",
    "block.work(np.arange(8))": "work of an array of shape [8]: give a number of multiply-accumulates, or one for each",
    "stage(block, way, t, np.ones(4, bool))": "a stage of array([[",
    "stage(block, way, 'x', np.ones(4, bool))": "a stage of 'x' additions: give their number",
    "ktree(block, 'x', phases=1.5).__enter__()": "a K-tree has K = 1 to 64 phases, not 1.5",
    "ktree(block, 'x', phases='2').__enter__()": "a K-tree has K = 1 to 64 phases, not '2'",
    "ktree(block, 'x', stretches=(1, 0)).__enter__()": "stretches (1, 0) of a line of 4 cores: give how many,",
    "ktree(block, 'x', stretches=(2, 3)).__enter__()": "stretches (2, 3) of a line of 4 cores: give how many,",
    "ktree(block, 'x', stretches=2).__enter__()": "stretches 2 of a line of 4 cores: give how many, and of how",
    "allreduces.pattern(block, 'tree', 'x').__enter__()": "a sum by 'tree': choose 'ktree', 'pipeline' or 'ring'",
    "take(block, way, np.arange(8), t)": "`bar` of take is a Channel; it is what `crossbar` gives: with crossbar(",
    "align(block, None, t, t)": "`rings` of align is None; it is what rings along both axes are: with",
    "broadcast.relay(block, None)": "`begun` of relay is None; it is what `start` has returned",
    "start_shift(block, interleaved_rings(block).__enter__(), t, t)": "`ring` of start_shift is a Rings; it is one of",
    "square(block)": "`mesh` of square is a Block; it is block.mesh",
    "block.elementwise([1])": "`tiles` of elementwise is [1]; it is an array, [bh, bw, *tile]",
    "block.matmul([[1]], t)": "`a` of matmul is [[1]]; it is an array, [bh, bw, *tile]",
    "block.matmul(t[..., 0], t)": "`a` of a product is of shape [2, 4, 4]: every core multiplies matrices",
    "block.matmul(t, t.swapaxes(0, 1))": "`b` of a product is of shape [4, 2, 4, 4]: every core multiplies matrices",
    "block.memory.keep('k', [1])": "`array` of keep is [1]; it is an array, [bh, bw, *tile]",
    "block.memory.keep('k', np.ones(3))": "'k' is an array of shape [3]: what cores keep is [bh, bw, *tile]",
    "block.tiles('o', (4,), object)": "'o' is to have tiles of (4,), dtype('O'): a shape is a tuple of whole numbers",
    "block.tiles('o', (4,), str)": "a kind of numbers one of NumPy's, such as np.float32",
    "block.width": "'Block' object has no attribute 'width'; did you mean mesh.width?",
    "block.mine": "has no attribute 'mine'; cores.mine is of other machines: say MACHINE = \"neuron\" in the file",
    "block.phase(3).__enter__()": "a phase is named 3: give it a text",
    "block.phase('').__enter__()": "a phase is named '': give it a text",
    "block.phase('a', tokens=-1).__enter__()": "phase 'a' is about -1 tokens: give a whole number from 0 on",
    "block.phase('a', tokens='b').__enter__()": "phase 'a' is about 'b' tokens: give a whole number from 0 on",
    "place(block, 'm', np.ones((4, 4)), cut=4)": "'m' cut into 4 tiles: give two numbers, (rows of tiles, columns of",
    "gather(block, place(block, 'm', np.ones((4, 4))), (9, 9))": "`shape` is (9, 9): a matrix of these tiles has two",
    "gather(block, place(block, 'm', np.ones((4, 4))), 4)": "`shape` is 4: a matrix of these tiles has two sides, 4",
    "gather(block, t[..., 0], (4, 4))": "tiles of shape [2, 4, 4] are no matrix's: leave `shape` away to have them all",
    "take(block, crossbar(block).__enter__(), [0, 1], t)": "`owners` is [0, 1]: for each of the 8 cores, by number y",
    "take(block, crossbar(block).__enter__(), np.zeros((2, 4)), t)": "`owners` is float64 [2, 4]: for each of the 8",
    "take(block, crossbar(block).__enter__(), np.full(8, 8), t)": "the number of the core whose tile it gets is wanted",
    "exchange(block, crossbar(block).__enter__(), Transfer(None, np.full(8, 10**6), t))": "for each of the 8 cores, by",
    "exchange(block, crossbar(block).__enter__(), Transfer('x', np.full(4, -1), t))": "4 positions of a line along x,",
    "exchange(block, crossbar(block).__enter__(), Transfer('z', np.arange(4), t))": "a transfer along axis 'z': lines",
    "exchange(block, crossbar(block).__enter__(), t)": "`transfers` of exchange is float32 [2, 4, 4, 4]; it is one of",
    "transfer(block, way, np.full((2, 4, 3), None))": "tiles of object: packets take numbers along, such as np.float32",
    "transfer(block, way, t, t, combine='add')": "`combine` is 'add': it is a function of two tiles, such as np.add",
    "allreduce(block, ktree(block, 'x').__enter__(), t, out=t.astype(int))": "`out` of int64 for tiles of float32",
    "allreduce(block, scatter.ring(block, 'x').__enter__(), t, lines=np.ones(2, bool))": "`lines` are those of a tree",
    "ktree(block, 'x', groups=2.5).__enter__()": "groups 2.5 of a K-tree: give a whole number, or one for each phase",
    "ktree(block, 'x', groups='2').__enter__()": "groups '2' of a K-tree: give a whole number",
    "rings.plain_ring(block, 'x', 0).__enter__()": "slots is 0: a ring has a whole number of places at each core",
    "r = rings.plain_ring(block, 'x', 2).__enter__(); start_shift(block, r, t, t)": "with 2 slots at a core both are",
    "r = plain_rings(block).__enter__(); rotate(block, r.x, r.back_x, t, [1.5, 1])": "float64 [2] places for tiles of",
    "r = plain_rings(block).__enter__(); align(block, r, t, t)": "cut as the rings have slots, with a whole number for",
    "broadcast.start(block, broadcast.spreads(block).__enter__()[0], -1, t, t)": "a broadcast from core -1 of a line",
    "broadcast.start(block, broadcast.spreads(block).__enter__()[0], 1, t, t[0])": "`out` of shape [4, 4, 4]: what the",
    "broadcast.start_allgather(block, broadcast.spreads(block).__enter__(), t)": "`spread` of start_allgather is",
    "broadcast.spreads(block, 2.5).__enter__()": "segments of 2.5 cores; they have a whole number of them, from 1 on",
    "remap.remap(block, 'x', t, [0, 4, 8, 12, 16], [0, 16])": "`after` is array([ 0, 16]) of a line along x: 5 whole",
    "remap.remap(block, 'x', t, [0, 4, 8, 12, 16], [0, 4, 8, 12, 13])": "units 0 to 16 of a line along x are to go to",
    "block.matmul(1j * t, t)": "`a` of a product is of complex64: a core multiplies real numbers, in float32; of",
    "block.matmul(t / 3, t, np.zeros(t.shape, np.int32))": "`total` of int32 for a product with fractions: give one of",
    "block.matmul(t[:, :, :1], t, t)": "`total` of shape [2, 4, 4, 4] for a product of shape [2, 4, 1, 4]: what is",
    "block.matmul(t, t, over=-3)": "`over` is -3: products at a core that are added up lie along an axis behind [bh,",
    "block.matmul(t, t, cores=block.x == 0)": "`cores` is bool [4]: a bool for each core of the block is wanted, [2,",
    "block.elementwise(t, cores=[0, 1])": "`cores` is [0, 1]: a bool for each core of the block is wanted, [2, 4]",
    "block.elementwise(t, calls=1.5)": "`calls` is 1.5: what cores do is counted in whole numbers from 0 on",
    "block.vectors(2.5, 1, 4)": "`length` is 2.5: what cores do is counted in whole numbers from 0 on",
    "block.work(0.5)": "work of 0.5: give a number of multiply-accumulates, or one for each core, [2, 4]",
    "stage(block, way, 1.5, np.ones(4, bool))": "a stage of 1.5 additions: give their number, a whole one",
    "block.memory.keep('k', np.ones((9, 9)))": "'k' is an array of shape [9, 9]: what cores keep is [bh, bw, *tile]",
    "block.memory.hold('h', 2.5).__enter__()": "core memory for 'h' is 2.5: give a whole number of bytes, or one for",
    "block.memory.hold('h', np.ones((9, 9), int)).__enter__()": "core memory for 'h' is int64 [9, 9]: give a whole",
    "gather(block, t[0])": "tiles of shape [4, 4, 4]: the first two dimensions are the cores of the block, [2, 4]",
    "gather(block, place(block, 'm', np.ones((4, 4))), (-1, 4))": "`shape` is (-1, 4): a matrix of these tiles has two",
    "place(block, 'm', np.ones((4, 4)), cut=(0, 0))": "'m' cut into 0 x 0 tiles, rows first, on 2 rows and 4 columns",
    "place(block, 'm', np.ones((4, 4)), cut=(2.0, 4.0))": "'m' cut into (2.0, 4.0) tiles: give two numbers, (rows of",
    "place(block, 'm', lambda *part: None, (4, 4), dtype='f')": "rows 0 to 4 and columns 0 to 4 came None; an array",
    "place(block, 'm', 1j * np.ones((4, 4)), dtype='f')": "is of complex128 and its tiles of float32: imaginary parts",
}
OTHERS = {  # whole programs
    "MESH = 4\ndef run(block): ...": "MESH is 4; it is (WIDTH, HEIGHT), such as (8, 8)",
    "MESH = '4x2'\ndef run(block): ...": "MESH is '4x2'; it is (WIDTH, HEIGHT)",
    "MESH = (0, 2)\ndef run(block): ...": "MESH is (0, 2); it is (WIDTH, HEIGHT)",
    "MESH = (4, 2, 1)\ndef run(block): ...": "MESH is (4, 2, 1); it is (WIDTH, HEIGHT)",
    "def run(block, *, size: 'Foo' = 4): ...": "what an option of run is said to be is nothing that there is",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    folder, lines = tmp_path_factory.mktemp("words"), {}
    for number, line in enumerate([*WORDS, *OTHERS]):
        path = folder / f"p{number}.py"
        path.write_text(HEAD.format(line) if line in WORDS else line)
        lines[line] = ["run", str(path)]
    return run_lines(lines, tmp_path_factory.mktemp("lines"))


@pytest.mark.parametrize("line", [*WORDS, *OTHERS])
def test_the_answer_names_what_came_and_what_is_wanted(line: str, answers: dict[str, tuple[int, str, str]]) -> None:
    code, out, err = answers[line]
    assert (code, out) == (2, ""), err
    assert (WORDS | OTHERS)[line] in err and "bug of meshrt" not in err
    assert err.count("\n") == 1 and (line in OTHERS or ", line 1" in err), err


def test_phases_follow_one_another() -> None:
    """One inside of another would take all that comes after it from the outer one, too."""

    def inside(block: Any) -> dict[str, Any]:
        with block.phase("a"):
            block.work(1)
            with block.phase("b"):
                block.work(10)
        return {}

    def after(block: Any) -> dict[str, Any]:
        for name in ("a", "b", "a"):
            try:
                with block.phase(name, tokens=np.int64(3)):
                    block.work(1)
                    raise ZeroDivisionError
            except ZeroDivisionError:
                block.work(100)  # of no phase
        return {}

    with pytest.raises(UsageError, match="phase 'b' is inside phase 'a': one ends before the next begins"):
        meshrt.run(inside, mesh=(2, 2))
    report = json.loads(meshrt.run(after, mesh=(2, 2)).to_json())
    phases = [(phase["name"], phase["macs"], phase["tokens"]) for phase in report["phases"]]
    assert phases == [("a", 8, 6), ("b", 4, 3)] and report["measured"]["macs"] == 4 * 303


def test_numbers_of_16_bytes_that_were_never_written_are_named(capsys: Any) -> None:
    def forgets(block: Any) -> dict[str, Any]:
        return {"nan": float(block.tiles("waves", (3,), np.complex128).real.sum())}

    assert np.isnan(meshrt.run(forgets, mesh=(2, 2)).result["nan"])
    assert "core memory that was never written: 'waves' of" in capsys.readouterr().err


@pytest.mark.parametrize("machine", ["neuron", "gpu", "arm"])
def test_nor_are_phases_of_other_machines_inside_one_another(machine: str, tmp_path: Path) -> None:
    """What is counted in both would be in the run once. One that ends by an exception is over."""
    program, owner = tmp_path / "own.py", "machine.mine[0]" if machine == "neuron" else "machine"
    for between, names in {"pass": ["a", "b"], "with {}.phase('c'): pass": None}.items():
        program.write_text(
            f"from contextlib import suppress\nMACHINE = {machine!r}\ndef run(machine):\n"
            f"    for name in ('a', 'b', 'a'):\n        with suppress(ZeroDivisionError), {owner}.phase(name):\n"
            f"            {between.format(owner)}\n            1 / 0\n    return {{}}\n"
        )
        if names:
            assert set(names) >= {*meshrt.run(program).phases}
            continue
        with pytest.raises(UsageError, match="phase 'c' is inside phase 'a': one ends before the next begins"):
            meshrt.run(program)


def test_no_operations_take_no_time() -> None:
    def own(block: Any) -> dict[str, Any]:
        block.elementwise(block.tiles("t", (4,), np.float32), calls=0)
        block.work(np.ones((2, 1), int))
        block.work(2.0)
        return {}

    report = meshrt.run(own, mesh=(3, 2))
    assert (report["adds"], report["macs"]) == (0, 6 + 12)


def test_a_function_that_calls_itself_is_told_once(run_meshrt: Any, tmp_path: Any) -> None:
    program = tmp_path / "deep.py"
    program.write_text("def deep():\n    return deep()\ndef run(block):\n    return deep()\n")
    code, _, err, _ = run_meshrt("run", str(program))
    assert code == 1 and "RecursionError" in err and err.count("\n") < 6, err


def test_a_phase_is_named_on_every_machine() -> None:
    for on, size in (("mesh", (1, 1)), ("neuron", 1), ("gpu", 1), ("arm", 1)):
        for name, tokens in ((3, 1), ("", 1), ("a", -1), ("a", 1.5)):

            def own(machine: Any, name: Any = name, tokens: Any = tokens, /) -> dict[str, Any]:
                with machine.phase(name, tokens=tokens):
                    return {}

            with pytest.raises(UsageError, match=r"a phase is named|is about .* tokens: give a whole number from 0 on"):
                meshrt.run(own, on=on, size=size)


@pytest.mark.parametrize("call", ["block.control.allreduce(1)", "block.phase('a').__enter__()"])
def test_a_rank_that_calls_where_another_has_ended_is_told(call: str, run_meshrt: Any, tmp_path: Any) -> None:
    """What rank 0 takes for the end of another is not: once it was a number that did not fit, far inside."""
    program = tmp_path / "parts.py"
    program.write_text(f"MESH = (2, 1)\ndef run(block):\n    if block.control.rank:\n        {call}\n    return {{}}\n")
    code, _, err, _ = run_meshrt("run", str(program), ranks=2)
    assert code == 124 and "Traceback" not in err, err
    assert "parts.py: rank 1 calls all ranks where rank 0 is at the end of run: ranks have to make the same" in err
