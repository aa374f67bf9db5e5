"""What compares numbers, and what works on truth values and whole numbers of 64 bits, by instructions.

A truth value is a byte, 0 or 1, as in memory; so where there is one, a step is of sixteen numbers. Masks, of as many
bits as the numbers that they are of, are made narrower and wider by zips.
"""

from functools import lru_cache

import numpy as np

from meshrt.arm.isa import Instruction, ld1, of, st1
from meshrt.arm.kernel import MicroKernel

InstructionList = list[Instruction]
KINDS = {np.dtype(np.float32): "f", np.dtype(np.int64): "i", np.dtype(np.bool_): "b"}
LANES = {"f": 4, "i": 2, "b": 16}
LARGER = {"f": ("fcmgt", "fcmge", "fcmeq"), "i": ("cmgt_2d", "cmge_2d", "cmeq_2d")}
COMPARE = {  # which comparison, and whether of b with a
    "Greater": (0, False), "Less": (0, True), "GreaterOrEqual": (1, False), "LessOrEqual": (1, True),
    "Equal": (2, False),
}  # fmt: skip
TRUTHS: dict[str, InstructionList] = {  # of bytes
    "And": [of("and", "y", "a", "b")], "Or": [of("orr", "y", "a", "b")], "Not": [of("bic", "y", "one", "a")],
    "Equal": [of("cmeq_16b", "y", "a", "b"), of("and", "y", "y", "one")],
}  # fmt: skip
LARGEST = [of("cmgt_2d", "y", "a", "b")]
WHOLE: dict[str, InstructionList] = {  # of 64 bits
    "Add": [of("add_2d", "y", "a", "b")], "Sub": [of("sub_2d", "y", "a", "b")],
    "Neg": [of("sub_2d", "y", "zero", "a")],
    "Abs": [of("sub_2d", "b", "zero", "a"), *LARGEST, of("bsl", "y", "a", "b")],
    "Max": [*LARGEST, of("bsl", "y", "a", "b")], "Min": [*LARGEST, of("bsl", "y", "b", "a")],
    "Mul": [  # the lower halves' product, and of the crosswise ones what is not lost
        of("rev64_4s", "y", "b"), of("mul_4s", "y", "y", "a"), of("uaddlp_4s", "y", "y"), of("shl_2d", "y", "y", at=32),
        of("uzp1_4s", "a", "a", "a"), of("uzp1_4s", "b", "b", "b"), of("umull", "a", "a", "b"),
        of("add_2d", "y", "y", "a"),
    ],
}  # fmt: skip


def lanes_of(op: str, kinds: str) -> int:
    """How many numbers a step is of, for an operator on numbers of these kinds."""
    return LANES["b"] if "b" in kinds or op in COMPARE else LANES[kinds[0]]


@lru_cache
def kernel(op: str, kinds: str) -> MicroKernel | None:
    """Of operands of these kinds (f, i, b), if there is one."""
    name, kind = f"{op} {kinds}", kinds[-1]
    if op == "Where" and kinds[0] == "b" and kinds[1] == kind:
        return MicroKernel(name, (of("movi", "zero", at=0),), tuple(_where(kind)), ())
    if op in COMPARE and kind in LARGER:
        return MicroKernel(name, (of("movi", "one", at=1),), tuple(_compare(op, kind)), ())
    table = {"b": TRUTHS, "i": WHOLE}.get(kind, {})
    if op not in table or len(set(kinds)) > 1:
        return None
    lines = table[op]
    before = (of("movi", "one", at=1),) if kind == "b" else (of("movi", "zero", at=0),)
    used = {name for line in lines for name in line.of}
    loads = [ld1((operand,), operand) for operand in "ab"[: len(kinds)]]
    return MicroKernel(name, before if used & {"one", "zero"} else (), (*loads, *lines, st1(("y",), "y")), ())


def _compare(op: str, kind: str) -> InstructionList:
    """Masks of sixteen numbers, two of them at a time made one of half as many bits, until it is bytes."""
    at, swapped = COMPARE[op]
    bits = 64 if kind == "i" else 32
    names = [f"m{register}" for register in range(16 // LANES[kind])]
    lines: InstructionList = []
    for name in names:
        operands = ("b", "a") if swapped else ("a", "b")
        lines += [ld1(("a",), "a"), ld1(("b",), "b"), of(LARGER[kind][at], name, *operands)]
    while len(names) > 1:
        narrower = {64: "uzp1_4s", 32: "uzp1_8h", 16: "uzp1_16b"}[bits]
        lines += [of(narrower, low, low, high) for low, high in zip(names[::2], names[1::2], strict=True)]
        names, bits = names[::2], bits // 2
    return [*lines, of("and", "y", names[0], "one"), st1(("y",), "y")]


def _where(kind: str) -> InstructionList:
    """A mask of bytes, each twice, and so on, until they are as wide as numbers; ones where it is 0."""
    lines, names, bits = [ld1(("c",), "a"), of("cmeq_16b", "c", "c", "zero")], ["c"], 8
    while len(names) < 16 // LANES[kind]:
        wider = {8: "16b", 16: "8h", 32: "4s"}[bits]
        lines += [of(f"zip{half}_{wider}", f"{name}{half}", name, name) for name in names for half in (1, 2)]
        names, bits = [f"{name}{half}" for name in names for half in (1, 2)], bits * 2
    for name in names:
        lines += [ld1(("a",), "b"), ld1(("b",), "c"), of("bsl", name, "b", "a"), st1((name,), "y")]
    return lines
