"""What the sentinels of several nodes make of each other's beats. ci/link-down cuts the link between two hosts."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from mpi4py import MPI

from meshrt.errors import UsageError
from meshrt.ranks.board import Board
from meshrt.ranks.failing import beats, sentinel
from meshrt.ranks.start import mpi as starting

CHECKOUT = Path(__file__).parents[2]
LIMIT, LOOK = 3.0, 1.0  # seconds of silence that a node is missed after; from one look to the next
Nodes = list[beats.Hearing]


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Nodes]]:
    """`nodes(N)`: so many, of two ranks each, at 127.0.0.1, by a clock that goes a second from one look to the next."""
    made: Nodes = []
    clock = [0.0]

    def tick() -> float:
        clock[0] += LOOK / (len(made) or 1)
        return clock[0]

    def make(count: int) -> Nodes:
        ears = [beats.opened("127.0.0.1") for _ in range(count)]
        every = {
            at: beats.JobNode(f"n{at}", (2 * at, 2 * at + 1), (ear.getsockname(),)) for at, ear in enumerate(ears)
        }  # fmt: skip
        for at, ear in enumerate(ears):
            neighbours = {number: every[number] for number in beats.peers(at, count)}
            made.append(beats.Hearing(ear, beats.Circle("ab" * 16, at, neighbours)))
        monkeypatch.setattr(beats.time, "monotonic", tick)
        return made

    yield make
    for node in made:
        node.ear.close()


def look(nodes: Nodes, reached: set[int], times: int) -> list[str | None]:
    """So many looks of all nodes, of which only those in `reached` get their beats through; what each says at last."""
    for _ in range(times):
        for node in nodes:
            if node.circle.own in reached:
                node.beat(0)
        for node in nodes:
            if node.circle.own in reached:
                node.hear(2 * LOOK)
            else:  # its link is down in both directions
                list(node._beats())
                node.silent = {number: seconds + LOOK for number, seconds in node.silent.items()}
    return [node.missed(LIMIT, 2 * len(nodes)) for node in nodes]


def test_nodes_that_are_heard_are_not_missed(nodes: Callable[[int], Nodes]) -> None:
    assert look(nodes(3), {0, 1, 2}, 20) == [None] * 3


@pytest.mark.parametrize(
    ("cut", "speaker", "named"),
    [(2, 0, "n2 with ranks 4 to 5"), (1, 0, "n1 with ranks 2 to 3"), (0, 1, "n0 with ranks 0 to 1")],
)
def test_one_node_tells_and_the_one_that_is_cut_off_tells_itself(
    nodes: Callable[[int], Nodes], cut: int, speaker: int, named: str
) -> None:
    made = nodes(4)
    look(made, {0, 1, 2, 3}, 2)
    said = look(made, {0, 1, 2, 3} - {cut}, 4)
    assert [at for at, text in enumerate(said) if text] == sorted({speaker, cut})
    assert f"out of reach: {named}, of 8 ranks: nothing was heard from there for" in str(said[speaker])
    assert "MESHRT_WATCHDOG_SECONDS" in str(said[speaker])


def test_a_verdict_reaches_the_others(nodes: Callable[[int], Nodes]) -> None:
    made = nodes(3)
    made[1].beat(124)
    assert [node.hear(LOOK) for node in made] == [124, 0, 124]


def test_a_node_that_has_left_is_not_missed(nodes: Callable[[int], Nodes]) -> None:
    made = nodes(2)
    look(made, {0, 1}, 1)
    made[1].beat(beats.LEFT)
    assert look(made[:1], {0}, 20) == [None]


def test_a_node_of_which_only_the_first_beat_came_is_missed(nodes: Callable[[int], Nodes]) -> None:
    made = nodes(2)
    made[0] = beats.Hearing(made[0].ear, beats.Circle("ab" * 16, 0, made[0].circle.nodes, (1,)))
    assert "n1 with ranks 2 to 3" in str(look(made, {0}, 10)[0])


def test_a_node_that_was_never_heard_is_not_missed(nodes: Callable[[int], Nodes]) -> None:
    """As where nothing but MPI is let through between nodes."""
    assert look(nodes(2), {0}, 20) == [None, None]


def test_a_stranger_is_not_heard(nodes: Callable[[int], Nodes]) -> None:
    made = nodes(2)
    address = made[0].ear.getsockname()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for packet in (b"", b"x" * 21, b"x" * 60, bytes.fromhex("ab" * 16) + b"\0\0\0\x07\x7c"):
            stranger.sendto(packet, address)
    assert made[0].hear(LOOK) == 0
    assert made[0].silent == {}


def test_only_the_first_two_beat_with_all() -> None:
    assert [list(beats.peers(at, 5)) for at in range(5)] == [[1, 2, 3, 4], [0, 2, 3, 4], [0, 1], [0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((2,), "rank 2"),
        ((2, 3, 4), "ranks 2 to 4"),
        ((0, 2), "ranks 0, 2"),
        (tuple(range(0, 20, 2)), "ranks 0, 2, 4, 6, 8, 10, 12, 14 ..."),
    ],
)
def test_ranks_in_words(ranks: tuple[int, ...], text: str) -> None:
    assert beats.spelled(ranks) == text


def test_a_circle_gets_to_the_sentinel_whole() -> None:
    circle = beats.Circle("ab" * 16, 1, {0: beats.JobNode("n0", (0, 1), (("10.0.0.1", 7), ("10.1.0.1", 7)))}, (0,))
    assert beats.loaded(circle.dumped()) == circle


@pytest.mark.mpi(ranks=[3])
def test_nodes_meet(comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 is a node of its own, 1 and 2 are another."""
    board = Board.alone()
    board.ranks, board.rank, board.size = ((0,), (1, 2), (1, 2))[comm.rank], comm.rank, comm.size
    board.door = 0 if board.leads else -1
    monkeypatch.setattr(beats, "ways", lambda ear: (("127.0.0.1", ear.getsockname()[1]),))
    met = beats.meet(comm, board)
    assert (met is None) == (comm.rank == 2)
    keys = comm.allgather(met and met[1].key)
    assert keys[0] == keys[1] and keys[0]
    if met is not None:
        others = [(number, node.ranks) for number, node in met[1].nodes.items()]
        assert (met[1].own, others) == ((0, [(1, (1, 2))]) if comm.rank == 0 else (1, [(0, (0,))]))
        assert list(met[1].heard) == [number for number, _ in others], "its first beat is here"
        met[0].close()


