"""The kernels of a transformer that are no plain products: plain functions that write to their first argument.

What they need between is given as scratch, and views are made by the caller, so that a recorded kernel allocates
nothing. That is also why what is broadcast is first copied to its full size: NumPy's arithmetic takes a buffer of its
own for a broadcast operand, and copying takes none. T tokens, B sequences, S slots of the cache that a sequence may
see, G key heads, g query heads that share one, D head size.
"""

from collections.abc import Sequence

import numpy as np

Array = np.ndarray


def rms_norm(out: Array, x: Array, weight: Array, eps: float, scale: Array, wide: Array) -> None:
    """x / root mean square over the last axis, times weight. Scratch: scale [T, 1], wide as x."""
    np.multiply(x, x, out)
    np.add.reduce(out, axis=-1, out=scale, keepdims=True)
    np.divide(scale, x.shape[-1], scale)
    np.add(scale, eps, scale)
    np.sqrt(scale, scale)
    np.copyto(wide, scale)
    np.divide(x, wide, out)
    np.copyto(wide, weight)
    np.multiply(out, wide, out)


def layer_norm(
    out: Array, x: Array, weight: Array, bias: Array, eps: float, scale: Array, wide: Array, centred: Array
) -> None:
    """(x - mean) / standard deviation over the last axis, times weight, plus bias. Scratch: also centred, as x."""
    np.add.reduce(x, axis=-1, out=scale, keepdims=True)
    np.divide(scale, x.shape[-1], scale)
    np.copyto(wide, scale)
    np.subtract(x, wide, centred)
    rms_norm(out, centred, weight, eps, scale, wide)
    np.copyto(wide, bias)
    np.add(out, wide, out)


def rotate(_: Array, low: Array, high: Array, cos: Array, sin: Array, scratch: Array) -> None:
    """Rotary embedding in place: `low` and `high` [T, heads, D/2] are the halves of heads; cos, sin [T, 1, D/2].

    Scratch: [5, T, heads, D/2].
    """
    a, b, c, d, angle = scratch
    np.copyto(a, low)
    np.copyto(b, high)
    np.copyto(angle, cos)
    np.multiply(a, angle, c)
    np.multiply(b, angle, d)
    np.copyto(angle, sin)
    np.multiply(a, angle, a)
    np.multiply(b, angle, b)
    np.subtract(c, b, c)
    np.add(d, a, d)
    np.copyto(low, c)
    np.copyto(high, d)


def scaled(x: Array, factor: float) -> None:
    """x times a number, in place."""
    np.multiply(x, factor, x)


def capped(x: Array, cap: float) -> None:
    """cap tanh(x / cap), in place."""
    np.divide(x, cap, x)
    np.tanh(x, x)
    np.multiply(x, cap, x)


def gelu_tanh(out: Array, wide: Array, x: Array) -> None:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2. Scratch: wide, as out."""
    np.copyto(wide, x)
    np.multiply(wide, wide, out)
    np.multiply(out, 0.044715, out)
    np.add(out, 1, out)
    np.multiply(out, wide, out)
    np.multiply(out, float(np.sqrt(2 / np.pi)), out)
    np.tanh(out, out)
    np.add(out, 1, out)
    np.multiply(out, 0.5, out)
    np.multiply(out, wide, out)


def geglu(out: Array, wide: Array, gate: Array, up: Array) -> None:
    """gelu_tanh(gate) up. Scratch: wide, as out."""
    gelu_tanh(out, wide, gate)
    np.copyto(wide, up)
    np.multiply(out, wide, out)


def silu(out: Array, wide: Array, x: Array) -> None:
    """x sigmoid(x), with sigmoid(x) = (1 + tanh(x/2)) / 2, which overflows nowhere. Scratch: wide, as out."""
    np.copyto(wide, x)
    np.multiply(wide, 0.5, out)
    np.tanh(out, out)
    np.add(out, 1, out)
    np.multiply(out, 0.5, out)
    np.multiply(out, wide, out)


def reglu(out: Array, wide: Array, gate: Array, up: Array) -> None:
    """max(gate, 0) up. Scratch: wide, as out."""
    relu(out, wide, gate)
    np.copyto(wide, up)
    np.multiply(out, wide, out)


def swiglu(out: Array, wide: Array, gate: Array, up: Array) -> None:
    """silu(gate) up. Scratch: wide, as out."""
    silu(out, wide, gate)
    np.copyto(wide, up)
    np.multiply(out, wide, out)


def relu(out: Array, _: Array, x: Array) -> None:
    np.copyto(out, x)
    np.maximum(out, 0, out=out)


def store(pool: Array, slots: Array, rows: Array) -> None:
    """Rows to their slots of a cache."""
    pool[slots] = rows


def store_rows(target: Array, slots: Array, source: Array, rows: Array, scratch: Array) -> None:
    """Some rows of the source to their slots. Scratch: as many rows."""
    source.take(rows, 0, scratch, "clip")
    target[slots] = scratch


def leave(kept: Array, pool: Array, slots: Array) -> None:
    """Rows of a cache to the host's memory."""
    kept[:] = pool[slots]


def copy_runs(_: Array, runs: Sequence[tuple[Array, Array]]) -> None:
    """Stretches of a cache that lie together, one after the other, to a compact buffer."""
    for target, source in runs:
        np.copyto(target, source)


