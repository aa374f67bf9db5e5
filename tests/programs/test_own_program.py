"""A user's own program file: errors in its own lines, modules beside it, what it forgets, what one rank would hide."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi_jobs import Finished
from runs import run_program

import meshrt
from meshrt.branches import check_branches
from meshrt.errors import StallError
from meshrt.machine import machines
from meshrt.ownprogram import load_file
from meshrt.program import load_program

HEAD = """import numpy as np
from meshrt.mesh.wires import fabric, receiving, routes
from meshrt.mesh.wires.tables import installed
MESH = (4, 1)
"""
Own = Callable[..., Finished]


@pytest.fixture
def own(run_meshrt: Callable[..., Finished], tmp_path: Path) -> Own:
    """`own(source, *args, ranks=1)` runs mine.py; its name in what is said is cut to that."""

    def run(source: str, *args: str, ranks: int = 1) -> Finished:
        path = tmp_path / "mine.py"
        path.write_text(source)
        done = run_meshrt("run", str(path), *args, ranks=ranks, env={"MESHRT_WATCHDOG_SECONDS": "2"})
        # Open MPI's mpirun has lines of its own, framed, on every exit code but 0.
        said = re.sub(r"^-{70,}\n.*?^-{70,}\n", "", done.stderr, flags=re.DOTALL | re.MULTILINE)
        return done._replace(stderr=said.replace(f"{tmp_path}/", ""))

    return run


# ------------------------------------------------------------------------------------- exceptions in the user's code


RAISES = (
    HEAD
    + """
def run(block):
    if block.mesh.x0 {where}:
        outer({{"a": 1}})

def outer(known):
    return inner(known)

def inner(known):
    return known["b"]
