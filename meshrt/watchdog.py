"""Watches a job for deadlock: all ranks of the node wait or have finished, and nothing changes any more.

A rank that computes is moving, however long it takes, so that only a job which can never go on is ended. The watch
needs every rank that a rank may wait for on its own board: on several nodes each node's watch acts only where its own
ranks cannot be freed from outside, that is on a cycle among them or on a rank that finished.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from meshrt.board import Board, Record, State
from meshrt.errors import UsageError

SHOWN = 8  # ranks in a report


def limit(environ: dict[str, str] | None = None) -> float:
    """Seconds without progress that end a job, from MESHRT_WATCHDOG_SECONDS (default 10; 0: no watch).

    Raises UsageError for anything but a number >= 0.
    """
    text = (os.environ if environ is None else environ).get("MESHRT_WATCHDOG_SECONDS", "10")
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"MESHRT_WATCHDOG_SECONDS is {text!r}: give a number of seconds, or 0 for no watch")
    return seconds


def start(board: Board, seconds: float, end: Callable[[str], None]) -> None:
    """Watch `board` in a daemon thread; call `end(report)` there, once, when nothing moved for `seconds`."""
    if seconds > 0 and len(board.ranks) > 1 and board.leads:
        threading.Thread(target=_watch, args=(board, seconds, end), name="meshrt-watchdog", daemon=True).start()


def _watch(board: Board, seconds: float, end: Callable[[str], None]) -> None:
    last: list[Record] = []
    changed = time.monotonic()
    while True:
        time.sleep(min(0.5, seconds / 4))
        records = board.records()
        now = time.monotonic()
        if records != last:
            last, changed = records, now
        elif now - changed >= seconds:
            report = diagnose(records, board.size, now)
            if report and board.claim():
                end(report)
                return


def diagnose(records: Sequence[Record], size: int, now: float) -> str | None:
    """What holds up ranks that have not moved for a while, or None where they may yet go on by themselves.

    `records` are those of one node, `size` is the number of ranks of the job, `now` is in seconds of time.monotonic().
    """
    waiting = {record.rank: record for record in records if record.state == State.WAITING}
    finished = {record.rank for record in records if record.state == State.FINISHED}
    if not waiting or len(waiting) + len(finished) < len(records):
        return None
    cycle = _cycle({rank: record.peer for rank, record in waiting.items()})
    orphans = [rank for rank, record in waiting.items() if record.peer in finished]
    if len(records) < size and not cycle and not orphans:
        return None  # they may wait for another node, which may be computing

    oldest = sorted(waiting.values(), key=lambda record: record.since)
    shown = list(dict.fromkeys([*cycle, *orphans, *(record.rank for record in oldest), *sorted(finished)]))
    quiet = now - oldest[-1].since
    lines = [f"meshrt: deadlock: no rank has moved for {quiet:.0f} s"]
    lines += [_line(waiting.get(rank), rank, now) for rank in shown[:SHOWN]]
    if len(shown) > SHOWN:
        lines.append(f"  ... and {len(shown) - SHOWN} more ranks, {len(finished)} of all {len(records)} finished")
    if cycle:
        lines.append("  cycle: " + " -> ".join(map(str, [*cycle, cycle[0]])))
    for rank in orphans[:1]:
        lines.append(f"  rank {waiting[rank].peer} finished without sending what rank {rank} waits for")
    lines.append("  ranks have to make the same transfers in the same order; MESHRT_WATCHDOG_SECONDS sets the limit")
    return "\n".join(lines)


def _line(record: Record | None, rank: int, now: float) -> str:
    if record is None:
        return f"  rank {rank} has finished"
    peer = f"rank {record.peer}" if record.peer >= 0 else "all ranks"
    return f"  rank {rank} has waited {now - record.since:.1f} s for {peer}: {record.what}"


def _cycle(peers: dict[int, int]) -> list[int]:
    """The first cycle found when every rank points at the one it waits for; empty if there is none."""
    seen: set[int] = set()
    for start_rank in peers:
        path: list[int] = []
        rank = start_rank
        while rank in peers and rank not in seen:
            seen.add(rank)
            path.append(rank)
            rank = peers[rank]
        if rank in path:
            return path[path.index(rank) :]
    return []
