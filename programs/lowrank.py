"""Decomposed language models on tensor-parallel GPUs, after DeInfer (Huang et al. 2026): one prompt, or many together.

One prompt is `llama --on gpu`, with the options and the report that this program has always had.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.models.catalogue import find_model
from meshrt.models.family import Family, read_family
from meshrt.programs import quantizing
from meshrt.programs.generation import options as shared
from meshrt.programs.generation.choice import make_choice
from meshrt.programs.generation.generate import said
from meshrt.programs.generation.given import INPUT, read_shared
from meshrt.programs.generation.options import Asked, taken
from meshrt.programs.generation.prompt import Prompt, Teller, encoded
from meshrt.programs.gpu import options as own
from meshrt.programs.gpu.llama import write
from meshrt.programs.gpu.mixing import mixing_of, told_experts
from meshrt.programs.gpu.opening import open_model, open_weights, shaped
from meshrt.programs.gpu.options import How
from meshrt.programs.gpu.quantizing import hold_of, quantized_by_shape, told
from meshrt.programs.gpu.request import Limits, Request
from meshrt.programs.gpu.serving import serve
from meshrt.programs.gpu.steps import Steps
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


def times(request: Request) -> dict[str, Any]:
    """When a request got its tokens, and how often it gave way to others."""
    gaps = np.diff(request.times)
    return {
        "ttft_seconds": request.times[0] - request.arrival,
        "itl_seconds": float(gaps.mean()) if len(gaps) else None,
        "preemptions": request.preemptions,
    }


def together(
    gpus: Gpus, file: str, arguments: Mapping[str, Any], limits: Limits
) -> tuple[Steps, list[Request], list[dict[str, Any]], int, dict[str, Any]]:
    """Serve the prompts of a file: the steps, the requests, what became of each, the model's layers, more of it."""
    asked, how = taken(Asked, arguments), taken(How, arguments)
    if asked.logits:
        raise UsageError("--logits is for one prompt: leave --prompts away, or the logits")
    folder = find_model(asked.model)
    family = read_family(folder, quantized=True)
    source = open_weights(gpus, folder, family)
    family = shaped(gpus, quantized_by_shape(gpus, family, how), how.ratio, asked.layers)
    hold, mixing = hold_of(family, how), mixing_of(gpus, family, how)
    choice = make_choice(asked, gpus.payload, family.stop)
    prompts = read_prompts(gpus, folder, family, file, asked)
    requests = [Request(at, prompt.ids, choice.limit, stop=choice.stop) for at, prompt in enumerate(prompts)]
    steps = open_model(
        gpus, family, source, how.scheme, how.kv, requests, dtype=how.dtype, layers_run=how.layers_run,
        block_size=how.block_size, kv_blocks=how.kv_blocks, hold=hold, mixing=mixing,
    )  # fmt: skip
    serve(steps, requests, limits)
    steps.close()
    for prompt, request in zip(prompts, requests, strict=True):
        teller = Teller(gpus.console, prompt)
        teller.tell(request.new, all_there=True)
        teller.end()
    reports = [
        said(prompt, choice, request.new) | times(request) for prompt, request in zip(prompts, requests, strict=True)
    ]
    return (
        steps,
        requests,
        reports,
        len(family.layers),
        told(family, hold) | told_experts(gpus, mixing, family, steps.model.layers_run),
    )


def read_prompts(gpus: Gpus, folder: Path, family: Family, file: str, asked: Asked) -> list[Prompt]:
    """The prompts of a file's lines. UsageError, ModelError."""
    if any(option is not None for option in (asked.prompt, asked.prompt_ids, asked.prompt_tokens)):
        raise UsageError("--prompts has prompts already: leave --prompt, --prompt-ids and --prompt-tokens away")
    text = read_shared(gpus.control, f"--prompts {file}", None if file == INPUT else file)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise UsageError(f"--prompts {file} has no line with a prompt")
    return [encoded(gpus.control, folder, family.vocabulary, line) for line in lines]
