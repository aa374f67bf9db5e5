"""Every option of every packaged program and every number of every device: what moves when it is changed.

A row names a run, one change to it, a number of its report and how that number has to move; test_settings.py runs
both and compares, and docs/options.md lists them. What a run has no use for is refused: `REFUSED`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshrt.programs.gpu.serving.options import Load


@dataclass(frozen=True)
class Relation:
    """How a number moves, in words and as a check of (before, after)."""

    says: str
    holds: Callable[[Any, Any], bool]


def times(factor: float) -> Relation:
    return Relation(f"x {factor:g}", lambda before, after: before != 0 and _close(after, factor * before))


def plus(more: float) -> Relation:
    says = f"{more:+,}" if isinstance(more, int) else f"{more:+g}"
    return Relation(says, lambda before, after: _close(after, before + more))


def becomes(before: Any, after: Any) -> Relation:
    return Relation(
        f"{before} -> {after}", lambda first, second: first == before and second == after and first != second
    )


def _close(first: float, second: float) -> bool:
    return (
        first == second
        if isinstance(first, int) and isinstance(second, int)
        else abs(first - second) <= 1e-9 * abs(second)
    )


GROWS = Relation("grows", lambda before, after: after > before)
FALLS = Relation("falls", lambda before, after: after < before)
OTHER = Relation("another", lambda before, after: before is not None and after is not None and before != after)
VANISHES = Relation("vanishes", lambda before, after: before is not None and after is None)
APPEARS = Relation("appears", lambda before, after: not before and bool(after))
RUNS = Relation("the run is no longer refused", lambda before, after: before == "refused" and after is not None)
STOPS = Relation("the run is refused", lambda before, after: before != after and after == "refused")


@dataclass(frozen=True)
class Row:
    """`base`: options of both runs, beside the program's `BASE`. In values {tmp} is a folder of both, {run} of one."""

    option: str
    value: Any
    metric: str
    relation: Relation
    base: Mapping[str, Any] | None = None
    why: str = ""


# How a run is started, beside its options: keys that begin with @. No payload unless a row asks for numbers.
IDS = {"prompt_ids": "1,2,3,4,5", "max_new_tokens": 3}
BASE: dict[str, dict[str, Any]] = {
    "allreduce mesh": {"@mesh": (16, 4), "size": 12},
    "dispatch mesh": {"@mesh": (4, 8)},
    "gemm mesh": {"@mesh": (6, 6), "m": 12, "k": 18, "n": 24},
    "gemv mesh": {"@mesh": (4, 16), "k": 64, "n": 32},
    "published mesh": {"@mesh": (1, 8), "kernel": "meshgemv", "k": 16, "n": 8},
    "kvcache mesh": {"@mesh": (4, 4), "tokens": 8, "@payload": True},
    "shift mesh": {"@mesh": (6, 6), "tile": 2},
    "llama mesh": {"@mesh": (8, 8), "layers": 2, **IDS},
    "llama neuron": {**IDS},
    "llama gpu": {"@tp": 2, **IDS},
    "llama arm": {"@cores": 2, **IDS},
    "xuv neuron": {"m": 256, "k": 256, "r": 128, "n": 512},
    "lowrank gpu": {"@tp": 2, **IDS},
    "linear arm": {"m": 20, "k": 128, "n": 96, "tile": "8x8"},
    "graph mesh": {"@mesh": (4, 9), "model": "{tmp}/graph", "sizes": "S=3"},
    "graph arm": {"@cores": 2, "model": "{tmp}/graph", "sizes": "S=3"},
    "serve gpu": {"@tp": 2, "requests": 4, "prompt_tokens": "5", "output_tokens": "3"},
}
NUMBERS = {"@payload": True}
WORDS = NUMBERS | {"layers": 1}  # of a model: those of all layers say no more
LINES = NUMBERS | {"prompt_ids": None, "prompts": "{tmp}/prompts"}
MADE_UP = {"requests": None, "prompt_tokens": Load.prompt_tokens, "output_tokens": Load.output_tokens}  # all unsaid
RAMP = {"ramp_up_start_rps": 10.0, "ramp_up_end_rps": 1000.0}
SQUARE: dict[str, Any] = {"@mesh": (6, 6), "k": 12, "n": 12}
DRAWN = WORDS | {"temperature": 5.0, "max_new_tokens": 6, "ignore_eos": True}
TO_THE_END = NUMBERS | {"prompt_ids": "394,14", "layers": 4}  # of a story: the end-of-text token is next
MODELS: dict[str, Any] = {"layers": 1, "prompt_tokens": 4, "prompt_ids": None, "max_new_tokens": 1}
EXPERTS: dict[str, Any] = {
    "model": "mixtral-tiny", "layers": 1, "prompt_ids": None, "prompt_tokens": 40, "max_new_tokens": 2,
    "@device": "ideal",
}  # fmt: skip

