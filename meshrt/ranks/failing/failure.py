"""Runs a rank's work so that a failure of any rank ends all of them, with one message and the right exit code.

A rank that fails says so on the board, and the ranks of its node then agree on the one that reports: the lowest if all
failed, else the first that did. That rank prints and ends the job. The others are blocked or wait to be ended.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from signal import ITIMER_REAL, SIG_DFL, SIGALRM, SIGINT, Signals, setitimer, signal
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from meshrt.errors import MeshrtError
from meshrt.ranks import host, launcher
from meshrt.ranks.asleep import asleep, duplicates
from meshrt.ranks.board import Board, Record, State
from meshrt.ranks.failing import faults, signals, watchdog
from meshrt.ranks.failing.causes import BROKEN_PIPE, UNWRITTEN, Failure, describe, message
from meshrt.ranks.start import mpi as starting

if TYPE_CHECKING:
    from mpi4py.MPI import Intracomm

# Errors that do not say themselves what cores they are about; mpi4py's too.
NAMELESS = ("MemoryError", "Exception", "ProgramError")
SETTLE = 2.0  # seconds that a failing rank gives the others to fail as well, while some still move
LAST = 5.0  # seconds that a rank which is told to end has to do so, as the sentinel gives the others
ADVICE = 3.5  # seconds that advice may take where others wait: those that the sentinel gives, less what ending takes


def run_guarded(work: Callable[[Intracomm, Board], int]) -> int:
    """Start MPI, run `work(comm, board)` on this rank and return the process's exit code.

    Does not return on a rank whose failure leaves others behind: it ends the job.
    """
    try:
        seconds = watchdog.limit()
        make_board = faults.board_class().shared
        teller = starting.begin()
        comm = host.communicator()
    except Exception as error:
        return report_alone(error)
    try:
        (control,) = duplicates(comm, 1)  # for the end of the job, out of the program's way
        board = make_board(comm)
        if comm.size == 1:
            signals.raise_on_end()
        else:
            signals.listen(lambda number: _end(comm, board, number))
        if board.leads:
            host.remove_segments()
        if comm.size > 1 and (board.leads or len(board.ranks) < comm.size):
            from meshrt.ranks.failing import beats, sentinel  # most ranks start sooner without

            sentinel.start(board, seconds, beats.meet(comm, board))
        starting.end(teller)
    except BaseException as error:
        failure = describe(error)
        if comm.size > 1:
            ended = not isinstance(error, Exception)  # by a signal, as all ranks are: rank 0 tells
            where = "" if ended else f" on rank {comm.rank} of {comm.size}"
            _stop(comm, failure.code, "" if ended and comm.rank else message(failure, where))
        return report_alone(error)
    gc.freeze()  # what is there by now stays: it need not be looked through again and again
    gc.set_threshold(20_000)  # a run makes little garbage
    failed = _run(work, comm, board)
    if failed is None:
        board.finished()
        if comm.size > 1:
            # Here and not in MPI_Finalize, so that the thread for signals still lives meanwhile.
            asleep(control.Ibarrier())
        return 0
    if comm.size == 1:
        return _report_one(failed)
    _fail(comm, board, failed)


def report_alone(error: BaseException) -> int:
    """Report an error met before MPI has started and return its exit code. Only the launcher's rank 0 prints."""
    failure = describe(error)
    if launcher.launched_rank() == 0:
        return _report_one(failure)
    signals.forget()
    time.sleep(0.5)  # a launcher ends the others when one has gone, and rank 0 has yet to tell
    return failure.code


def end_outside(error: BaseException) -> None:
    """End the job of several ranks since one has raised `error` outside of a run. Its traceback has been printed.

    Returns where this rank has left MPI: nobody waits for it.
    """
    failure = describe(error)
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_finalized():
        return
    with suppress(OSError):
        sys.stdout.flush()
    text = f"meshrt: error on rank {launcher.launched_rank()} of {launcher.launched_size()}: {failure.text}"
    if mpi is not None and mpi.Is_initialized():
        _stop(mpi.COMM_WORLD, failure.code, text)
    _say(text)
    time.sleep(0.2)
    launcher.abort(failure.code)
    os._exit(failure.code)


def _run(work: Callable[[Intracomm, Board], int], comm: Intracomm, board: Board) -> Failure | None:
    try:
        code = work(comm, board)
        sys.stdout.flush()  # now, while a reader that has gone can still be reported as such
    except BaseException as error:
        failure = describe(error)
        return failure if failure.code else None
    return Failure(code, "exit code", "") if code else None


def _report_one(failure: Failure) -> int:
    if failure.text:
        _say(message(failure, ""), failure.advice)
    if failure.code == BROKEN_PIPE or failure.kind == UNWRITTEN:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter's own last flush complains
    return failure.code


