"""Tokens that move between the rows of a KV cache, each by one hop to the next row: after a new token, or for a prompt.

The rows pass their oldest tokens up so that all hold as many (waferllm, section 4.3); a prompt is spread the same way.
"""

from contextlib import nullcontext

import numpy as np

from meshrt.errors import LimitError
from meshrt.mesh.wires import fabric
from meshrt.mesh.wires.tables import Channel
from meshrt.programs.mesh.cache import Stairs, TokenCache, coming, stairs


def balance(cache: TokenCache) -> None:
    """After `append`, the policy shift: every core learns how much the core above held; a row that gets a token and
    held as many passes its oldest up. The other policies move nothing.

    So the shift runs from the south row up to the first row that holds less than the one above it, or to the top.
    LimitError where a row has no room for a token that comes while its own oldest is still there.
    """
    if cache.policy != "shift":
        return
    if cache.stairs is None:
        raise ValueError("a cache that shifts needs its stairs installed before the first new token")
    block = cache.block
    before = cache.held.copy()
    before[-1] -= 1
    shape = block.shape if block.payload else (1, 1)
    held = np.broadcast_to(before[cache.rows][: shape[0], None, None], (*shape, 1)).astype(np.int32)
    held = block.memory.keep("tokens that it holds", held)
    above = fabric.transfer(block, cache.stairs.down, held)
    full = _as_full(before)
    if block.payload:
        wrong = (held >= above)[:, 0, 0] != full[cache.rows]
        if (wrong & (np.arange(len(full)) > 0)[cache.rows]).any():
            raise AssertionError("a core's neighbour does not hold what was counted")
    rows = _climbing(cache.held)
    if rows.any():
        _pass_up(cache, cache.stairs, rows)


def _as_full(held: np.ndarray) -> np.ndarray:
    """The rows that hold as many tokens as the one above them, or more: bool [H]."""
    full = np.zeros(len(held), bool)
    full[1:] = held[1:] >= held[:-1]
    return full


def _above(rows: np.ndarray) -> np.ndarray:
    """The rows above these, bool [H]."""
    above = np.zeros_like(rows)
    above[:-1] = rows[1:]
    return above


def _climbing(held: np.ndarray) -> np.ndarray:
    """The rows, bool [H], that pass their oldest token up; `held` counts the newest token in the south row."""
    before = held.copy()
    before[-1] -= 1
    passes = _as_full(before) & (held > 0)
    return np.asarray(np.logical_and.accumulate(passes[::-1])[::-1])


def refusal(cache: TokenCache) -> str | None:
    """Why a core has no memory for the next token, moves included; None where it fits. The same on all ranks.

    The memory is really asked for, and given back. All ranks call it together.
    """
    arriving, counts = coming(cache), 0
    if cache.policy == "shift":
        arriving += _above(_climbing(cache.held + arriving))
        counts = 2 * np.dtype(np.int32).itemsize  # of tokens, a core's own and its neighbour's
    problem = None
    try:
        with cache.block.memory.hold("next token of the KV cache", cache.memory_of(arriving) + counts):
            pass
    except LimitError as error:
        problem = str(error)
    control = cache.block.control
    if not control.total(int(problem is not None)):
        return None
    reason: str = control.allreduce(problem, lambda texts: next(text for text in texts if text is not None))
    return reason


def _pass_up(cache: TokenCache, stairs: Stairs, rows: np.ndarray) -> None:
    """These rows (bool [H]) hand their oldest token to the row above, all at once."""
    above = _above(rows)
    arrived = _move(cache, stairs.up, rows, above, cache.data[:, :, 0])
    if cache.block.payload:
        data = cache.data
        fullest = min(int(cache.held.max()) + 1, data.shape[2])
        givers, takers = np.flatnonzero(rows[cache.rows]), np.flatnonzero(above[cache.rows])
        data[givers, :, : fullest - 1] = data[givers, :, 1:fullest]
        data[takers, :, cache.block_held[takers] - 1] = arrived[takers]


def _pass_down(cache: TokenCache, stairs: Stairs, rows: np.ndarray) -> None:
    """These rows hand their newest token to the row below, where it becomes the oldest."""
    below = np.zeros_like(rows)
    below[1:] = rows[:-1]
    packet = np.zeros((*cache.block.lead, *cache.data.shape[3:]), cache.data.dtype)
    if cache.block.payload:
        givers = np.flatnonzero(rows[cache.rows])
        packet[givers] = cache.data[givers, :, cache.block_held[givers] - 1]
    arrived = _move(cache, stairs.down, rows, below, packet)
    if cache.block.payload:
        data, fullest = cache.data, int(cache.held.max())
        takers = np.flatnonzero(below[cache.rows])
        data[takers, :, 1:fullest] = data[takers, :, : fullest - 1]
        data[takers, :, 0] = arrived[takers]


def _move(cache: TokenCache, channel: Channel, rows: np.ndarray, to: np.ndarray, packet: np.ndarray) -> np.ndarray:
    """A token from each of `rows` to the next row, one of `to`. What arrives, [bh, bw, *token].

    A token comes into a place of its own while the receiving core's own token, if one leaves, is still there: at the
    rows that get one, so that it is charged to these only. It leaves from its place in the cache.
    """
    with cache.block.memory.hold("token in flight", cache.memory_of(to.astype(np.int64))):
        arrived = fabric.transfer(cache.block, channel, packet, np.full_like(packet, np.nan), positions=rows)
    cache.moved += int(rows.sum())
    cache.add(to.astype(np.int64) - rows)
    return arrived


def spread_evenly(cache: TokenCache) -> None:
    """Move tokens between neighbouring rows, in order, until all rows hold as many, the first ones one more.

    For a prompt, whatever the policy. Routes that the cache does not have are installed meanwhile.
    """
    height, total = len(cache.held), int(cache.held.sum())
    goal = np.full(height, total // height)
    goal[: total % height] += 1
    if (cache.held == goal).all():
        return
    with stairs(cache.block) if cache.stairs is None else nullcontext(cache.stairs) as climb:
        while (cache.held != goal).any():
            surplus = np.cumsum(cache.held - goal)[:-1]  # that has to cross from each row to the next; negative: back
            southward, northward = np.zeros(height, bool), np.zeros(height, bool)
            southward[:-1] = (surplus > 0) & (cache.held[:-1] > 0)
            northward[1:] = (surplus < 0) & (cache.held[1:] > southward[1:])
            if southward.any():
                _pass_down(cache, climb, southward)
            if northward.any():
                _pass_up(cache, climb, northward)


def fill_evenly(cache: TokenCache, tokens: int) -> None:
    """Count so many tokens in, spread over the rows, without payloads: as if they had been there. LimitError."""
    height = len(cache.held)
    cache.add(np.full(height, tokens // height) + (np.arange(height) < tokens % height))
