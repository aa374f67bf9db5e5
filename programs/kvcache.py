"""Fill the KV cache of a mesh token by token, up to the last that fits, by one of three policies (waferllm, section 4.3
and Table 5). What the rows hold, how evenly, and what it takes to keep it so."""

from math import prod
from typing import Annotated, Any, Literal

import numpy as np

from meshrt.errors import LimitError, UsageError
from meshrt.mesh.block import Block
from meshrt.options import AtLeast
from meshrt.programs.mesh.cache import Policy, TokenCache, append, kv_cache
from meshrt.programs.mesh.climb import balance, refusal

MESH = (8, 8)
TOKENS = 32
DIGIT = 2048  # whole numbers that a float16 tells apart: keys are the low digit of the token's number, values the high


def run(
    block: Block,
    *,
    policy: Annotated[Policy, "which row of cores keeps a new token"] = "shift",
    tokens: Annotated[
        int | None, f"how many tokens to store, one after the other  [default: {TOKENS}]", AtLeast(1)
    ] = None,
    until_full: Annotated[bool, "store tokens until a core refuses"] = False,
    reserved: Annotated[int, "bytes of every core that something else takes, such as weights", AtLeast(0)] = 0,
    head_dim: Annotated[int, "numbers of one head's key, cut along x", AtLeast(1)] = 64,
    heads: Annotated[int, "key and value heads", AtLeast(1)] = 4,
    groups: Annotated[int, "groups of heads side by side, each on columns of its own", AtLeast(1)] = 1,
    columns: Annotated[
        int | None, "cut a token as for a mesh of so many columns  [default: the mesh's own]", AtLeast(1)
    ] = None,
    layers: Annotated[int, "layers that share the cache", AtLeast(1)] = 4,
    dtype: Annotated[Literal["float32", "float16"], "storage of keys and values"] = "float16",
) -> dict[str, Any]:
    """Fill the KV cache token by token, by one of three policies, and show how evenly the rows hold it.

    Columns are alike. So a single column of cores, with `columns` those of the mesh that is meant, holds as many tokens
    as that whole mesh does.
    """
    if tokens is not None and until_full:
        raise UsageError("--tokens and --until-full: give one of them")
    columns = block.mesh.width if columns is None else columns
    goal = None if until_full else TOKENS if tokens is None else tokens
    if heads % groups or groups > columns:
        raise UsageError(f"--groups {groups} has to divide the {heads} heads and be no more than {columns} columns")
    if until_full and block.device.core_memory is None:
        raise UsageError(f"device {block.device.name} is never full: give --core-memory, or a --device with a limit")
    token = (layers, 2, heads // groups, -(-head_dim // (columns // groups)))
    nbytes = prod(token) * np.dtype(dtype).itemsize
    with block.memory.hold("reserved", reserved):
        try:  # before the host makes room for a token at all cores
            with block.memory.hold("KV cache", nbytes):
                pass
        except LimitError as error:
            raise LimitError(f"not one token fits: {error}") from error
    with (
        block.memory.hold("reserved", reserved),
        kv_cache(block, token, 1, dtype, policy) as cache,
        block.phase("fill") as phase,
    ):
        result = fill(cache, goal)
        phase.tokens = result["tokens"]
        memory = every_row(block, (block.memory.common + block.memory.extra).max(axis=1).tolist())
        numbers = stored(cache) if block.payload else None
    return {
        "policy": policy,
        **result,
        "bytes_per_token": cache.bytes_per_token,
        "columns": columns,
        "memory_over_mean": over_mean(memory),
        "in_order": None if numbers is None else numbers == list(range(len(numbers))),
        "every_token_once": None if numbers is None else sorted(numbers) == list(range(result["tokens"])),
    }


def fill(cache: TokenCache, goal: int | None) -> dict[str, Any]:
    """Append so many tokens, or without a goal all that fit. LimitError where a core refuses before the goal.

    The work of a row in one step of attention is the tokens that it holds, the newest among them: the row with most of
    them is the one that all others wait for.
    """
    block, height = cache.block, len(cache.held)
    number, uneven, slowest, refused = 0, 0, 0, None
    attended = np.zeros(height, np.int64)  # tokens that each row has looked at, of all steps
    total = height * ((block.device.core_memory or 0) // cache.bytes_per_token) if goal is None else goal
    while goal is None or number < goal:
        if goal is None and (refused := refusal(cache)) is not None:
            break
        append(cache, numbered(cache, number))
        number += 1
        attended += cache.held
        slowest += int(cache.held.max())
        balance(cache)
        uneven = max(uneven, int(np.ptp(cache.held)))
        block.console.progress("tokens", number, total)
    if not number:
        raise LimitError(f"not one token fits: {refused}")
    return {
        "tokens": number,
        "rows": cache.held.tolist(),
        "fullest_row": int(cache.held.max()),
        "emptiest_row": int(cache.held.min()),
        "most_uneven": uneven,
        "tokens_moved": cache.moved,
        "tokens_over_mean": over_mean(cache.held.tolist()),
        "work_over_mean": slowest * height / int(attended.sum()),
        "busiest_row_over_mean": over_mean(attended.tolist()),
        "refused": refused,
    }


def numbered(cache: TokenCache, number: int) -> np.ndarray:
    """The tile of a token at every core, [bh, bw, *token], that says its number."""
    tile = np.empty(cache.data.shape[3:], cache.data.dtype)
    tile[:, 0], tile[:, 1] = number % DIGIT, number // DIGIT
    return np.broadcast_to(tile, (*cache.block.lead, *tile.shape))


def stored(cache: TokenCache) -> list[int]:
    """The numbers of the tokens that the rows hold, from north to south, each row from place 0 on: on all ranks.

    -1 where not all numbers of a token, at all cores of the row, say the same.
    """
    data = cache.data[:, :, : int(cache.held.max())]
    samples = data[:, :1, :, :1, :, :1, :1]
    consistent = (data == samples).all(axis=(1, 3, 4, 5, 6))
    inside = np.arange(data.shape[2]) < cache.block_held[:, None]
    low, high = (samples[:, 0, :, 0, digit, 0, 0][inside].astype(np.int64) for digit in (0, 1))
    numbers = np.where(consistent[inside], low + DIGIT * high, -1).tolist()
    all_numbers = every_row(cache.block, numbers)
    start = int(cache.held[: cache.rows.start].sum())
    wrong = cache.block.control.total(int(all_numbers[start : start + len(numbers)] != numbers))
    return [-1] * len(all_numbers) if wrong else all_numbers


def every_row(block: Block, rows: list[Any]) -> list[Any]:
    """What the ranks know of their rows of cores, from north to south, as the ranks at the west edge say it."""
    parts = block.control.gather(rows if block.mesh.x0 == 0 else [])
    all_rows: list[Any] = block.control.bcast(None if parts is None else [row for part in parts for row in part])
    return all_rows


def over_mean(amounts: list[int]) -> float:
    """How much the largest is above the mean: 1 is evenly."""
    return max(amounts) * len(amounts) / sum(amounts)
