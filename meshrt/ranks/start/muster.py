"""Ranks that outnumber the cores of their node meet before they start MPI, asleep.

MPI's start has barriers, at which a rank that comes early asks again and again and yields in between. Where ranks share
cores it takes its turns all the same, from those that are still on their way. Here the first to come opens a door, a
socket of Linux's own that leaves no file; all others wait at it until as many are there as the launcher started on the
node, and nobody looks meanwhile. Nothing depends on it: who cannot meet, or waits in vain, starts MPI at once.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress

from meshrt.ranks import launcher

PATIENCE = 3.0  # seconds without another rank, after which those that are there go on
AGAIN = 0.01  # seconds until another try where the door is there but not yet open


def meet(ranks: int, environ: Mapping[str, str]) -> bool:
    """Wait until so many ranks of this node's part of the job are here. False where they could not meet."""
    job = launcher.job(environ)
    if not job:
        return False

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
