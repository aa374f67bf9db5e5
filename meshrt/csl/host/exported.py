"""What a core exports: where its variables lie in memory, and what the host may give its functions."""

from __future__ import annotations

from math import isfinite
from typing import Any

import numpy as np

from meshrt.csl.errors import CslError
from meshrt.csl.language.arithmetic import convert
from meshrt.csl.language.types import NUMBERS, CslArray, Pointer, dtype, is_number
from meshrt.csl.language.values import FunctionRef, MemoryAddress


def variable(core: Any, name: str) -> tuple[int, int, Any] | None:
    """Address, bytes and type of an element: of a pointer, up to the end of the variable that it points into. None: no
    such."""
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
    end = next((address + size for address, size, _ in core.image.symbols if address <= at < address + size), at)
    return at, end - at - (end - at) % dtype(kind).itemsize, kind


def variables(core: Any) -> dict[str, tuple[int, int, Any]]:
    symbols = {name: variable(core, name) for name in core.image.exports}
    return {name: symbol for name, symbol in symbols.items() if symbol is not None}


def argument(function: str, value: Any, kind: Any) -> Any:
    """What the host gives a function, as that type: a whole number by its bits. CslError where something is lost."""
    of = np.dtype(NUMBERS[kind.name]) if is_number(kind) else dtype(kind)
    if of.kind in "iu":
        bits = 8 * of.itemsize
        if not isfinite(value) or value % 1 or not -(1 << bits - 1) <= int(value) < 1 << bits:
            raise CslError(f"{function} is given {value} for a {kind}, which holds whole numbers of {bits} bits")
        return convert(value, of)
    with np.errstate(over="ignore"):
        number = convert(value, of)
    if isfinite(value) and not isfinite(number):
        raise CslError(f"{function} is given {value} for a {kind}, which holds numbers up to {np.finfo(of).max:g}")
    return number
