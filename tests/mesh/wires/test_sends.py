"""Transfers at ranks of one core, each made as a whole by the compiled core, messages included: against NumPy."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import compiled
from mpi_jobs import Finished

from meshrt.mesh.block import Block, make_block
from meshrt.mesh.collectives.rings import interleaved_ring, plain_ring
from meshrt.mesh.collectives.shifts import rotate, start_shift
from meshrt.mesh.device import Device
from meshrt.mesh.devicefile import find_device
from meshrt.mesh.wires import fabric, receiving, routes, sends
from meshrt.mesh.wires.tables import installed
from meshrt.ranks import host
from meshrt.ranks.board import Board

DEVICES = {
    "slow": Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=3.0, macs_per_cycle=0.5, call_cycles=11.0),
    "ideal": find_device("ideal"),  # no link is ever busy
    "wse2": find_device("wse2"),
}
KINDS = np.float32, np.float16, np.int8


def rounds(block: Block, seed: int) -> tuple[list[bytes], dict[str, Any]]:
    """Transfers among shifts of which several are under way: (what clocks, links and tiles then are, counters)."""
    random, kept, mesh = np.random.default_rng(seed), list[bytes](), block.mesh
    with ExitStack() as stack:
        rings = [stack.enter_context(interleaved_ring(block, axis)) for axis in "xy"]
        back = [stack.enter_context(plain_ring(block, axis, reverse=True)) for axis in "xy"]
        ways = [stack.enter_context(installed(block, axis, routes.chain)) for axis in "xy"]
        root = mesh.width // 2
        ways.append(stack.enter_context(installed(block, "x", routes.multicast, root)))
        alternate = {axis: np.arange(mesh.length("y" if axis == "x" else "x")) % 2 == 0 for axis in "xy"}

        def tiles(kind: Any, *shape: int) -> np.ndarray:
            numbers = random.integers(-99, 99, (mesh.height, mesh.width, *shape))
            return numbers[mesh.y0 : mesh.y0 + 1, mesh.x0 : mesh.x0 + 1].astype(kind)

        for number in range(90):
            kind, size = KINDS[random.integers(3)], (1, 1, 2 + 3 * random.integers(2))
            way, case = ways[random.integers(len(ways))], random.integers(9)
            lines = alternate[way.axis or "x"] if random.integers(2) else None
            sent, other = tiles(kind, *size), tiles(kind, *size)
            if case < 3:  # two under way, as MeshGEMM has them; one of the same routes behind the other
                at = [random.integers(2) if case else axis for axis in (0, 1)]
                out, also = sent.copy(), other.copy()
                first = start_shift(block, rings[at[0]], sent, out)
                second = start_shift(block, rings[at[1]], other, other if number % 3 else also)
                receiving.receive(block, *((first, second) if number % 2 else (second, first)))
                kept += [out.tobytes(), other.tobytes(), also.tobytes()]
            elif case == 3:
                rotate(block, rings[0], back[0], sent, random.integers(-1, 2, mesh.height).tolist())
                kept.append(sent.tobytes())
            elif case == 4:
                kept.append(fabric.transfer(block, way, sent, other, lines=lines, stream=bool(number % 2)).tobytes())
            elif case == 5:
                kept.append(fabric.transfer(block, way, sent, sent, lines=lines).tobytes())
            elif case == 6:  # what the core does not make: tiles become numbers of another kind, or are combined
                kept.append(fabric.transfer(block, way, sent, other.astype(np.float64)).tobytes())
                kept.append(fabric.transfer(block, way, sent, other, combine=np.maximum).tobytes())
                twice = np.repeat(sent, 2, axis=-1)
                kept.append(fabric.transfer(block, way, twice[..., ::2], other).tobytes())
            elif case == 7:
                positions = np.arange(way.length) % 2 == number % 2
                kept.append(fabric.transfer(block, way, sent, other, positions=positions).tobytes())
            else:
                flight = fabric.send(block, way, sent, other)
                receiving.receive_at(block, way, flight, np.arange(way.length) > 0)
                kept.append(receiving.receive(block, flight).tobytes())
            late = random.integers(0, 9, (mesh.height, mesh.width)) * 4.25
            block.clock.spend(late[mesh.y0 : mesh.y0 + 1, mesh.x0 : mesh.x0 + 1])
            kept += [block.clock.asked_at.tobytes(), block.clock.idle.tobytes()]
    clock = block.clock
    kept += [array.tobytes() for array in (clock.cells[:, :-1], clock.asked_at, clock.idle)]
    block.settle()
    counted = {name: value for name, value in vars(block.counters).items() if isinstance(value, int | float)}
    crossed = {name: [part.tolist() for part in getattr(block.counters, name).values()] for name in ("links", "ramps")}
    return kept, counted | crossed | vars(block.host) | {"memory": block.memory.peak}


@compiled
@pytest.mark.mpi(ranks=[3, 4, 6, 9])
@pytest.mark.sample(2)
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("seed", range(3))
def test_transfers_among_others(
    comm: Any, monkeypatch: pytest.MonkeyPatch, device: str, seed: int, crowded: bool
) -> None:
    monkeypatch.setattr(host, "ranks_on_node", lambda: 99 if crowded else 1)
    done, real = Counter[str](), sends.send

    def counted(block: Any, *arguments: Any) -> Any:
        done[core] += 1
        return real(block, *arguments)

    monkeypatch.setattr(sends, "send", counted)
    for height in (1, 2, 3):
        if comm.size % height:
            continue
        by = []
        for core in ("compiled", "numpy"):
            monkeypatch.setenv("MESHRT_CORE", core)
            block = make_block(comm, DEVICES[device], comm.size // height, height, Board.shared(comm))
            by.append(rounds(block, seed))
        assert by[0][0] == by[1][0]
        assert by[0][1] == by[1][1]
    assert done["compiled"] > 20
    assert not done["numpy"]


RUNS = [
    "gemm --algorithm meshgemm --m 24 --k 12 --n 18 --transpose-b --mesh {}",
    "gemm --algorithm cannon --m 24 --k 12 --n 18 --dtype float16 --mesh {}",
    "gemm --algorithm meshgemm --m 24 --k 12 --n 18 --device ideal --defects 0.1 --mesh {}",
    "shift --mesh {} --steps 7",
]


@compiled
@pytest.mark.sample(2)
@pytest.mark.parametrize(("ranks", "mesh"), [(4, "2x2"), (9, "3x3"), (6, "3x2")])
@pytest.mark.parametrize("run", RUNS)
def test_reports_of_shifts_are_those_of_numpy(
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
from meshrt.mesh.collectives.rings import interleaved_ring
from meshrt.mesh.collectives.shifts import start_shift
from meshrt.mesh.wires import receiving, sends
from meshrt.mesh.wires.tables import overwrite

MESH = (4, 1)

def run(block, *, how: str = ""):
    "The last rank diverges from the others."
    tiles, done, real = np.ones((*block.shape, 1, 1, 3), np.float32), [], sends.send
    sends.send = lambda *arguments: done.append(1) or real(*arguments)
    with interleaved_ring(block, "x") as ring:
        for step in range(8):
            if step == 6:  # by then the compiled core makes them as a whole
                assert len(done) == (0 if block.core is None else 5)
            if step == 6 and how == "deleted":  # as all ranks know; the last has that router
                for channel, _ in ring.channels:
                    for colour in set(channel.colours.tolist()):
                        overwrite(block.tables, (3, 0), colour, 0, 0)
            if step == 6 and block.mesh.rank == 3:
                if how == "skips":
                    continue
                if how == "sizes":
                    tiles = np.ones((*block.shape, 1, 1, 5), np.float32)
                if how == "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
            receiving.receive(block, start_shift(block, ring, tiles, tiles))
    return {}
"""
ENDS = {
    "deleted": (3, "core (3, 0) has no rule for a packet"),
    "skips": (124, r"deadlock: no rank has moved for "),
    "sizes": (124, "a message is not as long as what"),
    "killed": (None, "it was killed, has crashed or left"),
}


@compiled
@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ENDS)
def test_ranks_that_diverge_between_shifts_are_found(
    run_meshrt: Callable[..., Finished], tmp_path: Path, how: str
) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM)
    code, message = ENDS[how]
    for core in ("compiled", "numpy"):
        env = {"MESHRT_CORE": core, "MESHRT_WATCHDOG_SECONDS": "2"}
        ended = run_meshrt("run", str(tmp_path / "mine.py"), "--how", how, "--quiet", ranks=4, env=env)
        assert ended.code == code or (code is None and ended.code), ended.stderr
        assert message in ended.stderr
