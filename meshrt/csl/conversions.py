"""Values as other types, and as Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt.csl.arithmetic import fits, typed
from meshrt.csl.errors import unknown
from meshrt.csl.scope import Scope
from meshrt.csl.types import (
    BOOL,
    FLOAT,
    INT,
    NATIVE,
    STRUCT,
    TYPES,
    VOID,
    Array,
    Callable,
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
from meshrt.csl.values import FunctionRef, Val


def code(one: Val, scope: Scope) -> str:
    """The Python of a value."""
    if one.code is not None:
        return one.code
    if one.type is BOOL or one.type is VOID:
        return repr(None if one.type is VOID else bool(one.value))
    if is_word(one.type):
        return repr(int(one.value))
    if isinstance(one.value, FunctionRef):
        return f"FunctionOf(c, {scope.image.constant(one.value)})"
    return str(scope.image.constant(one.value))


def coerce(one: Val, kind: Any, scope: Scope, line: int) -> Val:
    """A value as a type that holds all that it may be. CslError."""
    if one.type == kind or kind is TYPES["anytype"]:
        return one
    if one.known and is_number(kind) and is_number(one.type) and not (is_float(one.type) and is_int(kind)):
        return Val(kind, typed(one.value, kind, scope.at(line)))
    if one.type is INT and isinstance(kind, Simple) and is_word(kind) and kind is not BOOL:
        return Val(kind, int(one.value))
    if isinstance(kind, Enum) and one.type is TYPES["member"]:
        return enum_member(kind, one.value, scope, line)
    if is_number(one.type) and is_number(kind) and fits(one.type, kind):
        return Val(kind, code=f"convert({one.code}, {kind.name})")
    if is_pointer(one.type) and is_pointer(kind) and fits(one.type, kind):
        return Val(kind, one.value, one.code)
    if isinstance(kind, Callable) and (isinstance(one.type, Callable) or one.type is NATIVE):
        return Val(one.type, one.value, one.code)
    if one.type in (INT, FLOAT) and not one.known and is_number(kind) and (one.type is INT or is_float(kind)):
        return Val(kind, code=f"{kind}({one.code})")
    if kind is STRUCT and isinstance(one.value, dict):
        return one
    if is_dsd(kind) and is_dsd(one.type):
        return one
    if isinstance(kind, Array) and isinstance(one.type, Array) and kind.sizes == one.type.sizes and one.known:
        if is_number(kind.element) and is_number(one.type.element):
            return Val(kind, np.asarray(one.value).astype(dtype(kind.element)))
        return Val(kind, one.value)
    raise scope.wrong(line, f"{one.type} where {kind} is asked for: @as or @bitcast say what is meant")


def enum_member(kind: Enum, name: str, scope: Scope, line: int) -> Val:
    members = dict(kind.members)
    if name not in members:
        raise unknown(scope.at(line), "member", name, members)
    return Val(kind, members[name])
