"""Table 7 and Figure 9 by an A100's roofline: bytes at peak bandwidth or operations at peak rate, the longer one.

No kernel is emulated here: launches, dequantization and what a thread block waits for are not in these times. So the
ratio of two kernels is a bound, and so is a time.
"""

from dataclasses import dataclass
from math import ceil

from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.studies.milo.published import BATCHES, FIGURE9, TABLE7, TABLE9
from meshrt.studies.milo.sizes import GIB, shapes_of
from meshrt.studies.rows import PaperRow

# A100 PCIe 40 GB (NVIDIA A100 datasheet): HBM2 at 1,555 GB/s, 312 TFLOPS in FP16 without sparsity.
BYTES_PER_SECOND, FLOPS, MEMORY_GIB = 1555e9, 312e12, 40

BOUND = "roofline: bytes and operations alone; a bound"


@dataclass(frozen=True)
class Format:
    """Bits of a weight, with its share of scale and zero; None: no kernel multiplies a larger batch."""

    name: str
    bits: float
    most: int | None = None


MILO = {"symmetric": Format("MiLo symmetric", 3 + 16 / 64), "asymmetric": Format("MiLo asymmetric", 3 + 32 / 64)}
MARLIN_GROUPS = Format("MARLIN, groups of 128", 4 + 16 / 128)
END_TO_END = {
    "GPTQ3bit": Format("GPTQ3bit, per channel", 3, most=1),
    "MARLIN": Format("MARLIN, per channel", 4),
    "MiLo": MILO["asymmetric"],
}


def product_seconds(form: Format, m: int, k: int, n: int) -> float:
    """x [m, k] times w [k, n]: codes and x read, the result written, in float16."""
    nbytes = k * n * form.bits / 8 + 2 * m * (k + n)
    return max(nbytes / BYTES_PER_SECOND, 2 * m * k * n / FLOPS)


def compute_bound_from(form: Format) -> int:
    """The batch from which on the operations on a large matrix take longer than its bytes."""
    return ceil(form.bits / 16 * FLOPS / BYTES_PER_SECOND)


def figure9(batch: int = 16) -> list[PaperRow]:
    """How many times as fast as MARLIN's in groups of 128, over w1 and w2 (w3 is like w1)."""
    rows = []
    for model, shapes in TABLE9.items():
        own = (shapes[0], *shapes) if model != "Falcon-180B" else shapes
        marlin = sum(product_seconds(MARLIN_GROUPS, batch, k, n) for k, n in own)
        for kind, form in MILO.items():
            ratio = marlin / sum(product_seconds(form, batch, k, n) for k, n in own)
            published = FIGURE9[model] if kind == "symmetric" else None
            rows.append(PaperRow("figure9", model, form.name, f"over MARLIN, batch {batch}", "x", published, ratio,
                            note=BOUND))  # fmt: skip
    return rows


def table7() -> list[PaperRow]:
    """Seconds of one decoding step of Mixtral, and how many times as fast as MARLIN."""
    rows = []
    for system, published in TABLE7.items():
        for at, batch in enumerate(BATCHES):
            value, note = None, f"{shapes_bytes():.2f} GiB in float16, of {MEMORY_GIB}: out of memory"
            if system in END_TO_END:
                form = END_TO_END[system]
                note = "a kernel for one token alone"
                if form.most is None or batch <= form.most:
                    value, note = step_seconds(form, batch), BOUND
            rows.append(PaperRow("7", "Mixtral-8x7B", system, f"batch {batch}", "s", published[at], value, note=note))
    for at, batch in enumerate(BATCHES):
        ours, theirs = TABLE7["MiLo"][at], TABLE7["MARLIN"][at]
        assert ours is not None and theirs is not None
        bound = step_seconds(END_TO_END["MARLIN"], batch) / step_seconds(END_TO_END["MiLo"], batch)
        rows.append(PaperRow("7", "Mixtral-8x7B", "MiLo", f"over MARLIN, batch {batch}", "x", theirs / ours, bound,
                        note=BOUND))  # fmt: skip
    return rows


def step_seconds(form: Format, batch: int) -> float:
    """One token of each of `batch` sequences through all layers and the head: attention, the experts that are hit if
    each is as likely as any other, and in float16 the head; the cache of keys and values is not counted."""
    config = read_config(find_model("mixtral-8x7b"))
    assert config.moe is not None
    experts, top = config.moe.experts, config.moe.top
    weights = dict.fromkeys(("attention", "expert"), 0)
    for matrix in shapes_of("mixtral-8x7b").matrices:
        weights[matrix.kind] += matrix.rows * matrix.columns
    hit = experts * (1 - (1 - top / experts) ** batch)
    head = config.vocab_size * config.hidden_size
    nbytes = (weights["attention"] + weights["expert"] * hit / experts) * form.bits / 8 + 2 * head
    operations = 2 * batch * (weights["attention"] + weights["expert"] * top / experts + head)
    return max(nbytes / BYTES_PER_SECOND, operations / FLOPS)


def shapes_bytes() -> float:
    """GiB of Mixtral in float16."""
    shapes = shapes_of("mixtral-8x7b")
    return (shapes.weights + shapes.others) * shapes.item_bytes / GIB
