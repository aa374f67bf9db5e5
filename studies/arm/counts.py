"""What the paper's table of a model counts, counted on emulated runs by shape of its products and of its attention."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from meshrt.arm.kernel import OTHERS
from meshrt.arm.soc import Soc
from meshrt.emulate import run
from meshrt.programs.arm.attention import Heads, attention
from meshrt.programs.arm.between import rms_norm, silu_times
from meshrt.programs.arm.inputs import Source, quantized
from meshrt.programs.arm.kv import LayerCache
from meshrt.programs.arm.tiles import UNITS, Tile, plan, registers_of
from meshrt.report import Report
from meshrt.studies.arm import unfused
from meshrt.studies.arm.published import BLOCKS, HEAD, HEADS, HIDDEN, INNER, MODEL, POSITIONS, PRODUCTS, TOKENS

ROW: dict[str, Any] = {"group": 0, "symmetric": True}  # one number of 16 bits a channel, as the paper's bytes have
REGISTERS = 32
BLOCK: dict[str, Any] = {"group": 64}  # scale and zero for 64 weights
# Operations of an instruction on four numbers of float32; conversions, masks and shifts are none.
LANES = {"fmla": 8, "fmls": 8} | dict.fromkeys(
    ("fabs", "fadd", "faddp", "fdiv", "fmax", "fmaxv", "fmin", "fmul", "fneg", "frintn", "fsqrt", "fsub"), 4
)


@dataclass(frozen=True)
class Linear:
    """Operations of all linear layers, and bytes: packed weights, and numbers that go in and come out."""

    operations: int
    weight_bytes: int
    numbers: int

    @property
    def nbytes(self) -> int:
        """With inputs and outputs of 16 bits, as the paper has them."""
        return self.weight_bytes + 2 * self.numbers


@cache
def product(rows: int, inner: int, columns: int, **options: Any) -> Report:
    """A product of one shape, run by shape."""
    return run("linear", payload=False, m=rows, k=inner, n=columns, **options)


def linear(rows: int, head_rows: int, scheme: dict[str, Any], tell: Callable[[str], None]) -> Linear:
    """All products of a pass over `rows` tokens, of which `head_rows` go through the head."""
    sums = [0, 0, 0]
    shapes = [(name, shape, rows, BLOCKS) for name, shape in PRODUCTS.items()]
    for name, (inner, columns), count, times in (*shapes, (*HEAD, head_rows, 1)):
        tell(f"{name} of {count} rows")
        report = product(count, inner, columns, **scheme)
        for at, path in enumerate(("useful_operations.total", "products.weight_bytes", "products.numbers")):
            sums[at] += times * report[path]
    return Linear(*sums)


@cache
def best_tile(unit: str, bits: int) -> tuple[Tile, Tile]:
    """The planner's tile, and of all that 32 registers have room for the one that moved the fewest bytes to them."""
    kind = UNITS[unit]
    moved = {}
    for columns in (8, 16, 32):
        for rows in range(kind.together, 2 * REGISTERS, kind.together):
            tile = Tile(rows, columns, registers_of(kind, rows, columns, bits))
            if tile.registers <= REGISTERS:
                report = product(480, HIDDEN, 512, unit=unit, bits=str(bits), tile=str(tile), **ROW)
                moved[tile] = int(report.phase("linear", "l1_bytes"))
    return plan(kind, REGISTERS, bits), min(moved, key=lambda tile: moved[tile])


@cache
def model(phase: str, way: str = "fused", layers: int = 1) -> Report:
    """A pass over the prompt, or one token at position L - 1, in so many blocks; attention's products are float16."""
    common: dict[str, Any] = {"on": "arm", "payload": False, "layers": layers, "attention": way, **ROW}
    if phase == "prefill":
        return run(MODEL, prompt_tokens=TOKENS, max_new_tokens=1, **common)
    return run(MODEL, context=POSITIONS - 1, max_new_tokens=2, **common)


def attention_operations(phase: str) -> int:
    """Of q k and p v in all blocks, by fmla of float16: 4 l l h, or 4 L h."""
    return BLOCKS * int(model(phase).phase(phase, "useful_operations.fmla_8h"))


