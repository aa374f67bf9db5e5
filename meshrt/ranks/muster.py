"""Ranks that outnumber the cores of their node meet before they start MPI, asleep.

MPI's start has barriers, at which a rank that comes early asks again and again and yields in between. Where ranks share
cores it takes its turns all the same, from those that are still on their way. Here the first to come opens a door, a
socket of Linux's own that leaves no file; all others wait at it until as many are there as the launcher started on the
node, and nobody looks meanwhile. Nothing depends on it: who cannot meet, or waits in vain, starts MPI at once.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress

PATIENCE = 3.0  # seconds without another rank, after which those that are there go on
AGAIN = 0.01  # seconds until another try where the door is there but not yet open


def meet(ranks: int, environ: Mapping[str, str]) -> bool:
    """Wait until so many ranks of this node's part of the job are here. False where they could not meet."""
    job = _job(environ)
    if not job:
        return False
    import socket  # few ranks need it

    name, until = f"\0meshrt-muster-{job}", time.monotonic() + PATIENCE
    with suppress(OSError):
        while time.monotonic() < until:
            with ExitStack() as stack:
                own = stack.enter_context(socket.socket(socket.AF_UNIX))
                try:
                    own.bind(name)
                except OSError:  # somebody came before
                    with suppress(ConnectionRefusedError):
                        own.connect(name)
                        return own.recv(1) == b"."
                    time.sleep(AGAIN)
                    continue
                own.listen(ranks)
                own.settimeout(PATIENCE)
                others = [stack.enter_context(own.accept()[0]) for _ in range(ranks - 1)]
                for other in others:
                    other.send(b".")
                return True
    return False


def _job(environ: Mapping[str, str]) -> str:
    """What the ranks of one job on this node have in common, and no others; nothing where that is not known."""
    if sys.platform != "linux":
        return ""
    if name := environ.get("PMIX_NAMESPACE"):
        return name[:60]
    if "SLURM_STEP_ID" in environ and "PMI_FD" not in environ:
        return f"slurm-{environ.get('SLURM_JOB_ID')}-{environ['SLURM_STEP_ID']}"
    with suppress(KeyError, OSError, ValueError, struct.error):
        import socket

        line = socket.socket(fileno=os.dup(int(environ["PMI_FD"])))  # to the launcher, whose process it was made by
        with line:
            process, *_ = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return f"process-{process}" if process else ""
    return ""
