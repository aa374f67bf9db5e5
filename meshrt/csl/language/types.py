"""The types of CSL: what a value takes in memory, and how NumPy holds it while it is computed with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np


@dataclass(frozen=True)
class Simple:
    """A type with a name. `nbytes` is 0 where a value cannot lie in memory."""

    name: str
    nbytes: int = 0
    dtype: Any = None  # NumPy's

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Pointer:
    to: Any
    many: bool

    def __str__(self) -> str:
        return f"{'[*]' if self.many else '*'}{self.to}"


@dataclass(frozen=True)
class CslArray:
    sizes: tuple[int, ...]
    element: Any

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.sizes))}]{self.element}"

    @property
    def count(self) -> int:
        return int(np.prod(self.sizes, dtype=np.int64))


@dataclass(frozen=True)
class Callable:
    parameters: tuple[Any, ...]
    result: Any

    def __str__(self) -> str:
        return f"fn({', '.join(map(str, self.parameters))}){self.result}"


@dataclass(frozen=True)
class Enum:
    members: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return "enum"


NUMBERS = {
    "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32,
    "i64": np.int64, "u64": np.uint64, "f16": np.float16, "f32": np.float32,
}  # fmt: skip
# Kept as one word of 16 bits, and counted with as whole numbers.
WORDS = (
    "bool", "color", "input_queue", "output_queue", "ut_id", "local_task_id", "data_task_id", "control_task_id",
    "direction",
)  # fmt: skip
TYPES: dict[str, Simple] = {name: Simple(name, max(2, np.dtype(of).itemsize), of) for name, of in NUMBERS.items()}
TYPES |= {name: Simple(name, 2, np.uint16) for name in WORDS}
DSDS = ("mem1d_dsd", "mem2d_dsd", "mem3d_dsd", "mem4d_dsd", "fabin_dsd", "fabout_dsd", "fifo")
DSRS = ("dsr_dest", "dsr_src0", "dsr_src1")
OTHERS = (
    "void", "comptime_int", "comptime_float", "comptime_string", "comptime_struct", "type", "module", "range", "member",
    "access", "native", "route", *DSDS, *DSRS, "anytype",
)  # fmt: skip
TYPES |= {name: Simple(name) for name in OTHERS}
VOID, INT, FLOAT, BOOL, STRING = (
    TYPES[name] for name in ("void", "comptime_int", "comptime_float", "bool", "comptime_string")
)  # fmt: skip
STRUCT, TYPE, MODULE, NATIVE, U16, I16 = (
    TYPES[name] for name in ("comptime_struct", "type", "module", "native", "u16", "i16")
)


def is_float(kind: Any) -> bool:
    return kind is FLOAT or (isinstance(kind, Simple) and kind.name[0] == "f" and kind.name[1:].isdigit())


def is_int(kind: Any) -> bool:
    return kind is INT or (isinstance(kind, Simple) and kind.name[0] in "iu" and kind.name[1:].isdigit())


def is_number(kind: Any) -> bool:
    return is_int(kind) or is_float(kind)


def is_word(kind: Any) -> bool:
    return isinstance(kind, Enum | Pointer) or (isinstance(kind, Simple) and kind.name in WORDS)


def is_pointer(kind: Any) -> TypeGuard[Pointer]:
    return isinstance(kind, Pointer)


def is_dsd(kind: Any) -> bool:
    return isinstance(kind, Simple) and kind.name in DSDS


def nbytes(kind: Any) -> int:
    """What a value takes in memory; 0 where it takes no place there."""
    if isinstance(kind, CslArray):
        return kind.count * nbytes(kind.element)
    if isinstance(kind, Pointer | Enum):
        return 2
    return kind.nbytes if isinstance(kind, Simple) else 0


def in_a_word(kind: Any) -> bool:
    """Is it a number of 8 bits, which lies in a word of 16 and is counted with as 8?"""
    return isinstance(kind, Simple) and kind.name in ("i8", "u8")


def dtype(kind: Any) -> Any:
    """How NumPy holds one in memory. Of a type that has `nbytes`."""
    if isinstance(kind, Pointer | Enum):
        return np.dtype(np.uint16)
    if in_a_word(kind):
        return np.dtype(np.int16 if kind.name == "i8" else np.uint16)
    return np.dtype(kind.dtype)