"""
)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("where", "ranks", "failing"), [(">= 0", 1, 1), (">= 0", 4, 4), ("== 3", 4, 1), ("> 1", 4, 2)])
def test_an_exception_is_shown_with_the_users_line_first(where: str, ranks: int, failing: int, own: Own) -> None:
    done = own(RAISES.format(where=where), ranks=ranks)
    assert done.code == 1 and done.stdout == ""
    assert done.stderr.count("meshrt: error") == 1
    first, *more = done.stderr.splitlines()
    alike = failing == ranks
    place = "" if alike else r" on rank \d of 4, cores \(\d, 0\) to \(\d, 0\) \(process .*\)"
    assert re.fullmatch(rf"meshrt: error{place}: mine.py, line 14: KeyError: 'b'", first)
    expected = [
        '    return known["b"]',
        "  called from mine.py, line 11: return inner(known)",
        '  called from mine.py, line 8: outer({"a": 1})',
    ]
    assert more == expected + ["meshrt: 1 more rank failed as well"] * (failing == 2)
    assert "Traceback" not in done.stderr and "bug" not in done.stderr


def test_sizes_that_do_not_fit_are_told_with_the_shapes(own: Own) -> None:
    source = HEAD + "def run(block):\n    a, c = np.ones((1, 4, 8, 8)), np.ones((1, 4, 3, 3))\n"
    done = own(source + "    block.matmul(a, a, c)\n")
    assert done.code == 1
    first, line, shapes, inside = done.stderr.splitlines()
    assert first.startswith("meshrt: error: mine.py, line 7: ")
    assert (line, shapes) == ("    block.matmul(a, a, c)", "  with a float64 [1, 4, 8, 8], c float64 [1, 4, 3, 3]")
    assert re.fullmatch(r"  raised in meshrt/mesh/computing.py, line \d+, in matmul", inside)


def test_a_line_that_names_numpy_is_told_as_any_other(own: Own) -> None:
    """`np` has a dtype and a shape, and is no array."""
    done = own(HEAD + "def run(block, *, m: int = 3):\n    return {'s': float(np.zeros((m, m)).sum())}\n", "--m", "-3")
    assert done.code == 1 and done.stderr == (
        "meshrt: error: mine.py, line 6: ValueError: negative dimensions are not allowed\n"
        "    return {'s': float(np.zeros((m, m)).sum())}\n"
    )


def test_sides_of_tiles_that_do_not_fit_are_told(own: Own) -> None:
    source = HEAD + "def run(block):\n    a, b = (np.ones((1, 4, *one)) for one in ((4, 8), (9, 8)))\n"
    done = own(source + "    c = block.matmul(a, b)\n")
    assert done.code == 2 and done.stderr == (
        "meshrt: error: a product of tiles [4, 8] and [9, 8] at each core: the first has 8 columns, the second 9 rows"
        " (mine.py, line 7)\n"
    )


@pytest.mark.parametrize(
    ("sent", "sides"), [("a[..., :3, :]", "3, 5"), ("a[..., :1]", "8, 1"), ("a.swapaxes(2, 3)", "5, 8")]
)
def test_a_tile_is_not_stretched_to_the_place_that_it_arrives_at(sent: str, sides: str, own: Own) -> None:
    """NumPy would fill [8, 5] from [8, 1], for the bytes of 8 numbers; others ended in its words on broadcasting."""
    source = HEAD + "def run(block):\n    a, out = block.tiles('a', (8, 5), 'f'), block.tiles('out', (8, 5), 'f')\n"
    source += "    with installed(block, 'x', routes.chain(4)) as way:\n"
    done = own(source + f"        fabric.transfer(block, way, {sent}, out)\n")
    assert done.code == 2 and done.stderr == (
        f"meshrt: error: `out` of shape [1, 4, 8, 5] for tiles of shape [1, 4, {sides}]: what arrives at a core is a"
        " tile as it was sent (mine.py, line 8)\n"
    )


PLACED = {  # arguments: what is said
    "lambda rows, columns: w.T[rows, columns], (6, 8), (1, 4), np.float32": (
        "of rows 0 to 6 and columns 0 to 8 came [6, 6] numbers"
    ),
    "lambda rows, columns: w[rows, columns], (6, 8), (4, 1), np.float32": (
        "'w' cut into 4 x 1 tiles, rows first, on 1 rows and 4 columns of cores: give"
    ),
    "w, cut=(4, 1)": "'w' cut into 4 x 1 tiles, rows first, on 1 rows and 4 columns of cores: give",
    "np.ones(8)": "'w' of shape [8]: a matrix has rows and columns",
    "lambda rows, columns: w[rows, columns], (6, 8)": "'w' is a function of its parts: give `shape` and `dtype`, too",
}


@pytest.mark.parametrize("arguments", PLACED)
def test_a_matrix_is_placed_whole_or_not_at_all(arguments: str, own: Own) -> None:
    """A part that is too small was padded with zeros, and what no tile had was left out, without a word."""
    source = HEAD + "from meshrt.mesh import place\ndef run(block):\n    w = np.ones((6, 8), np.float32)\n"
    done = own(f"{source}    place(block, 'w', {arguments})\n")
    assert done.code == 2 and PLACED[arguments] in done.stderr and "(mine.py, line 8)" in done.stderr


CHOSEN = {
    "positions=np.arange(3) == 1": "`positions` is bool [3]: an array of 4 bools",
    "positions=np.arange(4)": "`positions` is int64 [4]: an array of 4 bools",
    "positions=2": "`positions` is 2: an array of 4 bools",
    "lines=[True]": "`lines` is [True]: an array of 1 bools",
}


@pytest.mark.parametrize("chosen", CHOSEN)
def test_what_chooses_sources_is_a_bool_for_each(chosen: str, own: Own) -> None:
    """Of three positions on four cores the last was left out, without a word."""
    source = HEAD + "def run(block):\n    a = block.tiles('a', (8,), 'f')\n"
    source += "    with installed(block, 'x', routes.chain(4)) as way:\n"
    done = own(source + f"        fabric.transfer(block, way, a, a, {chosen})\n")
    assert done.code == 2 and done.stderr.startswith(f"meshrt: error: {CHOSEN[chosen]}"), done.stderr
    assert done.stderr.endswith(" (mine.py, line 8)\n")


@pytest.mark.parametrize("uses", ["", "with way: "])
def test_a_with_that_is_missing_is_told(uses: str, own: Own) -> None:
    """Or one whose `as` is, which gives the routes."""
    source = HEAD + "def run(block):\n    a = block.tiles('a', (8,), 'f')\n"
    source += "    way = installed(block, 'x', routes.chain(4))\n"
    done = own(source + f"    {uses}fabric.transfer(block, way, a, a)\n")
    assert done.code == 2 and done.stderr == (
        "meshrt: error: mine.py, line 8: what installs routes is for a `with`: with installed(...) as way\n"
    )


def test_what_meshrt_cannot_have_foreseen_may_be_its_bug(own: Own) -> None:
    done = own(HEAD + "def run(block):\n    block.memory.free('nothing')\n")
    assert done.code == 1 and done.stderr.startswith("meshrt: error: mine.py, line 6: KeyError: 'nothing'\n")
    assert "raised in meshrt/mesh/memory.py, line" in done.stderr
    assert done.stderr.endswith("in free; if the program's call is right, this is a bug of meshrt\n")


def test_an_error_with_a_message_of_its_own_gets_the_line(own: Own) -> None:
    done = own(HEAD + "def run(block):\n    block.tiles('A', (10 ** 6,), np.float32)\n")
    assert done.code == 3 and done.stderr.count("\n") == 1
    assert "'A' asks for 4000000 bytes" in done.stderr and " (mine.py, line 6); does not fit" in done.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_exception_while_the_file_is_read_is_told_in_the_same_way(ranks: int, own: Own) -> None:
    done = own("x = 1 / 0\n", ranks=ranks)
    assert (done.code, done.stderr) == (
        1,
        "meshrt: error: mine.py, line 1: ZeroDivisionError: division by zero\n    x = 1 / 0\n",
    )


def test_what_is_of_the_host_is_told_as_everywhere(own: Own) -> None:
    done = own(HEAD + "def run(block):\n    np.ones(2 ** 50)\n")
    assert done.code == 2 and "this machine has too little memory" in done.stderr
    done = own(HEAD + "def run(block):\n    open('/nowhere/at/all')\n")
    assert done.code == 1 and "mine.py, line 6: FileNotFoundError" in done.stderr


# -------------------------------------------------------------------------------------------- signature and modules


@pytest.mark.parametrize("size", ["size", "size: int = 3"])
def test_an_option_without_a_star_before_it_is_told(size: str, own: Own) -> None:
    for given in ([], ["--size", "4"]):
        done = own(f"def run(block, {size}):\n    return {{}}\n", *given)
        assert done.code == 2 and done.stderr.count("\n") == 1
        assert "run(block, size): put a * before size" in done.stderr and "run(block, *, size=...)" in done.stderr


@pytest.mark.parametrize("signature", ["", "*, size: int = 3"])
def test_a_run_without_cores_is_told(signature: str, own: Own) -> None:
    done = own(f"def run({signature}):\n    return {{}}\n")
    assert done.code == 2 and "it is run(block, *, ...)" in done.stderr


@pytest.mark.parametrize("ranks", [1, 2])
def test_modules_beside_the_file_can_be_imported_and_take_nobodys_place(ranks: int, own: Own, tmp_path: Path) -> None:
    """Early and late; but a module of Python's, meshrt's or NumPy's name is not looked at."""
    (tmp_path / "helper_mod.py").write_text("X = 3\n")
    (tmp_path / "later_mod.py").write_text("Y = 4\n")
    for name in ("numpy", "json", "colorsys", "meshrt", "ml_dtypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)\n")
    source = "import colorsys\nfrom helper_mod import X\nMESH = (2, 1)\ndef run(block):\n    import ml_dtypes\n"
    done = own(source + "    from later_mod import Y\n    return {'sum': X + Y}\n", "--json", "-", ranks=ranks)
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout)["result"] == {"sum": 7}


