"""When links were busy: intervals that add up to the maps of bytes and of busy cycles, with who waited."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measure import marks
from mpi4py import MPI
from runs import parted

from meshrt.emulate import emulate
from meshrt.errors import UsageError
from meshrt.mesh.device import Device
from meshrt.mesh.exchange.exchange import crossbar, exchange
from meshrt.mesh.exchange.legs import Transfer
from meshrt.mesh.look import criticalpath, linktrace, past, timeline, waits
from meshrt.mesh.machine import gather, open_machine
from meshrt.mesh.wires import fabric, receiving
from meshrt.mesh.wires.routes import Route, chain
from meshrt.mesh.wires.tables import installed
from meshrt.program import load_program
from meshrt.ranks.alone import Alone
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.reports import trace
from meshrt.studies.pictures.maps import RunMaps, read_maps

SLOW = Device(name="slow", alpha=2.0, beta=7.0, link_bytes_per_cycle=4.0, macs_per_cycle=1.0)
TINY = {"model": "llama-tiny", "prompt_ids": "1,2,3", "max_new_tokens": 2, "ignore_eos": True, "@core_memory": 300_000}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemm": ("gemm", {"m": 20, "k": 33, "n": 17}),
    "gemm by broadcasts": ("gemm", {"m": 20, "k": 33, "n": 17, "algorithm": "allgather"}),
    "past defects": ("gemv", {"k": 40, "n": 24, "@defects": "0.04", "@spares": "4x4"}),
    "KV cache": ("kvcache", {"tokens": 9}),
    "two regions": ("llama", {**TINY, "regions": 2}),
    "exchanges": (
        "llama",
        {**TINY, "system": "t10", "layers": 1, "max_new_tokens": 1, "@mesh": "6x2", "@core_memory": 900_000},
    ),
}
Lanes = dict[tuple[str, str], list[dict[str, Any]]]


def read(path: Path) -> Lanes:
    """Intervals by (site, link)."""
    lanes: Lanes = defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["pid"].startswith("links "):
            lanes[event["pid"].removeprefix("links "), event["tid"]].append({"name": event["name"], **event["args"]})
    return lanes


def check(lanes: Lanes, maps: RunMaps) -> None:
    """Each link's intervals follow each other, and add up to its maps."""
    for (site, name), intervals in lanes.items():
        x, y = (int(at) for at in name[name.index("(") + 1 : name.index(")")].split(","))
        port = maps.about["ports"].index(name.split()[-1])
        nbytes, busy = (maps.array("total", which, site)[port, y, x] for which in ("link_bytes", "link_busy"))
        assert sum(interval["bytes"] for interval in intervals) == nbytes
        kept = [interval for interval in intervals if interval["name"] != "not kept"]
        if len(kept) == len(intervals):
            assert sum(interval["cycles"] for interval in kept) == pytest.approx(busy, rel=1e-9)
        for interval, after in pairwise(intervals):
            assert interval["begin"] + interval["cycles"] <= after["begin"] + 1e-6
        assert all(interval["waited"] >= 0 for interval in kept)


@pytest.mark.mpi(ranks=[1, 2, 3, 4])
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", RUNS)
def test_intervals_add_up_to_the_maps_on_any_ranks(name: str, tmp_path: Path, comm: Any) -> None:
    program, given = RUNS[name]
    options, how = parted(given)
    settings = {"mesh": "6x4", "trace_cores": "0,0", "trace_links": "2,*;*,0"} | how
    folder, loaded = Path(comm.bcast(str(tmp_path))), load_program(program)
    files = {"trace": str(folder / "a.json"), "maps": str(folder / "a.npz")}
    report = emulate(comm, Board.alone(), loaded, options, **files, **settings)
    if comm.rank:
        return
    if comm.size > 1:
        emulate(MPI.COMM_SELF, Board.alone(), loaded, options, trace=str(folder / "b.json"), **settings)
        assert (folder / "a.json").read_bytes() == (folder / "b.json").read_bytes()
    del settings["trace_cores"], settings["trace_links"]
    off = emulate(MPI.COMM_SELF, Board.alone(), loaded, options, **settings)
    assert report["measured"] == off["measured"]
    lanes = read(folder / "a.json")
    assert lanes
    check(lanes, read_maps(files["maps"]))