GENERATION = [
    Row("prompt", "One day", "result.prompt_ids", OTHER, {"prompt_ids": None}),
    Row("prompts", "{tmp}/prompts", "result.requests", APPEARS, WORDS | {"prompt_ids": None}),
    Row("prompt_ids", "1,2,3", "phases.prefill.tokens", becomes(5, 3)),
    Row("prompt_tokens", 7, "phases.prefill.tokens", becomes(4, 7), {"prompt_ids": None, "prompt_tokens": 4}),
    Row("max_new_tokens", 5, "phases.decode.tokens", becomes(2, 4)),
    Row("ignore_eos", True, "result.stopped", becomes("end of text", "max-new-tokens"), TO_THE_END),
    Row("logits", "{tmp}/logits.npy", "file {tmp}/logits.npy", APPEARS, WORDS),
]
DRAWING = [
    Row("temperature", 5.0, "result.token_ids", OTHER, WORDS | {"max_new_tokens": 6, "ignore_eos": True}),
    Row("top_k", 1, "result.token_ids", OTHER, DRAWN, "1 leaves the likeliest"),
    Row("top_p", 1e-9, "result.token_ids", OTHER, DRAWN, "so little leaves the likeliest"),
    Row("seed", 7, "result.token_ids", OTHER, DRAWN),
]
FEEDING = [
    Row("inputs", "{tmp}/in.npz", "result.max_abs_error", OTHER, NUMBERS),
    Row("outputs", "{tmp}/out.npz", "file {tmp}/out.npz", APPEARS, NUMBERS),
    Row("seed", 1, "result.max_abs_error", OTHER, NUMBERS),
]
KEEPING = [
    Row("checkpoint", "{tmp}/state", "file {tmp}/state/state.json", APPEARS, WORDS),
    Row("every", 1, "file {run}/state/state-2-0.npz", APPEARS, WORDS | {"checkpoint": "{run}/state"}),
    Row("resume", True, "host.resumed_at_token", becomes(None, 1), WORDS | {"checkpoint": "{tmp}/state"}),
]
CONTEXT = Row("context", 64, "phases.decode.macs", GROWS, {"prompt_ids": None, "context": 8})
LAYERS = Row("layers", 2, "result.layers", becomes(4, 2))
ON_GPUS = [
    Row("model", "opt-30b", "measured.flops", GROWS, MODELS),
    Row("scheme", "base", "measured.link_bytes.total", GROWS, {"ratio": 0.4}),
    Row("scheme", "overlapped", "measured.hidden_seconds", GROWS, {"ratio": 0.4, "kv": "lowrank"}),
    Row("kv", "lowrank", "measured.cache_blocks", APPEARS, {"ratio": 0.4}),
    Row("kv", "fused", "measured.launches", FALLS, {"ratio": 0.4, "kv": "lowrank"}),
    Row("ratio", 0.4, "measured.collectives.all_gather.bytes.total", GROWS, None, "latents are gathered"),
    Row("block_size", 1, "result.kv_blocks", becomes(1, 8), None, "5 + 3 tokens"),
    Row("kv_blocks", 9, "result.kv_blocks", becomes(1, 9)),
    Row("dtype", "float32", "measured.memory_traffic.total", GROWS, None, "the model's is float16"),
    LAYERS,
    Row("layers_run", 1, "kinds.measured.launches", becomes("counted", "extrapolated")),
]
CODES: dict[str, Any] = {"bits": 3, "ranks": "uniform-8"}
MIXTURE: dict[str, Any] = {"model": "mixtral-8x7b", "layers": 1}
SPREAD = MIXTURE | {"experts": "replicated", "routing": "zipf:2"}
ON_CODES = [
    Row("bits", 3, "measured.dequantized_bytes", APPEARS),
    Row("group", 32, "result.quantized.bytes.codes", GROWS, CODES, "more scales and zeros"),
    Row("symmetric", True, "result.quantized.bytes.codes", FALLS, CODES),
    Row("ranks", "uniform-8", "result.quantized.bytes.compensators", APPEARS, {"bits": 3}),
    Row("compensator_bits", "8", "result.quantized.bytes.compensators", GROWS, CODES),
    Row("unfused", True, "measured.memory_traffic.total", GROWS, {"bits": 3}),
    Row("compensators", "fused", "measured.launches", FALLS, CODES),
    Row("compensator_memory", "float16", "measured.memory_traffic.total", GROWS, CODES),
]
ON_EXPERTS = [
    Row("experts", "alltoall", "measured.collectives.all_to_all.calls", APPEARS, MIXTURE),
    Row("place", "frequency", "result.experts.tokens_by_gpu", OTHER, SPREAD),
    Row("capacity", 1.0, "measured.expert_padding", APPEARS, MIXTURE),
    Row("routing", "zipf:3", "result.experts.tokens", OTHER, MIXTURE),
    Row("routing_seed", 1, "result.experts.tokens", OTHER, MIXTURE),
]

