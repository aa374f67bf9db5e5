"""Decomposed language models on tensor-parallel GPUs, after DeInfer (DAC 2026): one prompt, or many together.

One prompt is `llama --on gpu`, with the options and the report that this program has always had.
"""

from typing import Annotated, Any

import numpy as np

from meshrt.gpu.gpus import Gpus
from meshrt.programs import quantizing
from meshrt.programs.generation import options as shared
from meshrt.programs.gpu import options as own
from meshrt.programs.gpu.llama import write
from meshrt.programs.gpu.request import Limits
from meshrt.programs.gpu.together import times, together
from meshrt.programs.routing import RoutingSeed, RoutingText

MACHINE = "gpu"
MESH = (1, 1)


@np.errstate(all="ignore")  # of numbers that are none: the choice of a token says so
def run(
    gpus: Gpus,
    *,
    model: own.Model = "llama-tiny",
    scheme: own.Scheme = "deinfer",
    kv: own.Kv = "dense",
    ratio: own.Ratio = None,
    bits: quantizing.Bits = None,
    group: quantizing.Group = None,
    symmetric: quantizing.Symmetric = False,
    ranks: quantizing.Ranks = None,
    compensator_bits: quantizing.CompensatorBits = None,
    unfused: own.Unfused = False,
    compensators: own.Compensators = "apart",
    compensator_memory: own.CompensatorMemory = "stored",
    experts: own.Experts = "tensor",
    place: own.Place = "contiguous",
    capacity: own.Capacity = None,
    routing: RoutingText = None,
    routing_seed: RoutingSeed = 0,
    prompt: shared.PromptText = None,
    prompts: Annotated[
        str | None, "a file with a prompt in each line, - standard input: requests that are served together"
    ] = None,
    prompt_ids: shared.PromptIds = None,
    prompt_tokens: shared.PromptTokens = None,
    max_new_tokens: shared.MaxNewTokens = 32,
    block_size: own.BlockSize = 16,
    kv_blocks: own.KvBlocks = None,
    max_batch: own.MaxBatch = 256,
    max_prefill_tokens: own.MaxPrefillTokens = 8192,
    dtype: own.Dtype = None,
    layers: shared.Layers = None,
    layers_run: shared.LayersRun = None,
    ignore_eos: shared.IgnoreEos = False,
    logits: shared.LogitsPath = None,
) -> dict[str, Any]:
    """Generate text with a decomposed model on tensor-parallel GPUs.

    A matrix W is two factors, W = A B, as `meshrt compress` writes them. Schemes: `dense` multiplies them out and cuts
    W as Megatron does; `base` sums after every pair, so that each GPU computes all attention heads; `deinfer` exchanges
    what lies between A and B only. With --payload full numbers are computed, and all schemes give the same text; with
    --payload none a model needs no weights, and --ratio decomposes it by shape.

    \b
    meshrt compress llama-tiny --ratio 0.3 --block 16 --matrices all --out small
    mpirun -n 4 meshrt run lowrank --model small --tp 4 --kv lowrank --static
    meshrt run lowrank --model llama3-70b --ratio 0.4 --tp 8 --payload none --layers-run 2 --link pcie
    """
    arguments = dict(locals())
    del arguments["gpus"]
    if prompts is None:
        text = write(gpus, arguments)
        steps, served, count, more = text.engine.steps, [text.engine.request], text.layers, text.more
        answers = {**text.report, **times(served[0])}
    else:
        steps, served, reports, count, more = together(gpus, prompts, arguments, Limits(max_batch, max_prefill_tokens))
        answers = {"requests": reports}
    return {
        **answers,
        "scheme": scheme,
        "kv": kv,
        "layers": count,
        "kv_blocks": steps.cache.pages.blocks,
        "block_size": block_size,
        "preemptions": sum(request.preemptions for request in served),
        "plans": steps.recorded,
        **more,
    }
