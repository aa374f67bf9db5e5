"""What each core and link did: maps that add up to the counters, and are placed where it happened."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure import marks
from mpi4py import MPI

import meshrt
from meshrt.emulate import emulate
from meshrt.errors import LimitError, UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.device import Device
from meshrt.mesh.exchange.exchange import crossbar, exchange
from meshrt.mesh.exchange.legs import Transfer
from meshrt.mesh.look import pairs as pairs_module
from meshrt.mesh.look.mapfile import write_maps
from meshrt.mesh.look.pairs import new_pairs
from meshrt.mesh.look.peaks import NamedMemory, new_peaks
from meshrt.mesh.machine import open_machine
from meshrt.mesh.mesh import EAST, SOUTH, Mesh
from meshrt.mesh.repeat import repeated
from meshrt.mesh.wires import fabric, software
from meshrt.mesh.wires.routes import Route, chain
from meshrt.mesh.wires.tables import installed
from meshrt.program import load_program
from meshrt.ranks.board import Board
from meshrt.ranks.console import Console
from meshrt.studies.pictures.maps import RunMaps, read_maps

SLOW = Device(name="slow", alpha=1.5, beta=7.0, link_bytes_per_cycle=4.0, macs_per_cycle=2.0, call_cycles=11.0)
TOKENS = {"prompt_ids": "1,2,3,4,5", "max_new_tokens": 2, "ignore_eos": True}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemm": ("gemm", {"mesh": "6x4", "m": 20, "k": 33, "n": 17}),
    "gemm by shape": ("gemm", {"mesh": "6x4", "m": 20, "k": 33, "n": 17, "algorithm": "summa", "payload": False}),
    "gemv, a tree": ("gemv", {"mesh": "6x4", "k": 40, "n": 24, "allreduce": "ktree"}),
    "gemv past defects": ("gemv", {"mesh": "6x4", "k": 40, "n": 24, "defects": "0.04", "spares": "4x4"}),
    "KV cache": ("kvcache", {"mesh": "6x4", "tokens": 9}),
    "llama, two regions": (
        "llama",
        {"mesh": "6x4", "regions": 2, "layers": 2, "core_memory": 200_000, "payload": False, **TOKENS},
    ),
    "llama, two meshes": ("llama", {"mesh": "6x4", "decode_mesh": "4x4", "core_memory": 200_000, **TOKENS}),
    "llama as T10": ("llama", {"mesh": "6x4", "system": "t10", "core_memory": 200_000, "layers": 1, **TOKENS}),
}


def at(part: Any, path: str) -> int:
    for name in path.split("."):
        part = part.get(name, 0)
    return int(part)


@pytest.mark.mpi(ranks=[1, 2, 4, 6])
@pytest.mark.sample(4)
@pytest.mark.parametrize("name", RUNS)
def test_maps_add_up_to_the_counters_and_are_equal_on_any_ranks(name: str, tmp_path: Path, comm: Any) -> None:
    program, options = RUNS[name]
    options = dict(options)
    settings = {key: options.pop(key) for key in ("mesh", "core_memory", "defects", "spares") if key in options}
    if options.pop("payload", True) is False:
        settings["payload"] = False
    folder = Path(comm.bcast(str(tmp_path)))
    loaded = load_program(program)
    if program == "llama":
        options["model"] = "llama-tiny"
    report = emulate(comm, Board.alone(), loaded, options, maps=str(folder / "maps.npz"), **settings)
    if comm.rank:
        return
    off = emulate(MPI.COMM_SELF, Board.alone(), loaded, options, **settings)
    report.pop("host"), off.pop("host")
    assert report == off
    if comm.size > 1:
        alone = emulate(MPI.COMM_SELF, Board.alone(), loaded, options, maps=str(folder / "alone.npz"), **settings)
        alone.pop("host")
        assert report == alone
        assert (folder / "maps.npz").read_bytes() == (folder / "alone.npz").read_bytes()
    maps_read = read_maps(str(folder / "maps.npz"))
    about, file = maps_read.about, maps_read.arrays
    assert [*about["parts"]] == ["total", *(phase["name"] for phase in report["phases"])]
    for part, counted in zip(about["parts"], [report["measured"], *report["phases"]], strict=True):
        for which, facts in about["maps"].items():
            maps = [file[f"{part}/{which}"], *(file[f"{part}/{site}/{which}"] for site in about["sites"][1:])]
            for sum_or_most in filter(None, facts["adds_up_to"].split(", ")):
                how, path = sum_or_most.split()
                came = (
                    sum(int(array.sum()) for array in maps) if how == "sum" else max(int(array.max()) for array in maps)
                )
                assert came == at(counted, path), (part, which, path)
        assert file[f"{part}/memory_names_bytes"].sum() == file[f"{part}/memory"].max()
        x, y = file[f"{part}/memory_core"]
        assert file[f"{part}/memory"][y, x] == file[f"{part}/memory"].max()
        idle = file[f"{part}/idle"]
        assert (idle > -1e-9).all() and (idle <= 1).all()
        for site in about["sites"]:
            check_pairs(maps_read, part, site)


def check_pairs(maps_read: RunMaps, part: str, site: str) -> None:
    """What came to each core is what its ramp let in; and no packet that one core got left its sender but once."""
    came = maps_read.array(part, "ramp_bytes", site)[1].ravel()
    senders, receivers, nbytes, packets = maps_read.array(part, "pairs", site).T
    assert (np.bincount(receivers, nbytes, len(came)) == came).all()
    messages = maps_read.array(part, "messages", site).ravel()
    assert (np.bincount(senders, packets, len(came)) >= messages).all()
    assert (senders != receivers).all() and (nbytes > 0).all() and (packets > 0).all()
    assert (np.diff(senders * len(came) + receivers) > 0).all()


def opened(comm: Any, mesh: str, path: Path) -> Any:
    return open_machine(comm, Board.alone(), (1, 1), True, Console(), mesh=mesh, device=SLOW, maps=str(path))


@pytest.mark.mpi(ranks=[1, 2, 6])
def test_maps_say_where(tmp_path: Path, comm: Any) -> None:
    path = Path(comm.bcast(str(tmp_path))) / "maps.npz"
    block = opened(comm, "6x3", path)
    with installed(block, "x", chain(6)) as east, repeated(block, 3):
        tiles = block.tiles("sent", (5,), np.float32)
        tiles[...] = 1
        fabric.transfer(block, east, tiles, positions=marks(6, [1, 3]), lines=marks(3, [2]))
        software.stage(block, east, 10, marks(6, [4]), marks(3, [0, 2]))
    with crossbar(block) as bar:  # core (0, 0) gets the tile of (2, 1), by way of (1, 1) and (0, 1)
        owners = np.arange(18)
        owners[0] = 8
        exchange(block, bar, Transfer(None, owners, tiles))
    block.work((np.arange(6)[None] + block.mesh.x0)[:, : block.shape[1]] * np.ones((block.shape[0], 1), np.int64))
    block.elementwise(tiles, cores=np.arange(block.shape[0])[:, None] + block.mesh.y0 == np.zeros(block.shape, int))
    segments = block.finish()
    write_maps(block, segments, str(path))
    if comm.rank:
        return
    maps_read = read_maps(str(path))
    file = maps_read.arrays
    packets = np.zeros((4, 3, 6), int)
    packets[EAST, 2, [1, 3]] = 3
    packets[3, 1, [2, 1]] = 1  # west
    packets[0, 1, 0] = 1  # north
    assert (file["total/link_packets"] == packets).all()
    assert (file["total/link_bytes"] == 20 * packets).all()
    assert (file["total/link_busy"] == 5 * packets).all()
    messages = packets.sum(axis=0)
    assert (file["total/messages"] == messages).all()
    stages = np.zeros((3, 6), int)
    stages[[0, 2], 4] = 3
    stages[1, [1, 0]] = 1
    assert (file["total/stages"] == stages).all()
    assert (file["total/macs"] == np.arange(6)).all()
    busy = np.arange(6) / 2 + 11.0 * (np.arange(6) > 0) + np.zeros((3, 1))
    busy[0] += 11 + 3  # five numbers, two at once
    busy[[0, 2], 4] += 3 * (7 + 11 + 5)
    busy[1, [1, 0]] += 7
    assert np.array_equal(file["total/busy"], busy)
    cycles = segments[-1].end[0]
    assert np.array_equal(file["total/idle"], 1 - busy / cycles)
    pairs = {(13, 14): 3, (15, 16): 3, (8, 7): 1, (7, 6): 1, (6, 0): 1}  # an exchange is a packet of each hop
    assert file["total/pairs"].tolist() == [[*pair, 20 * count, count] for pair, count in sorted(pairs.items())]
    assert file["total/carried"].tolist() == [[8, 0, 20, 1]]
    assert SOUTH == 2 and maps_read.about["ports"] == ["north", "east", "south", "west"]


@pytest.mark.mpi(ranks=[1, 2, 3, 6])
def test_a_packet_for_many_is_a_pair_with_each_and_one_that_is_sent_on_is_two(tmp_path: Path, comm: Any) -> None:
    path = Path(comm.bcast(str(tmp_path))) / "maps.npz"
    block = opened(comm, "6x3", path)
    tiles = block.tiles("sent", (5,), np.float32)
    tiles[...] = 1
    to_all = Route(0, (2, 4, 5))
    with installed(block, "x", [to_all], lines=marks(3, [1])) as row:
        fabric.transfer(block, row, tiles)
    with installed(block, "y", chain(3)) as column:  # to the core below, and on to the last
        for line in range(2):
            fabric.transfer(block, column, tiles, positions=marks(3, [line]), lines=marks(6, [3]))
    turns = ((5, 0), (5, 1), (4, 1))
    with installed(block, None, [turns]) as path_of:
        fabric.transfer(block, path_of, tiles[..., :2])
    write_maps(block, block.finish(), str(path))
    if comm.rank:
        return
    maps_read = read_maps(str(path))
    pairs = {(6, 8): 20, (6, 10): 20, (6, 11): 20, (3, 9): 20, (9, 15): 20, (5, 10): 8}
    assert maps_read.arrays["total/pairs"].tolist() == [[*pair, nbytes, 1] for pair, nbytes in sorted(pairs.items())]
    assert maps_read.arrays["total/messages"].sum() == 4
    check_pairs(maps_read, "total", maps_read.about["sites"][0])


@pytest.mark.mpi(ranks=[1, 2, 4])
@pytest.mark.parametrize("axis", [None, "x", "y"])
def test_what_an_exchange_carried_is_from_owners_to_readers(axis: str | None, tmp_path: Path, comm: Any) -> None:
    path = Path(comm.bcast(str(tmp_path))) / "maps.npz"
    block = opened(comm, "4x4", path)
    tiles = block.tiles("sent", (3,), np.float32)
    tiles[...] = 1
    owners = np.random.default_rng(5).integers(0, 16 if axis is None else 4, 16 if axis is None else 4)
    with crossbar(block) as bar:
        exchange(block, bar, Transfer(axis, owners, tiles, asks=True))
    write_maps(block, block.finish(), str(path))
    if comm.rank:
        return
    maps_read = read_maps(str(path))
    expected: dict[tuple[int, int], list[int]] = {}
    hops = 0
    for y, x in np.ndindex(4, 4):
        v, u = divmod(owners[4 * y + x], 4) if axis is None else (y, owners[x]) if axis == "x" else (owners[y], x)
        reader, owner = 4 * y + x, int(4 * v + u)
        if reader != owner:
            hops += 2 * (abs(x - u) + abs(y - v))
            for pair, nbytes in (((owner, reader), 12), ((reader, owner), 8)):
                was = expected.get(pair, [0, 0])
                expected[pair] = [was[0] + nbytes, was[1] + 1]
    assert maps_read.arrays["total/carried"].tolist() == [[*pair, *counts] for pair, counts in sorted(expected.items())]
    assert maps_read.arrays["total/pairs"][:, 3].sum() == hops == maps_read.arrays["total/messages"].sum()
    check_pairs(maps_read, "total", maps_read.about["sites"][0])


SENT = st.lists(st.tuples(st.integers(0, 34), st.integers(0, 34), st.integers(1, 9), st.integers(1, 99)), max_size=60)


@given(SENT, SENT, st.integers(0, 3), st.integers(1, 40))
def test_pairs_of_squares_are_the_sums_of_their_cores(sent: Any, later: Any, more: int, squares: int) -> None:
    mesh = Mesh(7, 5)
    with patch.object(pairs_module, "SQUARES", squares):
        pairs = new_pairs(mesh)
        side, columns = pairs.side, pairs.columns
        assert pairs.squares <= squares or side == 7
        counted: Counter[tuple[int, int, int]] = Counter()
        before = None
        for parts, times in ((sent, 1), (later, 1 + more)):
            before = pairs.copy()
            pairs.add([(*pairs.keys_of(np.array([a]), np.array([b])), nbytes) for a, b, _, nbytes in parts])
            for a, b, _, nbytes in parts:
                square_a, square_b = (at // 7 // side * columns + at % 7 // side for at in (a, b))
                counted[square_a, square_b, 0] += times * nbytes
                counted[square_a, square_b, 1] += times
        pairs.repeat(before, more)
        table = {(a, b, at): row[at] for a, b, *row in pairs.table().tolist() for at in range(2)}
        assert table == counted


def test_the_names_at_each_cores_peak_are_those_that_it_held_when_it_first_had_most() -> None:
    rng = np.random.default_rng(7)
    memory = NamedMemory(Mesh(3, 2), Device(name="small", core_memory=4000))
    peaks = new_peaks(np.zeros((2, 3), np.int32))
    memory.watch(peaks)
    best, names = np.zeros((2, 3), np.int64), np.full((2, 3), None)
    kept: list[np.ndarray] = []

    def look() -> None:
        for y, x in np.ndindex(2, 3):
            held = {n: int(b if isinstance(b, int) else b[y, x]) for n, b in memory.names.items()}
            for charge in memory.arrays.values():
                held[charge.name] = held.get(charge.name, 0) + charge.nbytes
            if sum(held.values()) > best[y, x]:
                best[y, x], names[y, x] = sum(held.values()), {n: b for n, b in held.items() if b}

    refused = 0
    for step in range(400):
        name, each = f"n{step % 7}", rng.integers(0, 900, (2, 3)) if step % 3 else int(rng.integers(0, 900))
        try:
            if step % 5 == 4:
                kept.append(memory.keep("array", np.zeros((2, 3, int(rng.integers(1, 90))))))
            elif name in memory.names and rng.random() < 0.5:
                memory.free(name)
            elif name in memory.names:
                memory.resize(name, each)
            else:
                memory.take(name, each)
        except LimitError:
            refused += 1
        look()
        if len(kept) > 3:
            kept.clear()
    memory.enter()
    assert refused and (peaks.most == best).all() and best.max() == memory.peak
    assert all(peaks.names((y, x)) == names[y, x] for y, x in np.ndindex(2, 3))


def test_a_file_of_maps_is_an_npz(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the name ends with \.npz"):
        opened(MPI.COMM_SELF, "2x2", tmp_path / "maps.json")


def test_every_phase_has_its_maps_whatever_phases_are_called(tmp_path: Path) -> None:
    """One called as the second of another name would be takes nobody's place, and nobody takes its own."""

    def run(block: Block) -> dict[str, Any]:
        for macs, name in enumerate(("a", "a", "a 2", "total", "a"), 1):
            with block.phase(name):
                block.work(macs)
        return {}

    path = tmp_path / "run.npz"
    meshrt.run(run, mesh="1x1", maps=path)
    maps = np.load(path)
    macs = {name.removesuffix("/macs"): int(maps[name].sum()) for name in maps if name.endswith("/macs")}
    assert macs == {"total": 15, "a": 1, "a 3": 2, "a 2": 3, "total 2": 4, "a 4": 5}
