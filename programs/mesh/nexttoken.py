"""The next token, from logits on the mesh: the likeliest, found by a reduction, or one that the host draws."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.tiles import gather_parts
from meshrt.programs.generation.choice import at_rank_0
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.systems import Sums, open_sums
from meshrt.records import dataclass


def best_of(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The greater of two (value, id) pairs [.., 2]; of equal values the lower id. For a reduction."""
    better = (right[..., :1] > left[..., :1]) | ((right[..., :1] == left[..., :1]) & (right[..., 1:] < left[..., 1:]))
    return np.where(better, right, left)


def best_of_core(block: Block, chunks: Chunks, scores: np.ndarray) -> np.ndarray:
    """Each core's best (logit, id) of its part of V_x: [bh, bw, columns, Vt] -> float32 [bh, bw, 2].

    Ids are exact in float32 up to 2^24; no vocabulary is as large.
    """
    start = block.mesh.x0 * chunks.columns
    ids = chunks.vocabulary[start : start + block.lead[1] * chunks.columns].reshape(1, block.lead[1], -1)
    flat = np.where(ids >= 0, scores.reshape(*scores.shape[:2], -1), np.float32(-np.inf))
    if block.payload:
        flat = np.where(np.isnan(flat), np.float32(np.inf), flat)  # so that it is not lost among comparisons
    at = flat.argmax(axis=-1)[..., None]
    block.elementwise(scores)
    best = np.take_along_axis(flat, at, axis=-1), np.take_along_axis(np.broadcast_to(ids, flat.shape), at, axis=-1)
    return block.memory.keep("best logit", np.concatenate([best[0], best[1].astype(np.float32)], axis=-1))


def token_of(block: Block, best: np.ndarray) -> int:
    """The id of the best (logit, id) pair, [bh, bw, 2], that all have; 0 by shape. UsageError where its logit is no
    number.
    """
    if not block.payload:
        return 0
    if not np.isfinite(best[0, 0, 0]):
        raise UsageError(
            "no token can be picked: a logit is infinite or not a number; numbers in the checkpoint are, or become so"
            " in --dtype: float32 has the most room"
        )
    return int(best[0, 0, 1])


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Logits of one token, V_x, the same in every row of cores, which add up by `sums`."""

    block: Block
    chunks: Chunks
    sums: Sums
    vocabulary: int
    scores: np.ndarray

    def greedy(self) -> int:
        """Found on the mesh: the best of each column's cores is reduced along x, and all cores know it."""
        return token_of(self.block, self.sums.x(best_of_core(self.block, self.chunks, self.scores), best_of))

    def draw(self, choose: Callable[[np.ndarray], int]) -> int:
        return at_rank_0(self.block.control, self.row, choose)

    def rows(self) -> list[np.ndarray]:
        return [] if self.row is None else [self.row]

    @cached_property
    def row(self) -> np.ndarray | None:
        return whole_row(self.block, self.scores, self.vocabulary)


@dataclass(frozen=True, eq=False)
class PromptScores:
    """Logits of a prompt of that length, L_y V_x, at the cores of `last`; the run's phases are those of `block`."""

    block: Block
    last: Block
    chunks: Chunks
    phases: int
    vocabulary: int
    length: int
    scores: np.ndarray

    def greedy(self) -> int:
        return self._first(None)

    def draw(self, choose: Callable[[np.ndarray], int]) -> int:
        return self._first(choose)

    def rows(self) -> list[np.ndarray]:
        return prompt_logits(self.last, self.scores, self.length, self.vocabulary)

    def _first(self, choose: Callable[[np.ndarray], int] | None) -> int:
        """The token after the prompt: the row of cores that has its last position tells the others."""
        with ExitStack() as routes, self.block.phase("first token") as phase:
            phase.tokens = 1
            sums = open_sums(routes, self.last, self.chunks, "xy", self.phases)
            self.last.follow(self.block)
            row, strip, place = last_place(self.chunks, self.length, self.scores.shape[-2])
            logits = self.scores[:, :, strip, :, place]
            if choose is None:
                token = self._likeliest(sums, logits, row)
            else:
                token = at_rank_0(self.last.control, whole_row(self.last, logits, self.vocabulary, row), choose)
            self.block.follow(self.last)
        return token

    def _likeliest(self, sums: Sums, logits: np.ndarray, row: int) -> int:
        last = self.last
        best = best_of_core(last, self.chunks, logits)
        best[last.y != row] = -np.inf, self.vocabulary
        best = sums.x(best, best_of)
        return token_of(last, sums.y(best, best_of))


def last_place(chunks: Chunks, length: int, tile_rows: int) -> tuple[int, int, int]:
    """(row of cores, row of tiles there, place in the tile) of the prompt's last token; `tile_rows` places a tile."""
    per_chunk = -(-length // chunks.sides)
    chunk, place = divmod(length - 1, per_chunk)
    return chunk // chunks.rows, chunk % chunks.rows, place if tile_rows == per_chunk else 0


def whole_row(block: Block, scores: np.ndarray, vocabulary: int, row: int = 0) -> np.ndarray | None:
    """V_x of one row of cores, [bh, bw, columns, Vt] -> float32 [vocabulary] at rank 0, None elsewhere."""
    logits = gather_parts(block, scores.reshape(scores.shape[0], -1), (block.mesh.height, vocabulary))
    return None if logits is None else logits[row]


def prompt_logits(block: Block, scores: np.ndarray, length: int, vocabulary: int) -> list[np.ndarray]:
    """All rows of L_y V_x at rank 0, an empty list elsewhere."""
    tall = scores.transpose(0, 2, 4, 1, 3, 5)
    tall = tall.reshape(tall.shape[0] * tall.shape[1] * tall.shape[2], -1)
    logits = gather_parts(block, tall, (length, vocabulary))
    return [] if logits is None else list(logits)
