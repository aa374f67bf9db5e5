"""Cycles between two time stamps that cores export, as programs pack them: six words of 16 bits, the low ones first."""

from __future__ import annotations

from typing import Any

from meshrt.csl.errors import CslError
from meshrt.csl.values import FunctionRef, Memory

WORDS = 3  # of a stamp


def between(wafer: Any, name: str) -> list[int]:
    """Of each core that exports a pointer to them by this name. CslError."""
    found = []
    for core in wafer.cores.values():
        one = core.image.exports.get(name)
        if one is None or isinstance(one.value, FunctionRef) or not isinstance(one.spot, Memory):
            continue
        at = int(core.m_uint16[int(one.spot.address) // 2]) // 2
        words = [int(word) for word in core.m_uint16[at : at + 2 * WORDS]]
        begin, end = (sum(word << 16 * place for place, word in enumerate(part)) for part in (words[:3], words[3:]))
        found.append(end - begin)
    if not found:
        raise CslError(f"no core exports stamps by the name {name!r}")
    return found
