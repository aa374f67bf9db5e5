"""What the paper's table of a model counts, counted on emulated runs by shape of its products and of its attention."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from meshrt.arm.kernel import OTHERS
from meshrt.programs.arm.tiles import UNITS, MicroTile, plan, registers_of
from meshrt.studies.arm import unfused
from meshrt.studies.arm.published import BLOCKS, HEAD, HIDDEN, POSITIONS, PRODUCTS, TOKENS
from meshrt.studies.arm.runs import ROW, fused, instructions, model, number, product, stretches
from meshrt.studies.rows import Emulate

REGISTERS = 32
# Operations of an instruction on four numbers of float32; conversions, masks and shifts are none.
LANES = {"fmla": 8, "fmls": 8} | dict.fromkeys(
    ("fabs", "fadd", "faddp", "fdiv", "fmax", "fmaxv", "fmin", "fmul", "fneg", "frintn", "fsqrt", "fsub"), 4
)


@dataclass(frozen=True)
class LinearCounts:
    """Operations of all linear layers, and bytes: packed weights, and numbers that go in and come out."""

    operations: int
    weight_bytes: int
    numbers: int

    @property
    def nbytes(self) -> int:
        """With inputs and outputs of 16 bits, as the paper has them."""
        return self.weight_bytes + 2 * self.numbers


def linear(emulate: Emulate, rows: int, head_rows: int, scheme: Mapping[str, Any]) -> LinearCounts:
    """All products of a pass over `rows` tokens, of which `head_rows` go through the head."""
    sums = [0, 0, 0]
    shapes = [(shape, rows, BLOCKS) for shape in PRODUCTS.values()]
    for (inner, columns), count, times in (*shapes, (HEAD[1], head_rows, 1)):
        job = product(count, inner, columns, **scheme)
        for at, path in enumerate(("useful_operations.total", "products.weight_bytes", "products.numbers")):
            sums[at] += times * int(number(emulate, job, path))
    return LinearCounts(*sums)


def best_tile(emulate: Emulate, unit: str, bits: int) -> tuple[MicroTile, MicroTile]:
    """The planner's tile, and of all that 32 registers have room for the one that moved the fewest bytes to them."""
    kind = UNITS[unit]
    moved = {}
    for columns in (8, 16, 32):
        for rows in range(kind.together, 2 * REGISTERS, kind.together):
            tile = MicroTile(rows, columns, registers_of(kind, rows, columns, bits))
            if tile.registers <= REGISTERS:
                job = product(480, HIDDEN, 512, unit=unit, bits=str(bits), tile=str(tile), **ROW)
                moved[tile] = number(emulate, job, "l1_bytes", "linear")
    return plan(kind, REGISTERS, bits), min(moved, key=lambda tile: moved[tile])


def attention_operations(emulate: Emulate, phase: str) -> int:
    """Of q k and p v in all blocks, by fmla of float16: 4 l l h, or 4 L h."""
    return BLOCKS * int(number(emulate, model(phase), "useful_operations.fmla_8h", phase))


def _float32(ran: Mapping[str, int], but: Collection[str] = ()) -> int:
    return sum(operations * int(ran.get(op, 0)) for op, operations in LANES.items() if op not in but)


def between_operations(emulate: Emulate, phase: str) -> int:
    """Of rotary embedding, biases and softmax in all blocks, for every head: float32 of the instructions that ran."""
    return BLOCKS * _float32(instructions(emulate, fused(phase), "attention"))


def other_operations(emulate: Emulate, phase: str) -> int:
    """Of residual sums, norms, SiLU and codes in all blocks: float32 of the instructions that ran."""
    return BLOCKS * sum(_float32(instructions(emulate, job, "stretch")) for job in stretches(phase))


def other_moved(emulate: Emulate, phase: str, level: str) -> int:
    """Bytes that these moved: `dram_bytes.total`, or `l1_bytes`."""
    return BLOCKS * sum(int(number(emulate, job, level, "stretch")) for job in stretches(phase))


def issued(emulate: Emulate, phase: str) -> int:
    """SIMD instructions of attention and of all else but products in all blocks, but for those of its products."""
    parts = [(fused(phase), "attention"), *((job, "stretch") for job in stretches(phase))]
    return BLOCKS * sum(
        int(count)
        for job, name in parts
        for op, count in instructions(emulate, job, name).items()
        if op not in (*OTHERS, "total", "fmla_8h")
    )


def attention_moved(emulate: Emulate, phase: str, level: str) -> int:
    """Bytes that the fused operator moved in all blocks: `dram_bytes.total` of cold caches, or `l1_bytes`."""
    return BLOCKS * int(number(emulate, fused(phase), level, "attention"))


def attention_bytes(emulate: Emulate, phase: str, heads: int = 1, kv_bytes: int = 4) -> int:
    """What attention moves operator by operator, in all blocks: the paper's 16 l h + 24 l l, or 8 L h + 24 L + 8 h.

    So it is of one head; keys and values of float16 are 4 L h.
    """
    return BLOCKS * unfused.dram_bytes(emulate, *_shape(phase), heads, kv_bytes)


def score_operations(emulate: Emulate) -> int:
    """Of softmax, for one score: what eight more of them run, without rounding to whole numbers, which computes none.

    What a row has once (its largest of four, sums of four, a division) is in `between_operations`, not in the paper's.
    """
    ran = [
        _float32(instructions(emulate, unfused.operator(2, 1, seen), "operator"), ("frintn",)) for seen in (8, 16)
    ]  # fmt: skip
    return (ran[1] - ran[0]) // 8


def softmax_operations(emulate: Emulate, phase: str, heads: int = 1) -> int:
    """The paper's 22 l l, or 22 L, in all blocks."""
    tokens, seen = _shape(phase)
    return BLOCKS * heads * tokens * seen * score_operations(emulate)


def _shape(phase: str) -> tuple[int, int]:
    """Queries, and positions that they see."""
    return (TOKENS, TOKENS) if phase == "prefill" else (1, POSITIONS)


def other_bytes(phase: str, factor: int = 400) -> int:
    """The paper's estimate: 400 l h by its integers, 200 l h by its text.

    It names no operator that these would be of, so there is nothing to run: what does run is in `other_moved`.
    """
    return factor * BLOCKS * HIDDEN * (TOKENS if phase == "prefill" else 1)
