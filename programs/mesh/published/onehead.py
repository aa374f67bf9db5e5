"""WaferLLM's published programs as they ran (`--as-published`): one head of a model's whole width, in prefill.

The programs that the paper's figures are of (MeshInfra/WaferLLM, prefill.csl and decode.csl) have one head, n_heads =
n_kv_heads = 1, as wide as the embedding, so that K and V are as wide as Q; chunks of every dimension are rounded up at
each core; there is no embedding and no head. All numbers are of the storage type, sums as well.

    Q, K, V      three products; the left side is aligned once for all of them, over floor(P / 2) steps, and the weights
                 are placed aligned by the host
    scores       keys go round the columns; after each of P steps, what a row of cores has multiplied is added up by two
                 chains, along which words are passed on as they come, to the core whose tile it is
    maximum, sum, norms    two chains to the middle core, which then sends the result to all
    scores V, W_O, up and gate (aligned once), W_down    as Q

Where they are wrong they are put right: values are aligned as well, on links that are idle meanwhile; the residual is
added. Decode is in decode.py.
"""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import isqrt, prod
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import allreduce, ktree
from meshrt.mesh.collectives.rings import Rings
from meshrt.mesh.collectives.shifts import start_shift
from meshrt.mesh.collectives.trees import Combine, Tree
from meshrt.mesh.repeat import sampled
from meshrt.mesh.wires import fabric, routes, software
from meshrt.mesh.wires.receiving import receive
from meshrt.mesh.wires.routes import ring_order
from meshrt.mesh.wires.tables import Channel, installed
from meshrt.models.config import Config
from meshrt.programs.mesh.chunks import Chunks
from meshrt.programs.mesh.meshgemm import begin_product, coming_in, in_flight, zeros
from meshrt.programs.mesh.published.kernels import round_rings, turned

LIKE_LLAMA = ("llama", "mistral", "qwen2")


def one_head(config: Config, payload: bool) -> Config:
    """The model as the published programs have it. UsageError where these cannot have it."""
    other_form = config.moe is not None or config.quantized or config.factored
    if config.model_type not in LIKE_LLAMA or config.windows or config.mlp_bias or other_form:
        raise UsageError("--as-published: the published programs have dense layers of whole matrices, as LLaMA's are")
    width = config.hidden_size
    new = replace(
        config, heads=1, kv_heads=1, head_dim=width, attention_scale=width**-0.5, qkv_bias=False, o_bias=False
    )
    if payload and new != config:
        raise UsageError(
            f"--as-published: the published programs have one head of {width} numbers where this model has"
            f" {config.heads} of {config.head_dim}, so its numbers would be another model's: add --payload none"
        )
    return new


def groups_of(n: int) -> int:
    """Groups of the K-trees of decode on lines of n cores: the greatest divisor that is no more than the square root.

    So it is in the published model_config files, of 240 to 720 cores a side, but for 512, where they have 32.
    """
    return next(count for count in range(isqrt(n), 0, -1) if n % count == 0)


# ------------------------------------------------------------------------------------------------------ products


def product(
    block: Block, rings: Rings, x: np.ndarray, w: np.ndarray, parts: int, sample: int | None = None
) -> np.ndarray:
    """x W of matrices side by side, one after the other: x is aligned once and comes home in each of them.

    x: [bh, bw, 1, 1, Mt, Kt], w: [.., Kt, parts * Nt], placed aligned. Returns [.., Mt, parts * Nt], in w's type.
    """
    moving = turned(block, rings, in_storage(block, x, w.dtype), sample=sample)
    outs = []
    for part in np.split(w, parts, axis=-1):
        out, moving = round_rings(block, rings, moving, part, w.dtype, sample)
        outs.append(out)
    return outs[0] if parts == 1 else block.memory.keep("products side by side", np.concatenate(outs, axis=-1))


def mixed_values(
    block: Block, rings: Rings, weights: np.ndarray, v: np.ndarray, sample: int | None = None
) -> np.ndarray:  # fmt: skip
    """S V. Values stand where they were made, so they are aligned, too."""
    aligned = in_flight(block, "B", v)
    moving = turned(block, rings, in_storage(block, weights, v.dtype), aligned, sample)
    return round_rings(block, rings, moving, aligned, v.dtype, sample)[0]


