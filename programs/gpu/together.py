"""Several prompts, of the lines of a file: served together, and what is told of each."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt.gpu.gpus import Gpus
from meshrt.models.catalogue import find_model
from meshrt.models.family import read_family
from meshrt.programs.generation.choice import Choice, make_choice
from meshrt.programs.generation.generate import said
from meshrt.programs.generation.options import GenerationOptions
from meshrt.programs.generation.prompt import Prompt, Teller
from meshrt.programs.generation.several import check_several, read_prompts
from meshrt.programs.gpu.experts.mixing import mixing_of, told_experts
from meshrt.programs.gpu.opening import open_model, open_weights, shaped
from meshrt.programs.gpu.options import GpuOptions
from meshrt.programs.gpu.quantizing import hold_of, quantized_by_shape, told
from meshrt.programs.gpu.serving.batching import serve
from meshrt.programs.gpu.serving.request import BatchLimits, Request
from meshrt.programs.gpu.steps import CacheSteps
from meshrt.programs.quantizing import CompensatedOptions


def times(request: Request) -> dict[str, Any]:
    """When a request got its tokens, and how often it gave way to others."""
    gaps = np.diff(request.times)
    return {
        "ttft_seconds": request.times[0] - request.arrival,
        "itl_seconds": float(gaps.mean()) if len(gaps) else None,
        "preemptions": request.preemptions,
    }


def together(
    gpus: Gpus, options: GenerationOptions, how: GpuOptions, codes: CompensatedOptions, limits: BatchLimits
) -> tuple[CacheSteps, list[Request], list[dict[str, Any]], int, dict[str, Any]]:
    """Serve the prompts of a file: the steps, the requests, what became of each, the model's layers, more of it."""
    check_several(options)
    folder = find_model(options.model)
    family = read_family(folder, quantized=True)
    source = open_weights(gpus, folder, family)
    family = shaped(gpus, quantized_by_shape(gpus, family, how, codes), how.ratio, options.layers)
    hold, mixing = hold_of(family, how), mixing_of(gpus, family, how)
    choice = make_choice(options, gpus.payload, family.stop)
    prompts = read_prompts(gpus.control, folder, family.vocabulary, options)
    requests = [Request(at, prompt.ids, choice.limit, stop=choice.stop) for at, prompt in enumerate(prompts)]
    steps = open_model(
        gpus, family, source, how.scheme, how.kv, requests, dtype=how.dtype, layers_run=how.layers_run,
        block_size=how.block_size, kv_blocks=how.kv_blocks, hold=hold, mixing=mixing,
    )  # fmt: skip
    serve(steps, requests, limits)
    steps.close()
    more = told(family, hold) | told_experts(gpus, mixing, family, steps.model.layers_run)
    return steps, requests, answers(gpus, prompts, choice, requests), len(family.layers), more


def answers(
    gpus: Gpus, prompts: Sequence[Prompt], choice: Choice, requests: Sequence[Request]
) -> list[dict[str, Any]]:  # fmt: skip
    """Print the text of each request that was served, in their order; what is told of each."""
    for prompt, request in zip(prompts, requests, strict=True):
        teller = Teller(gpus.console, prompt, gpus.payload)
        teller.tell(request.new, all_there=True)
        teller.end()
    return [
        said(gpus, prompt, choice, request.new) | times(request)
        for prompt, request in zip(prompts, requests, strict=True)
    ]
