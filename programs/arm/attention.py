"""Causal self-attention on Arm cores: keys and values to the cache, then heads shared out to cores.

T tokens after `held` others, H query heads, G heads of keys and values, D head size. Rotary embedding and softmax are
float32; the products are float16, or float32 where keys and values are (section IV.F). One stretch of work writes keys
and values, one computes all heads; nothing else is copied where the cache is fused.
"""

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from meshrt.arm.cache import stretch
from meshrt.arm.core import ArmCore, Team
from meshrt.arm.kernel import vectors
from meshrt.arm.soc import Soc
from meshrt.programs.arm.floats import product
from meshrt.programs.arm.kv import WIDEN, LayerCache
from meshrt.programs.arm.layout import block
from meshrt.programs.arm.split import equal
from meshrt.programs.arm.tiles import UNITS, Tile, Unit, plan, row_tiles

Array = np.ndarray
# Of four numbers: two halves that turn, with cosines and sines; a bias; the four passes of a softmax.
ROTATE = vectors(loads=2, fmul=1, fmla=1)
BIAS = vectors(loads=1, fadd=1)
SOFTMAX = vectors(loads=3, stores=3, fmax=1, fsub=1, fmul=3, fmla=5, frintn=1, fadd=2, fcvtn=1, shl=1)
OF_A_ROW = vectors(fmaxv=1, faddp=2, fdiv=1)


@dataclass(frozen=True)
class Heads:
    """Query heads, heads of keys and values, and their size."""

    queries: int
    kv: int
    size: int

    @property
    def group(self) -> int:
        return self.queries // self.kv


@dataclass(frozen=True)
class Floats:
    """What computes the products: the unit, its tile."""

    unit: Unit
    tile: Tile


def floats_of(soc: Soc, kind: str) -> Floats:
    """float32 where keys and values are float32, else float16."""
    unit = UNITS["fmla" if kind == "float32" else "fmla_8h"]
    return Floats(unit, plan(unit, soc.device.registers, 16))


def attention(
    soc: Soc, qkv: Array | None, tokens: int, heads: Heads, cache: LayerCache, rotary: tuple[Array, Array] | None,
    bias: Array | None, biased: bool, source: int, target: int, high: int,
) -> Array | None:  # fmt: skip
    """qkv float32 [T, (H + 2 G) D] in buffer `source` -> [T, H D] in buffer `target`; None by shape.

    `rotary`: cosines and sines [T, D / 2] of these tokens. `bias` of all of qkv, if it is `biased`. `high`: rows of the
    micro-tiles in which qkv was computed.
    """
    size, wide = heads.size, heads.queries * heads.size
    floats, held = floats_of(soc, cache.kind), cache.held
    heights = row_tiles(tokens, high)
    q = k = v = None
    if qkv is not None and rotary is not None:
        whole = qkv if bias is None else qkv + bias
        by_head = whole.reshape(tokens, -1, size).transpose(1, 0, 2)
        q, k = (rotate(part, *rotary) for part in (by_head[: heads.queries], by_head[heads.queries : -heads.kv]))
        q, v = q / np.float32(sqrt(size)), by_head[-heads.kv :]
    first = heads.queries * size  # column of the keys
    cache.append(
        k,
        v,
        tokens,
        lambda head: block(source, heights, range(len(heights)), range(first + head * size, first + (head + 1) * size)),
    )
    seen = cache.held

    def columns(head: int) -> range:
        return range(head * size, (head + 1) * size)

    def charge(core: ArmCore, head: int) -> None:
        passes = ceil(tokens / floats.tile.rows)  # over keys and values
        core.caches.read(block(source, heights, range(len(heights)), columns(head)))
        core.issue(ROTATE, ceil(tokens * size / 4))
        if biased:
            core.issue(BIAS, ceil(tokens * size / 4))
        for tile in (head // heads.group, heads.kv + head // heads.group):
            for _ in range(passes):
                core.caches.read(stretch(cache.buffer, tile, 0, seen * cache.token_bytes))
            core.issue(WIDEN[cache.kind], ceil(seen * size / 16) * passes)
        core.issue(SOFTMAX, tokens * ceil(seen / 4))
        core.issue(OF_A_ROW, tokens)
        core.caches.write(block(target, heights, range(len(heights)), columns(head)))

    def work(team: Team) -> Array | None:
        mine = [head for _, some in team for head in some]
        for core, some in team:
            for head in some:
                charge(core, head)
        keys = values = queries = None
        if q is not None and cache.keys is not None and cache.values is not None:
            groups = [head // heads.group for head in mine]
            keys, values = (part.read(seen)[groups] for part in (cache.keys, cache.values))
            queries, keys = q[mine], keys.transpose(0, 2, 1)
        scores = product(team, floats.unit, floats.tile, queries, keys, (tokens, size, seen))
        shares = None if scores is None else softmax(scores.astype(np.float32), held)
        out = product(team, floats.unit, floats.tile, shares, values, (tokens, seen, size))
        return None if out is None else out.astype(np.float32)

    found = [part for _, part in soc.parallel(equal(heads.queries, soc.count), work) if part is not None]
    if q is None:
        return None
    return np.ascontiguousarray(np.concatenate(found).transpose(1, 0, 2)).reshape(tokens, wide)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotary embedding of x [heads, T, D]: component i turns with component i + D / 2."""
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), axis=-1)


def softmax(scores: Array, held: int) -> Array:
    """Over the last axis of float32 [heads, T, S], where token t sees the first held + t + 1 positions."""
    tokens, seen = scores.shape[1:]
    future = np.arange(seen) > held + np.arange(tokens)[:, None]
    scores = np.where(future, np.float32(-np.inf), scores)
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: Array = raised / raised.sum(axis=-1, keepdims=True)
    return shares
