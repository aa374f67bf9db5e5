"""What cores of a mesh did when: steps that lie end to end, each with its reason."""

from __future__ import annotations

import gc
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import compiled
from measure import marks
from mpi4py import MPI
from runs import parted

from meshrt.emulate import emulate
from meshrt.errors import UsageError
from meshrt.mesh.clock import Clock
from meshrt.mesh.device import Device
from meshrt.mesh.exchange.exchange import crossbar, exchange
from meshrt.mesh.exchange.legs import Transfer
from meshrt.mesh.exchange.retrace import begun, journal
from meshrt.mesh.look import criticalpath, timeline
from meshrt.mesh.look.timeline import STEPS, Timeline, choose
from meshrt.mesh.machine import gather, open_machine
from meshrt.mesh.mesh import Mesh
from meshrt.mesh.wires import fabric, ramps, software
from meshrt.mesh.wires.routes import chain
from meshrt.mesh.wires.tables import installed
from meshrt.program import load_program
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console

TINY = {
    "model": "llama-tiny", "layers": 2, "prompt_ids": "1,2,3", "max_new_tokens": 2, "ignore_eos": True,
    "@core_memory": 300_000,
}  # fmt: skip
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemm": ("gemm", {"m": 20, "k": 33, "n": 17}),
    "a tree, by shape": ("gemv", {"k": 40, "n": 24, "allreduce": "ktree", "@payload": False}),
    "KV cache": ("kvcache", {"tokens": 9}),
    "LLaMA": ("llama", TINY | {"@core_memory": 200_000}),
}
Lanes = dict[str, list[tuple[float, float, str]]]


def read(path: Path) -> Lanes:
    """(begin, cycles, what) by line."""
    lanes: Lanes = defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        assert event["ph"] == "X"
        lanes[event["tid"]].append((event["args"]["begin"], event["args"]["cycles"], event["name"]))
    return lanes


@pytest.mark.mpi(ranks=[1, 2, 4, 6])
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", RUNS)
def test_steps_of_a_core_add_up_to_the_run_on_any_ranks(name: str, tmp_path: Path, comm: Any) -> None:
    program, given = RUNS[name]
    options, how = parted(given)
    settings = {"mesh": "6x4", "trace_cores": "2,*;*,0"} | how
    folder, loaded = Path(comm.bcast(str(tmp_path))), load_program(program)
    report = emulate(comm, Board.alone(), loaded, options, trace=str(folder / "a.json"), **settings)
    if comm.rank:
        return
    if comm.size > 1:
        emulate(MPI.COMM_SELF, Board.alone(), loaded, options, trace=str(folder / "b.json"), **settings)
        assert (folder / "a.json").read_bytes() == (folder / "b.json").read_bytes()
    del settings["trace_cores"]
    off = emulate(MPI.COMM_SELF, Board.alone(), loaded, options, **settings)
    assert report["measured"] == off["measured"]
    lanes = read(folder / "a.json")
    assert lanes.keys() - {"phases", "critical path"} == {
        f"core ({x}, {y})" for x in range(6) for y in range(4) if x == 2 or y == 0
    }
    cycles = report["measured"]["critical_path"]["cycles"]
    for lane, steps in lanes.items():
        if lane != "phases":
            assert steps[0][0] == 0 and steps[-1][0] + steps[-1][1] == cycles
            assert all(before[0] + before[1] == pytest.approx(after[0], abs=1e-9) for before, after in pairwise(steps))
            assert sum(step[1] for step in steps) == pytest.approx(cycles, rel=1e-12)
    path = [event["args"] for event in json.loads((folder / "a.json").read_text())["traceEvents"]
            if event["tid"] == "critical path"]  # fmt: skip
    assert sum(step.get("hops", 0) for step in path) == report["measured"]["critical_path"]["hops"]
    assert [(name, spent) for _, spent, name in lanes["phases"]] == [
        (phase["name"], phase["critical_path"]["cycles"]) for phase in report["phases"]
    ]


PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "two regions": ("llama", {**TINY, "regions": 2}),
    "two meshes": ("llama", {**TINY, "decode_mesh": "4x4", "layers": 1}),
    "exchanges": ("llama", {**TINY, "system": "t10", "layers": 1, "max_new_tokens": 1}),
    "exchanges along lines": ("llama", {**TINY, "system": "ladder", "layers": 1, "max_new_tokens": 1}),
    "past defects": ("gemv", {"k": 40, "n": 24, "@defects": "0.04", "@spares": "4x4"}),
    "a part": ("llama", {**TINY, "layers_run": 2, "@payload": False}),
}  # fmt: skip


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", PATHS)
def test_the_critical_path_has_the_hops_and_the_cycles_of_the_run(name: str, tmp_path: Path, comm: Any) -> None:
    program, given = PATHS[name]
    options, how = parted(given)
    settings = {"mesh": "6x4"} | how
    folder, loaded = Path(comm.bcast(str(tmp_path))), load_program(program)
    report = emulate(comm, Board.alone(), loaded, options, trace=str(folder / "a.json"), **settings)
    if comm.rank:
        return
    off = emulate(MPI.COMM_SELF, Board.alone(), loaded, options, **settings)
    assert report["measured"] == off["measured"]
    if comm.size > 1:
        emulate(MPI.COMM_SELF, Board.alone(), loaded, options, trace=str(folder / "b.json"), **settings)
        assert (folder / "a.json").read_bytes() == (folder / "b.json").read_bytes()
    path = [event for event in json.loads((folder / "a.json").read_text())["traceEvents"]
            if event["tid"] == "critical path"]  # fmt: skip
    steps = [step["args"] for step in path]
    whole = report["measured"]["critical_path"]
    assert sum(step.get("hops", 0) for step in steps) == whole["hops"]
    assert sum(step["cycles"] for step in steps) == pytest.approx(whole["cycles"], rel=1e-12)
    assert all(
        step["begin"] + step["cycles"] == pytest.approx(after["begin"], abs=1e-9) for step, after in pairwise(steps)
    )
    assert not [step for step in path if step["name"].startswith("hands")]
    for step in path:
        if step["name"].startswith("packet"):
            spent = sum(step["args"].get(part, 0) for part in ("on_the_way", "links", "ramp", "tail"))
            assert "on_the_way" not in step["args"] or spent == pytest.approx(step["args"]["cycles"], abs=1e-6)


@pytest.mark.mpi(ranks=[1, 2, 4])
def test_the_path_through_an_exchange_goes_hop_by_hop(tmp_path: Path, comm: Any) -> None:
    path = Path(comm.bcast(str(tmp_path))) / "trace.json"
    device = Device(name="slow", alpha=2.0, beta=7.0, link_bytes_per_cycle=4.0, macs_per_cycle=1.0)
    block = open_machine(comm, Board.alone(), (4, 1), True, Console(), device=device, trace=str(path))
    tiles = block.tiles("sent", (5,), np.float32)
    tiles[...] = 1
    with crossbar(block) as bar:
        exchange(block, bar, Transfer(None, np.array([3, 1, 2, 3]), tiles))
    measured = gather(block)
    if comm.rank:
        return
    assert measured is not None
    whole = {"hops": 3, "stages": 2, "cycles": 35.0, "seconds": 35.0 / device.clock_hz}
    assert measured.whole["critical_path"] == whole
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event["tid"] == "critical path"]
    hop, relay = "packet, exchange", "relays or adds a packet"
    assert [(event["name"], event["args"]["begin"], event["args"]["cycles"], event["args"]["core"]) for event in events
            ] == [(hop, 0, 7, [2, 0]), (relay, 7, 7, [2, 0]), (hop, 14, 7, [1, 0]), (relay, 21, 7, [1, 0]),
                  (hop, 28, 7, [0, 0])]  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_an_exchange_gone_through_again_ends_with_the_same_clocks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    width, height = (int(side) for side in rng.integers(2, 6, 2))
    device = Device(name="slow", alpha=1.5, beta=[7.0, 0.0][seed % 2], link_bytes_per_cycle=[3.0, None][seed == 5],
                    macs_per_cycle=1.0)  # fmt: skip
    block = open_machine(Alone(), Board.alone(), (width, height), False, Console(), device=device)
    block.clock.state[0] = rng.integers(0, 40, (height, width))
    transfers = [
        Transfer(None, rng.integers(0, width * height, width * height), np.ones((1, 1, 5), np.float32), True),
        Transfer("x", rng.integers(0, width, width), np.ones((1, 1, 9), np.float32)),
        Transfer("y", rng.integers(0, height, height), np.ones((1, 1, 2), np.float32), True),
    ][: 1 + seed % 3]
    before = begun(0, block.clock.cells, transfers)
    hops = block.counters.hops
    with crossbar(block) as bar:
        exchange(block, bar, *transfers)
    record = journal(width, height, before.cells, before.parts, device)
    assert len(record.hops) == block.counters.hops - hops
    after = before.cells[0].copy()
    for core, did in record.last.items():
        after[core] = did.after
    assert (after.reshape(height, width) == block.clock.state[0]).all()