def _fail(comm: Intracomm, board: Board, failure: Failure) -> NoReturn:
    """End the job of several ranks after this one has failed."""
    board.failed(failure.key)
    records = _settled(board)
    # A node without rank 0 leaves it time to report first, since an error of all ranks is rank 0's to tell. The second
    # part is for a reporter that dies before it gets there.
    patience = (board.ranks[0] != 0) * 1.0 + (_reporter(records) != board.rank) * 2.0
    _wait(board.claimed, patience)
    if board.claim():
        failed = [record for record in records if record.state == State.FAILED]
        _stop(comm, failure.code, _job_message(failure, board, failed), failure.advice)
    time.sleep(10)  # the reporter ends this rank
    os._exit(failure.code)


def _job_message(failure: Failure, board: Board, failed: list[Record]) -> str:
    if failure.code == BROKEN_PIPE:
        return ""
    alike = len({record.key for record in failed}) == 1
    if alike and len(failed) == board.size:
        return message(failure, "") if failure.text else ""
    where = f" on rank {board.rank} of {board.size}"
    if failure.trace or failure.kind in NAMELESS:
        index = board.ranks.index(board.rank)
        from meshrt.ranks.failing import sentinel

        where = f" on {sentinel.whereabouts(board.records()[index], board.owners()[index], board.size)}"
    if not failure.text:
        return f"meshrt: error{where}: it ended early with exit code {failure.code}"
    count = len(failed) - 1
    more = f"\nmeshrt: {count} more rank{'s' * (count > 1)} failed as well" if count > 0 else ""
    return message(failure, where) + more


def _end(comm: Intracomm, board: Board, number: Signals) -> NoReturn:
    """End the job of several ranks since this one was told to by a signal: the user's, the launcher's or a batch
    system's, or the sentinel's, which has then given its verdict.
    """
    setitimer(ITIMER_REAL, LAST)  # by the system, whatever holds this up: the launcher and the sentinel may be gone
    # A launcher that lost a rank may ask too, and the sentinel has the first word. Open MPI's has given it that time.
    if number != SIGINT and not ("PRTE_LAUNCHED" in os.environ and len(board.ranks) == board.size):
        time.sleep(0.3)
    if board.verdict:
        _stop(comm, board.verdict, "")
    if board.ranks[0] == 0 and board.claim():
        _stop(comm, 128 + number, f"meshrt: error: {signals.said(number)}")
    time.sleep(2.0)
    os._exit(128 + number)


def _settled(board: Board) -> list[Record]:
    """The records once no rank moves any more, or SETTLE seconds later."""
    records = board.records()

    def still() -> bool:
        nonlocal records
        last, records = records, board.records()
        return records == last and not any(record.state == State.MOVING for record in records)

    _wait(still, SETTLE)
    return records


def _reporter(records: list[Record]) -> int:
    failed = [record for record in records if record.state == State.FAILED]
    if len(failed) == len(records):
        return records[0].rank
    return min(failed, key=lambda record: record.since).rank


def _wait(is_over: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not is_over() and time.monotonic() < end:
        time.sleep(0.05)


def _say(text: str, advice: Callable[[], str] | None = None) -> None:
    """The text at once, and behind it the advice, if some can be given. A line that a terminal has no room for is
    several there; elsewhere it is one.
    """
    from meshrt.columns import terminal_width, wrapped  # of those that fail

    with suppress(OSError):  # a launcher that is gone reads nothing, and this rank still has to end
        width = None if "\n" in text else terminal_width(sys.stderr)
        sys.stderr.write(wrapped(text, width, "  "))
        sys.stderr.flush()
        if text and advice is not None:
            with suppress(MeshrtError, MemoryError, TooLate):
                apart = width is not None or "\n" in text
                sys.stderr.write("\n" + wrapped(f"  {advice()}", width, "  ") if apart else f"; {advice()}")
        sys.stderr.write("\n" if text else "")
        sys.stderr.flush()


class TooLate(BaseException):
    """Advice takes too long; nothing on the way to it takes this for an error of its own."""


def _in_time(advice: Callable[[], str]) -> str:
    """The advice. TooLate where others would wait too long: the sentinel would kill this rank, and the code be its."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooLate

    signal(SIGALRM, late)
    setitimer(ITIMER_REAL, ADVICE)
    try:
        return advice()
    finally:
        setitimer(ITIMER_REAL, 0)
        signal(SIGALRM, SIG_DFL)


def _stop(comm: Intracomm, code: int, text: str, advice: Callable[[], str] | None = None) -> NoReturn:
    """Print `text` and end all ranks of the job with `code`, with as little from the launcher as it allows."""
    _say(text, None if advice is None else lambda: _in_time(advice))
    time.sleep(0.2)  # launchers drop what they have not yet read of an aborting rank
    if "PRTE_LAUNCHED" in os.environ:
        os._exit(code)  # Open MPI's mpirun ends the others just as well, and with half of the lines of an abort
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # MPICH's abort writes a line of its own
    comm.Abort(code)
    os._exit(code)
