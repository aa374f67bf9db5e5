"""The paper's tables row by row: published, and what was counted on emulated runs by shape."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from meshrt.report import Report
from meshrt.studies.arm import counts
from meshrt.studies.arm.peak import corrected
from meshrt.studies.arm.published import (
    ATTENTION,
    BANDWIDTH,
    BLOCKS,
    ERRORS,
    FMLA,
    GAINS,
    HIDDEN,
    LINEAR,
    OTHER,
    PRODUCTS,
    SMMLA,
    SPEED,
    TOKENS,
    G,
)
from meshrt.studies.grid import Cell, Grid, put

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Row:
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


def _of(table: str, what: str, published: float | None, count: int, note: str = "", formula: int | None = None) -> Row:
    return Row(table, what, published, count / G, count / 1e9, count, note, formula)


def linear(tell: Tell) -> list[Row]:
    """V.B, linear layers: every product of the model was run, and the runs were added up."""
    rows = []
    for phase, number in (("prefill", TOKENS), ("decode", 1)):
        found = counts.linear(number, number, counts.ROW, tell)
        flop, nbytes = LINEAR[phase]
        rows.append(_of("linear", f"FLOP, {phase}", flop, found.operations))
        note = "packed weights with 16 bits a channel, 16-bit inputs and outputs"
        rows.append(_of("linear", f"bytes, {phase}", nbytes, found.nbytes, note))
        intensity = found.operations / found.nbytes
        rows.append(Row("linear", f"operations a byte, {phase}", {"prefill": 914.44, "decode": 3.83}[phase], intensity))
    last = counts.linear(TOKENS, 1, counts.ROW, tell)
    rows.append(_of("linear", "FLOP, prefill", LINEAR["prefill"][0], last.operations, "head for the last token only"))
    return rows


def attention(tell: Tell) -> list[Row]:
    """V.B, attention: what a fused operator ran and moved, and the paper's terms beside it.

    It moves none of the paper's bytes twice, and its softmax is of every head. The terms are what the operators ran and
    moved one by one (unfused.py).
    """
    rows = []
    for phase in ("prefill", "decode"):
        tell(f"attention, {phase}")
        products, terms = counts.attention_operations(phase), counts.softmax_operations(phase)
        besides, formula = counts.between_operations(phase), counts.attention_bytes(phase)
        flop, nbytes = ATTENTION[phase]
        moved = counts.attention_moved(phase, "dram_bytes.total")
        per_byte = {"prefill": 99.26, "decode": 0.52}[phase]
        ran = "rotary and softmax of every head, as they ran"
        rows += [
            _of("attention", f"FLOP, {phase}", flop, products + besides, ran, products + terms),
            _of("attention", f"FLOP of products, {phase}", flop, products, "by fmla of float16, as it ran"),
            _of("attention", f"FLOP besides products, {phase}", terms / G, besides, ran, terms),
            _of("attention", f"bytes of DRAM, {phase}", nbytes, moved, "fused, as it ran; cold caches", formula),
            _of(
                "attention", f"bytes of registers, {phase}", None, counts.attention_moved(phase, "l1_bytes"),
                "loaded and stored",
            ),
            Row("attention", f"operations a byte, {phase}", per_byte, (products + besides) / moved),
            Row("attention", f"by the formulas, {phase}", per_byte, (products + terms) / formula),
        ]  # fmt: skip
    return rows


def other(tell: Tell) -> list[Row]:
    """V.B, what lies between, which the paper estimates: residual sums, norms, SiLU and codes, as they ran."""
    rows = []
    for phase in ("prefill", "decode"):
        tell(f"other operators, {phase}")
        moved, estimate = counts.other_moved(phase, "dram_bytes.total"), counts.other_bytes(phase)
        rows += [
            _of(
                "other", f"bytes of DRAM, {phase}", OTHER[phase], moved,
                "as they ran; cold caches; formula: 400 l h of no named operators, the text says 200", estimate,
            ),
            _of(
                "other", f"bytes of registers, {phase}", None, counts.other_moved(phase, "l1_bytes"),
                "loaded and stored",
            ),
            _of("other", f"FLOP, {phase}", None, counts.other_operations(phase), "float32, as they ran"),
        ]  # fmt: skip
    return rows


def peak(tell: Tell) -> list[Row]:
    """V.D: tokens a second, as printed and with one error after the other mended; `note` has the published share."""
    rows = [
        Row("peak", "device, smmla a byte", 28.04, SMMLA / BANDWIDTH),
        Row("peak", "device, fmla a byte", 3.55, FMLA / BANDWIDTH),
    ]
    for name, models in corrected(tell):
        for phase in ("prefill", "decode"):
            printed, measured = SPEED[phase]
            speed = models[phase].tokens_per_second
            note = f"{measured} are {measured / speed:.1%} of it"
            rows.append(
                Row("peak", f"{phase}, {name}", printed if name.startswith("as printed") else None, speed, note=note)
            )
    return rows


def tiles(tell: Tell) -> list[Row]:
    """IV.D and the listing: registers loaded and stored for c_attn in tiles of 8 x 8 and 10 x 8, as they ran."""
    rows = []
    for tile in ("8x8", "10x8"):
        tell(f"c_attn in tiles of {tile}")
        report = counts.product(TOKENS, *PRODUCTS["attn/c_attn"], tile=tile, **counts.ROW)
        phase = report.phase("linear")
        rows.append(_of("tiles", f"{tile}: bytes that registers load and store", 0.0, phase["l1_bytes"]))
        rows.append(_of("tiles", f"{tile}: smmla", 0.0, phase["instructions"]["smmla"], "e h l / 32"))
        rows.append(Row("tiles", f"{tile}: registers", None, report["registers.max"]))
    for unit in ("smmla", "sdot"):
        for bits in (4, 8):
            tell(f"all tiles of {unit}, {bits} bits")
            planned, best = counts.best_tile(unit, bits)
            note = f"of all that ran, {best} moves the fewest bytes to registers"
            rows.append(Row("tiles", f"planned for {unit}, {bits} bits: {planned}", None, planned.registers, note=note))
    return rows


def vc(tell: Tell) -> list[Row]:
    """V.C: percent faster by each improvement, on n2x8; direction is what can be compared."""
    rows = []
    times = {way: _model(way, tell) for way in ("concat", "fused")}
    for phase, tokens in (("prefill", TOKENS), ("decode", 1)):
        note = f"tokens a second on n2x8, {BLOCKS} blocks and the head"
        rows.append(Row("vc", f"speed, {phase}", SPEED[phase][1], tokens / times["fused"][phase], note=note))
    for at, phase in enumerate(("prefill", "decode")):
        gain = 100 * (times["concat"][phase] / times["fused"][phase] - 1)
        rows.append(
            Row(
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
        for at, (phase, number) in enumerate((("prefill", TOKENS), ("decode", 1))):
            tell(f"{name}, {phase}")
            old, new = (
                counts.product(number, *PRODUCTS["attn/c_attn"], tile="8x8", **counts.ROW, **options)
                for options in (before, {})
            )
            rows.append(Row("vc", f"{name}, {phase}", GAINS[name][at], _gain(old, new), note=_instructions(old, new)))
    return rows


def _gain(old: Report, new: Report) -> float:
    path = "critical_path.seconds"
    return 100 * (float(old.phase("linear", path)) / float(new.phase("linear", path)) - 1)


def _instructions(old: Report, new: Report) -> str:
    ran = [report.phase("linear", "instructions.total") for report in (old, new)]
    return f"c_attn in 8 x 8; {ran[0] / ran[1]:.3f} times as many instructions before"


def _model(way: str, tell: Tell) -> dict[str, float]:
    """Seconds of prefill and of a token: all blocks as the second one, and the head once."""
    tell(f"attention, {way}")
    seconds = {}
    for phase in ("prefill", "decode"):
        first, second = (
            float(counts.model(phase, way, layers).phase(phase, "critical_path.seconds")) for layers in (1, 2)
        )
        seconds[phase] = first + (BLOCKS - 1) * (second - first)
    return seconds


TABLES: dict[str, Callable[[Tell], list[Row]]] = {
    "linear": linear, "attention": attention, "other": other, "peak": peak, "tiles": tiles, "vc": vc,
}  # fmt: skip


def reproduce(names: list[str], tell: Tell) -> dict[str, Any]:
    """The rows of these tables, and the paper's errors."""
    rows = [row for name in names for row in TABLES[name](tell)]
    return {
        "schema": 1,
        "paper": "W4A8 on Arm",
        "hidden": HIDDEN,
        "rows": [asdict(row) for row in rows],
        "errors": list(ERRORS),
    }


def print_tables(document: dict[str, Any], form: str = "table") -> None:
    put(said(document), form)


def said(document: dict[str, Any]) -> Iterator[str | Grid]:
    """All rows in one table, what its columns are, and what the paper has wrong."""
    rows = []
    for row in document["rows"]:
        published, decimal = (
            Cell(row[key], f"{row[key]:,.5g}" if row[key] else "") for key in ("published", "decimal")
        )
        cells = [published, Cell(row["counted"], f"{row['counted']:,.4f}"), decimal, row["whole"], row["formula"]]
        rows.append([row["table"], row["what"], *(cell or None for cell in cells), row["note"]])
    yield Grid(("table", "number", "printed", "counted", "in 10^9", "whole", "formula", "note"), rows)
    yield "counted: in the paper's unit, 2^30, where a whole count is given; 10^9 beside it; formula: what the paper's"
    yield "own gives, where that is not what ran fused: of attention it is counted, too, operator by operator in"
    yield "float32, on one head. What the paper has wrong:"
    yield from (f"  {error}" for error in document["errors"])