def one_attention(soc: Soc, *, tokens: int = TOKENS, held: int = 0) -> dict[str, Any]:
    """A program: a block's fused attention of so many tokens behind others, by shape, keys and values in float16."""
    heads = Heads(HEADS, HEADS, HIDDEN // HEADS)
    cache = LayerCache(soc, "keys, values", heads.kv, heads.size, "float16", 64, fused=True)
    if held:
        cache.fill(held)
    source, target = (soc.buffer(name, 4 * tokens * width) for name, width in (("qkv", 3 * HIDDEN), ("out", HIDDEN)))
    with soc.phase("attention"):
        attention(soc, None, tokens, heads, cache, None, None, True, source, target, 10)
    return {}


@cache
def fused(phase: str) -> Report:
    """What a block's fused attention ran and moved, of the prompt or of one token at position L - 1."""
    tokens, held = (TOKENS, 0) if phase == "prefill" else (1, POSITIONS - 1)
    return run(one_attention, on="arm", payload=False, tokens=tokens, held=held)


def one_stretch(soc: Soc, *, tokens: int = TOKENS, number: int = 0) -> dict[str, Any]:
    """A program: one of the stretches between the products of a block, by shape: what comes before codes, and these.

    0 and 2: a residual sum and RMSNorm; 1: behind attention; 3: SiLU.
    """
    sizes = {"x": HIDDEN, "more": HIDDEN, "mixed": HIDDEN, "gates": 2 * INNER, "codes": INNER + 8}
    x, more, mixed, gates, codes = (soc.buffer(name, 4 * tokens * width) for name, width in sizes.items())
    row = range(HIDDEN)
    norm = Source(lambda team: rms_norm(team, HIDDEN, None, (None,), None, 1e-6), ((x, row), (more, row)), ((x, row),))
    attended = Source(lambda team: (None, None), ((mixed, row),))
    silu = Source(lambda team: (None, silu_times(team, INNER, None, None)), ((gates, range(2 * INNER)),))
    before, inner = ((norm, HIDDEN), (attended, HIDDEN), (norm, HIDDEN), (silu, INNER))[number]
    with soc.phase("stretch"):
        quantized(soc, before, (tokens, inner), inner, 10, codes, False)
    return {}


@cache
def stretches(phase: str) -> tuple[Report, ...]:
    """What a block's stretches between products ran and moved, each with cold caches."""
    tokens = TOKENS if phase == "prefill" else 1
    return tuple(run(one_stretch, on="arm", payload=False, tokens=tokens, number=number) for number in range(4))


def _float32(ran: Mapping[str, int], but: Collection[str] = ()) -> int:
    return sum(operations * int(ran.get(op, 0)) for op, operations in LANES.items() if op not in but)


def between_operations(phase: str) -> int:
    """Of rotary embedding, biases and softmax in all blocks, for every head: float32 of the instructions that ran."""
    return BLOCKS * _float32(fused(phase).phase("attention", "instructions"))


def other_operations(phase: str) -> int:
    """Of residual sums, norms, SiLU and codes in all blocks: float32 of the instructions that ran."""
    return BLOCKS * sum(_float32(report.phase("stretch", "instructions")) for report in stretches(phase))


def other_moved(phase: str, level: str) -> int:
    """Bytes that these moved: `dram_bytes.total`, or `l1_bytes`."""
    return BLOCKS * sum(int(report.phase("stretch", level)) for report in stretches(phase))


def issued(phase: str) -> int:
    """SIMD instructions of attention and of all else but products in all blocks, but for those of its products."""
    parts = [(fused(phase), "attention"), *((report, "phase") for report in stretches(phase))]
    return BLOCKS * sum(
        int(count)
        for report, phase in parts
        for op, count in report.phase(phase, "instructions").items()
        if op not in (*OTHERS, "total", "fmla_8h")
    )


def attention_moved(phase: str, level: str) -> int:
    """Bytes that the fused operator moved in all blocks: `dram_bytes.total` of cold caches, or `l1_bytes`."""
    return BLOCKS * int(fused(phase).phase("attention", level))


def attention_bytes(phase: str, heads: int = 1, kv_bytes: int = 4) -> int:
    """What attention moves operator by operator, in all blocks: the paper's 16 l h + 24 l l, or 8 L h + 24 L + 8 h.

    So it is of one head; keys and values of float16 are 4 L h.
    """
    return BLOCKS * unfused.dram_bytes(*_shape(phase), heads, kv_bytes)


@cache
def score_operations() -> int:
    """Of softmax, for one score: what eight more of them run, without rounding to whole numbers, which computes none.

    What a row has once (its largest of four, sums of four, a division) is in `between_operations`, not in the paper's.
    """
    ran = [_float32(unfused.operator(2, 1, seen).phase("operator", "instructions"), ("frintn",)) for seen in (8, 16)]
    return (ran[1] - ran[0]) // 8


def softmax_operations(phase: str, heads: int = 1) -> int:
    """The paper's 22 l l, or 22 L, in all blocks."""
    tokens, seen = _shape(phase)
    return BLOCKS * heads * tokens * seen * score_operations()


def _shape(phase: str) -> tuple[int, int]:
    """Queries, and positions that they see."""
    return (TOKENS, TOKENS) if phase == "prefill" else (1, POSITIONS)


def other_bytes(phase: str, factor: int = 400) -> int:
    """The paper's estimate: 400 l h by its integers, 200 l h by its text.

    It names no operator that these would be of, so there is nothing to run: what does run is in `other_moved`.
    """
    return factor * BLOCKS * HIDDEN * (TOKENS if phase == "prefill" else 1)
