"""LLaMA on NeuronCores, end to end: dense, or with the MLP compressed as by NeuronMM."""

from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np

from meshrt.errors import UsageError
from meshrt.models.catalogue import find_model
from meshrt.models.checkpoint import check_shapes, open_checkpoint
from meshrt.models.config import read_config
from meshrt.models.factors import MLP
from meshrt.models.ranks import aligned_ranks
from meshrt.models.sampling import check_drawing, sample
from meshrt.neuron import language as nl
from meshrt.neuron.cores import Cores
from meshrt.program import AtLeast, AtMost
from meshrt.programs.mesh.prompt import MOST_TOKENS, PROMPT, Teller, read_prompt
from meshrt.programs.neuron.model import forward, place_model
from meshrt.ranks.files import check_target, write_file

MACHINE = "neuron"
MESH = (1, 1)


@np.errstate(all="ignore")  # of numbers that are none: the choice of a token says so
def run(
    cores: Cores,
    *,
    model: Annotated[str, "a packaged model's name, or a Hugging Face folder, also a compressed one"] = "llama-tiny",
    prompt: Annotated[str | None, f"text to go on from  [default: {PROMPT!r}]"] = None,
    prompt_ids: Annotated[str | None, "token ids instead of text: 1,2,3"] = None,
    prompt_tokens: Annotated[
        int | None, "a prompt of so many tokens, whatever they say", AtLeast(1), AtMost(MOST_TOKENS)
    ] = None,
    context: Annotated[int, "no prompt: the cache holds so many tokens to begin with; --payload none", AtLeast(0)] = 0,
    max_new_tokens: Annotated[int, "stop after so many tokens, if the model does not before", AtLeast(1)] = 32,
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None, "of tensors; sums are float32  [default: the model's]"
    ] = None,
    layers: Annotated[int | None, "only the first so many layers of the model", AtLeast(1)] = None,
    ratio: Annotated[float | None, "as if the MLP were compressed by so much; --payload none"] = None,
    block: Annotated[int | None, "of the ranks of --ratio  [default: 128]", AtLeast(1)] = None,
    temperature: Annotated[float, "0 is greedy"] = 0.0,
    top_k: Annotated[int, "sample among the k likeliest; 0: all"] = 0,
    top_p: Annotated[float, "sample among the likeliest that make up this share"] = 1.0,
    seed: Annotated[int, "of the sampling"] = 0,
    ignore_eos: Annotated[bool, "do not stop at the end-of-text token"] = False,
    logits: Annotated[str | None, "write all logits to this .npy: float32 [tokens, vocabulary]"] = None,
) -> dict[str, Any]:
    """Generate text with a LLaMA or Qwen2 model, dense or compressed, on NeuronCores.

    Matrices in factors (`meshrt compress`) are multiplied as such, the MLP by NeuronMM's Algorithm 3. Several cores
    share heads and columns of the MLP, and add their partial sums over a ring. The report has the time to the first
    token and for each after it, and what crossed between HBM and SBUF for them.

    \b
    Examples:
      mpirun -n 4 meshrt run llama-tiny --on neuron --cores 4
      meshrt run llama --on neuron --model FOLDER    a compressed model
      meshrt run llama3.2-1b --on neuron --payload none --prompt-tokens 1024 \\
        --max-new-tokens 2 --ratio 0.2               by shape, as if compressed
    """
    folder = find_model(model)
    config = read_config(folder)
    check_drawing(temperature, top_k, top_p, seed)
    if layers is not None and layers > config.layers:
        raise UsageError(f"--layers is {layers}; the model has {config.layers}")
    if context and cores.payload:
        raise UsageError(f"--context {context} leaves numbers out: it needs --payload none")
    if ratio is None and block is not None:
        raise UsageError(f"--block is {block}, of the ranks of --ratio: give that too, or leave it away")
    if ratio is not None:
        if cores.payload:
            raise UsageError(f"--ratio {ratio} gives shapes only: add --payload none, or `meshrt compress` the model")
        config = replace(config, ranks=aligned_ranks(config, MLP, ratio, 128 if block is None else block))
    if temperature and not cores.payload:
        raise UsageError("--temperature is for tokens that are drawn by their logits, of which --payload none has none")
    if logits:
        check_target("--logits", logits)
        if not cores.payload:
            raise UsageError("--logits are numbers, of which --payload none has none: leave one of the two away")
    config = config if layers is None else replace(config, layers=layers)
    checkpoint = None
    if cores.payload:
        checkpoint = open_checkpoint(folder)
        check_shapes(checkpoint, config)
    asked = (prompt, prompt_ids, prompt_tokens)
    tokenizer, ids = read_prompt(cores.control, folder, config, *asked, context=context)
    room = len(ids) + context + max_new_tokens
    if cores.payload and room > config.max_positions:
        raise UsageError(
            f"{len(ids)} prompt tokens and {max_new_tokens} new ones are more than the {config.max_positions} positions"
            " of the model: shorten the prompt, or lower --max-new-tokens"
        )
    stop = () if ignore_eos or not cores.payload else config.eos_token_ids
    choose = partial(sample, temperature=temperature, top_k=top_k, top_p=top_p, rng=np.random.default_rng(seed))
    shares = place_model(cores, config, checkpoint, nl.DTYPES[dtype or config.dtype or "float32"], room)
    for share in shares:
        for cache in share.caches:
            for tensor in (*cache.keys, *cache.values):
                tensor.store.full = context > 0  # by shape there is nothing to fill it with
    told = Teller(cores.console, tokenizer, ids)
    kept: list[np.ndarray] = []
    new: list[int] = []
    first = None
    if ids:
        with cores.phase("prefill", len(ids)) as prefill:
            found = forward(cores, shares, config, ids, 0, len(ids) if logits else 1)
        kept += [] if found is None else [*found]
        new.append(0 if found is None else choose(found[-1]))
        first = cores.lasted(prefill)
    else:
        new.append(0)
    told.tell(new)
    with cores.phase("decode") as decode:
        while len(new) < max_new_tokens and new[-1] not in stop:
            found = forward(cores, shares, config, new[-1:], context + len(ids) + len(new) - 1, 1)
            kept += [] if found is None else [*found]
            new.append(0 if found is None else choose(found[-1]))
            told.tell(new)
            cores.console.progress("decode", len(new), max_new_tokens)
        for phase in decode:
            phase.tokens = len(new) - 1
    if logits and cores.control.rank == 0:
        write_file("--logits", logits, lambda stream: np.save(stream, np.array(kept, np.float32)))
    told.end()
    return {
        "prompt_ids": list(ids),
        "token_ids": new,
        "text": told.text(new),
        "stopped": "end of text" if new[-1] in stop else "max-new-tokens",
        "layers": config.layers,
        "ttft_seconds": first,
        "tpot_seconds": cores.lasted(decode) / (len(new) - 1) if len(new) > 1 else None,
    }
