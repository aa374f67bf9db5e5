"""A process beside the ranks of a node, which sees what they cannot tell: one that is gone, stopped, or waits for ever.

It reads the ranks' board. When one dies without a word, it says which, at once, before the launcher has ended the
others; when none can go on, it says what they wait for and has them end. On several nodes it beats with those of the
others (beats.py) and says which node is out of reach. It ends with the last of its ranks. Linux only:
elsewhere nothing sees a deadlock. The first rank of a node starts it as a fresh interpreter, since a fork of a process
with MPI in it would keep the launcher's sockets open.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

if __name__ == "__main__":  # alone, without site-packages: this costs a fifth of a usual start
    sys.path.insert(0, os.path.abspath(f"{__file__}/../../../.."))

from meshrt.ranks.board import Board, Owner, Record, State
from meshrt.ranks.failing.beats import LEFT, Circle, Hearing, loaded
from meshrt.ranks.failing.processes import activity, name, oom_kills
from meshrt.ranks.failing.watchdog import diagnose
from meshrt.ranks.launcher import starter

STALLED = 124
LOST = 137  # what a shell says of a command that SIGKILL ended
LAUNCHER = 1.0  # seconds that a launcher has to end the others, once a rank is dead
GRACE = 5.0  # seconds from the first message of a job's end until what is left of it is killed
LAUNCHERS = ("prterun", "prted")  # Open MPI's; of a host that is out of reach they wait for ever


def start(board: Board, seconds: float, meeting: tuple[socket.socket, Circle] | None) -> None:
    """Watch the ranks of this node from the first of them on; `seconds` without progress end the job, 0: never.

    `meeting` is what `beats.meet` says of the other nodes.
    """
    if board.door < 0:
        return
    ranks, files = ",".join(map(str, board.ranks)), [board.file, board.door]
    if meeting is not None:
        files.append(meeting[0].fileno())
    process = subprocess.Popen(
        [
            sys.executable, "-I", "-S", __file__, ranks, str(board.size), str(seconds), str(starter()),
            *map(str, files),
        ],
        stdin=subprocess.PIPE if meeting else subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=files,
        start_new_session=True,
    )  # fmt: skip
    os.close(board.door)
    if meeting is not None and process.stdin is not None:
        meeting[0].close()
        with process.stdin as pipe:
            pipe.write(meeting[1].dumped())


def main(ranks: str, size: str, seconds: str, launcher: str, file: str, door: str, ear: str = "") -> None:
    """The process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # it ends when the ranks have, and tells how
    board = Board.opened(int(file), [int(rank) for rank in ranks.split(",")], int(size))
    hearing = Hearing(socket.socket(fileno=int(ear)), loaded(sys.stdin.buffer.read())) if ear else None
    watch(board, socket.socket(fileno=int(door)), float(seconds), hearing, int(launcher))


def answer(door: socket.socket, processes: Mapping[int, int]) -> dict[int, tuple[int, socket.socket]]:
    """The lines of all ranks, which stand already, by their descriptors."""
    ranks = {process: rank for rank, process in processes.items()}
    lines: dict[int, tuple[int, socket.socket]] = {}
    while len(lines) < len(ranks):
        line, _ = door.accept()
        process, *_ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if process in ranks:  # whoever else calls is left alone
            lines[line.fileno()] = ranks[process], line
    return lines


def watch(board: Board, door: socket.socket, seconds: float, hearing: Hearing | None, launcher: int) -> None:
    """Until the last rank is gone. `launcher` is the process that started them.

    A rank is gone when its line ends. The launcher hears of it in the same way, and only then kills the others: so the
    first line to end is that of the rank which all this is about.
    """
    killed = oom_kills()
    processes = dict(zip(board.ranks, (owner.process for owner in board.owners()), strict=True))
    living = answer(door, processes)
    deaths = select.epoll()  # tells them in the order in which they came, which poll does not
    for handle in living:
        deaths.register(handle, select.EPOLLIN)
    pause = min(0.5, seconds / 4) if seconds else 0.5
    stall = Stall(seconds)
    verdict, ask, end = 0, 0.0, 0.0
    while living:
        lost = [living.pop(handle) for handle, _ in deaths.poll(pause)]
        remaining = {rank: processes[rank] for rank, _ in living.values()}
        code, text = hearing.hear(2 * pause) if hearing else 0, None
        for rank, line in lost:
            line.close()
            at = board.ranks.index(rank)
            record = board.records()[at]
            if not code and record.state not in (State.FINISHED, State.FAILED):
                code, text = LOST, gone(record, board.owners()[at], board.size, oom_kills() - killed)
        if not code and not board.claimed():
            text = stall.look(board, remaining, 2 * pause)
            if not text and hearing and seconds:  # two looks earlier, so that it is told in time
                text = hearing.missed(seconds - 2 * pause, board.size)
            code = STALLED if text else 0
        claims = code != 0 and board.claim()
        verdict = code if claims else verdict
        if hearing:
            hearing.beat(verdict)
        if claims:
            tell(text)
            ask = time.monotonic() + LAUNCHER * (code == LOST)
        if not board.claimed():
            continue
        end = end or time.monotonic() + GRACE
        if ask and time.monotonic() >= ask:
            ask_to_end(board, verdict, list(remaining.values()))
            ask = 0.0
        if time.monotonic() > end:
            for process in remaining.values():
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
    if hearing:
        for _ in range(3):  # datagrams may be lost
            hearing.beat(LEFT)
        if verdict:
            end_launcher(launcher)


