"""The memory of the machine that emulates: what would not fit is refused before it is allocated."""

import os
import resource
from contextlib import suppress
from functools import cache
from pathlib import Path

from meshrt.errors import UsageError
from meshrt.ranks import launcher

SMALL = 64 << 20  # bytes that are not worth asking for
NO_LIMIT = 1 << 62  # what control groups and systems say where there is none


@cache
def total() -> int:
    """Bytes that this process may have: of the machine, its control group or its own limits, whichever are fewest."""
    limits = [NO_LIMIT, *_group_limits()]
    with suppress(ValueError, OSError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft = resource.getrlimit(kind)[0]
        limits += [soft] if soft != resource.RLIM_INFINITY else []
    return min(limits)


def _group_limits() -> list[int]:
    """Of the control groups, version 1 and 2, that this process is in."""
    limits = []
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds not in ("", "memory"):
                continue
            root, name = ("", "memory.max") if kinds == "" else ("memory", "memory.limit_in_bytes")
            group = Path("/sys/fs/cgroup", root, path.lstrip("/"))
            for folder in (group, *group.parents):
                with suppress(OSError, ValueError):  # "max" is no number
                    limits.append(int((folder / name).read_text()))
    return limits


def require(item: str, nbytes: int) -> None:
    """UsageError where `nbytes` more for each rank of this machine are more than it has at all."""
    if nbytes < SMALL:
        return
    ranks = launcher.ranks_on_node()
    if nbytes * ranks > total():
        each = f" on each of {ranks} ranks" if ranks > 1 else ""
        raise UsageError(
            f"{item} would take {gib(nbytes)} of memory{each}; this machine has {gib(total())}: choose smaller sizes or"
            " a smaller --mesh, use more machines, or --payload none where there is one"
        )


def give_back() -> None:
    """Have the machine take what is free in this process. The GNU C library keeps that, in pieces that larger arrays do
    not fit into; others need not be asked.
    """
    import ctypes  # few runs ask for it

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def bound() -> None:
    """Let the system refuse this process more private memory than there is, so that it hears of it and can say so.

    Else it would be ended without a word when the memory runs out.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = total()
    if most < NO_LIMIT and soft == resource.RLIM_INFINITY and (hard == resource.RLIM_INFINITY or most <= hard):
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def gib(nbytes: int) -> str:
    """Bytes for a person, the largest numbers rounded."""
    size = nbytes / 2**30 if nbytes < 2**100 else float("inf")
    return f"{size:,.1f} GiB" if size < 1e6 else f"{size:.1e} GiB" if size < float("inf") else "more than 1e20 GiB"
