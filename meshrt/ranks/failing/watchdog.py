"""Tells a deadlock: all ranks of the node wait or have finished, and nothing changes any more.

A rank that computes is moving, however long it takes, so that only a job which can never go on is ended. Ranks whose
scouts are under way move when one of these is delivered: messages about packets that go round and round are none.

The watch needs every rank that a rank may wait for on its own board: on several nodes each node's watch acts only where
its own ranks cannot be freed from outside, that is on a cycle among them or on a rank that finished.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from meshrt.errors import UsageError
from meshrt.ranks.board import Owner, Record, State

SHOWN = 8  # ranks in a report


def limit(environ: dict[str, str] | None = None) -> float:
    """Seconds without progress that end a job, from MESHRT_WATCHDOG_SECONDS (default 7; 0: no watch).

    Raises UsageError for anything but a number >= 0.
    """
    return seconds_of("MESHRT_WATCHDOG_SECONDS", os.environ if environ is None else environ, 7.0)


def seconds_of(name: str, environ: Mapping[str, str], default: float) -> float:
    """The variable, as a number >= 0. Raises UsageError."""
    text = environ.get(name, str(default))
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"{name} is {text!r}: give a number of seconds, or 0 for no watch")
    return seconds


def diagnose(records: Sequence[Record], size: int, now: float, owners: Sequence[Owner] = ()) -> str | None:
    """What holds up ranks that have not moved for a while, or None where they may yet go on by themselves.

    `records` are those of one node, and `owners` theirs, `size` is the number of ranks of the job, `now` is in seconds
    of time.monotonic().
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
    cores = {record.rank: owner.cores for record, owner in zip(records, owners, strict=False)}
    lines += [_line(waiting.get(rank), rank, cores.get(rank, ""), now) for rank in shown[:SHOWN]]
    if len(shown) > SHOWN:
        lines.append(f"  ... and {len(shown) - SHOWN} more ranks, {len(finished)} of all {len(records)} finished")
    if cycle:
        lines.append("  cycle: " + " -> ".join(map(str, [*cycle, cycle[0]])))
    for rank in orphans[:1]:
        lines.append(f"  rank {waiting[rank].peer} finished without sending what rank {rank} waits for")
    lines.append("  ranks have to make the same transfers in the same order; MESHRT_WATCHDOG_SECONDS sets the limit")
    return "\n".join(lines)


def _line(record: Record | None, rank: int, cores: str, now: float) -> str:
    if record is None:
        return f"  rank {rank} has finished"
    peer = f"rank {record.peer}" if record.peer >= 0 else "all ranks"
    has = f"; it has {cores}" if cores else ""
    return f"  rank {rank} has waited {now - record.since:.1f} s for {peer}: {record.awaited}{has}"


def _cycle(peers: dict[int, int]) -> list[int]:
    """The first cycle found when every rank points at the one it waits for; empty if there is none."""
    visited: set[int] = set()
    for start_rank in peers:
        path: list[int] = []
        rank = start_rank
        while rank in peers and rank not in visited:
            visited.add(rank)
            path.append(rank)
            rank = peers[rank]
        if rank in path:
            return path[path.index(rank) :]
    return []