@pytest.mark.mpi(ranks=[2])
def test_on_one_node_nobody_meets(comm: MPI.Intracomm) -> None:
    board = Board.alone()
    board.ranks = (0, 1)
    assert beats.meet(comm, board) is None


def test_a_sentinel_ends_the_ranks_of_a_node_that_is_cut_off() -> None:
    """The whole process beside one rank, which is a process here that sleeps; the other node falls silent."""
    with beats.opened("127.0.0.1") as other, beats.opened("127.0.0.1") as ear:
        circle = beats.Circle("cd" * 16, 1, {0: beats.JobNode("n0", (0,), (other.getsockname(),))})
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        argv = [sys.executable, "-c", RANK, str(CHECKOUT), str(ear.fileno())]
        with subprocess.Popen(argv, text=True, pass_fds=[ear.fileno()], **pipes) as rank, ExitStack() as end:
            end.callback(rank.kill)
            assert rank.stdin is not None and rank.stdout is not None and rank.stderr is not None
            rank.stdin.write(circle.dumped().decode())
            rank.stdin.close()
            assert rank.stdout.readline() == "watched\n"
            nodes = {1: beats.JobNode("n1", (1,), (ear.getsockname(),))}
            heard = beats.Hearing(other, beats.Circle(circle.key, 0, nodes))
            began = since = time.monotonic()
            while since < began + 3:
                since = time.monotonic()
                heard.beat(0)
                time.sleep(0.1)
            assert rank.poll() is None
            assert rank.wait(120) == 7
            assert time.monotonic() - since >= 2.0, "not before it was silent for so long"
            text = rank.stderr.read()
        assert text.count("meshrt: ") == 1
        assert "out of reach: n0 with rank 0, of 2 ranks: nothing was heard from there for" in text
        assert heard.hear(1.0) == sentinel.STALLED


RANK = """
import os, signal, socket, sys, time
sys.path.insert(0, sys.argv[1])
from meshrt.ranks.failing import beats, sentinel
from meshrt.ranks.board import Board, _door, _line_to, _size
import mmap, tempfile
circle = beats.loaded(sys.stdin.buffer.read())
file, path = tempfile.mkstemp()
os.ftruncate(file, _size(1))
board = Board(mmap.mmap(file, 0), file, (1,), 1, 2)
board.owned_by(os.getpid())
board.door = _door(path)
board.line = _line_to(path)
os.unlink(path)
signal.signal(signal.SIGTERM, lambda *_: os._exit(7 if board.verdict == 124 else 1))
sentinel.start(board, 3.0, (socket.socket(fileno=int(sys.argv[2])), circle))  # which misses after a second less
board.waiting(0, b"route set 1")
print("watched", flush=True)
time.sleep(600)
"""


# ------------------------------------------------------------------------------------------------------ the start

STUCK = """
import ctypes
from meshrt.ranks.start import mpi as starting
starting.begin()
ctypes.PyDLL(None).sleep(600)  # as the MPI library does, which holds the interpreter
"""
TWO_NODES = {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "1"}


def test_a_start_that_hangs_is_ended() -> None:
    env = os.environ | TWO_NODES | {"MESHRT_START_SECONDS": "2", "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, "-c", STUCK], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGALRM
    assert done.stderr.count("meshrt: error: 2 ranks have not found each other within 2 s: a host is out of reach") == 1


def test_a_start_that_goes_well_is_not_ended() -> None:
    source = STUCK.replace("starting.begin()", "starting.end(starting.begin())").replace("sleep(600)", "sleep(2)")
    env = os.environ | TWO_NODES | {"MESHRT_START_SECONDS": "1", "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, "-c", source], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({}, 0),
        ({"PMI_RANK": "0", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "8"}, 0),
        ({"PMI_RANK": "0", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "4"}, 62),
        ({"PMI_RANK": "0", "PMI_SIZE": "8", "MPI_LOCALNRANKS": "4", "MESHRT_START_SECONDS": "0"}, 0),
    ],
)
def test_how_long_a_start_may_take(environ: dict[str, str], seconds: float) -> None:
    assert starting.limit(environ) == seconds


def test_a_bad_limit_of_the_start() -> None:
    with pytest.raises(UsageError, match="MESHRT_START_SECONDS is 'soon': give a number of seconds"):
        starting.limit(TWO_NODES | {"MESHRT_START_SECONDS": "soon"})
