"""Operations on vectors: what each takes and computes, and what may be said of one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class VectorOperation:
    name: str
    inputs: int
    dtype: Any
    scalar: str | None  # the type of an operand that is one number
    compute: Any
    raw: bool = False  # bits, of any type of that width
    lanes: int = 1  # elements a cycle, of memory
    takes: Any = None  # of the inputs, where it is another

    @property
    def narrow(self) -> int:
        """Elements a cycle of a WSE-2 (SDK documentation, appendix, SIMD mode); a WSE-3's costs go by `lanes`."""
        return NARROW.get(self.name, 1)


@dataclass(frozen=True)
class Options:
    is_async: bool = False
    activate: int | None = None
    unblock: int | None = None
    thread: int | None = None
    save_address: bool = False


NARROW = {
    **dict.fromkeys(("add16", "and16", "or16", "sub16", "xor16", "mov16", "fabsh", "faddh", "fmach", "fmovh", "fmulh",
                     "fnegh", "fsubh"), 4),
    **dict.fromkeys(("fabss", "fadds", "fmovs", "fnegs", "fsubs", "mov32"), 2),
}  # fmt: skip


def _fused(a: Any, b: Any, c: Any) -> Any:
    """a + b * c, rounded once."""
    wide = np.float64 if np.asarray(a).dtype.itemsize == 4 else np.float32
    return np.asarray(a).astype(wide) + np.asarray(b).astype(wide) * np.asarray(c).astype(wide)


def _table() -> dict[str, VectorOperation]:
    table: dict[str, VectorOperation] = {}
    floats: dict[str, tuple[int, Any]] = {
        "fmov": (1, lambda a: a), "fneg": (1, np.negative), "fabs": (1, np.abs), "fadd": (2, np.add),
        "fsub": (2, np.subtract), "fmul": (2, np.multiply), "fmax": (2, np.maximum), "fmin": (2, np.minimum),
        "fmac": (3, _fused),
    }  # fmt: skip
    for name, (inputs, compute) in floats.items():
        table[name + "h"] = VectorOperation(name + "h", inputs, np.float16, "f16", compute, lanes=4)
        table[name + "s"] = VectorOperation(
            name + "s", inputs, np.float32, "f32", compute, lanes=2 if name == "fmov" else 1
        )
    table["fh2s"] = VectorOperation("fh2s", 1, np.float32, "f16", lambda a: a.astype(np.float32), takes=np.float16)
    table["fs2h"] = VectorOperation("fs2h", 1, np.float16, "f32", lambda a: a.astype(np.float16), takes=np.float32)
    table["mov16"] = VectorOperation("mov16", 1, np.uint16, "u16", lambda a: a, raw=True, lanes=4)
    table["mov32"] = VectorOperation("mov32", 1, np.uint32, "u32", lambda a: a, raw=True, lanes=2)
    ints: dict[str, Any] = {
        "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
        "sll": np.left_shift, "slr": np.right_shift,
    }  # fmt: skip
    for name, compute in ints.items():
        table[name + "16"] = VectorOperation(name + "16", 2, np.uint16, "u16", compute, raw=True, lanes=4)
    table["sar16"] = VectorOperation("sar16", 2, np.int16, "i16", np.right_shift, raw=True, lanes=4)
    for name in ("add", "sub", "and", "or", "xor"):
        table[name + "32"] = VectorOperation(name + "32", 2, np.uint32, "u32", ints[name], raw=True, lanes=2)
    return table


OPERATIONS = _table()
