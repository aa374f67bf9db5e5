"""Where in a core's memory the variables lie that it exports."""

from __future__ import annotations

from typing import Any

from meshrt.csl.types import Array, Pointer
from meshrt.csl.values import FunctionRef, Memory


def variable(core: Any, name: str) -> tuple[int, int, Any] | None:
    """Address, bytes and type of an element: of a pointer, of the whole variable that it points to. None: no such."""
    one = core.image.exports.get(name)
    if one is None or isinstance(one.value, FunctionRef):
        return None
    if isinstance(one.type, Pointer):
        at = int(core.m_uint16[int(one.spot.address) // 2]) if isinstance(one.spot, Memory) else int(one.value)
        kind = one.type.to.element if isinstance(one.type.to, Array) else one.type.to
    else:
        at, kind = int(one.spot.address), one.type.element if isinstance(one.type, Array) else one.type
    return at, next((size for address, size, _ in core.image.places if address == at), 0), kind


def variables(core: Any) -> dict[str, tuple[int, int, Any]]:
    found = {name: variable(core, name) for name in core.image.exports}
    return {name: one for name, one in found.items() if one is not None}
