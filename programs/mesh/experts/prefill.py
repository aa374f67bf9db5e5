"""The experts of a prompt's tokens in prefill: L_y E_x to L_y E_x.

Ways on which no token leaves its row of cores, every expert being cut over the whole mesh:

    padded   a row takes those of its tokens that chose the expert, and fills up to what the fullest row has of them:
             one allreduce of a maximum along y for all experts, then a MeshGEMM as high as that
    dense    all tokens go through all experts, and what they did not choose has the share 0: n / k times the work
"""

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import allreduce, ktree
from meshrt.mesh.repeat import sampled
from meshrt.programs.mesh.activations import swiglu
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.experts.gate import PromptChoice, block_rows, choose_for_prompt, timed
from meshrt.programs.mesh.experts.regional import in_regions
from meshrt.programs.mesh.linear import product
from meshrt.programs.mesh.meshgemm import zeros
from meshrt.programs.mesh.regions import Region, multiplying
from meshrt.programs.mesh.systems import NO_PRODUCTS
from meshrt.programs.mesh.weights import MeshExperts, MeshMlp


def experts_of_prompt(
    region: Region, chunks: Chunks, w: MeshExperts, number: int, normed: np.ndarray, length: int
) -> np.ndarray:
    """What the experts of layer `number` make of rms(X), each token's added up in order of their number, and the shared
    one's.
    """
    mixture = region.mixture
    assert mixture is not None
    with timed(region, "prefill", "gate"):
        choice = choose_for_prompt(region, chunks, w, number, normed, length)
    if mixture.dispatch == "padded":
        with timed(region, "prefill", "dispatch"):
            fullest = fullest_rows(region, w, choice)
    elif mixture.dispatch != "dense":
        out = in_regions(region, chunks, w, number, choice, normed)
    with timed(region, "prefill", "experts"), multiplying(region, chunks) as ready:
        if mixture.dispatch == "padded":
            out = padded(ready, w, choice, normed, fullest)
        elif mixture.dispatch == "dense":
            out = dense(ready, w, choice, normed)
        if w.shared is not None:
            out += mlp(ready, w.shared, normed, choice.shared)
            ready.block.elementwise(out)
    return out


def mlp(region: Region, w: MeshMlp, x: np.ndarray, shares: np.ndarray | None) -> np.ndarray:
    """SwiGLU of tokens x, whose shares [.., Lt, 1] multiply what is between the matrices."""
    block, gemm = region.block, region.products.gemm
    gate_up = product(block, gemm, x, w.up)
    hidden = swiglu(block, gate_up)
    del gate_up
    if shares is not None:
        hidden *= shares
        block.elementwise(hidden)
    return product(block, gemm, hidden, w.down)


def in_turn(region: Region, heights: np.ndarray) -> Iterator[int]:
    """The experts with tokens; `heights`, int [n]: of the fullest row of tiles. By shape, a sample of each height."""
    assert region.mixture is not None
    sample, block = region.mixture.sample, region.block
    if sample is None:
        yield from np.flatnonzero(heights).tolist()
        return
    for height in np.unique(heights[heights > 0]):
        alike = np.flatnonzero(heights == height).tolist()
        for at in sampled(block, len(alike), sample):
            yield alike[at]


def dense(region: Region, w: MeshExperts, choice: PromptChoice, normed: np.ndarray) -> np.ndarray:
    block = region.block
    out = zeros(block, "outputs of experts", normed.shape[2:])
    chosen = own_rows(block, choice)
    for number in in_turn(region, np.ones(w.count, np.int64)):
        shares = np.where(chosen == number, choice.shares, np.float32(0)).sum(axis=-1, keepdims=True)
        out += mlp(region, w.rounds[number], normed, shares)
        block.elementwise(out)
    _count(region, choice.experts[..., 0].size * w.count)
    return out


def padded(region: Region, w: MeshExperts, choice: PromptChoice, normed: np.ndarray, fullest: np.ndarray) -> np.ndarray:
    """`fullest`, int [n]: the most tokens of a row of tiles that an expert has."""
    block = region.block
    out = zeros(block, "outputs of experts", normed.shape[2:])
    chosen = own_rows(block, choice)
    for number in in_turn(region, fullest):
        mine = chosen == number  # [bh, 1, rows, 1, Lt, top]
        has = mine.any(axis=-1)
        places = np.where(has, np.cumsum(has, axis=-1) - 1, 0)[..., None]  # of each token among the expert's
        order = np.argsort(~has, axis=-1, kind="stable")[..., : fullest[number], None]  # the tokens at each place
        used = np.take_along_axis(has[..., None], order, axis=-2)
        x = np.where(used, np.take_along_axis(normed, order, axis=-2), np.float32(0))
        x = block.memory.keep("tokens of an expert", x)
        block.elementwise(x)
        shares = np.where(mine, choice.shares, np.float32(0)).sum(axis=-1, keepdims=True)
        made = mlp(region, w.rounds[number], x, np.take_along_axis(shares, order, axis=-2))
        del x
        out += np.where(has[..., None], np.take_along_axis(made, places, axis=-2), np.float32(0))
        block.elementwise(made)
    _count(region, int(fullest.sum()) * len(choice.experts))
    return out


def fullest_rows(region: Region, w: MeshExperts, choice: PromptChoice) -> np.ndarray:
    """The most tokens that an expert has of any row of tiles, int [n], agreed along y."""
    block = region.block
    counts = (choice.experts[..., None] == np.arange(w.count)).sum(axis=(1, 2))  # [P, n]
    of_core = counts.reshape(block.mesh.height, -1, w.count).max(axis=1).astype(np.int32)
    tile = np.broadcast_to(block_rows(block, of_core)[:, None], (*block.lead, w.count)).copy()
    tile = block.memory.keep("tokens of each expert", tile)
    with ExitStack() as stack:
        if region.products is NO_PRODUCTS:
            tree = stack.enter_context(ktree(block, "y", 1))
            tile = allreduce(block, tree, tile, np.maximum, out=tile)
        else:
            tile = region.sums.y(tile, np.maximum)
    return tile[0, 0].copy() if block.payload else np.asarray(counts.max(axis=0))


def own_rows(block: Block, choice: PromptChoice) -> np.ndarray:
    """The experts of this block's tokens, [bh, 1, rows, 1, Lt, top]."""
    by_core = choice.experts.reshape(block.mesh.height, -1, *choice.experts.shape[1:])
    return block_rows(block, by_core)[:, None, :, None]


def _count(region: Region, places: int) -> None:
    assert region.mixture is not None
    region.mixture.tally.places += places
