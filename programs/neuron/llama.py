"""LLaMA on NeuronCores, end to end: dense, or with the MLP compressed as by NeuronMM."""

from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.models.family import DENSE, check_plain, family_of
from meshrt.models.quantize.head import checked_checkpoint
from meshrt.neuron.cores import Cores
from meshrt.neuron.dtypes import DTYPES
from meshrt.neuron.state import settings
from meshrt.options import grouped, values_of
from meshrt.programs.compressing import CompressingOptions, compressed_by_shape
from meshrt.programs.generation import options as shared
from meshrt.programs.generation.generate import generate, said, write_logits
from meshrt.programs.generation.keep import open_keep
from meshrt.programs.generation.options import GenerationOptions
from meshrt.programs.generation.task import task_of
from meshrt.programs.neuron.engine import NeuronEngine
from meshrt.programs.neuron.model import place_model
from meshrt.programs.neuron.padding import padded
from meshrt.programs.quantizing import QuantizingOptions, quantized_by_shape
from meshrt.records import dataclass
from meshrt.reports.parts import Runs

MACHINE = "neuron"
MESH = (1, 1)
ABLE = {*DENSE} - {"norms of all heads together", "clip_qkv"}


@dataclass(frozen=True, kw_only=True)
class NeuronOptions:
    """Options that `llama` has on NeuronCores alone."""

    dtype: shared.Dtype = None
    stored: Annotated[bool, "matrices of the MLP lie as in a checkpoint; each pass transposes them"] = False


@grouped
@np.errstate(all="ignore")  # of numbers that are none: the choice of a token says so
def run(
    cores: Cores,
    *,
    options: GenerationOptions,
    how: NeuronOptions,
    compressed: CompressingOptions,
    codes: QuantizingOptions,
) -> dict[str, Any] | Runs:
    """Generate text with a LLaMA or another dense model (docs/models.md), also a compressed one, on NeuronCores.

    Matrices in factors (`meshrt compress`) are multiplied as such, the MLP by NeuronMM's Algorithm 3. Those in codes
    (`meshrt quantize`) are in HBM in 4 or 8 bits each, of which the cores make numbers tile by tile; those with
    compensators are multiplied out as they are loaded. Several cores share heads and columns of the MLP, and add their
    partial sums over a ring; heads that do not come out even are padded with zeros. The report has the time to the
    first token and for each after it, and what crossed between HBM and SBUF for them.

    \b
    Examples:
      mpirun -n 4 meshrt run llama-tiny --on neuron --cores 4
      meshrt run llama --on neuron --model FOLDER    a compressed model
      meshrt run llama3.2-1b --on neuron --payload none --prompt-tokens 1024 \\
        --max-new-tokens 2 --ratio 0.2               by shape, as if compressed
    """
    arguments = values_of(options, how, compressed, codes)
    task = task_of(cores, options, {"--trace": cores.trace_path, "--maps": cores.maps_path})
    check_plain(family_of(task.config), task.folder, "a NeuronCore", ABLE)
    if options.prompts is not None:
        return task.one_by_one()
    config = compressed_by_shape(task.config, cores.payload, compressed)
    config = quantized_by_shape(config, cores.payload, codes)
    if how.stored and config.quantized:
        raise UsageError("--stored is of matrices as numbers, or of their factors, and this model's are in codes")
    config = config if options.layers is None else replace(config, layers=options.layers)
    source = checked_checkpoint(task.folder, config) if cores.payload else None
    words = task.prompt()
    keep = open_keep(cores, settings(cores), config, source, words, arguments)
    kind = DTYPES[how.dtype or config.dtype or "float32"]
    own_heads = config.heads
    config, weights = padded(config, source, cores.count)
    positions = len(words) + options.max_new_tokens
    engine = NeuronEngine(cores, config, place_model(cores, config, weights, kind, positions, how.stored))
    generation = generate(cores, engine, words, task.choice, keep, options.logits is not None)
    write_logits(cores.control, options, generation)
    decoded = engine.seconds("decode")
    multiplied = sum(1 for form in config.quantized.values() if form.rank)  # matrices
    return {
        **said(cores, words, task.choice, generation.new),
        "layers": config.layers,
        "ttft_seconds": engine.seconds("prefill"),
        "tpot_seconds": decoded / engine.steps if decoded is not None and engine.steps else None,
        **({"multiplied_out": multiplied} if multiplied else {}),
        **({"padded_heads": config.heads - own_heads} if config.heads > own_heads else {}),
    }
