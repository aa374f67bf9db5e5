"""LLaMA on Arm cores, end to end, in W4A8."""

from dataclasses import replace
from typing import Any

from meshrt.arm.soc import Soc
from meshrt.arm.state import settings
from meshrt.errors import UsageError
from meshrt.models.config import Config
from meshrt.models.family import family_of, first_unlike
from meshrt.models.folders.checkpoint import check_shapes, open_checkpoint
from meshrt.models.matrix import Experts
from meshrt.models.quantize.head import shifted_norms
from meshrt.options import grouped, values_of
from meshrt.programs.arm.engine import ArmEngine
from meshrt.programs.arm.kv import ArmLayerCache
from meshrt.programs.arm.load import place_model, scheme_of
from meshrt.programs.arm.options import CacheOptions, CodeOptions, WorkOptions
from meshrt.programs.generation.generate import generate, said, write_logits
from meshrt.programs.generation.keep import open_keep
from meshrt.programs.generation.options import GenerationOptions
from meshrt.programs.generation.task import task_of
from meshrt.programs.routing import Routing, imbalance, make_routing
from meshrt.reports.parts import Runs
from meshrt.whole import whole

MACHINE = "arm"


@grouped
def run(
    soc: Soc,
    *,
    options: GenerationOptions,
    codes: CodeOptions,
    caching: CacheOptions,
    work: WorkOptions,
) -> dict[str, Any] | Runs:
    """Generate text with a LLaMA or another model (docs/models.md) in W4A8 on Arm cores that share a memory.

    Weights are a folder's own codes (meshrt quantize, 2 to 8 bits), or are rounded to nearest when they are read.
    Every product is of whole numbers, but for a router's, by SIMD instructions that really run; cores share panels of
    columns and heads. The report has the time to the first token and for each after it, instructions by name, and bytes
    by level of cache.

    \b
    Examples:
      mpirun -n 4 meshrt run llama-tiny --on arm --cores 8
      meshrt run llama-tiny --on arm --device phone --split rate --kv int8
      meshrt run llama3.2-1b --on arm --payload none --prompt-tokens 64 --max-new-tokens 4 --attention concat
    """
    task = task_of(soc, options, {"--trace": soc.trace_path, "--maps": soc.maps_path})
    if options.prompts is not None:
        return task.one_by_one()
    scheme = scheme_of(task.config, codes)
    config = task.config if options.layers is None else replace(task.config, layers=options.layers)
    check_layers(soc, config, work.layers_run, work.flash)
    source = None
    if soc.payload:
        source = open_checkpoint(task.folder, config)
        check_shapes(source, config)
        source = replace(source, rebuilt=shifted_norms(source, config))
    words = task.prompt()
    chunk = chunk_of(caching, len(words), len(words) + options.max_new_tokens)
    keep = open_keep(
        soc,
        settings(soc),
        config,
        source,
        words,
        values_of(options, codes, caching, work),
        grows=caching.kv_chunk != "max",
    )
    drawn = routing_of(soc, config, work.routing, work.routing_seed)
    placed = place_model(soc, config, scheme, source, work.split, work.flash, work.layers_run, drawn)
    caches = layer_caches(soc, config, caching, chunk, len(placed.layers))
    engine = ArmEngine(soc, placed, caches)
    generation = generate(soc, engine, words, task.choice, keep, options.logits is not None)
    write_logits(soc.control, options, generation)
    return {**said(soc, words, task.choice, generation.new), **facts(config, engine)}


def layer_caches(
    soc: Soc, config: Config, caching: CacheOptions, chunk: int, layers_run: int
) -> list[ArmLayerCache]:  # fmt: skip
    """Of each layer that runs; the last one stands for those that do not."""
    stand = [0] * (layers_run - 1) + [config.layers - layers_run]
    return [
        ArmLayerCache(
            soc, f"keys, values {number}", config.kv_heads, config.head_dim, caching.kv, chunk,
            caching.attention == "fused", others,
        ) for number, others in enumerate(stand)
    ]  # fmt: skip