@pytest.mark.sample(2)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_missing_module_is_one_line(late: bool, ranks: int, own: Own) -> None:
    source = "MESH = (2, 1)\ndef run(block):\n    import torch_no\n" if late else "import torch_no\n"
    done = own(source, ranks=ranks)
    expected = f"mine.py, line {3 if late else 1}: there is no module 'torch_no': install it, or put torch_no.py beside"
    assert done.code == 2 and done.stderr == f"meshrt: error: {expected} mine.py\n"


def test_an_error_in_a_module_beside_the_file_names_that(own: Own, tmp_path: Path) -> None:
    (tmp_path / "helper_mod.py").write_text("def work():\n    return 1 / 0\n")
    done = own("import helper_mod\ndef run(block):\n    helper_mod.work()\n")
    assert done.code == 1
    assert done.stderr.splitlines() == [
        "meshrt: error: helper_mod.py, line 2: ZeroDivisionError: division by zero",
        "    return 1 / 0",
        "  called from mine.py, line 3: helper_mod.work()",
    ]


# -------------------------------------------------------------------------------------------------- what is forgotten


SENDS = (
    HEAD
    + """
def run(block, *, receive: int = 0, times: int = 3):
    tiles = np.zeros((*block.lead, 3), np.float32)
    with installed(block, "x", routes.chain(4)) as east:
        for step in range(times):
            flight = fabric.send(block, east, tiles)
            if step < receive:
                receiving.receive(block, flight)
    return {}
"""
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("payload", ["full", "none"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_transfer_that_nobody_receives_is_an_error_with_its_line(payload: str, ranks: int, own: Own) -> None:
    options = ("--payload", payload, "--receive")
    done = own(SENDS, *options, "1", ranks=ranks)
    assert done.code == 2 and done.stderr.count("meshrt: error") == 1
    assert "mine.py, line 10: nobody has received what is sent there" in done.stderr
    assert "(2 transfers in all)" in done.stderr
    assert own(SENDS, *options, "3", ranks=ranks).code == 0


def test_many_transfers_are_not_kept_once_they_are_received(own: Own) -> None:
    source = SENDS + "    \n"
    grown = source.replace("    return {}", "    return {'kept': len(block.audit.sent)}")
    done = own(grown, "--times", "5000", "--receive", "5000", "--json", "-")
    assert done.code == 0 and json.loads(done.stdout)["result"]["kept"] < 1100


PACKAGED: list[tuple[str, tuple[int, int], dict[str, Any]]] = [
    *(("gemm", (4, 4), {"algorithm": name}) for name in ("meshgemm", "cannon", "summa", "allgather")),
    *(("gemm", (4, 4), {"transpose_b": True, "reduce": name}) for name in ("ring", "ktree")),
    ("gemm", (6, 4), {"algorithm": "summa", "segment": 2}),
    *(("gemv", (4, 4), {"allreduce": name}) for name in ("ktree", "pipeline", "ring")),
    ("shift", (6, 6), {"axis": "both", "multiply": True}),
    ("shift", (6, 6), {"pattern": "cannon"}),
    ("allreduce", (6, 6), {}),
    *(("kvcache", (4, 4), {"policy": name}) for name in ("shift", "concat", "roundrobin")),
    *(
        ("llama", (8, 8), {"max_new_tokens": 4, "layers": 2, "system": name})
        for name in ("waferllm", "t10", "t10-inferred", "ladder", "ladder-inferred")
    ),
    ("llama", (8, 8), {"max_new_tokens": 4, "layers": 2, "regions": 2, "decode_mesh": "4x4"}),
]


@pytest.mark.mpi(ranks=[1, 2])
@pytest.mark.sample(11)
@pytest.mark.parametrize("case", PACKAGED, ids=str)
def test_packaged_programs_receive_all_that_they_send(
    case: tuple[str, tuple[int, int], dict[str, Any]], comm: Any, tmp_path: Path
) -> None:
    """Run as if a user had written them, which they might have begun with."""
    name, mesh, options = case
    path = tmp_path / f"as_{name}.py"
    path.write_text(f"from meshrt.programs.{name} import MESH, run\n")
    run_program(comm, str(path), mesh, **options)


@pytest.mark.parametrize("ranks", [1, 4])
def test_core_memory_that_was_never_written_is_named_where_the_result_is_nan(ranks: int, own: Own) -> None:
    source = (
        HEAD
        + "def run(block):\n    a = block.tiles('a', (4,), np.float32)\n    b = block.tiles('b', (4,), np.float16)\n"
    )
    source += "    a[...] = 1\n    if block.mesh.x0 + block.mesh.block_width == 4:\n        b[:, -1, 2] = 3\n"
    done = own(source + "    return {'n': 1, 's': block.control.allreduce(float(a.sum() + b.sum()))}\n", ranks=ranks)
    assert done.code == 0
    assert done.stderr == (
        "meshrt: warning: the result's 's' is NaN; core memory that was never written: 'b' of mine.py, line 7, at 4 of"
        " 4 cores (or got its NaN from such memory)\n"
    )


def test_a_nan_of_the_programs_own_is_told_apart(own: Own) -> None:
    source = HEAD + "def run(block):\n    a = block.tiles('a', (4,), np.float32)\n    a[...] = 0\n"
    done = own(source + "    with np.errstate(all='ignore'):\n        return {'s': [float((a / a).sum())]}\n")
    assert done.code == 0
    assert done.stderr == "meshrt: warning: the result's 's' is NaN; all core memory was written\n"


def test_infinity_is_told_and_so_is_nan_on_other_machines(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has neither, whatever the machine: what reads the report may not."""
    for on in machines():
        meshrt.run(lambda machine: {"low": [-np.inf], "none": {"of": np.float32("nan")}, "n": 1}, on=on)
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("meshrt: warning: the result's 'low' is infinite; JSON has no such number")
        assert lines[1].startswith("meshrt: warning: the result's 'none' is NaN") and len(lines) == 2


# ------------------------------------------------------------------------------------------ what one rank would hide


BRANCHES = {
    "if block.mesh.rank == 1:\n            fabric.transfer(block, east, t)": 10,
    "me = block.mesh.rank\n        if not me:\n            go(block, east, t)": 11,
    "if block.control.rank:\n            return {}\n        go(block, east, t)": 11,
    "if block.x[0] == 0:\n            fabric.transfer(block, east, t)": 10,
    "for _ in range(block.mesh.x0):\n            fabric.send(block, east, t)": 10,
    "a = gather(block, t, (1, 1)) if block.mesh.x0 == 0 else None": 9,
    "while block.mesh.rank < 0:\n            block.control.allreduce(1)": 10,
    "if block.mesh.offset('x'):\n            with block.phase('a'):\n                pass": 10,
}
ALIKE = [
    "if block.control.rank == 0:\n            print('hello', end='')",
    "a = go(block, east, t) if block.mesh.rank else go(block, west, t)",
    "while block.control.allreduce(block.mesh.rank, max) > 99:\n            go(block, east, t)",
    "if block.control.size > 1:\n            go(block, east, t)",
    "go(block, east, t)\n        if block.mesh.rank:\n            return {}",
    "t[...] = block.mesh.rank\n        if t.shape[0] == 1:\n            go(block, east, t)",
]
PARTS = (
    HEAD
    + """from meshrt.mesh.tiles import gather
def run(block):
    t = np.zeros((*block.shape, 3), np.float32)
    with installed(block, "x", routes.chain(4)) as east, installed(block, "x", routes.chain(4)) as west:
        {}
    return {{}}
def go(block, channel, tiles):
    fabric.transfer(block, channel, tiles)
"""
)


@pytest.mark.parametrize("part", BRANCHES)
def test_a_call_that_only_some_ranks_make_is_found_in_the_text(part: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PARTS.format(part))
    with pytest.raises(StallError, match=rf"mine.py, line {BRANCHES[part]}: whether a rank calls"):
        check_branches("mine.py", load_file(path))


@pytest.mark.parametrize("part", ALIKE)
def test_what_all_ranks_do_alike_is_left_alone(part: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PARTS.format(part))
    check_branches("mine.py", load_file(path))


@pytest.mark.parametrize("name", ["allreduce", "gemm", "gemv", "kvcache", "llama", "shift"])
def test_packaged_programs_have_none(name: str) -> None:
    check_branches(name, __import__(load_program(name).run.__module__, fromlist=["run"]))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_deadlock_ends_alike_on_one_rank_and_on_several(ranks: int, own: Own) -> None:
    done = own(PARTS.format(next(iter(BRANCHES))), ranks=ranks)
    assert done.code == 124 and "deadlock" in done.stderr
