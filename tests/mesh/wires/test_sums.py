"""Sums along lines at ranks of one core, which the compiled core makes as a whole, messages included: against NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import compiled
from mpi_jobs import Finished

from meshrt.mesh.block import Block, make_block
from meshrt.mesh.collectives.allreduce import allreduce, ktree, pipeline
from meshrt.mesh.collectives.trees import Tree, reduce
from meshrt.mesh.device import Device
from meshrt.mesh.devicefile import find_device
from meshrt.mesh.wires import fabric, receiving, routes
from meshrt.mesh.wires.tables import installed
from meshrt.ranks import host
from meshrt.ranks.board import Board

# Of the numbers of links and software none is a multiple of others; words pass where they are added, or do not.
DEVICES = {
    "slow": Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=3.0, macs_per_cycle=0.5, call_cycles=11.0),
    "streams": Device(name="streams", alpha=1.5, beta=2.25, link_bytes_per_cycle=5.0, stream_adds=True),
    "ideal": find_device("ideal"),  # no link is ever busy
    "wse2": find_device("wse2"),
}
COMBINES: list[Any] = [np.add, np.add, np.maximum, lambda held, came: held + 2 * came]


def trees_of(block: Block, stack: ExitStack) -> list[Tree]:
    ways = [ktree(block, "x"), pipeline(block, "x"), ktree(block, "y", 1), ktree(block, "x", 2, stored=True)]
    return [stack.enter_context(way) for way in ways]


def sums(block: Block, seed: int) -> tuple[list[bytes], dict[str, Any], int]:
    """Some sums among other transfers: (what clocks, links and tiles then are, counters, tables that were used)."""
    random, kept, mesh = np.random.default_rng(seed), list[bytes](), block.mesh
    with ExitStack() as stack:
        trees = trees_of(block, stack)
        ways = [stack.enter_context(installed(block, axis, routes.chain)) for axis in "xy"]
        for _ in range(60):
            tree, combine = trees[random.integers(len(trees))], COMBINES[random.integers(len(COMBINES))]
            kind = [np.float32, np.float32, np.float64, np.int32][random.integers(4)]
            numbers = random.standard_normal((mesh.height, mesh.width, random.integers(1, 4))) * 100
            tiles = numbers[mesh.y0 : mesh.y0 + 1, mesh.x0 : mesh.x0 + 1].astype(kind)
            across = mesh.length("y" if tree.axis == "x" else "x")
            case, lines = random.integers(6), random.random(across) < 0.6
            late = random.integers(0, 9, (mesh.height, mesh.width)) * 4.25
            if case == 0:
                flight = fabric.send(block, ways[0], tiles, tiles.copy())
                kept.append(allreduce(block, tree, tiles).tobytes())  # with a packet under way
                kept.append(receiving.receive(block, flight).tobytes())
            elif case == 1:
                kept.append(fabric.transfer(block, ways[random.integers(2)], tiles, tiles.copy()).tobytes())
            elif case == 2:
                kept.append(reduce(block, tree, tiles, combine).tobytes())
            else:
                kept.append(allreduce(block, tree, tiles, combine, lines if case == 3 else None).tobytes())
            block.clock.spend(late[mesh.y0 : mesh.y0 + 1, mesh.x0 : mesh.x0 + 1])
            kept += [block.clock.asked_at.tobytes(), block.clock.idle.tobytes()]
        plans = [plan for tree in trees for plan in tree.plans.values()]
        used = sum(table is not None for plan in plans for tables in plan.tables.values() for table in tables.values())
    clock, counters, host_counters = block.clock, block.counters, vars(block.host)
    kept += [array.tobytes() for array in (clock.cells[:, :-1], clock.asked_at, clock.idle)]
    block.settle()
    counted = {name: value for name, value in vars(counters).items() if isinstance(value, int | float)}
    crossed = {
        name: [part.tolist() for part in getattr(counters, name).values()] for name in ("links", "ramps", "used")
    }
    return kept, counted | crossed | host_counters | {"memory": block.memory.peak}, used


def block_on(comm: Any, mesh: tuple[int, int], device: str, core: str) -> Block:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MESHRT_CORE", core)
        return make_block(comm, DEVICES[device], *mesh, Board.shared(comm))


@compiled
@pytest.mark.mpi(ranks=[4, 6, 9])
@pytest.mark.sample(2)
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(3))
def test_sums_among_other_transfers(
    comm: Any, monkeypatch: pytest.MonkeyPatch, device: str, seed: int, crowded: bool
) -> None:
    monkeypatch.setattr(host, "ranks_on_node", lambda: 99 if crowded else 1)
    for height in (1, 2, 3):
        if comm.size % height:
            continue
        mesh = comm.size // height, height
        by_core, by_numpy = (sums(block_on(comm, mesh, device, core), seed) for core in ("compiled", "numpy"))
        assert by_core[0] == by_numpy[0]
        assert by_core[1] == by_numpy[1]
        assert by_core[2] and not by_numpy[2], "the compiled core has made some as a whole"


RUNS = [
    "allreduce --mesh {} --size 9",
    "gemv --mesh {} --k 60 --n 33 --phases 3",
    "llama-tiny --prompt-ids 1,2,3,4 --max-new-tokens 3 --ignore-eos --layers 2 --core-memory 4000000 --mesh {}",
    "llama-tiny --prompt-ids 1,2 --max-new-tokens 3 --layers 2 --device ideal --allreduces published --mesh {}",
    "mixtral-tiny --prompt-ids 1,2,3 --max-new-tokens 2 --ignore-eos --layers 1 --device ideal --mesh {}",
]
MESHES = {4: ["4x1", "2x2"], 9: ["9x1", "3x3"], 2: ["1x2"]}


@compiled
@pytest.mark.sample(2)
@pytest.mark.parametrize(("ranks", "mesh"), [(ranks, mesh) for ranks in MESHES for mesh in MESHES[ranks]])
@pytest.mark.parametrize("run", RUNS)
def test_reports_are_those_of_numpy(
    run_meshrt: Callable[..., Finished], tmp_path: Path, run: str, ranks: int, mesh: str
) -> None:
    reports = []
    for core in ("compiled", "numpy"):
        path = tmp_path / core
        argv = ["run", *run.format(mesh).split(), "--quiet", "--json", str(path)]
        ended = run_meshrt(*argv, ranks=ranks, env={"MESHRT_CORE": core}, timeout=200)
        assert ended.code == 0, ended.stderr
        reports.append(json.loads(path.read_text()))
    hosts = [report.pop("host") for report in reports]
    assert reports[0] == reports[1]
    for name in ("messages", "packets", "bytes"):
        assert hosts[0][name] == hosts[1][name]


PROGRAM = """
import os, signal
import numpy as np
from meshrt.mesh.collectives.allreduce import allreduce, ktree
from meshrt.mesh.wires.tables import overwrite

