"""A language model on tensor-parallel GPUs, end to end, dense or decomposed, after DeInfer (DAC 2026)."""

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.gpu.state import settings
from meshrt.models.family import family_of
from meshrt.options import AtLeast, grouped, values_of
from meshrt.programs.generation.generate import generate, said, write_logits
from meshrt.programs.generation.keep import open_keep
from meshrt.programs.generation.options import GenerationOptions
from meshrt.programs.generation.prompt import read_prompt
from meshrt.programs.generation.several import check_several, read_prompts
from meshrt.programs.generation.task import task_of
from meshrt.programs.gpu.engine import GpuEngine
from meshrt.programs.gpu.experts.mixing import mixing_of, told_experts
from meshrt.programs.gpu.opening import open_model, open_weights, shaped
from meshrt.programs.gpu.options import GpuOptions
from meshrt.programs.gpu.pipeline import answer, check_pipeline, open_pipelines
from meshrt.programs.gpu.quantizing import hold_of, quantized_by_shape, told
from meshrt.programs.gpu.serving.request import BatchLimits, Request, check_room
from meshrt.programs.gpu.together import answers, together
from meshrt.programs.quantizing import CompensatedOptions
from meshrt.records import dataclass

MACHINE = "gpu"
MESH = (1, 1)


@grouped
@np.errstate(all="ignore")  # of numbers that are none: the choice of a token says so
def run(
    gpus: Gpus,
    *,
    options: GenerationOptions,
    how: GpuOptions,
    codes: CompensatedOptions,
    micro_batches: Annotated[
        int | None, "groups of prompts, or parts of one, in a pipeline  [default: --pp]", AtLeast(1)
    ] = None,
) -> dict[str, Any]:
    """Generate text with a LLaMA, another model (docs/models.md) or a mixture of experts on tensor-parallel GPUs.

    Dense, decomposed or quantized. Schemes and caches are those of `lowrank`, which serves several prompts as well:
    `meshrt run lowrank --help`. docs/milo.md has the options on codes, docs/moe.md those on experts.

    \b
    Examples:
      mpirun -n 4 meshrt run llama-tiny --on gpu --tp 4 --static
      meshrt run llama --on gpu --model FOLDER --kv lowrank     a decomposed model, as `meshrt compress` writes it
      meshrt run llama3-70b --on gpu --tp 8 --payload none --context 4096 --max-new-tokens 3 --layers-run 2
    """
    if gpus.pp * gpus.dp > 1:
        return {**in_groups(gpus, options, how, codes, micro_batches), "scheme": how.scheme, "kv": how.kv}
    if micro_batches is not None:
        raise UsageError("--micro-batches is for pipelines: give --pp")
    if options.prompts is not None:
        steps, _, reports, count, more = together(gpus, options, how, codes, BatchLimits())
        return {
            "requests": reports, "layers": count, "scheme": how.scheme, "kv": how.kv,
            "kv_blocks": steps.cache.pages.blocks, "block_size": how.block_size, "plans": steps.recorded, **more,
        }  # fmt: skip
    text = write(gpus, options, how, codes)
    return {
        **text.report,
        "layers": text.layers,
        "ttft_seconds": None if options.context else text.ttft,
        "tpot_seconds": text.tpot,
        "scheme": how.scheme,
        "kv": how.kv,
        "kv_blocks": text.engine.steps.cache.pages.blocks,
        "block_size": how.block_size,
        "plans": text.engine.steps.recorded,
        **text.more,
    }


@dataclass(frozen=True)
class Text:
    """What was generated: as reports say it, with the model's layers, and the engine as it is at the end."""

    report: Mapping[str, Any]
    layers: int
    engine: GpuEngine
    more: Mapping[str, Any]  # of codes and experts

    @property
    def ttft(self) -> float:
        """Virtual seconds to the first token."""
        return self.engine.request.times[0]

    @property
    def tpot(self) -> float | None:
        """Virtual seconds from a token to the next, on average; None of one alone."""
        gaps = np.diff(self.engine.request.times)
        return float(gaps.mean()) if len(gaps) else None


def write(gpus: Gpus, options: GenerationOptions, how: GpuOptions, codes: CompensatedOptions) -> Text:
    """Generate what is asked for."""
    task = task_of(gpus, options, {"--trace": gpus.trace_path, "--maps": gpus.maps_path})
    family = family_of(task.config)
    source = open_weights(gpus, task.folder, family)
    family = shaped(gpus, quantized_by_shape(gpus, family, how, codes), how.ratio, options.layers)
    hold, mixing = hold_of(family, how), mixing_of(gpus, family, how)
    prompt = task.prompt()
    keep = open_keep(gpus, settings(gpus), family, source, prompt, values_of(options, how, codes))
    request = Request(0, prompt.ids or (0,) * prompt.context, options.max_new_tokens)
    steps = open_model(
        gpus, family, source, how.scheme, how.kv, [request], dtype=how.dtype, layers_run=how.layers_run,
        block_size=how.block_size, kv_blocks=how.kv_blocks, hold=hold, mixing=mixing, wanted=options.logits is not None,
    )  # fmt: skip
    check_room(steps.cache.pages, [request])
    engine = GpuEngine(gpus, steps, request)
    generation = generate(gpus, engine, prompt, task.choice, keep, options.logits is not None)
    steps.close()
    write_logits(gpus.control, options, generation)
    return Text(
        said(gpus, prompt, task.choice, generation.new),
        len(family.layers),
        engine,
        told(family, hold) | told_experts(gpus, mixing, family, steps.model.layers_run),
    )


def in_groups(
    gpus: Gpus, options: GenerationOptions, how: GpuOptions, codes: CompensatedOptions, micro_batches: int | None
) -> dict[str, Any]:  # fmt: skip
    """Generate on replicas of pipelines: what is told of it."""
    task = task_of(gpus, options, {})
    family, choice = family_of(task.config), task.choice
    source = open_weights(gpus, task.folder, family)
    family = shaped(gpus, quantized_by_shape(gpus, family, how, codes), how.ratio, options.layers)
    hold = hold_of(family, how)
    check_pipeline(gpus, family, options, how)
    mixing_of(gpus, family, how)  # which has none here, and says so where an option is about it
    if options.prompts is None:
        words = [read_prompt(gpus.control, task.folder, family.vocabulary, options)]
    else:
        check_several(options)
        words = read_prompts(gpus.control, task.folder, family.vocabulary, options)
    if len(words) < gpus.dp:
        raise UsageError(f"--dp is {gpus.dp}, and there is a prompt for {len(words)}: give more --prompts")
    requests = [Request(at, each.ids, choice.limit, stop=choice.stop) for at, each in enumerate(words)]
    pipelines = open_pipelines(gpus, family, source, how, requests, hold, micro_batches)
    answer(pipelines, requests)
    reports = answers(gpus, words, choice, requests)
    text = {key: value for key, value in reports[0].items() if key not in ("itl_seconds", "preemptions")}
    text["tpot_seconds"] = reports[0]["itl_seconds"]
    run = [stage.model.layers_run for stage in pipelines.stages[0]]
    return {
        **(text if options.prompts is None else {"requests": reports}),
        "layers": len(family.layers),
        "layers_of_stages": [len(stage.model.family.layers) for stage in pipelines.stages[0]],
        "layers_run": sum(run),
        "micro_batches": pipelines.micro_batches,
        **told(family, hold),
    }
