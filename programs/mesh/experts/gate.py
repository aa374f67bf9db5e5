"""Which experts a token takes: decided at every core, from logits that all of them have.

In decode the router's table is whole at every column, so that the logits come with the norm's sum of squares; in
prefill partial logits are summed along x, and every core of a row knows what its row's tokens take. Where the table is
cut over the columns as well, in prefill it is a MeshGEMM and in both phases columns give their logits to all of a row,
by an allreduce along x. models/experts.py decides, as everywhere. By shape the choice is drawn (programs/routing.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import numpy as np

from meshrt.mesh.block import Block
from meshrt.models.experts import route
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.meshgemm import zeros
from meshrt.programs.mesh.regions import Region, multiplying
from meshrt.programs.mesh.weights import MeshExperts
from meshrt.records import dataclass


@dataclass(frozen=True, eq=False)
class ExpertChoice:
    """The experts of a token in order, their shares [bh, bw, top], and what multiplies the shared one, [bh, bw, 1]."""

    experts: tuple[int, ...]
    shares: np.ndarray
    shared: np.ndarray | None


@dataclass(frozen=True, eq=False)
class PromptChoice:
    """The experts of a prompt's tokens, int [P, Lt, top] by row of tiles, -1 where there is no token; the host has all.

    The shares that cores have, [bh, bw, rows, 1, Lt, top], and what multiplies the shared expert, [.., Lt, 1].
    """

    experts: np.ndarray
    shares: np.ndarray
    shared: np.ndarray | None


def choose_for_token(region: Region, w: MeshExperts, number: int, logits: np.ndarray, position: int) -> ExpertChoice:
    """Logits [bh, bw, n] of a layer of that number, or of a table that is cut those of each column of cores, to the
    choice; those of a shared expert's gate come last.
    """
    block, mixture = region.block, region.mixture
    assert mixture is not None
    at = mixture.numbers[number]
    if w.router_cut:
        logits = of_all_columns(region, w, logits)
    block.elementwise(logits, 4 + w.top)  # softmax, and the greatest of them so many times
    block.scalar(exponentials=prod(logits.shape[2:]), divisions=prod(logits.shape[2:-1]))
    chosen, shares = routed(w, logits)
    if mixture.routing is not None:
        experts = mixture.routing.draw(at, position, 1)[0]
    else:
        experts = chosen[0, 0]
        _check(chosen, experts)
    mixture.tally.decode[at, experts] += 1
    return ExpertChoice(tuple(map(int, experts)), shares, _sigmoid(logits[..., w.count :]))


def choose_for_prompt(
    region: Region, chunks: Chunks, w: MeshExperts, number: int, normed: np.ndarray, length: int
) -> PromptChoice:
    """rms(X), L_y E_x, to the choice of that many tokens."""
    block, mixture = region.block, region.mixture
    assert mixture is not None
    at = mixture.numbers[number]
    if w.router_cut:
        with multiplying(region, chunks) as ready:
            own = ready.products.gemm(normed, w.router_x).swapaxes(3, 4)  # [bh, bw, rows, Lt, columns, nt]
        logits = of_all_columns(region, w, own.reshape(*own.shape[:4], -1))
    else:
        logits = region.sums.x(block.matmul(normed, w.router_x, over=3))  # [bh, bw, rows, Lt, n]
    block.elementwise(logits, 4 + w.top)
    block.scalar(exponentials=prod(logits.shape[2:]), divisions=prod(logits.shape[2:-1]))
    chosen, shares = routed(w, logits)
    places = chunks.sides * normed.shape[4]
    if mixture.routing is not None:
        every = np.full((places, w.top), -1)
        every[:length] = mixture.routing.draw(at, 0, length)
    else:
        _check(chosen, chosen[:, :1])
        every = rows_of_all(region, chosen[:, 0]).reshape(places, w.top)
        every[length:] = -1
    tally = mixture.tally.prefill[at]
    tally += np.bincount(every[every >= 0], minlength=w.count)
    return PromptChoice(
        every.reshape(chunks.sides, -1, w.top), shares[:, :, :, None], _sigmoid(logits[:, :, :, None, :, w.count :])
    )


def of_all_columns(region: Region, w: MeshExperts, own: np.ndarray) -> np.ndarray:
    """The logits that columns of cores have, [bh, bw, .., columns * nt], at every core of a row: [bh, bw, .., n]."""
    block, each = region.block, own.shape[-1]
    logits = zeros(block, "logits", (*own.shape[2:-1], w.logits))
    number = block.x[:, None] * each + np.arange(each)
    column, place = np.nonzero(number < w.logits)
    logits[:, column, ..., number[column, place]] = own[:, column, ..., place]
    return np.asarray(region.sums.x(logits))


def routed(w: MeshExperts, logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits [.., n] to experts and shares, [.., top]."""
    chosen, shares = route(logits[..., : w.count].reshape(-1, w.count), w.top, w.renormalise)
    return chosen.reshape(*logits.shape[:-1], w.top), shares.reshape(*logits.shape[:-1], w.top)


def rows_of_all(region: Region, rows: np.ndarray) -> np.ndarray:
    """What each row of cores has, [bh, ..] the same in every column, on every rank: [H, ..]. Not the machine's matter:
    the host has to know which packets will come to plan for them; cores see what comes to them.
    """
    block = region.block
    parts = block.control.gather((block.mesh.x0, block.mesh.y0, rows))
    first = None if parts is None else np.concatenate([part for x, _, part in sorted(parts, key=_place) if x == 0])
    whole: np.ndarray = block.control.bcast(first)
    return whole


def block_rows(block: Block, rows: np.ndarray) -> np.ndarray:
    """Of what there is for every row of cores, [H, ..], this block's; without payloads the first row's."""
    return rows[block.mesh.y0 : block.mesh.y0 + block.lead[0]]


def _place(part: tuple[int, int, np.ndarray]) -> tuple[int, int]:
    return part[:2]


def _check(chosen: np.ndarray, expected: np.ndarray) -> None:
    if not (chosen == expected).all():
        raise AssertionError("cores that have the same logits chose other experts")


def _sigmoid(logits: np.ndarray) -> np.ndarray | None:
    return 1 / (1 + np.exp(-logits)) if logits.shape[-1] else None


@contextmanager
def timed(region: Region, phase: str, part: str) -> Iterator[None]:
    """Note the virtual time, cycles, that a part of a layer with experts takes the last core."""
    block, mixture = region.block, region.mixture
    assert mixture is not None
    begin = block.control.allreduce(block.clock.last(), max)[0]
    yield
    mixture.tally.cycles[phase][part] += block.control.allreduce(block.clock.last(), max)[0] - begin