def facts(config: Config, engine: ArmEngine) -> dict[str, Any]:
    """What a run says beside its text: layers, unit, cache, seconds, experts."""
    model, caches, decoded = engine.model, engine.caches, engine.seconds("decode")
    uneven = None if model.loads is None else imbalance(model.loads)
    return {
        "layers": config.layers,
        "layers_run": len(model.layers),
        "unit": model.layers[0].qkv.how.unit.name,
        "kv": {
            "copied_bytes": sum((1 + cache.others) * cache.copied for cache in caches),
            "held_bytes": sum((1 + cache.others) * cache.bytes_of(cache.room) for cache in caches),
        },
        "ttft_seconds": engine.seconds("prefill"),
        "tpot_seconds": decoded / engine.steps if decoded is not None and engine.steps else None,
        **({} if model.loads is None else {
            "imbalance_of_experts": None if uneven is None else uneven["mean"],
            "experts": {"tokens": model.loads.tolist(), "imbalance": {"experts": uneven}},
        }),
    }  # fmt: skip


def routing_of(soc: Soc, config: Config, text: str | None, seed: int) -> Routing | None:
    """Who gets which token by shape; None where the router says so, or of a model without experts. UsageError."""
    mixtures = [layer.mlp for layer in family_of(config).layers if isinstance(layer.mlp, Experts)]
    if soc.payload or not mixtures:
        for name, given in (("--routing", text is not None), ("--routing-seed", seed != 0)):
            if given and mixtures:
                raise UsageError(f"{name}: with numbers the router decides; it is for --payload none")
            if given:
                raise UsageError(f"{name} is about the experts of a model, and this one has none")
        return None
    return make_routing(text or "uniform", len(mixtures), len(mixtures[0].experts), mixtures[0].top, seed)


def check_layers(soc: Soc, config: Config, layers_run: int | None, flash: int) -> None:
    """UsageError for layers that cannot stand for others, or take turns in the room of others."""
    layers, alike = config.layers, family_of(config).layers
    if flash > layers:
        raise UsageError(f"--flash is {flash}; the model has {layers} layers")
    rooms = [replace(layer, window=None, rope=0) for layer in alike]  # what tokens see takes none
    if flash > 2 and (unlike := first_unlike(rooms, layers - flash + 1)) is not None:
        raise UsageError(
            f"--flash {flash}: layers that take turns in room for two of them have to be alike, and layer {unlike} has"
            f" other ranks than layer {layers - flash}, or other experts; --flash 2 takes any"
        )
    if layers_run is None:
        return
    if soc.payload:
        raise UsageError("--layers-run is for shapes: add --payload none")
    if layers_run < min(layers, 2):
        raise UsageError(
            f"--layers-run {layers_run}: the second layer is the first that adds to what was, so it has to run"
        )
    if (unlike := first_unlike(alike, min(layers_run, layers))) is not None:
        raise UsageError(
            f"--layers-run {layers_run}: layer {unlike} has other ranks than layer {layers_run - 1}, another window or"
            " experts, so it has to run"
        )
    if flash and layers_run < layers:
        raise UsageError(f"--flash {flash} is of the last layers, which --layers-run {layers_run} leaves out")


def chunk_of(caching: CacheOptions, prompt: int, most: int) -> int:
    """Tokens that --kv-chunk stands for. UsageError."""
    text, attention = caching.kv_chunk, caching.attention
    if attention != "fused" and text != "64":
        raise UsageError(f"--kv-chunk {text} is for a cache that grows, and --attention {attention} copies all of it")
    if text in ("prompt", "max"):
        return prompt if text == "prompt" else most
    try:
        chunk = whole(text)
    except ValueError:
        chunk = 0
    if chunk < 1:
        raise UsageError(f"--kv-chunk {text!r} is a number of tokens, prompt or max")
    return chunk