@pytest.mark.mpi(ranks=[1, 3])
def test_steps_have_their_reasons(tmp_path: Path, comm: Any) -> None:
    path = Path(comm.bcast(str(tmp_path))) / "trace.json"
    device = Device(name="slow", alpha=2.0, beta=7.0, link_bytes_per_cycle=4.0, macs_per_cycle=1.0)
    block = open_machine(
        comm, Board.alone(), (3, 1), True, Console(), device=device, trace=str(path), trace_cores="*,0"
    )
    with installed(block, "x", chain(3)) as east:
        tiles = block.tiles("sent", (5,), np.float32)
        block.elementwise(tiles)  # 5 cycles
        fabric.transfer(block, east, tiles, positions=marks(3, [0]))  # a hop, 5 cycles a link and a ramp
        software.stage(block, east, 0, marks(3, [1]))
    measured = gather(block)
    if comm.rank:
        return
    assert measured is not None
    lanes = read(path)
    assert lanes["core (1, 0)"] == [
        (0, 5, "computes"), (5, 7, "waits for route set 1 along x"), (12, 7, "relays or adds a packet")
    ]  # fmt: skip
    for core in ("core (0, 0)", "core (2, 0)"):
        assert lanes[core] == [(0, 5, "computes"), (5, 14, "waits for the last core")]
    assert measured.whole["critical_path"]["cycles"] == 19


@compiled
def test_what_is_looked_at_is_waited_for_at_once_and_the_files_are_those_of_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"k": 40, "n": 24, "allreduce": "ktree"}
    files: dict[str, list[bytes]] = {}
    waited = list[str]()
    serve_all = ramps.serve_all
    monkeypatch.setattr(ramps, "serve_all", lambda *given: (waited.append(name), serve_all(*given)))
    for name in ("compiled", "numpy"):
        monkeypatch.setenv("MESHRT_CORE", name)
        paths = [tmp_path / f"{name}.json", tmp_path / f"{name}.goal"]
        trace, goal = map(str, paths)
        emulate(Alone(), Board.alone(), load_program("gemv"), options, mesh="6x4", trace=trace, goal=goal,
                trace_cores="2,*", trace_links="*,1")  # fmt: skip
        files[name] = [path.read_bytes() for path in paths]
    assert files["compiled"] == files["numpy"]
    assert waited.count("compiled") < waited.count("numpy")  # where a phase ends, and at each receive too


def test_a_trace_that_cannot_be_made_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> None:
        raise ArithmeticError

    monkeypatch.setattr(criticalpath, "follow", fails)  # which is when the file is begun already
    with pytest.raises(ArithmeticError):
        emulate(Alone(), Board.alone(), load_program("gemm"), {"m": 8, "k": 8, "n": 8}, mesh="2x2",
                trace=str(tmp_path / "trace.json"))  # fmt: skip
    assert not list(tmp_path.iterdir()) and gc.isenabled()


def test_more_cores_are_looked_at_than_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for together in (timeline.CORES, 5):
        monkeypatch.setattr(timeline, "CORES", together)
        path = tmp_path / f"{together}.json"
        emulate(Alone(), Board.alone(), load_program("kvcache"), {"tokens": 9}, mesh="6x4", trace=str(path),
                trace_cores="*,*")  # fmt: skip
        files.append(path.read_bytes())
    assert files[0] == files[1]


def test_a_core_keeps_so_many_steps_and_no_more() -> None:
    clock = Clock(Mesh(1, 1), Device(name="any"))
    state = clock.state
    line = Timeline("", "0,0")
    line.watch(Mesh(1, 1), "", clock)
    note: Any = clock.seen
    for step in range(STEPS + 100):
        state[0] += 1
        note(f"step {step % 2}")
    line.tracks[0].enter()
    names = [*line.tracks[0].numbers]
    (columns,) = line.tracks[0].steps
    steps = [(names[why], begin, end) for why, begin, end in zip(*columns, strict=True)]
    assert len(steps) == STEPS + 1 and steps[-1] == ("not kept", STEPS, STEPS + 100)
    assert steps[-2] == ("step 1", STEPS - 1, STEPS)


def test_a_further_mesh_may_have_none_of_the_chosen_cores(tmp_path: Path) -> None:
    options = {"model": "llama-tiny", "prompt_ids": "1,2", "max_new_tokens": 2, "decode_mesh": "4x4", "layers": 1}
    path = str(tmp_path / "trace.json")
    emulate(Alone(), Board.alone(), load_program("llama"), options, mesh="6x4", core_memory=300_000, trace=path,
            trace_cores="5,3", trace_links="5,3")  # fmt: skip
    events = json.loads(Path(path).read_text())["traceEvents"]
    assert {event["tid"] for event in events if event["tid"].startswith("link")} == {
        "link (5, 3) north", "link (5, 3) west"}  # fmt: skip


def test_which_cores_are_looked_at() -> None:
    assert choose("1,*;0,0", 3, 2) == [(0, 0), (1, 0), (1, 1)]
    assert choose(None, 3, 2) == [(0, 0), (1, 0), (2, 1)]
    assert len(choose(None, 720, 500)) == 32 and choose(None, 720, 500)[-1] == (719, 499)
    for text in ("1", "a,b", "-1,0", "9,9", "*,*"):
        with pytest.raises(UsageError, match="--trace-cores"):
            choose(text, *((2, 2) if text != "*,*" else (100, 100)))
