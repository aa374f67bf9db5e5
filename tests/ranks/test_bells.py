"""A rank that waits for a message is woken by the rank that sends it."""

from __future__ import annotations

import os
from typing import Any

import pytest
from mpi4py import MPI

from meshrt.mesh.wires import core
from meshrt.ranks import bells, host
from meshrt.ranks.bells import Bells, hang_up
from meshrt.ranks.board import Board

needs_core = pytest.mark.skipif(core.built is None, reason="the compiled core was not built")
FOR_EVER = 3600.0  # seconds: who is not woken does not end


def hung_up(comm: MPI.Intracomm) -> Bells:
    hung = hang_up(Board.shared(comm), core.built)
    assert hung is not None
    return hung


@needs_core
@pytest.mark.mpi(ranks=[2, 5])
def test_who_rings_wakes_the_one_that_it_rings_for(comm: MPI.Intracomm) -> None:
    hung, times = hung_up(comm), 200
    after = (comm.rank + 1) % comm.size
    if comm.rank == 0:
        hung.ring(after)
    for turn in range(1, times + 1):
        while hung.heard() < turn:
            hung.listen(turn - 1, FOR_EVER)
        if comm.rank or turn < times:
            hung.ring(after)
    comm.Barrier()
    assert hung.heard() == times


@needs_core
@pytest.mark.mpi(ranks=[2, 5])
def test_who_hears_nothing_wakes_up_by_itself(comm: MPI.Intracomm) -> None:
    hung = hung_up(comm)
    hung.listen(hung.heard(), 1e-3)
    hung.listen(hung.heard() - 1, FOR_EVER)  # it was rung since
    assert hung.heard() == 0


@needs_core
@pytest.mark.mpi(ranks=[2, 5])
def test_bells_are_apart_from_the_board_s_records(comm: MPI.Intracomm) -> None:
    board = Board.shared(comm)
    hung = hang_up(board, core.built)
    assert hung is not None and set(hung.others) == set(range(comm.size))
    board.waiting(0, b"x" * 56)
    comm.Barrier()
    for rank in range(comm.size):
        for _ in range(300):
            hung.ring(rank)
    comm.Barrier()
    assert hung.heard() == 300 * comm.size
    assert [(record.peer, record.awaited) for record in board.records()] == [(0, "x" * 56)] * comm.size
    assert board.owners()[comm.rank].process == os.getpid()
    assert not board.verdict and not board.claimed()


@pytest.mark.mpi(ranks=[2, 5])
def test_no_bells_without_the_compiled_core_nor_for_one_rank(comm: MPI.Intracomm) -> None:
    assert hang_up(Board.shared(comm), None) is None
    assert hang_up(Board.alone(), core.built) is None


@needs_core
@pytest.mark.mpi(ranks=[2, 5])
@pytest.mark.parametrize("more_ranks_than_cores", [False, True])
@pytest.mark.parametrize("nbytes", [4, 300_000])
def test_messages_arrive_with_bells(
    comm: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, more_ranks_than_cores: bool, nbytes: int
) -> None:
    """Also in another order than they were sent in, and from a rank that does not ring."""
    monkeypatch.setattr(host, "ranks_on_node", lambda: 99 if more_ranks_than_cores else 1)
    hung = hung_up(comm)
    wait = host.waiter(hung)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for turn in range(20):
        sent = [bytes([turn, tag]) * (nbytes // 2) for tag in range(3)]
        requests = []
        for tag, message in enumerate(sent):
            requests.append(comm.Isend(message, after, tag))
            if turn % 4:
                hung.ring(after)
        for tag in (2, 0, 1):
            received = bytearray(nbytes)
            wait(comm.Irecv(received, before, tag), before, nbytes)
            assert received == sent[tag]
        for request in requests:
            wait(request)


class Rung(Bells):
    """A bell that is rung so often at each listening."""

    rung: list[int]
    state: dict[str, Any]

    def __init__(self, rung: list[int]) -> None:
        super().__init__(None, 0, {7: 0}, memoryview(b""))
        object.__setattr__(self, "rung", rung)
        object.__setattr__(self, "state", {"heard": 0, "pauses": []})

    def heard(self) -> int:
        return int(self.state["heard"])

    def listen(self, heard: int, seconds: float) -> None:
        assert heard == self.heard()
        self.state["pauses"].append(seconds)
        self.state["heard"] += self.rung.pop(0)


class Later:
    """A request that is over at its `count`th question."""

    def __init__(self, count: int) -> None:
        self.count, self.asked = count, 0

    def Test(self) -> bool:
        self.asked += 1
        return self.asked >= self.count


def test_it_asks_once_for_each_message_that_was_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "ranks_on_node", lambda: 99)
    rung = Rung([3, 0, 1])
    wait = host.waiter(rung)
    first = Later(2 + 4 + 1 + 2)  # nothing is announced, then three messages, none, one
    wait(first, 7, 100)
    assert first.asked == 9 and not rung.rung
    assert rung.state["pauses"][0] == host.LONGEST_PAUSE
    second = Later(2 + 2)  # three more have been announced than were waited for, and this one is of them
    wait(second, 7, 100)
    assert second.asked == 4
    rung.rung.append(1)
    wait(Later(5), 7, host.AT_ONCE + 1)
    assert rung.state["pauses"][-1] == host.FIRST_PAUSE


def test_no_bells_is_a_way_to_ring() -> None:
    bells.no_bells(3)
