"""Where in a core's memory the variables lie that it exports."""

from __future__ import annotations

from typing import Any

from meshrt.csl.types import CslArray, Pointer
from meshrt.csl.values import FunctionRef, MemoryAddress


def variable(core: Any, name: str) -> tuple[int, int, Any] | None:
    """Address, bytes and type of an element: of a pointer, of the whole variable that it points to. None: no such."""
    value = core.image.exports.get(name)
    if value is None or isinstance(value.value, FunctionRef):
        return None
    if isinstance(value.type, Pointer):
        at = (
            int(core.m_uint16[int(value.spot.address) // 2])
            if isinstance(value.spot, MemoryAddress)
            else int(value.value)
        )
        kind = value.type.to.element if isinstance(value.type.to, CslArray) else value.type.to
    else:
        at, kind = int(value.spot.address), value.type.element if isinstance(value.type, CslArray) else value.type
    return at, next((size for address, size, _ in core.image.symbols if address == at), 0), kind


def variables(core: Any) -> dict[str, tuple[int, int, Any]]:
    symbols = {name: variable(core, name) for name in core.image.exports}
    return {name: symbol for name, symbol in symbols.items() if symbol is not None}