def opened(comm: Any, folder: Path, mesh: tuple[int, int]) -> Any:
    return open_machine(
        comm, Board.alone(), mesh, True, Console(), device=SLOW, trace=str(folder / "trace.json"), trace_links="*,0",
        maps=str(folder / "maps.npz"),
    )  # fmt: skip


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("together", [True, False])
def test_who_waits_for_a_link_and_for_how_long(together: bool, tmp_path: Path, comm: Any) -> None:
    folder = Path(comm.bcast(str(tmp_path)))
    block = opened(comm, folder, (4, 1))
    tiles = block.tiles("sent", (5,), np.float32)  # 5 cycles a link
    tiles[...] = 1
    routes = [Route(1, (3,)), Route(0, (2,))]
    if together:  # they meet on the link from 1 to 2
        with installed(block, "x", routes) as both:
            fabric.transfer(block, both, tiles)
    else:
        with installed(block, "x", routes[:1]) as first, installed(block, "x", routes[1:]) as second:
            flights = [fabric.send(block, channel, tiles) for channel in (first, second)]
            receiving.receive(block, *flights)
    with crossbar(block) as bar:  # all cores meet before it in the end only: 3 gets the tile of 1, by way of 2
        exchange(block, bar, Transfer(None, np.array([0, 1, 2, 1]), tiles))
    measured = gather(block)
    if comm.rank:
        return
    assert measured is not None
    lanes = read(folder / "trace.json")
    check(lanes, read_maps(str(folder / "maps.npz")))
    links = {
        link: [(interval["begin"], interval["cycles"], interval["from"], interval["waited"]) for interval in intervals]
        for (_, link), intervals in lanes.items()
    }
    assert links["link (0, 0) east"] == [(0, 5, [0, 0], 0)]
    assert links["link (1, 0) east"][:2] == [(0, 5, [1, 0], 0), (5, 5, [0, 0], 3)]  # it asked at 2
    assert links["link (2, 0) east"][:1] == [(2, 5, [1, 0], 0)]
    assert [sent[:3] for sent in links["link (1, 0) east"][2:]] == [(10, 5, [1, 0])]  # its software was there at 0
    assert links["link (1, 0) east"][2][3] == 10
    assert links["link (2, 0) east"][1][:3] == (24, 5, [2, 0])  # 10 + 2 + 5 on its way, 7 for software
    assert set(links) == {"link (0, 0) east", "link (1, 0) east", "link (2, 0) east"}


def test_what_is_not_kept_is_one_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past, "SENDS", 3)
    block = opened(Alone(), tmp_path, (3, 1))
    tiles = block.tiles("sent", (5,), np.float32)
    tiles[...] = 1
    with installed(block, "x", chain(3)) as east:
        for _ in range(8):
            fabric.transfer(block, east, tiles, positions=marks(3, [0]))
    gather(block)
    lanes = read(tmp_path / "trace.json")
    check(lanes, read_maps(str(tmp_path / "maps.npz")))
    (intervals,) = lanes.values()
    assert len(intervals) == 4 and intervals[-1]["name"] == "not kept" and intervals[-1]["bytes"] == 5 * 20


def test_links_are_chosen_with_a_trace() -> None:
    chosen: list[tuple[dict[str, Any], str]] = [
        ({"trace_links": "0,0"}, "are for --trace"),
        ({"trace": "t.json", "trace_links": "7,7"}, "--trace-links '7,7' are 0 of 2 x 2"),
    ]
    for settings, message in chosen:
        with pytest.raises(UsageError, match=message):
            open_machine(Alone(), Board.alone(), (2, 2), True, Console(), **settings)


def test_the_file_is_the_same_whatever_is_looked_at_in_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = []
    for name in ("many", "few"):
        path = tmp_path / f"{name}.json"
        emulate(Alone(), Board.alone(), load_program("kvcache"), {"tokens": 9}, mesh="6x4", trace=str(path),
                trace_links="1,*")  # fmt: skip
        files.append(path.read_bytes())
        for module in (linktrace, criticalpath, waits, trace):
            monkeypatch.setattr(module, "TOGETHER", 3)
        monkeypatch.setattr(timeline, "NOTES", 3)
    assert files[0] == files[1]
