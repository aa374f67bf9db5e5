"""The runs by shape that the paper's counts are read from, and how: an outcome that has yet to come reads as ones."""

from collections.abc import Mapping
from typing import Any

from meshrt.arm.device import N2X8
from meshrt.arm.soc import Soc
from meshrt.errors import LimitError
from meshrt.programs.arm.attention import HeadCounts, attention
from meshrt.programs.arm.kv import ArmLayerCache
from meshrt.programs.arm.products.inputs import RowSource, quantized
from meshrt.programs.arm.simd.between import rms_norm, silu_times
from meshrt.reports.report import Report
from meshrt.studies.arm.published import HEADS, HIDDEN, INNER, MODEL, POSITIONS, TOKENS
from meshrt.studies.rows import Emulate
from meshrt.studies.store import PENDING
from meshrt.studies.sweep import RunJob

ROW: dict[str, Any] = {"group": 0, "symmetric": True}  # one number of 16 bits a channel, as the paper's bytes have
BLOCK: dict[str, Any] = {"group": 64}  # scale and zero for 64 weights


def number(emulate: Emulate, job: RunJob, path: str, phase: str | None = None) -> float:
    """What a run counted, by its path in a phase or as a whole.

    1 where it has yet to come: rows are then made for the runs that they ask for, and shown to nobody.
    """
    report = _report(emulate, job)
    if report is None:
        return 1
    value: float = report[path] if phase is None else report.phase(phase, path)
    return value


def instructions(emulate: Emulate, job: RunJob, phase: str) -> Mapping[str, int]:
    """Of each kind, in a phase; none where the run has yet to come."""
    report = _report(emulate, job)
    ran: Mapping[str, int] = {} if report is None else report.phase(phase, "instructions")
    return ran


def _report(emulate: Emulate, job: RunJob) -> Report | None:
    """LimitError: what the machine refuses is no table."""
    outcome = emulate(job)
    if outcome.report is None and outcome != PENDING:
        raise LimitError(str(outcome.refused))
    return None if outcome.report is None else Report(outcome.report)


def product(rows: int, inner: int, columns: int, /, **options: Any) -> RunJob:
    """A product of one shape."""
    return RunJob("linear", None, N2X8, {"m": rows, "k": inner, "n": columns, **options})


def model(phase: str, way: str = "fused", layers: int = 1) -> RunJob:
    """A pass over the prompt, or one token at position L - 1, in so many blocks; attention's products are float16."""
    prefill: dict[str, Any] = {"prompt_tokens": TOKENS, "max_new_tokens": 1}
    decode: dict[str, Any] = {"context": POSITIONS - 1, "max_new_tokens": 2}
    work = prefill if phase == "prefill" else decode
    return RunJob("llama", None, N2X8, {"model": MODEL, "layers": layers, "attention": way, **ROW, **work})


def one_attention(soc: Soc, *, tokens: int = TOKENS, held: int = 0) -> dict[str, Any]:
    """A program: a block's fused attention of so many tokens behind others, by shape, keys and values in float16."""
    heads = HeadCounts(HEADS, HEADS, HIDDEN // HEADS)
    cache = ArmLayerCache(soc, "keys, values", heads.kv, heads.size, "float16", 64, fused=True)
    if held:
        cache.fill(held)
    source, target = (soc.buffer(name, 4 * tokens * width) for name, width in (("qkv", 3 * HIDDEN), ("out", HIDDEN)))
    with soc.phase("attention"):
        attention(soc, None, tokens, heads, cache, None, None, True, source, target, 10)
    return {}


def fused(phase: str) -> RunJob:
    """A block's fused attention, of the prompt or of one token at position L - 1: the phase `attention`."""
    tokens, held = (TOKENS, 0) if phase == "prefill" else (1, POSITIONS - 1)
    return RunJob(one_attention, None, N2X8, {"tokens": tokens, "held": held})


def one_stretch(soc: Soc, *, tokens: int = TOKENS, number: int = 0) -> dict[str, Any]:
    """A program: one of the stretches between the products of a block, by shape: what comes before codes, and these.

    0 and 2: a residual sum and RMSNorm; 1: behind attention; 3: SiLU.
    """
    sizes = {"x": HIDDEN, "more": HIDDEN, "mixed": HIDDEN, "gates": 2 * INNER, "codes": INNER + 8}
    x, more, mixed, gates, codes = (soc.buffer(name, 4 * tokens * width) for name, width in sizes.items())
    row = range(HIDDEN)
    norm = RowSource(
        lambda team: rms_norm(team, HIDDEN, None, (None,), None, 1e-6), ((x, row), (more, row)), ((x, row),)
    )
    attended = RowSource(lambda team: (None, None), ((mixed, row),))
    silu = RowSource(lambda team: (None, silu_times(team, INNER, None, None)), ((gates, range(2 * INNER)),))
    before, inner = ((norm, HIDDEN), (attended, HIDDEN), (norm, HIDDEN), (silu, INNER))[number]
    with soc.phase("stretch"):
        quantized(soc, before, (tokens, inner), inner, 10, codes, False)
    return {}


def stretches(phase: str) -> tuple[RunJob, ...]:
    """A block's stretches between products, each with cold caches: the phase `stretch`."""
    tokens = TOKENS if phase == "prefill" else 1
    return tuple(RunJob(one_stretch, None, N2X8, {"tokens": tokens, "number": at}) for at in range(4))
