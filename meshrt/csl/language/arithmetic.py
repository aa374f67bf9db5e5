"""Scalar arithmetic, the same before the run and in it: NumPy's scalars of the type's width."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from meshrt.csl.errors import SourceLocation, wrong
from meshrt.csl.language.types import FLOAT, INT, NUMBERS, CslArray, Enum, Pointer, Simple, is_float, is_int, is_word


def place_of(address: int, nbytes: int) -> int:
    """Where in memory, as numbers of so many bytes, an address leads. IndexError below 0, where Python would go on from
    the end; ArithmeticError between two of them."""
    place, past = divmod(address, nbytes)
    if place < 0:
        raise IndexError(f"index {place} is below its first word")
    if past:
        raise ArithmeticError(
            f"address {address} holds no number of {nbytes} bytes: these lie at multiples of {nbytes}"
        )
    return place


def divide(a: Any, b: Any) -> Any:
    """Of whole numbers, toward zero."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if b == 0:  # all bits
        return np.array(-1).astype(type(a))[()]
    quotient = int(a) // int(b) if (a < 0) == (b < 0) else -(abs(int(a)) // abs(int(b)))
    return np.array(quotient).astype(type(a))[()]


def remainder(a: Any, b: Any) -> Any:
    """Of whole numbers, with the sign of the first; of floats, C's fmod."""
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) % abs(b) * (1 if a >= 0 else -1)
    if isinstance(a, np.floating):
        return np.fmod(a, b)
    return a if b == 0 else np.fmod(a, b)


def bitcast(value: Any, dtype: Any) -> Any:
    """The same bits as another type of the same width."""
    return np.asarray(value).view(dtype)[()]


def convert(value: Any, dtype: Any) -> Any:
    """A number as another type: floats toward zero, whole numbers by their low bits."""
    if np.dtype(dtype).kind in "iu":
        if isinstance(value, float | np.floating):
            value = int(value) if np.isfinite(value) else 0
        return np.array(int(value) & ((1 << 64) - 1), np.uint64).astype(dtype)[()]
    return np.dtype(dtype).type(value)


def words(value: Any) -> int:
    """A word of 16 bits, of a type that is no number."""
    return int(value)


OPERATORS: dict[str, Any] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift, "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip
COMPARES = ("==", "!=", "<", ">", "<=", ">=")


def typed(value: Any, kind: Any, at: SourceLocation) -> Any:
    """A known number as that type. CslError where it does not fit."""
    if kind is INT:
        if isinstance(value, float | np.floating) and value != int(value):
            raise wrong(at, f"{value} is no whole number")
        return int(value)
    if kind is FLOAT:
        return float(value)
    if is_word(kind):
        return bool(value) if isinstance(kind, Simple) and kind.name == "bool" else int(value)
    dtype = np.dtype(NUMBERS[kind.name])
    if dtype.kind in "iu":
        if isinstance(value, float | np.floating) and value != int(value):
            raise wrong(at, f"{value} is no whole number, and {kind} holds nothing else: @as({kind}, ...) cuts it")
        limits: Any = np.iinfo(dtype)
        if not limits.min <= int(value) <= limits.max:
            raise wrong(at, f"{value} does not fit {kind}, which holds {limits.min} to {limits.max}")
        return dtype.type(int(value))
    with np.errstate(all="ignore"):  # what f16 has no number for is infinite
        return dtype.type(value)


def fits(of: Any, into: Any) -> bool:
    """Does every value of one type fit another?"""
    if of == into:
        return True
    if isinstance(of, Pointer) and isinstance(into, Pointer):
        return (
            of.to == into.to
            or (isinstance(of.to, CslArray) and into.many and (of.to.element == into.to))
            or (isinstance(into.to, CslArray) and into.to.element == of.to)
            or (isinstance(into.to, CslArray) and isinstance(of.to, CslArray) and into.to.element == of.to.element)
        )
    if isinstance(of, Enum) or isinstance(into, Enum):
        return False
    if is_int(of) and is_int(into) and of is not INT and into is not INT:
        a, b = (np.iinfo(np.dtype(NUMBERS[kind.name])) for kind in (of, into))  # type: ignore[type-var]  # whole numbers both
        return a.min >= b.min and a.max <= b.max
    if is_float(of) and is_float(into) and into is not FLOAT and of is not FLOAT:
        return bool(of.nbytes <= into.nbytes)
    return False
