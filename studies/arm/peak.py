"""The paper's peak (V.D) from counts: as printed, then with each of its errors mended, one after the other, and last
with what ran in place of its formulas for attention's bytes, softmax and other operators."""

from dataclasses import dataclass, replace

from meshrt.studies.arm import counts
from meshrt.studies.arm.published import BANDWIDTH, FMLA, FMLA_16, HEADS, SMMLA, TOKENS, G
from meshrt.studies.arm.runs import BLOCK, ROW
from meshrt.studies.rows import Emulate


@dataclass(frozen=True)
class PassCount:
    """Operations and bytes of a pass, and by what they are divided. `unit`: how many 10^9 one G is."""

    tokens: int
    linear: counts.LinearCounts
    attention_operations: int
    attention_bytes: int
    other_bytes: int
    attention_rate: float = FMLA
    unit: float = G / 1e9
    instructions: int = 0  # besides those of products, at the rate of all SIMD pipes

    @property
    def seconds(self) -> tuple[float, float, float]:
        """Of linear layers, attention, and the others: computing or reading, whichever takes longer."""
        parts = (
            max(self.linear.operations / SMMLA, self.linear.nbytes / BANDWIDTH),
            max(
                self.attention_operations / self.attention_rate + self.instructions / (FMLA / 8),
                self.attention_bytes / BANDWIDTH,
            ),
            self.other_bytes / BANDWIDTH,
        )
        linear, attention, other = (part / self.unit for part in parts)
        return linear, attention, other

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / sum(self.seconds)


def corrected(emulate: Emulate) -> list[tuple[str, dict[str, PassCount]]]:
    """Each correction with the models of prefill and decode after it and all before it."""
    steps: list[tuple[str, dict[str, PassCount]]] = []

    def then(name: str, **changes: PassCount) -> None:
        steps.append((name, (steps[-1][1] if steps else {}) | changes))

    def now(phase: str) -> PassCount:
        return steps[-1][1][phase]

    every = counts.linear(emulate, TOKENS, TOKENS, ROW)
    single = counts.linear(emulate, 1, 1, ROW)
    models = {
        phase: PassCount(
            tokens, linear, counts.attention_operations(emulate, phase) + counts.softmax_operations(emulate, phase),
            counts.attention_bytes(emulate, phase), counts.other_bytes(phase),
        ) for phase, tokens, linear in (("prefill", TOKENS, every), ("decode", 1, single))
    }  # fmt: skip
    then("as printed (2^30 over 10^9)", **models)
    then("one unit", **{phase: replace(now(phase), unit=1.0) for phase in models})
    then("+ head for the last token only",
         prefill=replace(now("prefill"), linear=counts.linear(emulate, TOKENS, 1, ROW)))  # fmt: skip
    then("+ attention at the rate of float16, 704", **{
        phase: replace(now(phase), attention_rate=FMLA_16) for phase in models
    })  # fmt: skip
    then("+ softmax for each of 16 heads", **{
        phase: replace(
            now(phase), attention_bytes=counts.attention_bytes(emulate, phase, HEADS),
            attention_operations=counts.attention_operations(emulate, phase)
            + counts.softmax_operations(emulate, phase, HEADS),
        ) for phase in models
    })  # fmt: skip
    once = counts.attention_bytes(emulate, "decode", HEADS, 2)
    then("+ keys and values read once (4 L h)", decode=replace(now("decode"), attention_bytes=once))
    then("+ scale and zero of 64 weights each", **{
        phase: replace(now(phase), linear=counts.linear(emulate, TOKENS if phase == "prefill" else 1, 1, BLOCK))
        for phase in models
    })  # fmt: skip
    then("+ other operators at 200 l h", **{
        phase: replace(now(phase), other_bytes=counts.other_bytes(phase, 200)) for phase in models
    })  # fmt: skip
    then("+ bytes and instructions besides products as they ran", **{
        phase: replace(
            now(phase), instructions=counts.issued(emulate, phase),
            attention_operations=counts.attention_operations(emulate, phase),
            attention_bytes=counts.attention_moved(emulate, phase, "dram_bytes.total"),
            other_bytes=counts.other_moved(emulate, phase, "dram_bytes.total"),
        ) for phase in models
    })  # fmt: skip
    return steps
