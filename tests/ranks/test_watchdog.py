"""The board, and what the watchdog concludes from it."""

from __future__ import annotations

import threading

import pytest
from mpi4py import MPI

from meshrt.errors import UsageError
from meshrt.ranks.board import Board, Owner, Record, State
from meshrt.ranks.failing import watchdog


def records(*waits: int | State) -> list[Record]:
    """One record a rank: the peer that it waits for, or its state."""
    return [
        Record(rank, wait, -1, 0, 0.0, "")
        if isinstance(wait, State)
        else Record(rank, State.WAITING, wait, 1, float(rank), f"transfer {rank}")
        for rank, wait in enumerate(waits)
    ]


@pytest.mark.parametrize(
    ("waits", "cycle"),
    [
        ((1, 0), "0 -> 1 -> 0"),
        ((1, 2, 3, 1), "1 -> 2 -> 3 -> 1"),
        ((2, 0, 2), "2 -> 2"),
        ((State.FINISHED, 2, 1), "1 -> 2 -> 1"),
    ],
)
def test_cycle_is_found(waits: tuple[int | State, ...], cycle: str) -> None:
    assert f"cycle: {cycle}\n" in str(watchdog.diagnose(records(*waits), len(waits), 20.0))


@pytest.mark.parametrize("waits", [(1, State.MOVING), (State.FINISHED, State.FINISHED), (1, State.FAILED)])
def test_nothing_is_said_of_ranks_that_may_go_on(waits: tuple[int | State, ...]) -> None:
    assert watchdog.diagnose(records(*waits), len(waits), 20.0) is None


def test_wait_for_another_node_is_not_judged() -> None:
    assert watchdog.diagnose(records(7, 7), 8, 20.0) is None
    assert "cycle: 0 -> 1 -> 0" in str(watchdog.diagnose(records(1, 0), 8, 20.0))


def test_report_names_those_who_hold_up_the_others_and_stays_short() -> None:
    report = str(watchdog.diagnose(records(*range(1, 40), State.FINISHED), 40, 60.0))
    lines = report.splitlines()
    assert lines[0] == "meshrt: deadlock: no rank has moved for 22 s"
    assert lines[1] == "  rank 38 has waited 22.0 s for rank 39: transfer 38"
    assert "  ... and 32 more ranks, 1 of all 40 finished" in lines
    assert len(lines) < 13


def test_board_keeps_what_the_rank_says() -> None:
    board = Board.alone()
    assert [record.state for record in board.records()] == [State.MOVING]
    board.waiting(3, b"transfer 12: " + b"x" * 100)
    board.waiting(3, b"transfer 13")
    (record,) = board.records()
    assert (record.state, record.peer, record.key, record.awaited) == (State.WAITING, 3, 2, "transfer 13")
    board.moving()
    assert board.records()[0].state == State.MOVING
    board.failed(2**64 - 1)
    (record,) = board.records()
    assert (record.state, record.key, record.awaited) == (State.FAILED, 2**64 - 1, "transfer 13")
    board.owned_by(17, "cores (0, 0) to (3, 1)")
    assert board.owners() == [Owner(17, "cores (0, 0) to (3, 1)")]


def test_messages_about_packets_under_way_are_no_progress() -> None:
    """The key is what the sentinel looks at: it stays, whatever is waited for, until packets get on."""
    board, keys = Board.alone(), list[int]()

    def key() -> int:
        (record,) = board.records()
        assert record.state == State.WAITING
        return record.key

    board.under_way()
    assert board.records()[0].state == State.MOVING, "a rank that has not waited yet is computing"
    for peer in (1, 2):
        board.waiting(peer, b"first use: message")
        board.moving()
        keys.append(key())
    assert board.records()[0].peer == 2
    board.under_way()
    keys.append(key())
    board.waiting(1, b"first use: message")
    keys.append(key())
    assert keys[0] == keys[1] < keys[2] == keys[3]
    board.landed()
    assert board.records()[0].state == State.MOVING
    board.waiting(1, b"transfer")
    keys.append(key())
    board.waiting(1, b"transfer")
    assert keys[4] < key() < keys[0]


def test_one_thread_of_many_claims_the_report() -> None:
    board = Board.alone()
    claims: list[bool] = []
    threads = [threading.Thread(target=lambda: claims.append(board.claim())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert claims.count(True) == 1
    assert board.claimed()


@pytest.mark.mpi(ranks=[4])
def test_ranks_share_the_board(comm: MPI.Intracomm) -> None:
    board = Board.shared(comm)
    board.waiting(comm.rank + 1, b"what")
    comm.Barrier()
    assert [record.peer for record in board.records()] == [1, 2, 3, 4]
    claims = comm.allgather(board.claim())
    assert claims.count(True) == 1


@pytest.mark.parametrize(("text", "seconds"), [(None, 7), ("0", 0), ("2.5", 2.5)])
def test_limit(text: str | None, seconds: float) -> None:
    assert watchdog.limit({} if text is None else {"MESHRT_WATCHDOG_SECONDS": text}) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "nan", "inf"])
def test_bad_limit(text: str) -> None:
    with pytest.raises(UsageError, match="MESHRT_WATCHDOG_SECONDS"):
        watchdog.limit({"MESHRT_WATCHDOG_SECONDS": text})
