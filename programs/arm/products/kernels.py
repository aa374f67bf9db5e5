"""Micro-kernels of W4A8 products: int8 inputs times 4 or 8-bit weights into int32, and the sums as float32.

The loop is the paper's listing (section IV.E) for any tile: load weights and inputs, unpack, multiply. A register that
a loop does not carry is used again afterwards, where sums become numbers, for each group of weights:

    y += sum * scale + total of the row's inputs * offset, and in the end y *= scale of the row

in float32 and in that order, as models/integer.py has it. Of the first group y is stored and not added to. Where inputs
have a scale for each group, what is added is multiplied by it instead.
"""

from functools import lru_cache
from itertools import count
from math import ceil
from typing import Literal

from meshrt.arm.isa import Instruction, ld1, of, st1
from meshrt.arm.kernel import MicroKernel
from meshrt.programs.arm.layout import STEP
from meshrt.programs.arm.products.planes import unpacking
from meshrt.programs.arm.tiles import Unit
from meshrt.records import dataclass

ZERO = 8  # of signed four bits: what the loop takes off
Shift = Literal["offset", "zero", "half", "none"]


@dataclass(frozen=True)
class KernelForm:
    """What a kernel is told of weights and inputs.

    `shift`: where a group's offset comes from: it is stored; -zero * scale with a zero that is stored, or with half of
    the codes' number; or there is none, as the loop unpacks to -8..7, by a subtraction. `blocks`: inputs have a scale
    for each group.
    """

    bits: int = 4
    layout: str = "planes"
    shift: Shift = "zero"
    blocks: bool = False

    @property
    def signed(self) -> bool:
        return self.shift == "none"


PLAIN = KernelForm()


