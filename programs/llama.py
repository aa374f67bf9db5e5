"""LLaMA on the mesh, end to end: prefill, the move to decode's layout, decode, text."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.rings import interleaved_rings
from meshrt.mesh.mesh import parse_mesh, tile_ranks
from meshrt.models.catalogue import find_model
from meshrt.models.checkpoint import Checkpoint, check_shapes, open_checkpoint
from meshrt.models.config import read_config
from meshrt.models.sampling import check_drawing, sample
from meshrt.program import HOST, AtLeast, AtMost
from meshrt.programs.mesh import generation
from meshrt.programs.mesh.cache import fill_evenly, spread_evenly
from meshrt.programs.mesh.decode import decode
from meshrt.programs.mesh.nexttoken import greedy, next_of_prompt, on_host, prompt_logits, whole_row
from meshrt.programs.mesh.placement import change_cores, move_weights
from meshrt.programs.mesh.prefill import prefill
from meshrt.programs.mesh.prompt import MOST_TOKENS, PROMPT, Teller, read_prompt
from meshrt.programs.mesh.regions import Region, arrange, hand_back, install, open_regions
from meshrt.programs.mesh.systems import open_sums
from meshrt.programs.mesh.weights import Chunks, cut_dimensions
from meshrt.ranks.files import check_target, write_file

MESH = (8, 8)
EVERY = 16  # tokens from one state that is kept to the next
# Arguments that may be others where a generation goes on; model and prompt may have other names, and are compared.
MAY_CHANGE = {"block", "model", "prompt", "prompt_ids", "prompt_tokens", "logits", "checkpoint", "every", "resume"}


@np.errstate(all="ignore")  # of numbers that are none: the choice of a token says so
def run(
    block: Block,
    *,
    model: Annotated[str, "a packaged model's name, or a Hugging Face folder"] = "llama-tiny",
    prompt: Annotated[str | None, f"text to go on from  [default: {PROMPT!r}]"] = None,
    prompt_ids: Annotated[str | None, "token ids instead of text: 1,2,3"] = None,
    prompt_tokens: Annotated[
        int | None, "a prompt of so many tokens, whatever they say", AtLeast(1), AtMost(MOST_TOKENS)
    ] = None,
    context: Annotated[int, "no prompt: the cache holds so many tokens to begin with; --payload none", AtLeast(0)] = 0,
    max_new_tokens: Annotated[int, "stop after so many tokens, if the model does not before", AtLeast(1)] = 32,
    system: Annotated[Literal["waferllm", "t10", "ladder"], "how it is multiplied and added"] = "waferllm",
    kv: Annotated[Literal["shift", "concat", "roundrobin"], "KV cache policy"] = "shift",
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        "storage of weights and KV; sums are float32  [default: the model's]",
    ] = None,
    phases: Annotated[int, "K of the K-trees"] = 2,
    decode_phases: Annotated[int | None, "the same in decode  [default: as in prefill]"] = None,
    allreduces: Annotated[Literal["fused", "published"], "6 or 10 allreduces a layer in decode"] = "fused",
    head_groups: Annotated[int | None, "groups of heads side by side  [default: what leaves least to a core]"] = None,
    regions: Annotated[int, "meshes that share the layers out, one after the other"] = 1,
    decode_mesh: Annotated[str | None, "WxH cores that decode, at the same corner  [default: those of prefill]"] = None,
    decode_regions: Annotated[int | None, "regions that decode  [default: as many as prefill has]"] = None,
    layers: Annotated[int | None, "only the first so many layers of the model", AtLeast(1)] = None,
    layers_run: Annotated[
        int | None, "run so many layers, count the last for the others; --payload none", AtLeast(1)
    ] = None,
    steps_run: Annotated[int | None, "t10, ladder: the same for steps of a product; --payload none", AtLeast(1)] = None,
    layers_only: Annotated[bool, "prefill without embedding and head; --payload none"] = False,
    temperature: Annotated[float, "0 is greedy"] = 0.0,
    top_k: Annotated[int, "sample among the k likeliest; 0: all"] = 0,
    top_p: Annotated[float, "sample among the likeliest that make up this share"] = 1.0,
    seed: Annotated[int, "of the sampling"] = 0,
    ignore_eos: Annotated[bool, "do not stop at the end-of-text token"] = False,
    logits: Annotated[str | None, "write all logits to this .npy: float32 [tokens, vocabulary]"] = None,
    checkpoint: Annotated[str | None, "folder to keep the state of the generation in", HOST] = None,
    every: Annotated[
        int | None, "new tokens from one state that is kept to the next  [default: 16]", AtLeast(1), HOST
    ] = None,
    resume: Annotated[
        bool, "go on from the state in that folder, if there is one, on any number of ranks", HOST
    ] = False,
) -> dict[str, Any]:
    """Generate text with a LLaMA or Qwen2 model from a Hugging Face folder."""
    given = {name: value for name, value in locals().items() if name not in MAY_CHANGE}
    folder = find_model(model)
    config = read_config(folder)
    check_drawing(temperature, top_k, top_p, seed)
    check_sizes(block, config.layers, layers, layers_run, steps_run, layers_only, context)
    if steps_run is not None and (system == "waferllm" or context):
        raise UsageError(
            "--steps-run is for prefill by --system t10 or ladder: leave it away, or name one and a prompt"
        )
    if decode_phases is not None and system != "waferllm":
        raise UsageError(f"--decode-phases is for the K-trees of waferllm: {system} adds up in its own way")
    if context and (decode_mesh, decode_regions) != (None, None):
        raise UsageError("--context has no prefill to change from: give decode's cores as --mesh and --regions")
    if temperature and not block.payload:
        raise UsageError("--temperature is for tokens that are drawn by their logits, of which --payload none has none")
    if logits:
        check_target("--logits", logits)
        if not block.payload:
            raise UsageError("--logits are numbers, of which --payload none has none: leave one of the two away")
    config = config if layers is None else replace(config, layers=layers)
    tensors = None
    if block.payload:
        tensors = open_checkpoint(folder)
        check_shapes(tensors, config)
    asked = (prompt, prompt_ids, prompt_tokens)
    tokenizer, ids = read_prompt(block.control, folder, config, *asked, context=context)
    length = len(ids) + context
    if block.payload and length + max_new_tokens > config.max_positions:
        raise UsageError(
            f"{length} prompt tokens and {max_new_tokens} new ones are more than the {config.max_positions} positions"
            " of the model: shorten the prompt, or lower --max-new-tokens"
        )
    chunks = cut_dimensions(block, config, head_groups)
    storage = storage_type(dtype or config.dtype or "float32")

    stop = () if ignore_eos or not block.payload else config.eos_token_ids
    rng = np.random.default_rng(seed)
    choose = partial(sample, temperature=temperature, top_k=top_k, top_p=top_p, rng=rng)
    room = max(chunks.rows * -(-len(ids) // chunks.sides), (length + max_new_tokens) // block.mesh.height + 1) + 2
    cores = parse_mesh(decode_mesh) if decode_mesh else (block.mesh.width, block.mesh.height)
    tile_ranks(*cores, block.control.size, "--decode-mesh")  # refused before prefill, not after
    moves = (
        bool(ids)
        and max_new_tokens > 1
        and (*cores, decode_regions or regions) != (block.mesh.width, block.mesh.height, regions)
    )
    spent: tuple[Any, Any] = (None, None) if block.payload else ([], [])  # cycles of layers, in prefill and in decode
    kept: list[np.ndarray] = []
    new: list[int] = []
    now = generation.Generation(new, kept, spent, rng)
    identity: dict[str, Any] = {}
    saved, apart = None, every or EVERY
    if checkpoint is not None:
        identity = generation.identity(block, config, tensors, ids, given | {"logits": logits is not None})
        saved = generation.open_folder(block, checkpoint, resume, identity)
    elif resume:
        raise UsageError("--resume goes on from the state in a folder: name it with --checkpoint")
    elif every is not None:
        raise UsageError(f"--every is {every} and no state is kept: name a folder for it with --checkpoint")
    told = Teller(block.console, tokenizer, ids)
    with ExitStack() as stack:

        def elsewhere(source: Checkpoint | None) -> tuple[list[Region], Chunks]:
            """The regions that decode, where they are others than those of prefill; and how they cut."""
            there = block.another("decode", *cores)
            cut, count = cut_dimensions(there, config, chunks.groups), decode_regions or regions
            name = "decode region"
            return open_regions(stack, there, config, cut, source, storage, count, room, kv, name, turned=True), cut

        if block.payload:  # what the cores have no room for is refused before a weight is read
            with ExitStack() as trial:
                shapes = replace(block, payload=False)
                open_regions(trial, shapes, config, chunks, None, storage, regions, room, kv, turned=saved is not None)
        begun = saved is not None
        source = None if begun and moves else tensors
        opened = open_regions(stack, block, config, chunks, source, storage, regions, room, kv, turned=begun)
        caches = [region.cache for region in opened]
        if saved is not None:
            if moves:
                opened, chunks = elsewhere(tensors)
                caches += [region.cache for region in opened]
            generation.hold(caches, saved)
        elif not ids:
            for region in opened:
                fill_evenly(region.cache, context)
            new.append(0)
        else:
            with ExitStack() as routes:
                rings = [routes.enter_context(interleaved_rings(region.block)) for region in opened]
                with ExitStack() as inner, block.phase("prefill") as phase:
                    phase.tokens = len(ids)
                    ready = install(inner, opened, system, chunks, phases, rings, steps_run)
                    scores = prefill(
                        ready, config, chunks, np.array(ids), bool(logits), layers_run, spent[0], layers_only
                    )
                    block.follow(ready[-1].block)
                if max_new_tokens > 1:  # else there is nothing to decode
                    with block.phase("re-placement"):
                        opened = [
                            replace(region, weights=move_weights(region.block, ring, region.weights, layers_run))
                            for region, ring in zip(opened, rings, strict=True)
                        ]
                        if not moves:
                            for region in opened:
                                spread_evenly(region.cache)
            last = opened[-1].block
            with ExitStack() as routes, block.phase("first token") as phase:
                phase.tokens = 1
                sums = open_sums(routes, last, chunks, "xy", phases)
                last.follow(block)
                drawn = choose if temperature else None
                new.append(next_of_prompt(last, config, chunks, sums, scores, len(ids), drawn))
                block.follow(last)
            if logits:
                kept += prompt_logits(last, scores, len(ids), config.vocab_size)
            del scores
            if moves:
                with block.phase("change of cores"):
                    after, cut = elsewhere(None)
                    change_cores(opened, after, arrange(block.device, *cores, len(after)), chunks, cut, layers_run)
                    opened, chunks = after, cut
                    caches += [region.cache for region in opened]
        opened = install(stack, opened, system, chunks, decode_phases or phases, None)
        last = opened[-1].block
        told.tell(new)
        with block.phase("decode") as phase:
            if saved is None:
                opened[0].block.follow(block)
            else:
                generation.restore(saved, block, opened, config.vocab_size, now)
            written = len(new) if begun else 0
            while len(new) < max_new_tokens and new[-1] not in stop:
                if checkpoint is not None and len(new) > written and (len(new) == 1 or len(new) % apart == 0):
                    generation.save(checkpoint, identity, block, opened, caches, now)
                place = length + len(new) - 1
                found = decode(opened, config, chunks, new[-1], place, allreduces == "fused", layers_run, spent[1])
                row = whole_row(last, found, config.vocab_size) if logits or temperature else None
                if logits and row is not None:
                    kept.append(row)
                if temperature:
                    new.append(on_host(last, row, choose))
                else:
                    new.append(greedy(last, chunks, opened[-1].sums, found))
                del found
                told.tell(new)
                hand_back(opened)
            block.follow(opened[0].block)
            phase.tokens = len(new) - 1
    if logits and block.mesh.rank == 0:
        write_file("--logits", logits, lambda stream: np.save(stream, np.array(kept, np.float32)))
    told.end()
    return {
        "prompt_ids": list(ids),
        "token_ids": new,
        "text": told.text(new),
        "stopped": "end of text" if new[-1] in stop else "max-new-tokens",
        "head_groups": chunks.groups,
        "decode_cores": list(cores),
        "decode_regions": len(opened),
        "layers": config.layers,
        "layer_cycles": layer_cycles(spent, config.layers, len(new) - 1),
        "layers_run": sum(min(len(region.layers), layers_run or config.layers) for region in opened),
    }


def check_sizes(
    block: Block, all_layers: int, layers: int | None, layers_run: int | None, steps_run: int | None,
    layers_only: bool, context: int,
) -> None:  # fmt: skip
    """UsageError for a number that cannot be."""
    if layers is not None and layers > all_layers:
        raise UsageError(f"--layers is {layers}; the model has {all_layers}")
    if block.payload and (context or layers_run is not None or steps_run is not None or layers_only):
        raise UsageError("--context, --layers-run, --steps-run and --layers-only leave numbers out: add --payload none")
    if layers_only and context:
        raise UsageError("--layers-only leaves embedding and head of prefill out: with --context there is no prefill")


def layer_cycles(spent: tuple[Any, Any], layers: int, tokens: int) -> dict[str, float] | None:
    """Cycles of one layer in prefill and for one token in decode, by shape; None with payloads."""
    if spent[0] is None:
        return None
    found = {"prefill": sum(spent[0]) / layers, "decode": sum(spent[1]) / layers / max(tokens, 1)}
    return {name: cycles for name, cycles in found.items() if cycles}


def storage_type(name: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)