ROWS: dict[str, list[Row]] = {
    "dispatch mesh": [
        Row("dispatch", "crossbar", "measured.stages", GROWS, None, "core by core"),
        Row("tokens", 16, "measured.link_bytes.total", GROWS),
        Row("width", 16, "measured.link_bytes.total", times(2)),
        Row("experts", 8, "result.fullest", OTHER),
        Row("top", 1, "result.mean", times(0.5)),
        Row("routing", "zipf:3", "result.fullest", GROWS),
        Row("seed", 1, "result.fullest", OTHER, {"routing": "lognormal"}),
    ],
    "allreduce mesh": [
        Row("algorithm", "pipeline", "measured.critical_path.stages", GROWS, None, "one core after the other"),
        Row("phases", 1, "measured.critical_path.stages", GROWS, None, "a K-tree of one phase has longer chains"),
        Row("axis", "y", "measured.critical_path.hops", FALLS, None, "columns are 4 long, rows 16"),
        Row("size", 24, "measured.link_bytes.total", times(2)),
        Row("times", 2, "measured.messages", times(2)),
    ],
    "gemm mesh": [
        Row("algorithm", "cannon", "measured.max_hops", becomes(2, 5), None, "N - 1 hops back to the first core"),
        Row("m", 24, "measured.macs", times(2)),
        Row("k", 36, "measured.macs", times(2)),
        Row("n", 48, "measured.macs", times(2)),
        Row("transpose_b", True, "measured.link_bytes.total", times(20 / 18), None,
            "2 x 3 of A and 3 x 4 of B go round a core; 4 x 3 of B and 2 x 4 of C"),
        Row("reduce", "ktree", "measured.stages", GROWS, {"transpose_b": True}),
        Row("segment", 1, "measured.stages", GROWS, {"algorithm": "summa", "@device": "wse2"}),
        Row("steps_run", 1, "kinds.measured.hops", becomes("counted", "extrapolated")),
        Row("lockstep", True, "measured.critical_path.cycles", GROWS,
            {"@mesh": (8, 8), "m": 12, "k": 12, "n": 12, "algorithm": "cannon", "@device": "ideal"}),
        Row("dtype", "bfloat16", "measured.link_bytes.total", times(0.5)),
        Row("seed", 1, "result.max_abs_error", OTHER, NUMBERS),
        Row("times", 2, "measured.macs", times(2)),
    ],
    "gemv mesh": [
        Row("allreduce", "pipeline", "measured.critical_path.stages", GROWS),
        Row("phases", 1, "measured.critical_path.stages", GROWS),
        Row("groups", "2", "result.groups", becomes([4], [2])),
        Row("axis", "x", "measured.critical_path.hops", FALLS, None, "rows are 4 long, columns 16"),
        Row("k", 128, "measured.macs", times(2)),
        Row("n", 64, "measured.macs", times(2)),
        Row("dtype", "bfloat16", "measured.memory_bytes.max", FALLS),
        Row("seed", 1, "result.max_abs_error", OTHER, NUMBERS),
    ],
    "published mesh": [
        Row("kernel", "meshgemm", "measured.max_hops", FALLS, SQUARE, "two hops; from the root it is three"),
        Row("m", 12, "measured.macs", times(2), SQUARE | {"kernel": "meshgemm", "m": 6}),
        Row("k", 32, "measured.macs", times(2)),
        Row("n", 16, "measured.macs", times(2)),
        Row("groups", 1, "measured.critical_path.stages", becomes(6, 8), None, "4 cores of an arm, twice"),
        Row("times", 3, "measured.macs", times(2), None, "one more than are timed"),
        Row("dtype", "float32", "measured.link_bytes.total", times(2)),
        Row("seed", 1, "result.max_abs_error", OTHER, NUMBERS),
    ],
    "kvcache mesh": [
        Row("policy", "concat", "result.memory_over_mean", GROWS, None, "one row has all of them"),
        Row("tokens", 16, "result.tokens", times(2)),
        Row("until_full", True, "result.tokens", GROWS, {"tokens": None, "@device": "wse2"}),
        Row("reserved", 1000, "measured.memory_bytes.max", plus(1000)),
        Row("head_dim", 128, "result.bytes_per_token", times(2)),
        Row("heads", 8, "result.bytes_per_token", times(2)),
        Row("groups", 2, "result.bytes_per_token", times(10 / 12), {"head_dim": 10}, "4 ceil(10/4), 2 ceil(10/2)"),
        Row("columns", 8, "result.bytes_per_token", times(0.5)),
        Row("layers", 8, "result.bytes_per_token", times(2)),
        Row("dtype", "float32", "result.bytes_per_token", times(2)),
    ],
    "shift mesh": [
        Row("pattern", "cannon", "measured.max_hops", becomes(2, 5)),
        Row("axis", "both", "measured.messages", times(2)),
        Row("tile", 4, "measured.link_bytes.total", times(4)),
        Row("steps", 3, "measured.messages", times(0.5), None, "once round are 6"),
        Row("multiply", True, "measured.macs", becomes(0, 36 * 6 * 2**3), {"axis": "both"}),
    ],
    "llama mesh": [
        *GENERATION,
        *DRAWING,
        *KEEPING,
        Row("model", "llama3.2-1b", "measured.macs", GROWS, MODELS | {"@device": "ideal"}),
        CONTEXT,
        Row("system", "t10", "measured.route_entries.max", OTHER, None, "one crossbar instead of rings and trees"),
        Row("kv", "concat", "phases.decode.hops", FALLS, {"max_new_tokens": 9}, "no token climbs"),
        Row("dtype", "float32", "measured.memory_bytes.max", GROWS, {"@device": "ideal"}, "the model's is float16"),
        Row("phases", 1, "phases.decode.critical_path.stages", GROWS),
        Row("decode_phases", 1, "phases.decode.critical_path.stages", GROWS),
        Row("allreduces", "published", "phases.decode.messages", GROWS, None, "10 allreduces a layer for 6"),
        Row("head_groups", 2, "result.head_groups", becomes(1, 2)),
        Row("regions", 2, "result.decode_regions", becomes(1, 2), None, "decode has as many"),
        Row("decode_mesh", "4x8", "result.decode_cores", becomes([8, 8], [4, 8]), {"@device": "ideal"}),
        Row("decode_regions", 2, "result.decode_regions", becomes(1, 2)),
        Row("layers", 1, "result.layers", becomes(2, 1)),
        Row("ratio", 0.6, "measured.macs", FALLS, {"ratio": 0.1, "block": 16}),
        Row("block", 16, "measured.macs", FALLS, {"ratio": 0.5}, "ranks are rounded up to 16, not to 128"),
        Row("layers_run", 1, "result.layers_run", becomes(2, 1)),
        Row("steps_run", 1, "kinds.measured.hops", becomes("counted", "extrapolated")),
        Row("layers_only", True, "phases.prefill.macs", FALLS),
        Row("as_published", True, "phases.decode.stages", GROWS, None, "ten allreduces a layer, of many groups"),
        Row("experts", "regions", "result.experts.cores_used", FALLS, EXPERTS, "of 2 experts at most"),
        Row("expert_grid", "4x2", "result.experts.grid", becomes([2, 2], [4, 2]), EXPERTS | {"experts": "regions"}),
        Row("dispatch", "crossbar", "phases.prefill.stages", GROWS, EXPERTS, "core by core"),
        Row("capacity", 1, "result.experts.passes", OTHER, EXPERTS | {"dispatch": "ring"}),
        Row("drop", True, "result.experts.dropped", OTHER, EXPERTS | {"dispatch": "ring", "capacity": 1}),
        Row("router", "cut", "measured.memory_bytes.max", FALLS, EXPERTS, "one table of 8 columns in place of two"),
        Row("experts_run", 1, "kinds.measured.hops", becomes("counted", "extrapolated"), EXPERTS),
        Row("routing", "zipf:3", "result.experts.tokens", OTHER, EXPERTS),
        Row("routing_seed", 1, "result.experts.tokens", OTHER, EXPERTS),
        Row("bits", 3, "phases.prefill.link_bytes.total", FALLS, None, "tiles of codes go round the rings"),
        Row("group", 32, "result.quantized.core_bytes.scales", GROWS, {"bits": 3}),
        Row("symmetric", True, "result.quantized.core_bytes.scales", times(0.5), {"bits": 3}, "no zeros"),
        Row("ranks", "uniform-8", "result.quantized.core_bytes.compensators", APPEARS, {"bits": 3}),
        Row("compensator_bits", "8", "result.quantized.core_bytes.compensators", GROWS,
            {"bits": 3, "ranks": "uniform-8"}),
        Row("compensators", "apart", "phases.decode.link_bytes.total", GROWS, {"bits": 3, "ranks": "uniform-8"},
            "x V^T rides in the sums"),
        Row("activations", "row", "phases.prefill.link_bytes.total", FALLS, {"bits": 4, "group": "row"},
            "tiles of activations go round as bytes"),
    ],
    "llama neuron": [
        *GENERATION,
        *DRAWING,
        *KEEPING,
        Row("model", "llama3.2-1b", "measured.macs", GROWS, MODELS),
        CONTEXT,
        Row("dtype", "float32", "measured.hbm_bytes.total", GROWS, None, "the model's is float16"),
        LAYERS,
        Row("ratio", 0.6, "measured.macs", FALLS, {"ratio": 0.1, "block": 16}),
        Row("block", 16, "measured.macs", FALLS, {"ratio": 0.5}, "ranks are rounded up to 16, not to 128"),
        Row("bits", 4, "measured.hbm_bytes.read", FALLS, None, "codes and scales are read"),
        Row("group", 32, "measured.hbm_bytes.read", GROWS, {"bits": 4}, "twice as many scales"),
        Row("symmetric", True, "measured.hbm_bytes.read", FALLS, {"bits": 4}, "no zeros"),
        Row("stored", True, "measured.transpose_flops", GROWS, None, "matrices of the MLP are transposed at each pass"),
    ],
    "xuv neuron": [
        Row("kernel", "naive", "measured.macs", GROWS, {"block_n": 256}, "x u anew for each block of columns"),
        Row("m", 512, "measured.macs", times(2)),
        Row("k", 512, "measured.macs", times((512 + 512) / (256 + 512)), None, "m r (k + n)"),
        Row("r", 256, "measured.macs", times(2)),
        Row("n", 1024, "measured.macs", times((256 + 1024) / (256 + 512)), None, "m r (k + n)"),
        Row("block_m", 128, "measured.hbm_bytes.read", GROWS, None, "u and v once for each strip"),
        Row("block_k", 128, "measured.critical_path.cycles", GROWS),
        Row("block_r", 64, "measured.critical_path.cycles", GROWS),
        Row("block_n", 128, "measured.dma_descriptors", GROWS, None, "narrower tiles: more transfers of 128 rows"),
        Row("dtype", "float32", "measured.hbm_bytes.total", times(2)),
        Row("sums", "tile", "measured.sbuf_bytes.max", FALLS),
        Row("transpose", "tensor", "measured.transpose_flops", becomes(0, 2 * 128 * 256 * 256)),
        Row("out_transposed", True, "measured.transpose_flops", plus(2 * 128 * 256 * 512),
            {"kernel": "dense", "r": None}),
        Row("seed", 1, "result.max_abs_error", OTHER, NUMBERS),
    ],
    "graph mesh": [
        Row("model", "{tmp}/wide", "measured.macs", GROWS),
        Row("sizes", "S=6", "measured.macs", times(2)),
        Row("phases", 1, "measured.critical_path.cycles", OTHER),
        *FEEDING,
    ],
    "graph arm": [
        Row("model", "{tmp}/wide", "measured.operations", GROWS),
        Row("sizes", "S=30", "measured.instructions.fmla", GROWS),
        *FEEDING,
    ],
    "linear arm": [
        Row("m", 40, "measured.instructions.smmla", times(2)),
        Row("k", 256, "measured.instructions.smmla", times(2)),
        Row("n", 192, "measured.instructions.smmla", times(2)),
        Row("bits", "8", "measured.instructions.ushr", VANISHES, None, "nothing to unpack"),
        Row("group", 32, "measured.instructions.scvtf", times(2), None, "sums become numbers twice as often"),
        Row("activations", "block", "measured.instructions.fdiv", GROWS, None, "more scales of x"),
        Row("symmetric", True, "measured.memory_bytes.max", FALLS, None, "no zeros"),
        Row("unit", "sdot", "measured.instructions.sdot", APPEARS),
        Row("tile", None, "result.tile", becomes("8x8", "10x8"), None, "all 32 registers"),
        Row("layout", "pairs", "measured.instructions.zip1_16b", APPEARS),
        Row("signed", True, "measured.instructions.sub", APPEARS, {"symmetric": True}),
        Row("order", "rows", "measured.l2_bytes", OTHER, {"m": 200, "k": 512}),
        Row("split", "rate", "measured.idle_seconds", FALLS, {"@device": "phone", "n": 800}),
        Row("seed", 1, "result.max_abs_error", OTHER, NUMBERS),
    ],
    "llama arm": [
        *GENERATION,
        *DRAWING,
        *KEEPING,
        Row("model", "llama3.2-1b", "measured.operations", GROWS, MODELS),
        Row("context", 64, "phases.decode.operations", GROWS, {"prompt_ids": None, "context": 8}),
        Row("bits", "8", "measured.memory_bytes.max", GROWS),
        Row("group", 32, "measured.instructions.scvtf", GROWS, None, "sums become numbers more often"),
        Row("symmetric", True, "measured.memory_bytes.max", FALLS, None, "no zeros"),
        Row("head_bits", "4", "measured.memory_bytes.max", FALLS),
        Row("activations", "block", "measured.instructions.fdiv", GROWS, None, "more scales"),
        Row("attention", "concat", "result.kv.copied_bytes", GROWS),
        Row("kv_chunk", "1", "result.kv.copied_bytes", GROWS),
        Row("kv", "int8", "result.kv.held_bytes", times(18 / 32), None, "16 numbers and a scale for 16 of two bytes"),
        Row("split", "rate", "measured.idle_seconds", FALLS, {"@device": "phone", "@cores": 8}),
        Row("flash", 3, "measured.memory_bytes.max", FALLS, None, "room for two of them"),
        LAYERS,
        Row("layers_run", 2, "kinds.measured.operations", becomes("counted", "extrapolated")),
        Row("routing", "zipf:3", "result.experts.tokens", OTHER, MIXTURE | {"model": "mixtral-tiny"}),
        Row("routing_seed", 1, "result.experts.tokens", OTHER, MIXTURE | {"model": "mixtral-tiny"}),
    ],
    "llama gpu": [
        *GENERATION,
        *DRAWING,
        *KEEPING,
        *ON_GPUS,
        *ON_CODES,
        *ON_EXPERTS,
        Row("context", 64, "phases.decode.flops", GROWS, {"prompt_ids": None, "context": 8}),
        Row("micro_batches", 5, "measured.collectives.send.calls", GROWS, {"@pp": 2}, "a token each, of 5"),
    ],
    "lowrank gpu": [
        *GENERATION,
        *ON_GPUS,
        *ON_CODES,
        *ON_EXPERTS,
        Row("max_batch", 1, "measured.launches", GROWS, NUMBERS | {"prompt_ids": None, "prompts": "{tmp}/prompts"}),
        Row("max_prefill_tokens", 1, "measured.launches", GROWS,
            NUMBERS | {"prompt_ids": None, "prompts": "{tmp}/prompts"}),
    ],
    "serve gpu": [
        Row("model", "opt-30b", "measured.flops", GROWS, {"layers": 1}),
        Row("scheme", "base", "measured.link_bytes.total", GROWS, {"ratio": 0.4}),
        Row("kv", "lowrank", "measured.cache_blocks", APPEARS, {"ratio": 0.4}),
        Row("kv", "fused", "measured.launches", FALLS, {"ratio": 0.4, "kv": "lowrank"}),
        Row("scheme", "overlapped", "measured.hidden_seconds", GROWS, {"ratio": 0.4, "kv": "lowrank"}),
        Row("ratio", 0.4, "measured.collectives.all_gather.bytes.total", GROWS),
        *ON_CODES,
        *ON_EXPERTS,
        Row("requests", 8, "result.completed", times(2)),
        Row("rate", 100.0, "result.seconds", GROWS, None, "arrivals are 10 ms apart"),
        Row("prompt_tokens", "10", "result.prompt_tokens", times(2)),
        Row("output_tokens", "6", "result.output_tokens", times(2)),
        Row("seed", 1, "result.prompt_tokens", OTHER, {"prompt_tokens": "5:50"}),
        Row("block_size", 1, "result.kv_blocks", becomes(4, 32), None, "4 requests of 5 + 3 tokens"),
        Row("kv_blocks", 9, "result.kv_blocks", becomes(4, 9)),
        Row("max_batch", 2, "result.largest_batch", becomes(4, 2)),
        Row("max_prefill_tokens", 5, "measured.launches", GROWS, None, "one prompt at a time"),
        Row("trace_file", "{tmp}/trace.csv", "result.completed", becomes(32, 2), MADE_UP, "of two requests"),
        Row("skip_long", True, "result.completed", RUNS, MADE_UP | {"trace_file": "{tmp}/long.csv"},
            "one of its two requests is longer than the model may read"),
        Row("burstiness", 0.2, "result.mean_ttft_ms", OTHER, {"rate": 1000.0}),
        Row("ramp_up_strategy", "exponential", "result.duration", GROWS, RAMP | {"ramp_up_strategy": "linear"}),
        Row("ramp_up_start_rps", 20.0, "result.duration", FALLS, RAMP | {"ramp_up_strategy": "linear"}),
        Row("ramp_up_end_rps", 100.0, "result.duration", GROWS, RAMP | {"ramp_up_strategy": "linear"}),
        Row("max_concurrency", 2, "result.lock_step", APPEARS),
        Row("num_warmups", 2, "measured.launches", GROWS),
        Row("random_range_ratio", 0.5, "result.prompt_tokens", OTHER),
        Row("random_prefix_len", 3, "result.prompt_tokens", becomes(20, 32), None, "4 requests"),
        Row("priorities", 2, "result.priorities.1", APPEARS),
        Row("goodput", "ttft:1000", "result.request_goodput", APPEARS),
        Row("percentile_metrics", "e2el", "result.p99_e2el_ms", APPEARS),
        Row("metric_percentiles", "10", "result.p10_ttft_ms", APPEARS),
        Row("chunked_prefill", True, "measured.launches", GROWS, {"max_prefill_tokens": 3}),
        Row("prefix_caching", True, "result.tokens_hit", becomes(0, 48), {"random_prefix_len": 20, "max_batch": 1},
            "3 of 4 requests find a block of 16"),
        Row("preemption", "swap", "measured.swapped_bytes", APPEARS,
            {"kv_blocks": 13, "block_size": 1, "max_batch": 2}),
        Row("swap_space", 0, "result.host_memory.full", APPEARS,
            {"preemption": "swap", "kv_blocks": 13, "block_size": 1, "max_batch": 2}),
        Row("dtype", "float32", "measured.memory_traffic.total", GROWS, None, "the model's is float16"),
        Row("layers", 2, "measured.launches", FALLS),
        Row("layers_run", 1, "kinds.measured.launches", becomes("counted", "extrapolated")),
    ],
}  # fmt: skip

