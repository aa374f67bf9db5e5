"""LLaMA on the mesh, end to end: prefill, the move to decode's layout, decode, text."""

from dataclasses import replace
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.state import settings
from meshrt.models.catalogue import find_model
from meshrt.models.config import read_config
from meshrt.models.quantize.head import checked_checkpoint
from meshrt.options import grouped, values_of
from meshrt.programs.compressing import CompressingOptions, compressed_by_shape
from meshrt.programs.generation import options as shared
from meshrt.programs.generation.choice import make_choice
from meshrt.programs.generation.generate import generate, said, write_logits
from meshrt.programs.generation.keep import open_keep
from meshrt.programs.generation.options import Asked
from meshrt.programs.generation.prompt import read_prompt
from meshrt.programs.generation.several import one_by_one
from meshrt.programs.mesh.engine import open_engine
from meshrt.programs.mesh.mixture import make_mixture, report
from meshrt.programs.mesh.onehead import one_head
from meshrt.programs.mesh.options import How, check_how
from meshrt.programs.mesh.quantized import check_quantized, told, with_activations
from meshrt.programs.quantizing import CompensatedOptions, quantized_by_shape
from meshrt.programs.storage import storage_type
from meshrt.several import Runs

MESH = (8, 8)


@grouped
@np.errstate(all="ignore")  # of numbers that are none: the choice of a token says so
def run(
    cores: Block, *, options: Asked, how: How, compressed: CompressingOptions, codes: CompensatedOptions
) -> dict[str, Any] | Runs:
    """Generate text with a LLaMA, another model (docs/models.md) or a mixture of experts, also a quantized one."""
    arguments = values_of(options, how, compressed, codes)
    folder = find_model(options.model)
    config = read_config(folder, quantized=True)
    choice = make_choice(options, cores.payload, config.eos_token_ids)
    shared.check(options, cores.payload, config.layers)
    shared.check_trace(options, cores.ledger.maps_path, "--maps")
    shared.check_trace(options, None if cores.ledger.timeline is None else cores.ledger.timeline.path)
    messages = "" if cores.ledger.messages is None else cores.ledger.messages.options
    shared.check_trace(options, messages, messages)
    check_how(how, cores.payload, options.context)
    if options.prompts is not None:
        kept = [(cores.ledger.maps_path, "--maps"), (cores.ledger.timeline, "--trace"), (messages, messages)]
        files = next((name for given, name in kept if given), None)
        positions = config.max_positions
        return one_by_one(cores.control, cores.payload, folder, config.vocab_size, positions, options, files)
    config = compressed_by_shape(config, cores.payload, compressed)
    config = quantized_by_shape(config, cores.payload, codes)
    check_quantized(config, how)
    config = with_activations(config, how.activations)
    if how.as_published:
        config, how = one_head(config, cores.payload), replace(how, layers_only=not cores.payload)
    config = config if options.layers is None else replace(config, layers=options.layers)
    source = None
    if cores.payload:
        source = checked_checkpoint(folder, config)
    words = read_prompt(cores.control, folder, config.vocab_size, options)
    shared.check_positions(options, cores.payload, len(words), config.max_positions)
    keep = open_keep(cores, settings(cores), config, source, words, arguments, grows=True)
    kind = storage_type(how.dtype or config.dtype or "float32")
    mixture = make_mixture(cores, config, how, len(words.ids))
    with open_engine(cores, config, source, how, mixture, kind, words, options.max_new_tokens, keep.state) as engine:
        generation = generate(cores, engine, words, choice, keep, options.logits is not None)
    write_logits(cores.control, options, generation)
    run_of_each = [min(len(region.layers), how.layers_run or config.layers) for region in engine.regions]
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
