"""SIMD instructions of Armv8 and 9: what each does with registers, on arrays of all micro-tiles and steps at once.

A register is uint8 [.., steps, 16]; the axes before `steps` are the grid of micro-tiles. An axis has length 1 where all
along it hold the same. Sums are carried from step to step, so of them the axis `steps` has length 1: an instruction
that adds to one does so for all steps, integers in any order (they are exact, and wrap as on hardware), floats in order
of the steps. Names are those of the assembler; `at` is an immediate, or the element of the last operand. What has no
sum to carry is in lanes.py.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from meshrt.arm.lanes import ALONE, F16, F32, ONTO, as_bytes
from meshrt.records import dataclass

Array = np.ndarray
HALVES = {"fmul_8h", "scvtf_8h"}  # arithmetic of float16
EXACT = 1 << 24  # float32 has all whole numbers below


@dataclass(frozen=True)
class Instruction:
    """One line of a micro-kernel. `to`, `of`: names of registers; `stream`: the pointer of a load or store."""

    op: str
    to: tuple[str, ...]
    of: tuple[str, ...] = ()
    at: int | None = None
    stream: str | None = None

    def __str__(self) -> str:
        if self.stream is not None:
            nbytes = 8 if self.op == "ld1r" else 16 * len(self.to or self.of)
            return f"{self.op} {{{', '.join(self.to or self.of)}}}, [{self.stream}], #{nbytes}"
        element = "" if self.at is None else f"[{self.at}]" if self.of else f", #{self.at}"
        element = f", #{self.at}" if self.op.startswith(("ushr", "shl")) else element
        return f"{self.op} {', '.join((*self.to, *self.of))}{element}"


@dataclass(frozen=True)
class Opcode:
    """What an instruction is: how it computes, whether it reads its target as well, operations, extension."""

    run: Callable[..., Array]
    onto: bool = False
    operations: int = 0
    needs: str | None = None


def contract(a: Array, b: Array) -> Array:
    """Sums over steps and k of a [*grid, steps, i, k] b [*grid, steps, j, k]: int64 [*grid, 1, i, j], exact.

    Along an axis of the grid either both have the same length, or one of them has 1.
    """
    axes = range(a.ndim - 3)
    both = [at for at in axes if a.shape[at] == b.shape[at]]
    of_a = [at for at in axes if a.shape[at] != b.shape[at] and b.shape[at] == 1]
    of_b = [at for at in axes if a.shape[at] != b.shape[at] and a.shape[at] == 1]
    steps, i, j, k = a.shape[-3], a.shape[-2], b.shape[-2], a.shape[-1]
    most = steps * k * int(np.abs(a, dtype=np.int32).max(initial=0)) * int(np.abs(b, dtype=np.int32).max(initial=0))
    exact = np.float32 if most < EXACT else np.float64
    last = a.ndim - 3
    left = a.transpose(*both, *of_a, *of_b, last + 1, last, last + 2).astype(exact)
    right = b.transpose(*both, *of_a, *of_b, last + 1, last, last + 2).astype(exact)
    batch = [a.shape[at] for at in both]
    product = np.matmul(
        left.reshape(prod(batch), -1, steps * k), right.reshape(prod(batch), -1, steps * k).transpose(0, 2, 1)
    )
    sizes_a, sizes_b = [a.shape[at] for at in of_a], [b.shape[at] for at in of_b]
    whole = product.reshape(*batch, *sizes_a, i, *sizes_b, j)
    n, m = len(both), len(both) + len(of_a)
    where = {at: number for number, at in enumerate(both)} | {at: n + number for number, at in enumerate(of_a)}
    where |= {at: m + 1 + number for number, at in enumerate(of_b)}
    ordered = whole.transpose(*(where[at] for at in axes), m, whole.ndim - 1)
    return np.expand_dims(ordered, len(axes)).astype(np.int64)


def _mmla(kind: Any) -> Callable[..., Array]:
    """[2, 8] of that dtype x [8, 2] of int8 -> [2, 2]: 32 products."""

    def run(total: Array, a: Array, b: Array, at: None) -> Array:
        pairs = contract(*(x.view(type_).reshape(*x.shape[:-1], 2, 8) for x, type_ in ((a, kind), (b, np.int8))))
        return as_bytes((total.view(np.int32) + pairs.reshape(*pairs.shape[:-2], 4)).astype(np.int32))

    return run


def _dot(kind: Any) -> Callable[..., Array]:
    """In each of 4 lanes 4 products of a, of that dtype, with element `at` of b, which is 4 int8."""

    def run(total: Array, a: Array, b: Array, at: int) -> Array:
        fours = [x.view(type_).reshape(*x.shape[:-1], 4, 4) for x, type_ in ((a, kind), (b, np.int8))]
        lanes = contract(fours[0], fours[1][..., at : at + 1, :])[..., 0]
        return as_bytes((total.view(np.int32) + lanes).astype(np.int32))

    return run


def _fmla(kind: Any, sign: int = 1) -> Callable[..., Array]:
    """Fused multiply-add, or subtract, with all lanes of b or with its element `at`, step after step.

    Products are exact in float64; a sum there, rounded once more, is the fused one but for ties of ties.
    """

    def run(total: Array, a: Array, b: Array, at: int | None) -> Array:
        wide, element = sign * a.view(kind).astype(np.float64), b.view(kind).astype(np.float64)
        element = element if at is None else element[..., at : at + 1]
        out = total.view(kind)
        for step in range(max(wide.shape[-2], element.shape[-2])):
            factor, other = (part[..., min(step, part.shape[-2] - 1), :] for part in (wide, element))
            out = ((factor * other)[..., None, :] + out).astype(kind)
        return as_bytes(out)

    return run


OPERATIONS = {
    "smmla": Opcode(_mmla(np.int8), True, 64, "i8mm"),
    "usmmla": Opcode(_mmla(np.uint8), True, 64, "i8mm"),
    "sdot": Opcode(_dot(np.int8), True, 32, "dotprod"),
    "usdot": Opcode(_dot(np.uint8), True, 32, "i8mm"),
    "fmla": Opcode(_fmla(F32), True, 8),
    "fmls": Opcode(_fmla(F32, -1), True, 8),
    "fmla_8h": Opcode(_fmla(F16), True, 16, "fp16"),
    **{name: Opcode(run, needs="fp16" if name in HALVES else None) for name, run in ALONE.items()},
    **{name: Opcode(run, True) for name, run in ONTO.items()},
}  # and ld1, ld1r and st1, which the kernel's streams serve (kernel.py)


def ld1(to: tuple[str, ...], stream: str) -> Instruction:
    return Instruction("ld1", to, stream=stream)


def ld1r(to: str, stream: str) -> Instruction:
    """8 bytes, to both halves of a register."""
    return Instruction("ld1r", (to,), stream=stream)


def st1(of: tuple[str, ...], stream: str) -> Instruction:
    return Instruction("st1", (), of, stream=stream)


def of(op: str, to: str, *operands: str, at: int | None = None) -> Instruction:
    return Instruction(op, (to,), operands, at)