# What a run has no use for, and what it is told.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("dispatch mesh", {"experts": 9}, "--experts 9 on 8 rows of cores"),
    ("dispatch mesh", {"top": 5}, "--top 5 of 4 experts"),
    ("allreduce mesh", {"algorithm": "ring", "phases": 2}, "--phases 2 is a number of the K-tree"),
    ("gemm mesh", {"reduce": "ktree"}, "add --transpose-b"),
    ("gemm mesh", {"segment": 2}, "broadcasts nothing"),
    ("gemm mesh", {"algorithm": "cannon", "transpose_b": True}, "computes A B only"),
    ("gemm mesh", {"algorithm": "allgather", "lockstep": True}, "--lockstep is for the steps"),
    ("gemm mesh", {"algorithm": "allgather", "steps_run": 1}, "--steps-run is for the loops"),
    ("gemv mesh", {"allreduce": "ring", "groups": "2"}, "numbers of a K-tree"),
    ("published mesh", {"m": 8}, "meshgemv has one row"),
    ("published mesh", SQUARE | {"kernel": "meshgemm", "groups": 2}, "those of meshgemv's sums"),
    ("published mesh", {"kernel": "meshgemm", "@mesh": (4, 6)}, "as many columns as rows"),
    ("kvcache mesh", {"until_full": True}, "give one of them"),
    ("llama arm", {"attention": "concat", "kv_chunk": "8"}, "copies all of it"),
    ("llama arm", {"flash": 5}, "the model has 4 layers"),
    ("llama arm", {"layers_run": 1}, "so it has to run"),
    ("llama arm", {"layers_run": 2, "flash": 3}, "which --layers-run 2 leaves out"),
    ("llama arm", NUMBERS | {"layers_run": 2}, "--layers-run is for shapes"),
    ("llama arm", {"kv_chunk": "none"}, "a number of tokens, prompt or max"),
    ("linear arm", {"signed": True}, "add --symmetric"),
    ("linear arm", {"bits": "8", "layout": "pairs"}, "is for 4-bit weights"),
    ("linear arm", {"tile": "9x8"}, "rows are a multiple of 2"),
    ("linear arm", {"tile": "8"}, "no tile such as 10x8"),
    ("shift mesh", {"multiply": True}, "add --axis both"),
    *((f"graph {machine}", options, message) for machine in ("mesh", "arm") for options, message in (
        ({"inputs": "{tmp}/in.npz", "seed": 1}, "leave one of them away"), ({"sizes": "S=3,T=4"}, "has no size 'T'"),
        ({"outputs": "{tmp}/out.npz"}, "--payload none has none"),
        (NUMBERS | {"outputs": "{tmp}/no/out.npz"}, "there is no folder"), ({"model": None}, "--model is missing"),
    )),
    *((f"llama {machine}", NUMBERS | {name: value}, "at a temperature of 0")
      for machine in ("mesh", "neuron", "gpu", "arm") for name, value in (("top_k", 5), ("top_p", 0.5), ("seed", 1))),
    ("llama mesh", NUMBERS | {"layers_run": 1}, "--layers-run"),
    ("llama mesh", {"steps_run": 1, "context": 9, "prompt_ids": None}, "--steps-run is for prefill"),
    ("llama mesh", {"decode_phases": 1, "system": "ladder"}, "K-trees of waferllm"),
    ("llama mesh", {"context": 9, "prompt_ids": None, "decode_mesh": "4x8"}, "--context has no prefill"),
    ("llama mesh", {"context": 9, "prompt_ids": None, "decode_regions": 2}, "--context has no prefill"),
    ("llama mesh", {"context": 9, "prompt_ids": None, "layers_only": True}, "there is no prefill"),
    ("llama mesh", {"as_published": True, "regions": 2}, "leave --regions away"),
    ("llama mesh", NUMBERS | {"as_published": True}, "numbers would be another model's"),
    ("llama mesh", NUMBERS | {"bits": 3}, "--bits is for shapes"),
    ("llama mesh", {"group": 32}, "--group goes with --bits"),
    ("llama mesh", {"symmetric": True}, "--symmetric goes with --bits"),
    ("llama mesh", {"ranks": "uniform-8"}, "--ranks goes with --bits"),
    ("llama mesh", {"bits": 3, "compensator_bits": "8"}, "--compensator-bits goes with --ranks"),
    ("llama mesh", {"bits": 3, "compensators": "apart"}, "no compensators"),
    ("llama mesh", {"activations": "row"}, "of a quantized model"),
    ("llama mesh", {"bits": 3, "ranks": "uniform-8", "activations": "row"}, "have no compensators"),
    ("llama mesh", EXPERTS | {"bits": 4, "activations": "block"}, "experts multiply rebuilt weights only"),
    ("llama mesh", {"bits": 3, "ranks": "uniform-8", "system": "t10"}, "moves whole numbers only"),
    ("llama mesh", {"bits": 3, "decode_mesh": "4x8"}, "not cut anew"),
    *((f"llama {machine}", given, says)
      for machine in ("mesh", "neuron", "gpu")
      for given, says in (
          ({"every": 1}, "no state is kept"),
          ({"resume": True}, "name it with --checkpoint"),
          ({"logits": "{tmp}/l.npy"}, "--logits"),
          ({"temperature": 1.0}, "--payload none has none"),
          (NUMBERS | {"context": 9, "prompt_ids": None}, "--context 9 leaves numbers out"),
          ({"context": 9}, "--context 9 stands for a prompt"),
          ({"layers": 5}, "the model has 4"),
      )),
    ("serve gpu", {"swap_space": 1000}, "--swap-space is for --preemption swap"),
    ("llama gpu", {"micro_batches": 2}, "--micro-batches is for pipelines"),
    *(("lowrank gpu", {name: 3}, "of prompts that run together") for name in ("max_batch", "max_prefill_tokens")),
    *((name, LINES | given, says)
      for name in ("llama mesh", "llama neuron", "llama arm", "llama gpu", "lowrank gpu") for given, says in (
          ({"prompt_ids": "1"}, "--prompts has prompts already"),
          ({"logits": "{tmp}/l.npy"}, "--logits is for one prompt"),
      )),
    *((f"llama {machine}", LINES | given, says)
      for machine in ("mesh", "neuron", "arm", "gpu") for given, says in (
          ({"temperature": 1.0}, "likeliest tokens"), ({"checkpoint": "{tmp}/s"}, "one prompt"),
          ({"max_new_tokens": 99999}, "positions of the model"), ({"resume": True}, "name it with --checkpoint"),
      )),
    ("lowrank gpu", {"logits": "{tmp}/l.npy"}, "--logits"),
    *((f"llama {on}", {"block": 16}, "of the ranks of --ratio") for on in ("mesh", "neuron")),
    *((f"llama {on}", NUMBERS | {"ratio": 0.5}, "gives shapes only") for on in ("mesh", "neuron")),
    ("llama mesh", {"ratio": 0.5, "bits": 3}, "and this model has some in two factors"),
    ("llama neuron", {"stored": True, "bits": 4}, "this model's are in codes"),
    ("xuv neuron", {"kernel": "dense"}, "has no rank"),
    ("xuv neuron", {"kernel": "dense", "r": None, "block_r": 64}, "has no rank"),
    ("xuv neuron", {"kernel": "naive", "sums": "tile"}, "--sums tile"),
    ("xuv neuron", {"kernel": "naive", "out_transposed": True}, "has its one layout"),
    ("xuv neuron", {"kernel": "sequential", "transpose": "tensor"}, "transposes in its one way"),
    *((f"{program} gpu", given, says)
      for program in ("llama", "lowrank")
      for given, says in (
          (NUMBERS | {"ratio": 0.5}, "--ratio is for shapes"),
          (NUMBERS | {"layers_run": 1}, "--layers-run is for shapes"),
          ({"kv": "lowrank", "scheme": "base"}, "needs --scheme deinfer"),
          ({"kv": "fused", "scheme": "dense"}, "needs --scheme deinfer"),
      )),
    *((f"{program} gpu", given, says)
      for program in ("llama", "lowrank", "serve")
      for given, says in (
          (NUMBERS | {"bits": 3}, "--bits is for shapes"),
          ({"group": 32}, "--group goes with --bits"),
          ({"symmetric": True}, "--symmetric goes with --bits"),
          ({"ranks": "uniform-8"}, "--ranks goes with --bits"),
          ({"bits": 3, "compensator_bits": "8"}, "--compensator-bits goes with --ranks"),
          ({"unfused": True}, "--unfused is about the codes"),
          ({"compensators": "fused"}, "--compensators is about the codes"),
          (CODES | {"compensators": "fused", "unfused": True}, "leave one of the two away"),
          (CODES | {"compensator_bits": "16", "compensator_memory": "float16"}, "in float16 as stored"),
          *(({name: value}, f"--{name.replace('_', '-')} is about the experts") for name, value in (
              ("experts", "alltoall"), ("place", "frequency"), ("capacity", 1.0), ("routing", "zipf:1"),
              ("routing_seed", 1))),
          (MIXTURE | {"place": "frequency"}, "every GPU has a part of every expert"),
          (MIXTURE | {"capacity": 5.0}, "4 at most"),
      )),
    ("serve gpu", NUMBERS | {"layers_run": 1}, "--layers-run is for shapes"),
    ("serve gpu", NUMBERS | {"ratio": 0.5}, "--ratio is for shapes"),
]  # fmt: skip
