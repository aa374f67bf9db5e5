"""Cycles between two time stamps that cores export, as programs pack them: six words of 16 bits, the low ones first."""

from __future__ import annotations

from typing import Any

from meshrt.csl.errors import CslError
from meshrt.csl.language.values import FunctionRef, MemoryAddress

WORDS = 3  # of a stamp


def between(wafer: Any, name: str) -> list[int]:
    """Of each core that exports a pointer to them by this name. CslError."""
    cycles = []
    for core in wafer.cores.values():
        exported = core.image.exports.get(name)
        if exported is None or isinstance(exported.value, FunctionRef) or not isinstance(exported.spot, MemoryAddress):
            continue
        at = int(core.m_uint16[int(exported.spot.address) // 2]) // 2
        words = [int(word) for word in core.m_uint16[at : at + 2 * WORDS]]
        begin, end = (sum(word << 16 * number for number, word in enumerate(part)) for part in (words[:3], words[3:]))
        cycles.append(end - begin)
    if not cycles:
        raise CslError(f"no core exports stamps by the name {name!r}")
    return cycles