@lru_cache(1024)
def integer_kernel(
    unit: Unit, rows: int, columns: int, form: KernelForm = PLAIN, first: bool = True, last: bool = True
) -> MicroKernel:  # fmt: skip
    """For a tile of so many rows and columns, of the `first` group of weights, the `last`, or one between."""
    bits, layout, signed = form.bits, form.layout, form.signed
    ra, quarters = ceil(rows / unit.input_rows), columns // 4
    sums = [[f"s{i}_{j}" for j in range(columns // unit.sum_columns)] for i in range(ceil(rows / unit.sum_rows))]
    names = map("t{}".format, count())

    def fresh(count: int) -> list[str]:
        return [next(names) for _ in range(count)]

    x, w = fresh(ra), fresh(columns // unit.weight_columns)
    chunks = columns * STEP // 16  # registers of weights in a step
    packed = fresh(chunks // 2) if bits == 4 else []
    mask = fresh(1) if bits == 4 else []
    spare = fresh(1) if bits == 4 and layout == "pairs" else []
    eight = fresh(1) if bits == 4 and signed else []
    narrow = None if bits in (4, 8) else unpacking(bits, chunks, names)
    before = [of("movi", name, at=15) for name in mask] + [of("movi", name, at=ZERO) for name in eight]
    before += narrow.before() if narrow else []
    before += [of("movi", name, at=0) for line in sums for name in line]
    body: list[Instruction] = [ld1(tuple(packed), "w")] if packed else []
    body += narrow.load() if narrow else []
    width = columns // unit.weight_columns  # registers of weights that are multiplied together
    for begin in range(0, chunks, width):
        body.append(ld1(tuple(x), "x"))
        if bits == 8:
            body.append(ld1(tuple(w), "w"))
        for chunk in range(begin, begin + width, 2) if bits == 4 else ():
            body += _unpack(packed[chunk // 2], w[chunk - begin], w[chunk - begin + 1 :], mask[0], spare, eight)
        if narrow:
            for chunk in range(begin, begin + width):
                body += narrow.unpack(chunk, w[chunk - begin])
        body += _products(unit, sums, x, w, rows, bits == 8)
    pool = [*x, *w, *packed, *(narrow.free if narrow else ()), *spare, *eight, *(f"u{number}" for number in range(64))]
    after = _after(unit, sums, pool, rows, quarters, form, first, last)
    return MicroKernel(f"{unit.name} {rows}x{columns} w{bits}", tuple(before), tuple(body), tuple(after))


def _unpack(packed: str, low: str, rest: list[str], mask: str, spare: list[str], eight: list[str]) -> list[Instruction]:
    """A register of 32 codes to two of 16."""
    high = rest[0]
    if spare:
        lines = [of("and", spare[0], packed, mask), of("ushr", high, packed, at=4)]
        lines += [of("zip1_16b", low, spare[0], high), of("zip2_16b", high, spare[0], high)]
    else:
        lines = [of("ushr", low, packed, at=4), of("and", high, packed, mask)]
    return lines + [of("sub", name, name, eight[0]) for name in (low, high) if eight]


def _products(
    unit: Unit, sums: list[list[str]], x: list[str], w: list[str], rows: int, eight: bool
) -> list[Instruction]:  # fmt: skip
    """Codes of eight bits are unsigned, and come first: so of usmmla the 2 x 2 sums are transposed."""
    if unit.name == "smmla":
        pairs = [(name, x[i], w[j]) for i, line in enumerate(sums) for j, name in enumerate(line)]
        return [of("usmmla", name, b, a) if eight else of("smmla", name, a, b) for name, a, b in pairs]
    return [
        of("usdot" if eight else "sdot", name, w[j], x[row // unit.input_rows], at=row % unit.input_rows)
        for row, line in enumerate(sums[:rows])
        for j, name in enumerate(line)
    ]


def _after(
    unit: Unit,
    sums: list[list[str]],
    pool: list[str],
    rows: int,
    quarters: int,
    form: KernelForm,
    first: bool,
    last: bool,
) -> list[Instruction]:
    """Sums to numbers, four rows after the other, in four columns each."""
    scale, offset = pool[:quarters], pool[quarters : 2 * quarters]
    row_scale, total, spare = pool[2 * quarters : 2 * quarters + 3]
    lines = _halves(scale, "scale")
    if form.shift == "half":
        lines += [of("fmov", name, at=-(1 << form.bits - 1)) for name in offset]
    elif form.shift != "none":
        lines += _halves(offset, form.shift)
    if form.shift == "zero":
        lines += [of("fneg", name, name) for name in offset]
    if form.shift in ("zero", "half"):
        lines += [of("fmul", name, name, other) for name, other in zip(offset, scale, strict=True)]
    scaled = form.blocks or last
    for row in range(rows):
        if row % 4 == 0:
            lines += [ld1((row_scale,), "row_scale")] if scaled else []
            lines += [ld1((total,), "total")] if not form.signed else []
        for j in range(quarters):
            lines += _row_of(unit, sums, row, j, rows, spare, form.bits == 8)
            name = _register_of(unit, sums, row, j)
            lines += [of("scvtf", name, name), of("fmul", name, name, scale[j])]
            if not form.signed:
                lines += [of("fmul", spare, offset[j], total, at=row % 4), of("fadd", name, name, spare)]
            by_row = [of("fmul", name, name, row_scale, at=row % 4)]
            lines += by_row if form.blocks else []
            lines += [] if first else [ld1((spare,), "y"), of("fadd", name, spare, name)]
            lines += by_row if last and not form.blocks else []
            lines.append(st1((name,), "y"))
    return lines


def _halves(wide: list[str], stream: str) -> list[Instruction]:
    """Eight float16 of memory to two registers of four float32."""
    lines = []
    for low, *high in (wide[at : at + 2] for at in range(0, len(wide), 2)):
        lines.append(ld1((low,), stream))
        lines += [of("fcvtl2", name, low) for name in high]
        lines.append(of("fcvtl", low, low))
    return lines


def _register_of(unit: Unit, sums: list[list[str]], row: int, j: int) -> str:
    """Where four sums of a row are, once they are in one register."""
    return sums[row // 2][2 * j + row % 2] if unit.name == "smmla" else sums[row][j]


def _row_of(
    unit: Unit, sums: list[list[str]], row: int, j: int, rows: int, spare: str, transposed: bool
) -> list[Instruction]:
    """smmla has 2 x 2 sums in a register: two of them become two rows of four."""
    if unit.name != "smmla" or row % 2:
        return []
    left, right = sums[row // 2][2 * j], sums[row // 2][2 * j + 1]
    low, high = ("uzp1_4s", "uzp2_4s") if transposed else ("zip1_2d", "zip2_2d")
    if row + 1 == rows:
        return [of(low, left, left, right)]
    return [of(low, spare, left, right), of(high, right, left, right), of("mov", left, spare)]
