"""Micro-kernels of W4A8 products: int8 inputs times 4 or 8-bit weights into int32, and the sums as float32.

The loop is the paper's listing (section IV.E) for any tile: load weights and inputs, unpack, multiply. A register that
a loop does not carry is used again afterwards, where sums become numbers:

    y += (sum - zero * total of the row's inputs) * scale * scale of the row

in float32 and in that order, for each group of weights; of the first one y is stored and not added to.
"""

from functools import lru_cache
from math import ceil

from meshrt.arm.isa import Instruction, ld1, of, st1
from meshrt.arm.kernel import Kernel
from meshrt.programs.arm.packing import STEP
from meshrt.programs.arm.tiles import Unit

ZERO = 8  # of signed four bits: what the loop takes off


@lru_cache(256)
def integer_kernel(
    unit: Unit, rows: int, columns: int, bits: int, layout: str = "planes", signed: bool = False, first: bool = True
) -> Kernel:
    """For a tile of so many rows and columns. `signed`: codes are unpacked to -8..7, by a subtraction each.

    `first`: the sums of the first group; later ones are added to y. Without `signed`, streams `zero` and `total` have
    what corrects the sums.
    """
    ra, quarters = ceil(rows / unit.input_rows), columns // 4
    sums = [[f"s{i}_{j}" for j in range(columns // unit.sum_columns)] for i in range(ceil(rows / unit.sum_rows))]
    names = (f"t{number}" for number in range(64))

    def fresh(count: int) -> list[str]:
        return [next(names) for _ in range(count)]

    x, w = fresh(ra), fresh(columns // unit.weight_columns)
    chunks = columns * STEP // 16  # registers of weights in a step
    packed = fresh(chunks // 2) if bits == 4 else []
    mask = fresh(1) if bits == 4 else []
    spare = fresh(1) if bits == 4 and layout == "pairs" else []
    eight = fresh(1) if bits == 4 and signed else []
    before = [of("movi", name, at=15) for name in mask] + [of("movi", name, at=ZERO) for name in eight]
    before += [of("movi", name, at=0) for line in sums for name in line]
    body: list[Instruction] = [ld1(tuple(packed), "w")] if packed else []
    width = columns // unit.weight_columns  # registers of weights that are multiplied together
    for begin in range(0, chunks, width):
        body.append(ld1(tuple(x), "x"))
        if bits == 8:
            body.append(ld1(tuple(w), "w"))
        for chunk in range(begin, begin + width, 2) if bits == 4 else ():
            body += _unpack(packed[chunk // 2], w[chunk - begin], w[chunk - begin + 1 :], mask[0], spare, eight)
        body += _products(unit, sums, x, w, rows)
    pool = [*x, *w, *packed, *spare, *eight, *(f"u{number}" for number in range(64))]
    after = _after(unit, sums, pool, rows, quarters, not signed, first)
    return Kernel(f"{unit.name} {rows}x{columns} w{bits}", tuple(before), tuple(body), tuple(after))


def _unpack(packed: str, low: str, rest: list[str], mask: str, spare: list[str], eight: list[str]) -> list[Instruction]:
    """A register of 32 codes to two of 16."""
    high = rest[0]
    if spare:
        lines = [of("and", spare[0], packed, mask), of("ushr", high, packed, at=4)]
        lines += [of("zip1_16b", low, spare[0], high), of("zip2_16b", high, spare[0], high)]
    else:
        lines = [of("ushr", low, packed, at=4), of("and", high, packed, mask)]
    return lines + [of("sub", name, name, eight[0]) for name in (low, high) if eight]


def _products(unit: Unit, sums: list[list[str]], x: list[str], w: list[str], rows: int) -> list[Instruction]:
    if unit.name == "smmla":
        return [of("smmla", name, x[i], w[j]) for i, line in enumerate(sums) for j, name in enumerate(line)]
    return [
        of("sdot", name, w[j], x[row // unit.input_rows], at=row % unit.input_rows)
        for row, line in enumerate(sums[:rows])
        for j, name in enumerate(line)
    ]


def _after(
    unit: Unit, sums: list[list[str]], pool: list[str], rows: int, quarters: int, corrected: bool, first: bool
) -> list[Instruction]:
    """Sums to numbers, four rows after the other, in four columns each."""
    halves = ceil(quarters / 2)
    scale, zero, row_scale, total, spare = (
        pool[:quarters], pool[quarters : 2 * quarters], pool[2 * quarters], pool[2 * quarters + 1],
        pool[2 * quarters + 2],
    )  # fmt: skip
    lines: list[Instruction] = []
    for stream, wide in (("scale", scale), *((("zero", zero),) if corrected else ())):
        for half in range(halves):  # eight float16 to two registers of four float32
            pair = wide[2 * half : 2 * half + 2]
            lines.append(ld1((pair[0],), stream))
            lines += [of("fcvtl2", pair[1], pair[0])] if len(pair) == 2 else []
            lines.append(of("fcvtl", pair[0], pair[0]))
    for row in range(rows):
        if row % 4 == 0:
            lines.append(ld1((row_scale,), "row_scale"))
            lines += [ld1((total,), "total")] if corrected else []
        for j in range(quarters):
            lines += _row_of(unit, sums, row, j, rows, spare)
            name = _place(unit, sums, row, j)
            lines.append(of("scvtf", name, name))
            if corrected:
                lines += [of("fmul", spare, zero[j], total, at=row % 4), of("fsub", name, name, spare)]
            lines += [of("fmul", name, name, scale[j]), of("fmul", name, name, row_scale, at=row % 4)]
            if not first:
                lines += [ld1((spare,), "y"), of("fadd", name, spare, name)]
            lines.append(st1((name,), "y"))
    return lines


def _place(unit: Unit, sums: list[list[str]], row: int, j: int) -> str:
    """Where four sums of a row are, once they are in one register."""
    return sums[row // 2][2 * j + row % 2] if unit.name == "smmla" else sums[row][j]


def _row_of(unit: Unit, sums: list[list[str]], row: int, j: int, rows: int, spare: str) -> list[Instruction]:
    """smmla has 2 x 2 sums in a register: two of them become two rows of four."""
    if unit.name != "smmla" or row % 2:
        return []
    left, right = sums[row // 2][2 * j], sums[row // 2][2 * j + 1]
    if row + 1 == rows:
        return [of("zip1_2d", left, left, right)]
    return [
        of("zip1_2d", spare, left, right), of("zip2_2d", right, left, right), of("mov", left, spare),
    ]  # fmt: skip
