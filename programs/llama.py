"""LLaMA on the mesh, end to end: prefill, the move to decode's layout, decode, text."""

from dataclasses import replace
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.state import settings
from meshrt.models.quantize.head import checked_checkpoint
from meshrt.options import grouped, values_of
from meshrt.programs.compressing import CompressingOptions, compressed_by_shape
from meshrt.programs.generation.generate import generate, said, write_logits
from meshrt.programs.generation.keep import open_keep
from meshrt.programs.generation.options import GenerationOptions
from meshrt.programs.generation.task import task_of
from meshrt.programs.mesh.codes.quantized import check_quantized, told, with_activations
from meshrt.programs.mesh.engine import open_engine
from meshrt.programs.mesh.experts.mixture import make_mixture, report
from meshrt.programs.mesh.options import MeshOptions, check_how
from meshrt.programs.mesh.published.onehead import one_head
from meshrt.programs.quantizing import CompensatedOptions, quantized_by_shape
from meshrt.programs.storage import storage_type
from meshrt.reports.parts import Runs

MESH = (8, 8)


@grouped
@np.errstate(all="ignore")  # of numbers that are none: the choice of a token says so
def run(
    cores: Block,
    *,
    options: GenerationOptions,
    how: MeshOptions,
    compressed: CompressingOptions,
    codes: CompensatedOptions,
) -> dict[str, Any] | Runs:
    """Generate text with a LLaMA, another model (docs/models.md) or a mixture of experts, also a quantized one."""
    arguments = values_of(options, how, compressed, codes)
    messages = "" if cores.ledger.messages is None else cores.ledger.messages.options
    files = {"--maps": cores.ledger.maps_path, "--trace": cores.ledger.timeline, messages: messages}
    task = task_of(cores, options, files)
    check_how(how, cores.payload, options.context)
    if options.prompts is not None:
        return task.one_by_one()
    config = compressed_by_shape(task.config, cores.payload, compressed)
    config = quantized_by_shape(config, cores.payload, codes)
    check_quantized(config, how)
    config = with_activations(config, how.activations)
    if how.as_published:
        config, how = one_head(config, cores.payload), replace(how, layers_only=not cores.payload)
    config = config if options.layers is None else replace(config, layers=options.layers)
    source = checked_checkpoint(task.folder, config) if cores.payload else None
    words = task.prompt()
    keep = open_keep(cores, settings(cores), config, source, words, arguments, grows=True)
    kind = storage_type(how.dtype or config.dtype or "float32")
    mixture = make_mixture(cores, config, how, len(words.ids))
    with open_engine(cores, config, source, how, mixture, kind, words, options.max_new_tokens, keep.state) as engine:
        generation = generate(cores, engine, words, task.choice, keep, options.logits is not None)
    write_logits(cores.control, options, generation)
    run_of_each = [min(len(region.layers), how.layers_run or config.layers) for region in engine.regions]
    return {
        **said(cores, words, task.choice, generation.new),
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
