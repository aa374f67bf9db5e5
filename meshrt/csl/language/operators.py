"""Operators: of values that are known, else the Python that computes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshrt.csl.costs import COSTS
from meshrt.csl.language.arithmetic import COMPARES, OPERATORS, divide, fits, remainder, typed
from meshrt.csl.language.conversions import code, coerce
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import (
    BOOL,
    FLOAT,
    INT,
    STRING,
    TYPE,
    TYPES,
    Enum,
    is_float,
    is_int,
    is_number,
    is_pointer,
    is_word,
)
from meshrt.csl.language.values import Val

MOST_BITS = 128  # that a shift is by: twice the widest type, for numbers that have none yet


def unary(op: str, operand: Val, scope: Scope, line: int) -> Val:
    """! - ~ of a value. CslError."""
    if op == "!":
        if operand.type != BOOL:
            raise scope.wrong(line, f"! of a {operand.type}, which is no bool")
        return Val(BOOL, not operand.value) if operand.known else Val(BOOL, code=f"(not {operand.code})")
    if not (is_number(operand.type) if op == "-" else is_int(operand.type)):
        wanted = "number" if op == "-" else "whole number"
        raise scope.wrong(line, f"{op} of a {operand.type}, which is no {wanted}")
    if operand.known:
        with np.errstate(all="ignore"):
            return Val(operand.type, -operand.value if op == "-" else ~operand.value)
    scope.spend(COSTS.arithmetic)
    return Val(operand.type, code=f"({op}{operand.code})")


def peers(a: Val, b: Val, scope: Scope, line: int, op: str) -> tuple[Val, Val]:
    """Two operands as one type."""
    if a.type == b.type:
        return a, b
    if is_number(a.type) and is_number(b.type):
        for operand, other, flip in ((a, b, False), (b, a, True)):
            if operand.type is INT or (operand.type is FLOAT and is_float(other.type)):
                changed = coerce(operand, other.type if other.type is not INT else FLOAT, scope, line)
                return (other, changed) if flip else (changed, other)
        if is_float(a.type) == is_float(b.type):
            if fits(a.type, b.type) or (a.known and not b.known):
                return coerce(a, b.type, scope, line), b
            if fits(b.type, a.type) or b.known:
                return a, coerce(b, a.type, scope, line)
    if is_word(a.type) and (is_word(b.type) or b.type is INT):
        return a, b
    if isinstance(a.type, Enum) and b.type is TYPES["member"]:
        return a, coerce(b, a.type, scope, line)
    raise scope.wrong(line, f"{op} of {a.type} and {b.type}: @as says which is meant")


def binary(op: str, a: Val, b: Val, scope: Scope, line: int) -> Val:
    if op in ("<<", ">>"):
        if not (is_int(a.type) and is_int(b.type)):
            raise scope.wrong(line, f"{op} of {a.type} and {b.type}: whole numbers are shifted")
        if b.known and not 0 <= int(b.value) <= MOST_BITS:
            raise scope.wrong(line, f"{op} by {b.value}: a shift is by 0 to {MOST_BITS} bits")
        if a.known and b.known:
            b = Val(a.type, typed(b.value, a.type, scope.at(line)))
        elif a.type is INT:
            raise scope.wrong(line, f"{op} of a number without a type by one that is not known: @as says which type")
        else:
            b = (
                Val(a.type, typed(b.value, a.type, scope.at(line)))
                if b.known
                else Val(a.type, code=f"{a.type}({b.code})")
            )
    elif is_pointer(a.type) and is_int(b.type) and op in "+-":
        raise scope.wrong(line, "pointers have no + and -: index them")
    elif a.type is b.type and a.type in (TYPE, STRING) and op in ("==", "!="):
        return Val(BOOL, OPERATORS[op](a.value, b.value))
    else:
        a, b = peers(a, b, scope, line, op)
    kind = BOOL if op in COMPARES else a.type
    if op not in COMPARES and not is_number(a.type) and not (a.type == BOOL and op in "&|^"):
        raise scope.wrong(line, f"{op} of {a.type}, which is no number")
    if op in ("&", "|", "^", "<<", ">>") and is_float(a.type):
        raise scope.wrong(line, f"{op} of {a.type}: whole numbers have bits")
    if a.known and b.known:
        with np.errstate(all="ignore"):
            return Val(kind, _compute(op, a, b, scope, line))
    routine = op == "/" and is_float(a.type) and not (b.known and abs(math.frexp(b.value)[0]) == 0.5)
    scope.spend(COSTS.divide if routine else COSTS.arithmetic)  # by a power of two it is a product
    left, right = code(a, scope), code(b, scope)
    if op in "/%" and (op == "%" or is_int(a.type)):
        return Val(kind, code=f"{'divide' if op == '/' else 'remainder'}({left}, {right})")
    return Val(kind, code=f"({left} {op} {right})")


def _compute(op: str, a: Val, b: Val, scope: Scope, line: int) -> Any:
    x, y = a.value, b.value
    if op in "/%":
        if (is_int(a.type) or a.type is FLOAT) and y == 0:
            raise scope.wrong(line, f"{x} {op} 0")
        if op == "%":
            return remainder(x, y)
        return divide(x, y) if is_int(a.type) else x / y
    value = OPERATORS[op](x, y)
    return bool(value) if op in COMPARES or a.type == BOOL else value
