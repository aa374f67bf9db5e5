"""Keys and values as they are stored, and back, by instructions: float32, float16, int8 or e4m3.

16 numbers of a token of a head a step. int8 has a float16 scale for each token of a head; e4m3 is float16 at 2^-8 of
its size, whose exponents are then those of e4m3, with three bits of its mantissa, to nearest with halves to even; what
is too large is the largest, 448.
"""

from math import ceil
from typing import Any, Literal

import ml_dtypes
import numpy as np

from meshrt.arm.core import Team
from meshrt.arm.isa import Instruction, ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.programs.arm.simd.eightbits import FIRST, LOWEST, MOST, codes_of, largest, scale_of
from meshrt.programs.arm.simd.vectors import F16, F32, laid, same, sweep, taken, units_of

Array = np.ndarray
StoredKind = Literal["float32", "float16", "int8", "e4m3"]
KINDS: dict[str, np.dtype[Any]] = {
    "float32": F32, "float16": F16, "int8": np.dtype(np.int8), "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
}  # fmt: skip
SIXTEEN = ("x0", "x1", "x2", "x3")
TINY = float(np.finfo(np.float16).smallest_subnormal)
# Of e4m3: 2^-8 in float16, then masks and sums of whole numbers of 16 bits.
SMALL = np.concatenate([same(2**-8, kind=F16), same(0x7FFF, 1, 63, 0x7E, 0x80, kind=np.uint16)], axis=1)
LARGE = np.concatenate([same(2**8, kind=F16), same(0x3F80, 0x8000, kind=np.uint16)], axis=1)


def _narrow() -> list[Instruction]:
    """16 of float32 as float16, in x0 and x2."""
    lines = [ld1(SIXTEEN, "x")]
    for low, high in (("x0", "x1"), ("x2", "x3")):
        lines += [of("fcvtn", low, low), of("fcvtn2", low, high)]
    return lines


def _eight(x: str, y: str, t: str) -> list[Instruction]:
    """Eight float16 in x as e4m3 in the lower bytes of 16 bits."""
    return [
        of("fmul_8h", x, x, "small"), of("and", y, x, "size"), of("ushr_8h", t, y, at=7), of("and", t, t, "odd"),
        of("add_8h", y, y, t), of("add_8h", y, y, "half"), of("ushr_8h", y, y, at=7), of("umin_8h", y, y, "most"),
        of("ushr_8h", x, x, at=8), of("and", x, x, "sign"), of("orr", x, x, y),
    ]  # fmt: skip


def _back(x: str, y: str) -> list[Instruction]:
    """Eight of e4m3 in the lower bytes of 16 bits, as float16."""
    return [
        of("shl_8h", y, x, at=8), of("and", y, y, "sign"), of("shl_8h", x, x, at=7), of("and", x, x, "size"),
        of("orr", x, x, y), of("fmul_8h", x, x, "large"),
    ]  # fmt: skip


SCALE = MicroKernel("kv scale", FIRST, tuple(largest()), (*scale_of(), of("fcvtn", "z", "z"), st1(("z",), "scale")))
STORE = {
    "float32": MicroKernel("kv float32", (), (ld1(SIXTEEN, "x"), st1(SIXTEEN, "y")), ()),
    "float16": MicroKernel("kv float16", (), (*_narrow(), st1(("x0", "x2"), "y")), ()),
    "int8": MicroKernel(
        "kv int8",
        (of("movi", "lowest", at=LOWEST), ld1(("tiny",), "constants"), ld1(("s",), "scale"), of("fcvtl", "s", "s"),
         of("fmax", "s", "s", "tiny"), of("dup_4s", "s", "s", at=0)),
        (*codes_of("s"), st1(("x0",), "y")), (),
    ),
    "e4m3": MicroKernel(
        "kv e4m3", (ld1(("small", "size", "odd", "half", "most", "sign"), "constants"),),
        (*_narrow(), *_eight("x0", "x1", "x3"), *_eight("x2", "x1", "x3"), of("uzp1_16b", "x0", "x0", "x2"),
         st1(("x0",), "y")), (),
    ),
}  # fmt: skip
WIDEN = {
    "int8": MicroKernel(
        "kv of int8", (ld1(("s",), "scale"), of("dup_8h", "s", "s", at=0)),
        (ld1(("c",), "x"), of("sxtl", "a", "c"), of("sxtl2", "b", "c"), of("scvtf_8h", "a", "a"),
         of("scvtf_8h", "b", "b"), of("fmul_8h", "a", "a", "s"), of("fmul_8h", "b", "b", "s"), st1(("a", "b"), "y")),
        (),
    ),
    "e4m3": MicroKernel(
        "kv of e4m3", (ld1(("large", "size", "sign"), "constants"),),
        (ld1(("c",), "x"), of("uxtl", "a", "c"), of("uxtl2", "b", "c"), *_back("a", "t"), *_back("b", "t"),
         st1(("a", "b"), "y")), (),
    ),
}  # fmt: skip
CONSTANTS = {"int8": same(TINY), "e4m3": SMALL}
COPY = MicroKernel("copy", (), (ld1(("x",), "x"), st1(("x",), "y")), ())


def store(team: Team, kind: StoredKind, shape: tuple[int, int], x: Array | None) -> tuple[Array | None, Array | None]:
    """float32 [heads, T, D], of shape (T, D), as it is stored, and, of int8, its float16 scales [heads, T]."""
    grid, steps = (len(units_of(team)), shape[0]), ceil(shape[1] / 16)
    inputs, scale = {"x": laid(x, 16)}, None
    if kind in CONSTANTS:
        inputs["constants"] = CONSTANTS[kind]
    if kind == "int8":
        results = sweep(team, SCALE, grid, steps, {"x": inputs["x"], "constants": same(MOST)}, {}, {"scale": 16})
        scale = None if results is None else results["scale"]
        inputs["scale"] = scale
    stored = sweep(team, STORE[kind], grid, steps, inputs, {"y": 16 * KINDS[kind].itemsize})
    if stored is None:
        return None, None
    return taken(stored["y"], KINDS[kind], shape[1]), None if scale is None else scale.view(F16)[..., 0, 0]


def restored(
    team: Team, kind: StoredKind, shape: tuple[int, int], x: Array | None, scale: Array | None, times: int
) -> Array | None:
    """What products take, [heads, T, D] of it as it is stored: float32, or float16 of narrower ones; so many times."""
    if kind not in WIDEN:
        return x
    inputs = {"x": laid(x, 16)}
    if kind == "int8":
        inputs["scale"] = None if scale is None else np.repeat(scale[..., None, None], 8, axis=-1).view(np.uint8)
    else:
        inputs["constants"] = LARGE
    stored = sweep(
        team, WIDEN[kind], (len(units_of(team)), shape[0]), ceil(shape[1] / 16), inputs, {"y": 32}, times=times
    )
    return None if stored is None else taken(stored["y"], F16, shape[1])
