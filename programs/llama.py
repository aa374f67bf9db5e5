"""LLaMA on the mesh, end to end: prefill, the move to decode's layout, decode, text."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from meshrt.allreduce import allreduce, ktree
from meshrt.block import Block
from meshrt.collectives import interleaved_rings
from meshrt.errors import UsageError
from meshrt.models.catalogue import find_model
from meshrt.models.checkpoint import check_shapes, open_checkpoint
from meshrt.models.config import Config, read_config
from meshrt.models.sampling import check_sampling, sample
from meshrt.programs.decode import Trees, decode, move_weights
from meshrt.programs.kvcache import kv_cache, spread_evenly
from meshrt.programs.prefill import Wires, prefill
from meshrt.programs.weights import Chunks, cut_dimensions, load_weights
from meshrt.report import check_target, write_file
from meshrt.tiles import gather_parts

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MESH = (8, 8)
PROMPT = "Once upon a time"


def run(
    block: Block,
    *,
    model: Annotated[str, "a packaged model's name, or a Hugging Face folder"] = "llama-tiny",
    prompt: Annotated[str | None, f"text to go on from  [default: {PROMPT!r}]"] = None,
    prompt_ids: Annotated[str | None, "token ids instead of text: 1,2,3"] = None,
    max_new_tokens: Annotated[int, "stop after so many tokens, if the model does not before"] = 32,
    kv: Annotated[Literal["shift"], "KV cache policy"] = "shift",
    dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        "storage of weights and KV; sums are float32  [default: the model's]",
    ] = None,
    phases: Annotated[int, "K of the K-trees"] = 2,
    temperature: Annotated[float, "0 is greedy"] = 0.0,
    top_k: Annotated[int, "sample among the k likeliest; 0: all"] = 0,
    top_p: Annotated[float, "sample among the likeliest that make up this share"] = 1.0,
    seed: Annotated[int, "of the sampling"] = 0,
    ignore_eos: Annotated[bool, "do not stop at the end-of-text token"] = False,
    logits: Annotated[str | None, "write all logits to this .npy: float32 [tokens, vocabulary]"] = None,
) -> dict[str, Any]:
    """Generate text with a LLaMA or Qwen2 model from a Hugging Face folder."""
    folder = find_model(model)
    config = read_config(folder)
    check_sampling(temperature, top_k, top_p)
    if seed < 0:
        raise UsageError(f"--seed is {seed}; it starts at 0")
    if logits:
        check_target("--logits", logits)
    tokenizer, ids = read_prompt(block, folder, config, prompt, prompt_ids)
    if max_new_tokens < 1:
        raise UsageError(f"--max-new-tokens is {max_new_tokens}; it starts at 1")
    if len(ids) + max_new_tokens > config.max_positions:
        raise UsageError(
            f"{len(ids)} prompt tokens and {max_new_tokens} new ones are more than the {config.max_positions} positions"
            " of the model: shorten the prompt, or lower --max-new-tokens"
        )
    checkpoint = None
    if block.payload:
        checkpoint = open_checkpoint(folder)
        check_shapes(checkpoint, config)
    chunks = cut_dimensions(block, config)
    storage = storage_type(dtype or config.dtype or "float32")
    weights = load_weights(block, config, chunks, checkpoint, storage)

    stop = () if ignore_eos else config.eos_token_ids
    rng = np.random.default_rng(seed)
    choose = partial(sample, temperature=temperature, top_k=top_k, top_p=top_p, rng=rng)
    rows = chunks.rows * -(-len(ids) // chunks.sides)
    room = max(rows, (len(ids) + max_new_tokens) // block.mesh.height + 1) + 2
    token = (config.layers, 2, config.kv_heads, chunks.columns * chunks.keys.shape[1] // config.kv_heads)
    kept: list[np.ndarray] = []
    new: list[int] = []
    told = Teller(block, tokenizer, ids)
    with ExitStack() as stack:
        cache = stack.enter_context(kv_cache(block, token, room, storage))
        tree_x = stack.enter_context(ktree(block, "x", phases))
        with interleaved_rings(block) as rings:
            with block.phase("prefill") as phase:
                phase.tokens = len(ids)
                wires = Wires(rings, tree_x)
                scores = prefill(block, config, chunks, weights, wires, cache, np.array(ids), bool(logits))
            with block.phase("re-placement"):
                weights = move_weights(block, rings, weights)
                spread_evenly(cache)
        trees = Trees(tree_x, stack.enter_context(ktree(block, "y", phases)))
        with block.phase("first token") as phase:
            phase.tokens = 1
            new.append(next_of_prompt(block, config, chunks, trees, scores, len(ids), choose if temperature else None))
        if logits:
            kept += prompt_logits(block, scores, len(ids), config.vocab_size)
        told.tell(new)
        with block.phase("decode") as phase:
            while len(new) < max_new_tokens and new[-1] not in stop:
                place = len(ids) + len(new) - 1
                found = decode(block, config, chunks, weights, trees, cache, new[-1], place)
                row = whole_row(block, found, config.vocab_size) if logits or temperature else None
                if logits and row is not None:
                    kept.append(row)
                if temperature:
                    new.append(on_host(block, row, choose))
                else:
                    new.append(greedy(block, chunks, trees, found))
                told.tell(new)
            phase.tokens = len(new) - 1
    if logits and block.mesh.rank == 0:
        write_file("--logits", logits, lambda stream: np.save(stream, np.array(kept, np.float32)))
    told.end()
    return {
        "prompt_ids": list(ids),
        "token_ids": new,
        "text": told.text(new),
        "stopped": "end of text" if new[-1] in stop else "max-new-tokens",
    }


# ---------------------------------------------------------------------------------------------------- the prompt


def read_prompt(
    block: Block, folder: Path, config: Config, prompt: str | None, prompt_ids: str | None
) -> tuple["Tokenizer | None", tuple[int, ...]]:
    """The tokenizer (rank 0 only, None where the model has none and ids are given) and the ids, on all ranks."""
    from meshrt.models.errors import ModelError
    from meshrt.models.tokenizer import encode, load_tokenizer

    if prompt is not None and prompt_ids is not None:
        raise UsageError("--prompt and --prompt-ids say the same thing: give one of them")
    if prompt == "":
        raise UsageError("the prompt is empty: give --prompt some text")
    tokenizer, ids, problem = None, None, None
    if block.mesh.rank == 0:
        try:
            tokenizer = load_tokenizer(folder)
        except ModelError as error:
            problem = error
        if prompt_ids is None and tokenizer is not None:
            ids, problem = encode(tokenizer, PROMPT if prompt is None else prompt), None
    if prompt_ids is not None:
        ids, problem = parse_ids(prompt_ids), None
    ids, problem = block.control.bcast((ids, problem))
    if problem is not None:
        raise problem
    if not ids:
        raise UsageError(f"the prompt {prompt!r} has no tokens: give --prompt another text")
    wrong = [one for one in ids if not 0 <= one < config.vocab_size]
    if wrong:
        raise UsageError(
            f"token id {wrong[0]} is not in the model's vocabulary of {config.vocab_size}: 0 to {config.vocab_size - 1}"
        )
    return tokenizer, tuple(ids)


def parse_ids(text: str) -> list[int]:
    """'1,2,3' -> [1, 2, 3]. UsageError."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--prompt-ids {text!r} is not a list of numbers such as 1,2,3") from None