MESH = (4, 1)

def run(block, *, how: str = ""):
    "The last rank diverges from the others."
    tiles = np.ones((*block.shape, 3), np.float32)
    with ktree(block, "x") as tree:
        for step in range(8):
            if step == 6:  # by then the compiled core makes them as a whole
                assert (block.clock.sums[0] is None) == (block.core is None)
            if step == 6 and how == "deleted":  # as all ranks know; the last has that router
                overwrite(block.tables, (3, 0), int(tree.spread.colours[0]), 0, 0)
            if step == 6 and block.mesh.rank == 3:
                if how == "skips":
                    continue
                if how == "sizes":
                    tiles = np.ones((*block.shape, 5), np.float32)
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
            allreduce(block, tree, tiles, out=tiles)
    return {}
"""
ENDS = {
    "skips": (124, r"deadlock: no rank has moved for "),
    "sizes": (124, "a message is not as long as what"),
    "killed": (None, "it was killed, has crashed or left"),
    "deleted": (3, "core (3, 0) has no rule for a packet"),
}


@compiled
@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ENDS)
def test_ranks_that_diverge_in_a_sum_are_found(run_meshrt: Callable[..., Finished], tmp_path: Path, how: str) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM)
    code, message = ENDS[how]
    for core in ("compiled", "numpy"):
        env = {"MESHRT_CORE": core, "MESHRT_WATCHDOG_SECONDS": "2"}
        ended = run_meshrt("run", str(tmp_path / "mine.py"), "--how", how, "--quiet", ranks=4, env=env)
        assert ended.code == code or (code is None and ended.code), ended.stderr
        assert message in ended.stderr
