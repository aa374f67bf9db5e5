"""What the paper's table of a model counts, counted on emulated runs by shape of its products and of its attention."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from meshrt.emulate import run
from meshrt.report import Report
from meshrt.studies.arm.published import BLOCKS, HEAD, HIDDEN, MODEL, POSITIONS, PRODUCTS, TOKENS

ROW: dict[str, Any] = {"group": 0, "symmetric": True}  # one number of 16 bits a channel, as the paper's bytes have
BLOCK: dict[str, Any] = {"group": 64}  # scale and zero for 64 weights


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
def model(stage: str, way: str = "fused", layers: int = 1) -> Report:
    """A pass over the prompt, or one token at position L - 1, in so many blocks; attention's products are float16."""
    common: dict[str, Any] = {"on": "arm", "payload": False, "layers": layers, "attention": way, **ROW}
    if stage == "prefill":
        return run(MODEL, prompt_tokens=TOKENS, max_new_tokens=1, **common)
    return run(MODEL, context=POSITIONS - 1, max_new_tokens=2, **common)


def attention_operations(stage: str) -> int:
    """Of q k and p v in all blocks, by fmla of float16: 4 l l h, or 4 L h."""
    return BLOCKS * int(model(stage).phase(stage, "useful_operations.fmla_8h"))


def attention_bytes(stage: str, heads: int = 1, copies: int = 2) -> int:
    """The paper's own formula, which no fused operator moves: 16 l h + 24 l l, or 8 L h + 24 L + 8 h.

    `heads`: by which softmax's terms are multiplied; `copies`: how often keys and values are read in decode.
    """
    if stage == "prefill":
        return BLOCKS * (16 * TOKENS * HIDDEN + 24 * TOKENS * TOKENS * heads)
    return BLOCKS * (4 * copies * POSITIONS * HIDDEN + 24 * POSITIONS * heads + 8 * HIDDEN)


def softmax_operations(stage: str, heads: int = 1) -> int:
    """The paper's 22 l l, or 22 L, in all blocks."""
    return BLOCKS * 22 * POSITIONS * heads if stage == "decode" else BLOCKS * 22 * TOKENS * TOKENS * heads


def other_bytes(stage: str, factor: int = 400) -> int:
    """The paper's estimate: 400 l h by its integers, 200 l h by its text."""
    return factor * BLOCKS * HIDDEN * (TOKENS if stage == "prefill" else 1)
