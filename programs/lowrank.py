"""Decomposed language models on tensor-parallel GPUs, after DeInfer (Huang et al. 2026): schemes, cache, batches."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np

from meshrt.errors import UsageError
from meshrt.gpu.gpus import Gpus
from meshrt.models.catalogue import find_model
from meshrt.models.checkpoint import Checkpoint, check_shapes, open_checkpoint
from meshrt.models.config import Config
from meshrt.models.errors import ModelError
from meshrt.models.files import MAX_TEXT_BYTES, read_text
from meshrt.models.opt import opt_shapes
from meshrt.program import AtLeast, AtMost
from meshrt.programs.gpu.cache import Cache, check_low_rank, make_cache
from meshrt.programs.gpu.family import Family, evenly, read_family
from meshrt.programs.gpu.options import (
    BlockSize,
    Dtype,
    Kv,
    KvBlocks,
    Layers,
    LayersRun,
    MaxBatch,
    MaxPrefillTokens,
    Model,
    Ratio,
    Scheme,
)  # fmt: skip
from meshrt.programs.gpu.serving import Limits, Request, check_lengths, serve
from meshrt.programs.gpu.shards import Model as PlacedModel
from meshrt.programs.gpu.shards import place
from meshrt.programs.gpu.steps import Steps
from meshrt.programs.mesh.prompt import MOST_TOKENS, PROMPT, Teller, read_prompt
from meshrt.ranks.files import check_target, write_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MACHINE = "gpu"
MESH = (1, 1)


def run(
    gpus: Gpus,
    *,
    model: Model = "llama-tiny",
    scheme: Scheme = "deinfer",
    kv: Kv = "dense",
    ratio: Ratio = None,
    prompt: Annotated[str | None, f"text to go on from  [default: {PROMPT!r}]"] = None,
    prompts: Annotated[str | None, "a file with a prompt in each line: requests that are served together"] = None,
    prompt_ids: Annotated[str | None, "token ids instead of text: 1,2,3"] = None,
    prompt_tokens: Annotated[
        int | None, "a prompt of so many tokens, whatever they say", AtLeast(1), AtMost(MOST_TOKENS)
    ] = None,
    max_new_tokens: Annotated[int, "stop after so many tokens, if the model does not before", AtLeast(1)] = 32,
    block_size: BlockSize = 16,
    kv_blocks: KvBlocks = None,
    max_batch: MaxBatch = 256,
    max_prefill_tokens: MaxPrefillTokens = 8192,
    dtype: Dtype = None,
    layers: Layers = None,
    layers_run: LayersRun = None,
    ignore_eos: Annotated[bool, "do not stop at the end-of-text token"] = False,
    logits: Annotated[str | None, "of one prompt: write all logits to this .npy: float32 [tokens, vocabulary]"] = None,
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
    folder = find_model(model)
    family = read_family(folder)
    checkpoint = open_weights(gpus, folder, family)
    family = shaped(gpus, family, ratio, layers)
    limits = Limits(max_batch, max_prefill_tokens)
    if logits:
        check_target("--logits", logits)
        if prompts or not gpus.payload:
            raise UsageError("--logits is for one prompt, with its numbers: leave --prompts and --payload none away")
    asked = (prompt, prompt_ids, prompt_tokens)
    tokenizer, batch = read_prompts(gpus, folder, family, prompts, asked)
    stop = () if ignore_eos or not gpus.payload else family.stop
    requests = [Request(at, ids, max_new_tokens, stop=stop) for at, ids in enumerate(batch)]
    steps = open_model(
        gpus, family, checkpoint, scheme, kv == "lowrank", requests, dtype=dtype, layers_run=layers_run,
        block_size=block_size, kv_blocks=kv_blocks, wanted=logits is not None,
    )  # fmt: skip
    kept: list[np.ndarray] = []
    told = Teller(gpus.console, tokenizer, batch[0])

    def tell(one: Request) -> None:
        if steps.logits is not None:
            kept.extend(steps.logits if len(one.new) == 1 else steps.logits[:1])
        if len(requests) == 1:
            told.tell(one.new)

    serve(steps, requests, limits, tell)
    told.end()
    steps.close()
    if logits and gpus.control.rank == 0:
        rows = kept[: len(batch[0]) + len(requests[0].new) - 1]
        write_file("--logits", logits, lambda stream: np.save(stream, np.array(rows, np.float32)))
    return {
        **({} if prompts else answer(requests[0], told)),
        **({"requests": [answer(one, told) for one in requests]} if prompts else {}),
        "scheme": scheme,
        "kv": kv,
        "layers": len(family.layers),
        "kv_blocks": steps.cache.pages.blocks,
        "block_size": block_size,
        "preemptions": sum(one.preemptions for one in requests),
        "plans": steps.recorded,
    }


def answer(one: Request, told: Teller) -> dict[str, Any]:
    """What became of a request."""
    gaps = np.diff(one.times)
    return {
        "prompt_ids": list(one.prompt),
        "token_ids": one.new,
        "text": told.text(one.new),
        "stopped": "end of text" if one.new[-1] in one.stop else "max-new-tokens",
        "ttft_seconds": one.times[0] - one.arrival,
        "itl_seconds": float(gaps.mean()) if len(gaps) else None,
        "preemptions": one.preemptions,
    }


def open_weights(gpus: Gpus, folder: Path, family: Family) -> Checkpoint | None:
    """The checkpoint, with every tensor that the model needs; None without payload. ModelError."""
    if not gpus.payload:
        return None
    checkpoint = open_checkpoint(folder)
    if isinstance(family.config, Config):
        check_shapes(checkpoint, family.config)
        return checkpoint
    for name, shape in opt_shapes(family.config).items():
        if checkpoint.find(name).shape != shape:
            raise ModelError(
                f"{folder}: tensor {name} has shape {list(checkpoint.shape(name))}; config.json asks for {list(shape)}"
            )
    return checkpoint


def shaped(gpus: Gpus, family: Family, ratio: float | None, layers: int | None) -> Family:
    """The model as it was asked for. UsageError."""
    if ratio is not None:
        if not 0 <= ratio < 1:
            raise UsageError(f"--ratio is {ratio}; it has to be at least 0 and below 1")
        if gpus.payload:
            raise UsageError("--ratio is for shapes, with --payload none; `meshrt compress` makes a decomposed model")
        family = evenly(family, ratio)
    if layers is not None:
        if layers > len(family.layers):
            raise UsageError(f"--layers is {layers}; the model has {len(family.layers)}")
        family = replace(family, layers=family.layers[:layers])
    return family


def read_prompts(
    gpus: Gpus, folder: Path, family: Family, file: str | None, asked: tuple[str | None, str | None, int | None]
) -> tuple["Tokenizer | None", list[tuple[int, ...]]]:
    """The tokenizer, at rank 0, and the prompts' ids. UsageError, ModelError."""
    config = cast(Config, family.config)  # of which the vocabulary's size is wanted, and both kinds have that
    if file is None:
        tokenizer, ids = read_prompt(gpus.control, folder, config, *asked)
        return tokenizer, [ids]
    if any(one is not None for one in asked):
        raise UsageError("--prompts has prompts already: leave --prompt, --prompt-ids and --prompt-tokens away")
    try:
        lines = [line for line in read_text(Path(file), MAX_TEXT_BYTES).splitlines() if line.strip()]
    except ModelError as error:
        raise UsageError(f"--prompts {file} cannot be read: {error}") from error
    if not lines:
        raise UsageError(f"--prompts {file} has no line with a prompt")
    found = [read_prompt(gpus.control, folder, config, line, None, None) for line in lines]
    return found[0][0], [ids for _, ids in found]


