"""Causal self-attention on Arm cores: keys and values to the cache, then heads shared out to cores.

T tokens after `held` others, H query heads, G heads of keys and values, D head size. Rotary embedding and softmax are
float32; the products are float16, or float32 where keys and values are (section IV.F). One stretch of work writes keys
and values, one computes all heads; nothing else is copied where the cache is fused.
"""

from math import ceil

import numpy as np

from meshrt.arm.cache import CachePieces, stretch
from meshrt.arm.core import ArmCore, Team
from meshrt.arm.soc import Soc
from meshrt.programs.arm.kv import ArmLayerCache, KeysAndValues
from meshrt.programs.arm.layout import block
from meshrt.programs.arm.simd.activations import capped, scaled
from meshrt.programs.arm.simd.floats import product
from meshrt.programs.arm.simd.softmax import rotated, softmax
from meshrt.programs.arm.simd.vectors import added, narrowed, units_of, widened
from meshrt.programs.arm.split import equal
from meshrt.programs.arm.tiles import UNITS, MicroTile, Unit, plan, row_tiles
from meshrt.records import dataclass

Array = np.ndarray


@dataclass(frozen=True)
class HeadCounts:
    """Query heads, heads of keys and values, and their size."""

    queries: int
    kv: int
    size: int

    @property
    def group(self) -> int:
        return self.queries // self.kv


@dataclass(frozen=True)
class ArmScores:
    """What becomes of q k^T: times `scale`, bent by a `cap`, and of the last `window` tokens only, if there are such.

    `turned`: queries and keys have a rotary embedding.
    """

    scale: float
    cap: float | None = None
    window: int | None = None
    turned: bool = True


@dataclass(frozen=True)
class Floats:
    """What computes the products: the unit, its tile."""

    unit: Unit
    tile: MicroTile


def floats_of(soc: Soc, kind: str) -> Floats:
    """float32 where keys and values are float32, else float16."""
    unit = UNITS["fmla" if kind == "float32" else "fmla_8h"]
    return Floats(unit, plan(unit, soc.device.registers, 16))


@dataclass(frozen=True)
class NewHeads:
    """The heads of new tokens as qkv [T, (H + 2 G) D] has them, before bias, rotary embedding and scale."""

    heads: HeadCounts
    tokens: int
    qkv: Array | None
    bias: Array | None
    biased: bool
    rotary: tuple[Array, Array] | None
    how: ArmScores

    def of_team(self, team: Team, begin: int, count: int) -> tuple[Array | None, Array | None]:
        """Of these heads the team's [heads, T, D], and their biases [heads, 1, D]."""
        size, mine = self.heads.size, units_of(team)
        span = slice(begin * size, (begin + count) * size)
        own = None if self.qkv is None else self.qkv[:, span].reshape(self.tokens, count, size).transpose(1, 0, 2)
        biases = None if self.bias is None else self.bias[span].reshape(count, 1, size)
        return None if own is None else own[mine], None if biases is None else biases[mine]

    def keys_and_values(self, team: Team) -> KeysAndValues:
        size, heads, tokens = self.heads.size, self.heads, self.tokens
        k, k_bias = self.of_team(team, heads.queries, heads.kv)
        v, v_bias = self.of_team(team, heads.queries + heads.kv, heads.kv)
        grid = (len(units_of(team)), tokens)
        if self.how.turned:
            keys = rotated(team, (tokens, size), k, self.rotary, k_bias, self.biased)
        else:
            keys = added(team, grid, size, k, k_bias) if self.biased else k
        return keys, added(team, grid, size, v, v_bias) if self.biased else v

    def queries(self, team: Team) -> Array | None:
        size, tokens, scale = self.heads.size, self.tokens, self.how.scale
        q, bias = self.of_team(team, 0, self.heads.queries)
        if self.how.turned:
            return rotated(team, (tokens, size), q, self.rotary, bias, self.biased, scale)
        return scaled(team, (tokens,), size, scale, q, self.biased, bias)


def attention(
    soc: Soc, qkv: Array | None, tokens: int, heads: HeadCounts, cache: ArmLayerCache,
    rotary: tuple[Array, Array] | None, bias: Array | None, biased: bool, source: int, target: int,
    high: int, scores: ArmScores | None = None,
) -> Array | None:  # fmt: skip
    """qkv float32 [T, (H + 2 G) D] in buffer `source` -> [T, H D] in buffer `target`; None by shape.

    `rotary`: cosines and sines [T, D / 2] of these tokens. `bias` of all of qkv, if it is `biased`. `high`: rows of the
    micro-tiles in which qkv was computed. `scores`: by default over the root of D, with rotary embedding. Of the cache
    is read what some token sees.
    """
    how = scores or ArmScores(heads.size**-0.5)
    new = NewHeads(heads, tokens, qkv, bias, biased, rotary, how)
    size, floats = heads.size, floats_of(soc, cache.kind)
    heights = row_tiles(tokens, high)

    def lines(buffer: int, head: int) -> CachePieces:
        """Of a head of qkv, or of the result."""
        return block(buffer, heights, range(len(heights)), range(head * size, (head + 1) * size))

    cache.append(tokens, lambda head: lines(source, heads.queries + head), new.keys_and_values)
    unseen = 0 if how.window is None else max(0, cache.held - tokens + 1 - how.window)  # by any of these tokens
    seen, passes = cache.held - unseen, ceil(tokens / floats.tile.rows)  # over keys and values

    def touch(core: ArmCore, head: int) -> None:
        core.caches.read(lines(source, head))
        for tile in (head // heads.group, heads.kv + head // heads.group):
            for _ in range(passes):
                core.caches.read(
                    stretch(cache.buffer, tile, unseen * cache.token_bytes, cache.held * cache.token_bytes)
                )
        core.caches.write(lines(target, head))

    def work(team: Team) -> Array | None:
        for core, units in team:
            for head in units:
                touch(core, head)
        narrow, grid = cache.kind != "float32", (len(units_of(team)), tokens)
        queries = new.queries(team)
        queries = narrowed(team, grid, size, queries) if narrow else queries
        keys, values = cache.read(team, heads.group, passes, unseen)
        turned = None if keys is None else keys.transpose(0, 2, 1)
        scores = product(team, floats.unit, floats.tile, queries, turned, (tokens, size, seen))
        if how.cap is not None:
            scores = capped(team, (tokens,), seen, how.cap, scores, not narrow)
        wide = how.cap is not None or not narrow
        shares = softmax(team, tokens, seen, scores, wide, not narrow, how.window)
        out = product(team, floats.unit, floats.tile, shares, values, (tokens, seen, size))
        return widened(team, grid, size, out) if narrow else out

    parts = [part for _, part in soc.parallel(equal(heads.queries, soc.count), work) if part is not None]
    if not parts:
        return None
    return np.ascontiguousarray(np.concatenate(parts).transpose(1, 0, 2)).reshape(tokens, heads.queries * size)