def scores(
    block: Block, rings: Rings, chains: tuple[Channel, Channel], q: np.ndarray, k: np.ndarray, sample: int | None = None
) -> np.ndarray:  # fmt: skip
    """q k^T: [bh, bw, 1, 1, .., Lt, Dt] of both to [.., Lt, Lt], L_y L_x."""
    n = block.mesh.height
    q = in_storage(block, q, k.dtype)
    begin_product(block, n)
    k_now, k_next = in_flight(block, "B", k), coming_in(block, "B", k)
    result = zeros(block, "C", (*q.shape[2:-1], k.shape[-2]), k.dtype)
    order, places = np.array(ring_order(n)), np.array(rings.rows)
    for step in sampled(block, n, sample):
        block.step()
        block.scalar(divisions=1)  # to find the core that adds up
        flight = start_shift(block, rings.y, k_now, k_next)
        total = zeros(block, "C of a step", (*q.shape[2:-1], k.shape[-2]), k.dtype)
        block.matmul(q, k_now.swapaxes(-1, -2), total, down=True)
        roots = order[(places - step) % n]  # whose tile of keys each row of cores has
        add_to_roots(block, chains, total, roots)
        keeps = roots[block.y, None] == block.x
        np.copyto(result, total, where=keeps[..., *(None,) * (result.ndim - 2)])
        block.elementwise(total, operands=0)  # the published program clears it
        del total
        receive(block, flight)
        k_now, k_next = k_next, k_now
    return result


def add_to_roots(block: Block, chains: tuple[Channel, Channel], tiles: np.ndarray, roots: np.ndarray) -> None:
    """Every row adds up its tiles at a core of its own, [H]: from both ends, each core sends on what it has added.

    The tiles of the others are partial sums then. All wait until the last word has passed.
    """
    n, numbers, stream = block.mesh.width, prod(tiles.shape[2:]), block.device.stream_adds
    east, west = chains
    for at in range(n - 1):
        for channel, source, stop, on in (
            (east, at, at + 1, roots > at),
            (west, n - 1 - at, n - 2 - at, roots < n - 1 - at),
        ):
            if on.any():
                fabric.transfer(
                    block, channel, tiles, tiles, positions=_mark(n, source), lines=on, combine=np.add, stream=stream
                )
                software.stage(block, channel, numbers, _mark(n, stop), on, stream, tiles.itemsize)
    if n > 1:
        if stream:
            software.tail(block, east, tiles, np.ones(n, bool))
        for channel in chains:
            fabric.forget(block, channel)


def _mark(n: int, core: int) -> np.ndarray:
    marks = np.zeros(n, bool)
    marks[core] = True
    return marks


def in_storage(block: Block, tiles: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Tiles as the published programs keep all numbers."""
    return tiles if tiles.dtype == dtype else block.memory.keep("numbers in storage", tiles.astype(dtype))


# ---------------------------------------------------------------------------------------------------------- sums


def open_chains(stack: ExitStack, block: Block) -> tuple[Channel, Channel]:
    """Routes from every core to its neighbours in the row, to the east and to the west: four entries a core."""
    east, west = (stack.enter_context(installed(block, "x", routes.chain, step)) for step in (1, -1))
    return east, west


def open_sum(stack: ExitStack, block: Block, axis: str, phases: int, dtype: np.dtype[Any]) -> Any:
    """Allreduce in the storage type: each phase begins when the sums of the one before are in memory."""
    groups = None if phases == 1 else groups_of(block.mesh.length(axis))
    tree = stack.enter_context(ktree(block, axis, phases, groups, stored=True))
    return partial(_sum, block, tree, dtype)


def _sum(block: Block, tree: Tree, dtype: np.dtype[Any], tiles: np.ndarray, combine: Combine = np.add) -> np.ndarray:
    total = in_storage(block, tiles, dtype)
    return allreduce(block, tree, total, combine, None, total)


def check_mesh(block: Block, chunks: Chunks) -> None:
    """UsageError where the published programs cannot run on these cores, or not with numbers."""
    width, height, numbers = block.mesh.width, block.mesh.height, chunks.queries.shape[1]
    if width != height:
        raise UsageError(f"mesh {width}x{height}: --as-published is for as many columns as rows, as the programs are")
    if block.payload and numbers % 2:
        raise UsageError(
            f"--as-published on {width}x{height} cores: each has {numbers} numbers of the head, and the rotary pairs of"
            " the published programs lie in one core: take a mesh that gives each an even number, or --payload none"
        )