def open_model(
    gpus: Gpus, family: Family, checkpoint: Checkpoint | None, scheme: str, low_rank: bool, requests: list[Request], *,
    dtype: str | None = None, layers_run: int | None = None, block_size: int = 16, kv_blocks: int | None = None,
    wanted: bool = False,
) -> Steps:  # fmt: skip
    """The model on the GPUs, with a cache for the requests. UsageError, LimitError."""
    if gpus.payload and layers_run is not None:
        raise UsageError("--layers-run is for shapes: add --payload none")
    check_lengths(family, requests)
    run = min(layers_run or len(family.layers), len(family.layers))
    if run < len(family.layers):
        check_alike(family, run)
    kind = storage(dtype or family.dtype)
    longest = max(len(one.prompt) + one.limit for one in requests)
    needed = sum(-(-(len(one.prompt) + one.limit) // block_size) for one in requests)

    def opened(gpus: Gpus, checkpoint: Checkpoint | None) -> tuple[PlacedModel, Cache]:
        for gpu in gpus.mine:
            gpu.dtype = kind
        model = place(gpus, family, scheme, checkpoint, run, longest)
        if low_rank:
            check_low_rank(model, scheme)
        return model, make_cache(gpus, model, low_rank, block_size, needed, kv_blocks)

    if gpus.payload:
        opened(replace(gpus, payload=False), None)  # what does not fit is refused before a weight is read
    return Steps(gpus, *opened(gpus, checkpoint), wanted)


def check_alike(family: Family, run: int) -> None:
    """UsageError unless the layers that do not run are like the last that does."""

    def ranks(at: int) -> list[int | None]:
        layer = family.layers[at]
        return [one.rank for one in (layer.q, layer.k, layer.v, layer.o, *layer.inner, layer.down)]

    for at in range(run, len(family.layers)):
        if ranks(at) != ranks(run - 1):
            raise UsageError(f"--layers-run {run}: layer {at} has other ranks than layer {run - 1}, so it has to run")


def storage(name: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
