"""What Linux tells of other processes."""

from __future__ import annotations

from contextlib import suppress


def activity(process: int) -> tuple[str, int]:
    """Linux's letter for what a process does, and the processor time that it has had in clock ticks."""
    try:
        with open(f"/proc/{process}/stat") as file:
            facts = file.read().rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return facts[0], int(facts[11]) + int(facts[12])


def name(process: int) -> str:
    """Its program's, as Linux tells it."""
    with suppress(OSError), open(f"/proc/{process}/comm") as file:
        return file.read().strip()
    return ""


def oom_kills() -> int:
    """How often the kernel has killed for want of memory, on the whole machine."""
    with suppress(OSError, ValueError, StopIteration), open("/proc/vmstat") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    return 0