def storage_type(name: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


class Teller:
    """Prints the text as it comes; rank 0 has the tokenizer."""

    def __init__(self, block: Block, tokenizer: "Tokenizer | None", ids: tuple[int, ...]) -> None:
        self.block, self.tokenizer, self.ids, self.printed = block, tokenizer, ids, ""

    def tell(self, new: list[int]) -> None:
        """Print what the newest tokens add. A character that is not whole yet waits."""
        text = self._decode([*self.ids, *new])
        if text is not None and not text.endswith("\ufffd") and text.startswith(self.printed):
            self.block.console.text(text[len(self.printed) :])
            self.printed = text

    def end(self) -> None:
        if self.printed:
            self.block.console.text("\n\n")

    def text(self, new: list[int]) -> str | None:
        """The new tokens' text; None without a tokenizer."""
        return self._decode(new)

    def _decode(self, ids: list[int]) -> str | None:
        from meshrt.models.tokenizer import decode as words

        return None if self.tokenizer is None else words(self.tokenizer, ids)


# ------------------------------------------------------------------------------------------------- the next token


def best_of(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The greater of two (value, id) pairs [.., 2]; of equal values the lower id. For a reduction."""
    better = (other[..., :1] > one[..., :1]) | ((other[..., :1] == one[..., :1]) & (other[..., 1:] < one[..., 1:]))
    return np.where(better, other, one)


def best_here(block: Block, chunks: Chunks, scores: np.ndarray) -> np.ndarray:
    """Each core's best (logit, id) of its part of V_x: [bh, bw, columns, Vt] -> float32 [bh, bw, 2].

    Ids are exact in float32 up to 2^24; no vocabulary is as large.
    """
    first = block.mesh.x0 * chunks.columns
    ids = chunks.vocabulary[first : first + block.lead[1] * chunks.columns].reshape(1, block.lead[1], -1)
    flat = np.where(ids >= 0, scores.reshape(*scores.shape[:2], -1), np.float32(-np.inf))
    at = flat.argmax(axis=-1)[..., None]
    block.elementwise(scores)
    best = np.take_along_axis(flat, at, axis=-1), np.take_along_axis(np.broadcast_to(ids, flat.shape), at, axis=-1)
    return np.concatenate([best[0], best[1].astype(np.float32)], axis=-1)


def greedy(block: Block, chunks: Chunks, trees: Trees, scores: np.ndarray) -> int:
    """The likeliest token, found on the mesh: V_x, the same in every row, is reduced along x, and all cores know it."""
    best = allreduce(block, trees.x, best_here(block, chunks, scores), best_of)
    return int(best[0, 0, 1])


def next_of_prompt(
    block: Block, config: Config, chunks: Chunks, trees: Trees, scores: np.ndarray, length: int,
    choose: Callable[[np.ndarray], int] | None,
) -> int:  # fmt: skip
    """The token after the prompt, from logits L_y V_x: the row of cores that has its last position tells the others."""
    row, strip, place = last_place(chunks, length, scores.shape[-2])
    here = block.mesh.y0 <= row < block.mesh.y0 + block.lead[0]
    own = scores[:, :, strip, :, place]
    if choose is not None:
        return on_host(block, whole_row(block, own, config.vocab_size, row), choose)
    best = best_here(block, chunks, own)
    if here:
        others = np.arange(block.lead[0]) != row - block.mesh.y0
        best[others] = -np.inf, config.vocab_size
    else:
        best[:] = -np.inf, config.vocab_size
    best = allreduce(block, trees.x, best, best_of)
    return int(allreduce(block, trees.y, best, best_of)[0, 0, 1])


def last_place(chunks: Chunks, length: int, kept: int) -> tuple[int, int, int]:
    """(row of cores, row of tiles there, place in the tile) of the prompt's last token; `kept` places a tile."""
    each = -(-length // chunks.sides)
    chunk, place = divmod(length - 1, each)
    return chunk // chunks.rows, chunk % chunks.rows, place if kept == each else 0


def on_host(block: Block, row: np.ndarray | None, choose: Callable[[np.ndarray], int]) -> int:
    """Sampling sorts the whole vocabulary: the logits leave the mesh, rank 0 draws, the token comes back as input."""
    token = choose(row) if row is not None else None
    return int(block.control.bcast(token))


def whole_row(block: Block, scores: np.ndarray, vocabulary: int, row: int = 0) -> np.ndarray | None:
    """V_x of one row of cores, [bh, bw, columns, Vt] -> float32 [vocabulary] at rank 0, None elsewhere."""
    every = gather_parts(block, scores.reshape(scores.shape[0], -1), (block.mesh.height, vocabulary))
    return None if every is None else every[row]


def prompt_logits(block: Block, scores: np.ndarray, length: int, vocabulary: int) -> list[np.ndarray]:
    """All rows of L_y V_x at rank 0, an empty list elsewhere."""
    tall = scores.transpose(0, 2, 4, 1, 3, 5)
    tall = tall.reshape(tall.shape[0] * tall.shape[1] * tall.shape[2], -1)
    every = gather_parts(block, tall, (length, vocabulary))
    return [] if every is None else list(every)