def attend_cached(
    out: Array, q: Array, keys: Array, values: Array, slots: Array, scale: float,
    cap: float | None, k: Array, v: Array, kt: Array, vt: Array, no_value: Array, no_score: Array,
    scores: Array, total: Array, wide: Array,
) -> None:  # fmt: skip
    """Attention of one new token a sequence over a paged cache, keys and values [slots, G D].

    out, q [B, G, g, D]; slots int [B, S] is the block table, slot by slot. What a sequence does not see is marked in
    no_value [B, S, 1] and no_score [B, 1, 1, S]. Scratch: k, v [B, S, G D], and their views kt [B, G, D, S] and vt
    [B, G, S, D]; scores and wide [B, G, g, S]; total [B, G, g, 1].
    """
    keys.take(slots, 0, k, "clip")
    values.take(slots, 0, v, "clip")
    np.copyto(v, 0, where=no_value)  # what was never written is NaN, and NaN times nothing is NaN
    np.matmul(q, kt, scores)
    np.multiply(scores, scale, scores)
    if cap is not None:
        capped(scores, cap)
    np.copyto(scores, -np.inf, where=no_score)
    softmax(scores, total, wide)
    np.matmul(scores, vt, out)


def attend_causal(
    out: Array, q: Array, k: Array, v: Array, heads: tuple[int, int, int], ends: Sequence[int], scale: float,
    cap: float | None, window: int | None,
) -> None:  # fmt: skip
    """Causal attention inside each of several sequences: out, q [T, G g D]; k, v [T, G D]; ends of the sequences.

    With a window a token sees so many, itself included.
    """
    kv, group, dim = heads
    for begin, end in zip((0, *ends), ends, strict=False):
        n = end - begin
        queries = q[begin:end].reshape(n, kv, group, dim).transpose(1, 2, 0, 3)
        scores = queries @ k[begin:end].reshape(n, kv, 1, dim).transpose(1, 2, 3, 0)
        scores *= np.float32(scale)
        if cap is not None:
            capped(scores, cap)
        scores[..., np.triu(np.ones((n, n), bool), 1)] = -np.inf
        if window is not None:
            scores[..., np.tri(n, n, -window, bool)] = -np.inf
        softmax(scores, np.empty((*scores.shape[:-1], 1), scores.dtype), np.empty_like(scores))
        mixed = scores @ v[begin:end].reshape(n, kv, 1, dim).transpose(1, 2, 0, 3)
        out[begin:end] = mixed.transpose(2, 0, 1, 3).reshape(n, -1)


def attend_parts(
    out: Array, q: Array, keys: Array, values: Array, heads: tuple[int, int, int], slots: Sequence[Array],
    spans: Sequence[tuple[int, int]], scale: float, cap: float | None, window: int | None,
) -> None:  # fmt: skip
    """Causal attention of the tokens from `begin` to `end` of each sequence (its span) over a paged cache.

    out, q [T, G g D]; keys, values [slots, G D]; of each sequence the slots of its first `end` tokens.
    """
    kv, group, dim = heads
    row = 0
    for where, (begin, end) in zip(slots, spans, strict=True):
        n = end - begin
        queries = q[row : row + n].reshape(n, kv, group, dim).transpose(1, 2, 0, 3)
        k, v = (pool[where].reshape(end, kv, 1, dim) for pool in (keys, values))
        scores = queries @ k.transpose(1, 2, 3, 0)
        scores *= np.float32(scale)
        if cap is not None:
            capped(scores, cap)
        scores[..., np.triu(np.ones((n, end), bool), 1 + begin)] = -np.inf
        if window is not None:
            scores[..., np.tri(n, end, begin - window, bool)] = -np.inf
        softmax(scores, np.empty((*scores.shape[:-1], 1), scores.dtype), np.empty_like(scores))
        mixed = scores @ v.transpose(1, 2, 0, 3)
        out[row : row + n] = mixed.transpose(2, 0, 1, 3).reshape(n, -1)
        row += n


def softmax(scores: Array, total: Array, wide: Array) -> None:
    """In place, over the last axis. Scratch: total [.., 1], wide as scores."""
    np.maximum.reduce(scores, axis=-1, out=total, keepdims=True)
    np.copyto(wide, total)
    np.subtract(scores, wide, scores)
    np.exp(scores, scores)
    np.add.reduce(scores, axis=-1, out=total, keepdims=True)
    np.copyto(wide, total)
    np.divide(scores, wide, scores)


def likeliest(_: Array, logits: Array, first: int, best: Array, ids: Array, indices: Array) -> None:
    """The greatest of each row, and its number counted from `first`; of equal ones the lowest. Scratch: places int."""
    np.maximum.reduce(logits, axis=-1, out=best)
    logits.argmax(-1, indices)
    np.add(indices, first, ids, casting="unsafe")


def winners(out: Array, values: Array, ids: Array, rows: Array, indices: Array) -> None:
    """Of a candidate from each GPU [rows, GPUs], the greatest's id; `ids` is flat; `rows`: where each row begins."""
    values.argmax(-1, indices)
    np.add(indices, rows, indices)
    ids.take(indices, 0, out, "clip")
