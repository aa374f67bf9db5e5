"""Values as other types, and as Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.errors import unknown
from meshrt.csl.language.arithmetic import fits, typed
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import (
    BOOL,
    FLOAT,
    INT,
    NATIVE,
    STRUCT,
    TYPES,
    VOID,
    Callable,
    CslArray,
    Enum,
    Simple,
    dtype,
    is_dsd,
    is_float,
    is_int,
    is_number,
    is_pointer,
    is_word,
)  # fmt: skip
from meshrt.csl.language.values import FunctionRef, Val


def code(value: Val, scope: Scope) -> str:
    """The Python of a value."""
    if value.code is not None:
        return value.code
    if value.type is BOOL or value.type is VOID:
        return repr(None if value.type is VOID else bool(value.value))
    if is_word(value.type):
        return repr(int(value.value))
    if isinstance(value.value, FunctionRef):
        return f"FunctionOf(c, {scope.image.constant(value.value)})"
    return str(scope.image.constant(value.value))


def coerce(value: Val, kind: Any, scope: Scope, line: int) -> Val:
    """A value as a type that holds all that it may be. CslError."""
    if value.type == kind or kind is TYPES["anytype"]:
        return value
    if value.known and is_number(kind) and is_number(value.type) and not (is_float(value.type) and is_int(kind)):
        return Val(kind, typed(value.value, kind, scope.at(line)))
    if value.type is INT and isinstance(kind, Simple) and is_word(kind) and kind is not BOOL:
        return Val(kind, int(value.value))
    if isinstance(kind, Enum) and value.type is TYPES["member"]:
        return enum_member(kind, value.value, scope, line)
    if is_number(value.type) and is_number(kind) and fits(value.type, kind):
        return Val(kind, code=f"convert({value.code}, {kind.name})")
    if is_pointer(value.type) and is_pointer(kind) and fits(value.type, kind):
        return Val(kind, value.value, value.code)
    if isinstance(kind, Callable) and (isinstance(value.type, Callable) or value.type is NATIVE):
        return Val(value.type, value.value, value.code)
    if value.type in (INT, FLOAT) and not value.known and is_number(kind) and (value.type is INT or is_float(kind)):
        return Val(kind, code=f"{kind}({value.code})")
    if kind is STRUCT and isinstance(value.value, dict):
        return value
    if is_dsd(kind) and is_dsd(value.type):
        return value
    if (
        isinstance(kind, CslArray)
        and isinstance(value.type, CslArray)
        and kind.sizes == value.type.sizes
        and value.known
    ):
        if is_number(kind.element) and is_number(value.type.element):
            return Val(kind, np.asarray(value.value).astype(dtype(kind.element)))
        return Val(kind, value.value)
    raise scope.wrong(line, f"{value.type} where {kind} is asked for: @as or @bitcast say what is meant")


def enum_member(kind: Enum, name: str, scope: Scope, line: int) -> Val:
    members = dict(kind.members)
    if name not in members:
        raise unknown(scope.at(line), "member", name, members)
    return Val(kind, members[name])
