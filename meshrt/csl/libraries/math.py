"""<math>: of one number. What a function takes in cycles is a guess but for the division (docs/csl.md)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meshrt.csl.language.conversions import code, coerce
from meshrt.csl.language.scope import Scope
from meshrt.csl.language.types import FLOAT, INT, NATIVE, TYPES, is_float
from meshrt.csl.language.values import Library, Native, Val


def _rounded(compute: Any) -> Any:
    """In double, then rounded to the type that it was given."""

    def of(*given: Any) -> Any:
        return type(given[0])(compute(*(np.float64(value) for value in given)))

    return of


FUNCTIONS: dict[str, tuple[int, Any, float]] = {  # parameters, function, cycles
    "sqrt": (1, _rounded(np.sqrt), 40.0),
    "invsqrt": (1, _rounded(lambda x: 1.0 / np.sqrt(x)), 60.0),
    "inv": (1, _rounded(lambda x: 1.0 / x), 60.0),
    "rsqrt": (1, _rounded(lambda x: 1.0 / np.sqrt(x)), 60.0),
    "exp": (1, _rounded(np.exp), 60.0),
    "log": (1, _rounded(np.log), 60.0),
    "log2": (1, _rounded(np.log2), 60.0),
    "log10": (1, _rounded(np.log10), 60.0),
    "sin": (1, _rounded(np.sin), 60.0),
    "cos": (1, _rounded(np.cos), 60.0),
    "tan": (1, _rounded(np.tan), 60.0),
    "tanh": (1, _rounded(np.tanh), 60.0),
    "sig": (1, _rounded(lambda x: 1.0 / (1.0 + np.exp(-x))), 60.0),
    "pow": (2, _rounded(np.power), 80.0),
    "floor": (1, _rounded(np.floor), 4.0),
    "ceil": (1, _rounded(np.ceil), 4.0),
    "abs": (1, abs, 1.0),
    "fabs": (1, abs, 1.0),
    "max": (2, max, 2.0),
    "min": (2, min, 2.0),
    "sign": (1, np.sign, 2.0),
}
NUMBERS = ("f16", "f32", "i8", "i16", "i32", "u16", "u32")


def _function(name: str, count: int, compute: Any, cycles: float, kind: Any) -> Val:
    def call(scope: Scope, arguments: list[Val], line: int) -> Val:
        if len(arguments) != count:
            raise scope.wrong(line, f"{name} takes {count} arguments, here are {len(arguments)}")
        typed = [argument.type for argument in arguments if argument.type not in (INT, FLOAT)]
        of = kind if kind is not None else typed[0] if typed else arguments[0].type
        given = [coerce(argument, of, scope, line) for argument in arguments]
        if all(value.known for value in given):
            with np.errstate(all="ignore"):
                return Val(of, compute(*(value.value for value in given)))
        scope.spend(cycles)
        python = f"math_{name}"
        scope.image.space[python] = compute
        return Val(of, code=f"{python}({', '.join(code(value, scope) for value in given)})")

    return Val(NATIVE, Native(name, call))


def library(program: Any, given: dict[str, Val], image: Any) -> Library:
    members: dict[str, Val] = {}
    for name, (count, compute, cycles) in FUNCTIONS.items():
        members[name] = _function(name, count, compute, cycles, None)
        for kind in NUMBERS:
            if is_float(TYPES[kind]) or name in ("abs", "max", "min", "sign"):
                members[f"{name}_{kind}"] = _function(f"{name}_{kind}", count, compute, cycles, TYPES[kind])
    constants = {"PI": math.pi, "E": math.e, "POSITIVE_INF": math.inf, "NEGATIVE_INF": -math.inf, "NAN": math.nan}
    for name, value in constants.items():
        for kind, of in (("f16", np.float16), ("f32", np.float32)):
            members[f"{name}_{kind}"] = Val(TYPES[kind], of(value))
        members[name] = Val(FLOAT, value)
    return Library("<math>", members)
