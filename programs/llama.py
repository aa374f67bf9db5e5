"""LLaMA on the mesh, end to end: prefill, the move to decode's layout, decode, text."""

from dataclasses import replace
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.state import settings
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.quantize.head import checked_checkpoint
from meshrt.programs import compressing
from meshrt.programs.generation import options as shared
from meshrt.programs.generation.choice import make_choice
from meshrt.programs.generation.generate import generate, said, write_logits
from meshrt.programs.generation.keep import open_keep
from meshrt.programs.generation.options import Asked, taken
from meshrt.programs.generation.prompt import read_prompt
from meshrt.programs.generation.several import one_by_one
from meshrt.programs.mesh import options as own
from meshrt.programs.mesh.engine import open_engine
from meshrt.programs.mesh.mixture import make_mixture, report
from meshrt.programs.mesh.onehead import one_head
from meshrt.programs.mesh.options import How, check_how
from meshrt.programs.mesh.quantized import check_quantized, told, with_activations
from meshrt.programs.quantizing import Bits, CompensatorBits, Group, Ranks, Symmetric, quantized_by_shape
from meshrt.programs.routing import RoutingSeed, RoutingText
from meshrt.programs.storage import storage_type
from meshrt.several import Runs

MESH = (8, 8)


@np.errstate(all="ignore")  # of numbers that are none: the choice of a token says so
def run(
    cores: Block,
    *,
    model: shared.Model = "llama-tiny",
    prompt: shared.PromptText = None,
    prompts: shared.Prompts = None,
    prompt_ids: shared.PromptIds = None,
    prompt_tokens: shared.PromptTokens = None,
    context: shared.Context = 0,
    max_new_tokens: shared.MaxNewTokens = 32,
    system: own.SystemName = "waferllm",
    kv: own.Kv = "shift",
    dtype: shared.Dtype = None,
    phases: own.Phases = 2,
    decode_phases: own.DecodePhases = None,
    allreduces: own.Allreduces = "fused",
    head_groups: own.HeadGroups = None,
    regions: own.Regions = 1,
    decode_mesh: own.DecodeMesh = None,
    decode_regions: own.DecodeRegions = None,
    ratio: compressing.Ratio = None,
    block: compressing.Block = None,
    layers: shared.Layers = None,
    layers_run: shared.LayersRun = None,
    steps_run: own.StepsRun = None,
    layers_only: own.LayersOnly = False,
    as_published: own.AsPublished = False,
    experts: own.Experts = None,
    expert_grid: own.ExpertGrid = None,
    dispatch: own.Dispatch = None,
    capacity: own.Capacity = None,
    drop: own.Drop = False,
    router: own.Router = None,
    experts_run: own.ExpertsRun = None,
    routing: RoutingText = None,
    routing_seed: RoutingSeed = 0,
    bits: Bits = None,
    group: Group = None,
    symmetric: Symmetric = False,
    ranks: Ranks = None,
    compensator_bits: CompensatorBits = None,
    compensators: own.Compensators = "fused",
    activations: own.Activations = None,
    temperature: shared.Temperature = 0.0,
    top_k: shared.TopK = 0,
    top_p: shared.TopP = 1.0,
    seed: shared.Seed = 0,
    ignore_eos: shared.IgnoreEos = False,
    logits: shared.LogitsPath = None,
    checkpoint: shared.Checkpoint = None,
    every: shared.Every = None,
    resume: shared.Resume = False,
) -> dict[str, Any] | Runs:
    """Generate text with a LLaMA, another model (docs/models.md) or a mixture of experts, also a quantized one."""
    arguments = dict(locals())
    del arguments["cores"]
    options, how = taken(Asked, arguments), taken(How, arguments)
    folder = find_model(model)
    config = read_config(folder, quantized=True)
    choice = make_choice(options, cores.payload, config.eos_token_ids)
    shared.check(options, cores.payload, config.layers)
    shared.check_trace(options, cores.ledger.maps_path, "--maps")
    shared.check_trace(options, None if cores.ledger.timeline is None else cores.ledger.timeline.path)
    messages = "" if cores.ledger.messages is None else cores.ledger.messages.options
    shared.check_trace(options, messages, messages)
    check_how(how, cores.payload, context)
    if prompts is not None:
        kept = [(cores.ledger.maps_path, "--maps"), (cores.ledger.timeline, "--trace"), (messages, messages)]
        files = next((name for given, name in kept if given), None)
        positions = config.max_positions
        return one_by_one(cores.control, cores.payload, folder, config.vocab_size, positions, prompts, options, files)
    config = compressing.compressed_by_shape(config, cores.payload, ratio, block)
    config = quantized_by_shape(config, cores.payload, bits, group, symmetric, ranks, compensator_bits)
    check_quantized(config, how)
    config = with_activations(config, how.activations)
    if as_published:
        config, how = one_head(config, cores.payload), replace(how, layers_only=not cores.payload)
    config = config if layers is None else replace(config, layers=layers)
    source = None
    if cores.payload:
        source = checked_checkpoint(folder, config)
    words = read_prompt(cores.control, folder, config.vocab_size, options)
    shared.check_positions(options, cores.payload, len(words), config.max_positions)
    keep = open_keep(cores, settings(cores), config, source, words, arguments, grows=True)
    kind = storage_type(dtype or config.dtype or "float32")
    mixture = make_mixture(cores, config, how, len(words.ids))
    with open_engine(cores, config, source, how, mixture, kind, words, max_new_tokens, keep.state) as engine:
        generation = generate(cores, engine, words, choice, keep, logits is not None)
    write_logits(cores.control, options, generation)
    run_of_each = [min(len(region.layers), layers_run or config.layers) for region in engine.regions]
    return {
        **said(words, choice, generation.new),
        "head_groups": engine.chunks.groups,
        "decode_cores": list(how.decode_cores(cores.mesh)),
        "decode_regions": len(engine.regions),
        "layers": config.layers,
        "layer_cycles": layer_cycles(engine.spent, config.layers, engine.steps),
        "layers_run": sum(run_of_each),
        **({} if mixture is None else {"experts": report(mixture, how)}),
        **told(config, how, engine.regions),
    }


def layer_cycles(spent: tuple[Any, Any], layers: int, tokens: int) -> dict[str, float] | None:
    """Cycles of one layer in prefill and for one token in decode, by shape; None with payloads."""
    if spent[0] is None:
        return None
    by_phase = {"prefill": sum(spent[0]) / layers, "decode": sum(spent[1]) / layers / max(tokens, 1)}
    return {name: cycles for name, cycles in by_phase.items() if cycles}
