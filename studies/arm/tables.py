"""The paper's tables row by row: published, and what was counted on emulated runs by shape."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshrt.studies.arm import counts
from meshrt.studies.arm.peak import corrected
from meshrt.studies.arm.published import (
    ATTENTION,
    BANDWIDTH,
    BLOCKS,
    FMLA,
    GAINS,
    LINEAR,
    OTHER,
    PRODUCTS,
    SMMLA,
    SPEED,
    TOKENS,
    G,
)
from meshrt.studies.arm.runs import ROW, model, number, product
from meshrt.studies.rows import Emulate
from meshrt.studies.sweep import RunJob


@dataclass(frozen=True)
class CountRow:
    """One number: as printed, and as counted, in units of 2^30 (`counted`) and of 10^9, with the whole count if any.

    `formula`: what the paper's own formula gives, where that is not what ran.
    """

    table: str
    what: str
    published: float | None
    counted: float
    decimal: float | None = None
    whole: int | None = None
    note: str = ""
    formula: int | None = None


def _of(
    table: str, quantity: str, published: float | None, count: int, note: str = "", formula: int | None = None
) -> CountRow:
    return CountRow(table, quantity, published, count / G, count / 1e9, count, note, formula)


def linear(emulate: Emulate) -> list[CountRow]:
    """V.B, linear layers: every product of the model was run, and the runs were added up."""
    rows = []
    for phase, tokens in (("prefill", TOKENS), ("decode", 1)):
        products = counts.linear(emulate, tokens, tokens, ROW)
        flop, nbytes = LINEAR[phase]
        rows.append(_of("linear", f"FLOP, {phase}", flop, products.operations))
        note = "packed weights with 16 bits a channel, 16-bit inputs and outputs"
        rows.append(_of("linear", f"bytes, {phase}", nbytes, products.nbytes, note))
        intensity = products.operations / products.nbytes
        rows.append(
            CountRow("linear", f"operations a byte, {phase}", {"prefill": 914.44, "decode": 3.83}[phase], intensity)
        )
    last = counts.linear(emulate, TOKENS, 1, ROW)
    rows.append(_of("linear", "FLOP, prefill", LINEAR["prefill"][0], last.operations, "head for the last token only"))
    return rows


def attention(emulate: Emulate) -> list[CountRow]:
    """V.B, attention: what a fused operator ran and moved, and the paper's terms beside it.

    It moves none of the paper's bytes twice, and its softmax is of every head. The terms are what the operators ran and
    moved one by one (unfused.py).
    """
    rows = []
    for phase in ("prefill", "decode"):
        products, terms = counts.attention_operations(emulate, phase), counts.softmax_operations(emulate, phase)
        besides, formula = counts.between_operations(emulate, phase), counts.attention_bytes(emulate, phase)
        flop, nbytes = ATTENTION[phase]
        moved = counts.attention_moved(emulate, phase, "dram_bytes.total")
        per_byte = {"prefill": 99.26, "decode": 0.52}[phase]
        ran = "rotary and softmax of every head, as they ran"
        rows += [
            _of("attention", f"FLOP, {phase}", flop, products + besides, ran, products + terms),
            _of("attention", f"FLOP of products, {phase}", flop, products, "by fmla of float16, as it ran"),
            _of("attention", f"FLOP besides products, {phase}", terms / G, besides, ran, terms),
            _of("attention", f"bytes of DRAM, {phase}", nbytes, moved, "fused, as it ran; cold caches", formula),
            _of(
                "attention", f"bytes of registers, {phase}", None, counts.attention_moved(emulate, phase, "l1_bytes"),
                "loaded and stored",
            ),
            CountRow("attention", f"operations a byte, {phase}", per_byte, (products + besides) / moved),
            CountRow("attention", f"by the formulas, {phase}", per_byte, (products + terms) / formula),
        ]  # fmt: skip
    return rows


def other(emulate: Emulate) -> list[CountRow]:
    """V.B, what lies between, which the paper estimates: residual sums, norms, SiLU and codes, as they ran."""
    rows = []
    for phase in ("prefill", "decode"):
        moved, estimate = counts.other_moved(emulate, phase, "dram_bytes.total"), counts.other_bytes(phase)
        rows += [
            _of(
                "other", f"bytes of DRAM, {phase}", OTHER[phase], moved,
                "as they ran; cold caches; formula: 400 l h of no named operators, the text says 200", estimate,
            ),
            _of(
                "other", f"bytes of registers, {phase}", None, counts.other_moved(emulate, phase, "l1_bytes"),
                "loaded and stored",
            ),
            _of("other", f"FLOP, {phase}", None, counts.other_operations(emulate, phase), "float32, as they ran"),
        ]  # fmt: skip
    return rows


def peak(emulate: Emulate) -> list[CountRow]:
    """V.D: tokens a second, as printed and with one error after the other mended; `note` has the published share."""
    rows = [
        CountRow("peak", "device, smmla a byte", 28.04, SMMLA / BANDWIDTH),
        CountRow("peak", "device, fmla a byte", 3.55, FMLA / BANDWIDTH),
    ]
    for name, models in corrected(emulate):
        for phase in ("prefill", "decode"):
            printed, measured = SPEED[phase]
            speed = models[phase].tokens_per_second
            note = f"{measured} are {measured / speed:.1%} of it"
            rows.append(
                CountRow(
                    "peak", f"{phase}, {name}", printed if name.startswith("as printed") else None, speed, note=note
                )
            )
    return rows


def tiles(emulate: Emulate) -> list[CountRow]:
    """IV.D and the listing: registers loaded and stored for c_attn in tiles of 8 x 8 and 10 x 8, as they ran."""
    rows = []
    for tile in ("8x8", "10x8"):
        job = product(TOKENS, *PRODUCTS["attn/c_attn"], tile=tile, **ROW)
        nbytes, smmla = (int(number(emulate, job, path, "linear")) for path in ("l1_bytes", "instructions.smmla"))
        rows.append(_of("tiles", f"{tile}: bytes that registers load and store", 0.0, nbytes))
        rows.append(_of("tiles", f"{tile}: smmla", 0.0, smmla, "e h l / 32"))
        rows.append(CountRow("tiles", f"{tile}: registers", None, number(emulate, job, "registers.max")))
    for unit in ("smmla", "sdot"):
        for bits in (4, 8):
            planned, best = counts.best_tile(emulate, unit, bits)
            note = f"of all that ran, {best} moves the fewest bytes to registers"
            rows.append(
                CountRow("tiles", f"planned for {unit}, {bits} bits: {planned}", None, planned.registers, note=note)
            )
    return rows


def vc(emulate: Emulate) -> list[CountRow]:
    """V.C: percent faster by each improvement, on n2x8; direction is what can be compared."""
    rows = []
    times = {way: _model(emulate, way) for way in ("concat", "fused")}
    for phase, tokens in (("prefill", TOKENS), ("decode", 1)):
        note = f"tokens a second on n2x8, {BLOCKS} blocks and the head"
        rows.append(CountRow("vc", f"speed, {phase}", SPEED[phase][1], tokens / times["fused"][phase], note=note))
    for at, phase in enumerate(("prefill", "decode")):
        gain = 100 * (times["concat"][phase] / times["fused"][phase] - 1)
        rows.append(
            CountRow(
                "vc",
                f"attention fused, {phase}",
                GAINS["attention fused"][at],
                gain,
                note=f"{BLOCKS} blocks and the head",
            )
        )
    ways: tuple[tuple[str, dict[str, Any]], ...] = (
        ("int4 to uint4", {"signed": True}), ("weights transposed before", {"layout": "pairs"}),
    )  # fmt: skip
    for name, before in ways:
        for at, (phase, tokens) in enumerate((("prefill", TOKENS), ("decode", 1))):
            old, new = (
                product(tokens, *PRODUCTS["attn/c_attn"], tile="8x8", **ROW, **options) for options in (before, {})
            )
            rows.append(
                CountRow(
                    "vc", f"{name}, {phase}", GAINS[name][at], _gain(emulate, old, new), note=_ran(emulate, old, new)
                )
            )
    return rows


def _gain(emulate: Emulate, old: RunJob, new: RunJob) -> float:
    seconds = [number(emulate, job, "critical_path.seconds", "linear") for job in (old, new)]
    return 100 * (seconds[0] / seconds[1] - 1)


def _ran(emulate: Emulate, old: RunJob, new: RunJob) -> str:
    ran = [number(emulate, job, "instructions.total", "linear") for job in (old, new)]
    return f"c_attn in 8 x 8; {ran[0] / ran[1]:.3f} times as many instructions before"


def _model(emulate: Emulate, way: str) -> dict[str, float]:
    """Seconds of prefill and of a token: all blocks as the second one, and the head once."""
    seconds = {}
    for phase in ("prefill", "decode"):
        first, second = (
            number(emulate, model(phase, way, layers), "critical_path.seconds", phase) for layers in (1, 2)
        )  # fmt: skip
        seconds[phase] = first + (BLOCKS - 1) * (second - first)
    return seconds


TABLES: dict[str, Callable[[Emulate], list[CountRow]]] = {
    "linear": linear, "attention": attention, "other": other, "peak": peak, "tiles": tiles, "vc": vc,
}  # fmt: skip