class Stall:
    """For how long the ranks have not moved, in seconds in which this process ran: a sleep of the machine is none."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.last: list[tuple[State, int]] = []
        self.quiet = 0.0
        self.ticks: dict[int, int] = {}
        self.still: dict[int, float] = {}
        self.since = time.monotonic()

    def look(self, board: Board, processes: dict[int, int], longest: float) -> str | None:
        """What holds up the job, once it has for too long. `longest` bounds the seconds since the last look."""
        now, records = time.monotonic(), board.records()
        passed, self.since = min(now - self.since, longest), now
        moves = [(record.state, record.key) for record in records]
        self.quiet = self.quiet + passed if moves == self.last else 0.0
        self.last = moves
        stopped = []
        for record in records:
            if record.rank not in processes:
                continue
            state, ticks = activity(processes[record.rank])
            stopped += [record.rank] * (state == "T")
            idle = state == "T" or (record.state == State.MOVING and state == "S")
            same = self.ticks.get(record.rank) == ticks
            self.ticks[record.rank] = ticks
            self.still[record.rank] = self.still.get(record.rank, 0.0) + passed if idle and same else 0.0
        if len(stopped) == len(processes):  # somebody has stopped the whole job and will let it go on
            self.quiet, self.still = 0.0, {}
        if not self.seconds:
            return None
        frozen = [record for record in records if self.still.get(record.rank, 0.0) >= self.seconds]
        if frozen and any(record.state == State.WAITING for record in records if record not in frozen):
            rank = frozen[0].rank
            owner = board.owners()[board.ranks.index(rank)]
            return unanswering(frozen[0], owner, board.size, self.still[rank], rank in stopped)
        return diagnose(records, board.size, now, board.owners()) if self.quiet >= self.seconds else None


def end_launcher(process: int) -> None:
    """End what is left of the launcher here once it has had its time: it may wait for a node that is out of reach."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + LAUNCHER
        while name(process) in LAUNCHERS and time.monotonic() < end:
            time.sleep(0.05)
        if name(process) in LAUNCHERS:
            with suppress(ProcessLookupError):
                os.kill(process, number)


def whereabouts(record: Record, owner: Owner, size: int) -> str:
    """The rank, its cores and what it was last waiting for."""
    cores = f", {owner.cores}" if owner.cores else ""
    waits = "it waits" if record.state == State.WAITING else "it last waited"
    last = f"; {waits} for {record.awaited}" if record.awaited else "; it has not waited for anything yet"
    return f"rank {record.rank} of {size}{cores} (process {owner.process}{last})"


def gone(record: Record, owner: Owner, size: int, kills: int) -> str:
    """The message for a rank that is dead without having said why."""
    cause = (
        "the kernel has killed it for want of memory" if kills else "it was killed, has crashed or left without a word"
    )
    mend = "use fewer ranks or a smaller problem" if kills else "a run with --checkpoint can go on with --resume"
    return f"meshrt: error on {whereabouts(record, owner, size)}: {cause}; {mend}"


def unanswering(record: Record, owner: Owner, size: int, seconds: float, stopped: bool) -> str:
    """The message for a rank that others wait for while it neither computes nor waits."""
    trouble = "has been stopped by a signal" if stopped else "has neither computed nor waited for a message"
    return (
        f"meshrt: error on {whereabouts(record, owner, size)}: it {trouble} for {seconds:.0f} s while others wait;"
        " MESHRT_WATCHDOG_SECONDS sets the limit"
    )


def tell(text: str | None) -> None:
    """Print the message; None where another node has told it."""
    if text is None:
        return
    with suppress(OSError):
        os.write(2, text.encode() + b"\n")
    time.sleep(0.2)  # launchers drop what they have not yet read of a job that ends


def ask_to_end(board: Board, code: int, processes: Sequence[int]) -> None:
    """Have the ranks end the job with this exit code: each can, and one that is stopped cannot."""
    board.verdict = code
    for process in processes:
        with suppress(ProcessLookupError):
            if activity(process)[0] != "T":
                os.kill(process, signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
