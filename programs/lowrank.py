"""Decomposed language models on tensor-parallel GPUs, after DeInfer (DAC 2026): one prompt, or many together.

One prompt is `llama --on gpu`, with the options and the report that this program has always had.
"""

from typing import Annotated, Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.options import grouped
from meshrt.programs.generation import options as shared
from meshrt.programs.generation.options import GenerationOptions
from meshrt.programs.gpu.llama import write
from meshrt.programs.gpu.options import Batches, GpuOptions, Model
from meshrt.programs.gpu.serving.request import BatchLimits
from meshrt.programs.gpu.together import times, together
from meshrt.programs.quantizing import CompensatedOptions

MACHINE = "gpu"
MESH = (1, 1)


@grouped
@np.errstate(all="ignore")  # of numbers that are none: the choice of a token says so
def run(
    gpus: Gpus,
    *,
    how: GpuOptions,
    codes: CompensatedOptions,
    batches: Batches,
    model: Model = "llama-tiny",
    prompt: shared.PromptText = None,
    prompts: Annotated[
        str | None, "a file with a prompt in each line, - standard input: requests that are served together"
    ] = None,
    prompt_ids: shared.PromptIds = None,
    prompt_tokens: shared.PromptTokens = None,
    max_new_tokens: shared.MaxNewTokens = 32,
    layers: shared.Layers = None,
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
    options = GenerationOptions(
        model=model, prompt=prompt, prompts=prompts, prompt_ids=prompt_ids, prompt_tokens=prompt_tokens,
        max_new_tokens=max_new_tokens, layers=layers, ignore_eos=ignore_eos, logits=logits,
    )  # fmt: skip
    if prompts is None:
        check_alone(batches)
        text = write(gpus, options, how, codes)
        steps, served, count, more = text.engine.steps, [text.engine.request], text.layers, text.more
        answers = {**text.report, **times(served[0])}
    else:
        limits = BatchLimits(batches.max_batch, batches.max_prefill_tokens)
        steps, served, reports, count, more = together(gpus, options, how, codes, limits)
        answers = {"requests": reports}
    return {
        **answers,
        "scheme": how.scheme,
        "kv": how.kv,
        "layers": count,
        "kv_blocks": steps.cache.pages.blocks,
        "block_size": how.block_size,
        "preemptions": sum(request.preemptions for request in served),
        "plans": steps.recorded,
        **more,
    }


def check_alone(batches: Batches) -> None:
    """UsageError for limits of a batch where one prompt is alone."""
    for option, value, unsaid in (
        ("--max-batch", batches.max_batch, Batches.max_batch),
        ("--max-prefill-tokens", batches.max_prefill_tokens, Batches.max_prefill_tokens),
    ):
        if value != unsaid:
            raise UsageError(f"{option} is {value}, of prompts that run together: give --prompts, or leave it away")
