"""Attention by head groups: products and sums that stay inside the columns of their own heads (waferllm, section 4.4).

A head has too few numbers for a wide mesh: 64 rotary pairs cannot be cut over 660 columns. So the heads form G groups
side by side, each on w columns, w a divisor of the side N of a square mesh. Inside a group, queries, keys and values
are cut N x w, and scores N x N, N / w tiles of a row at each core: a ring of N places lies over w cores.

    scores = q k^T     keys go round the columns, sums round the group's rows; a core adds its product to the sum in
                       its first place, and every sum passes all first places once
    scores v           values go round the columns, scores round the rows; a core multiplies those in its first place
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from meshrt.mesh.block import Block
from meshrt.mesh.collectives.allreduce import Tree
from meshrt.mesh.collectives.grouping import best_groups
from meshrt.mesh.collectives.rings import Rings, align, finish_shift, ring_in_groups, rotate, start_shift
from meshrt.mesh.wires import routes
from meshrt.mesh.wires.tables import installed
from meshrt.programs.mesh.meshgemm import add_product, coming_in, in_flight, zeros
from meshrt.programs.mesh.weights import Chunks


@contextmanager
def group_rings(block: Block, rings: Rings, chunks: Chunks) -> Iterator[Rings]:
    """Rings of N places on the rows of each group, 4 route entries a core; along y, the rings that there are."""
    with ring_in_groups(block, chunks.slots, chunks.group_width, chunks.groups) as (onward, back):
        yield replace(rings, x=onward, back_x=back)


@contextmanager
def group_tree(block: Block, chunks: Chunks, phases: int, nbytes: int = 64) -> Iterator[Tree]:
    """A K-tree on the columns of each group, all groups at once."""
    width, copies, n = chunks.group_width, chunks.groups, block.mesh.width
    starts = np.arange(0, copies * width, width)
    groups = best_groups(block, width, phases, nbytes)
    tree = routes.ktree(width, phases, groups)

    def everywhere(cores: Any) -> np.ndarray:
        marks = np.zeros(n, bool)
        marks[np.add.outer(starts, sorted(cores)).ravel()] = True
        return marks

    with ExitStack() as stack:
        steps, adders = [], np.zeros(n, bool)
        for level in tree.levels:
            pattern = routes.side_by_side(level.routes, width, copies)
            channel = stack.enter_context(installed(block.tables, "x", pattern))
            stops = {route.source: route.stops[0] for route in level.routes}
            for senders in level.steps:
                receivers = everywhere(stops[core] for core in senders)
                steps.append((channel, everywhere(senders), receivers))
                adders |= receivers
        spread = routes.side_by_side(routes.multicast(width, tree.root), width, copies)
        channel = stack.enter_context(installed(block.tables, "x", spread))
        yield Tree("x", tree.root, tree.groups, tuple(steps), adders, channel)


def meshgemm_t_in_groups(block: Block, rings: Rings, chunks: Chunks, q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Scores q k^T: [bh, bw, 1, 1, .., Mt, Dt] and [.., Nt, Dt] -> float32 [bh, bw, 1, N / w, .., Mt, Nt]."""
    steps = chunks.sides
    k_now = in_flight(block, "keys", k)
    rotate(block, rings.y, rings.back_y, k_now, [-place for place in first_places(block, chunks)])
    k_next = coming_in(block, "keys", k)
    c = zeros(block, "scores", (q.shape[2], chunks.slots, *q.shape[4:-1], k.shape[-2]))
    c_next = coming_in(block, "scores", c)
    for step in range(steps):
        last = step == steps - 1
        flights = () if last else start_shift(block, rings.y, k_now, k_next)
        add_product(block, q, k_now, c[:, :, :, :1])
        if not last:
            flights += start_shift(block, rings.x, c, c_next)
            c, c_next = c_next, c
        finish_shift(block, flights)
        k_now, k_next = k_next, k_now
    del flights, k_now, k_next, c_next
    rotate(block, rings.x, rings.back_x, c, [place + 1 for place in routes.ring_place(steps)])
    return c


def meshgemm_in_groups(block: Block, rings: Rings, chunks: Chunks, scores: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Scores v: [bh, bw, 1, N / w, .., Mt, Kt] and [bh, bw, 1, 1, .., Kt, Dt] -> float32 [bh, bw, 1, 1, .., Mt, Dt].

    Scores are used up: they do not stay at home, and are in memory once, beside those that come in.
    """
    steps = chunks.sides
    a, b = scores, in_flight(block, "values", v)
    align(block, rings, a, b, first_places(block, chunks))
    a_next, b_next = coming_in(block, "scores", a), coming_in(block, "values", b)
    c = zeros(block, "sums", (*a.shape[2:3], 1, *a.shape[4:-1], v.shape[-1]))
    for step in range(steps):
        last = step == steps - 1
        flights = () if last else start_shift(block, rings.x, a, a_next) + start_shift(block, rings.y, b, b_next)
        block.matmul(a[:, :, :, :1], b, c)
        finish_shift(block, flights)
        a, a_next, b, b_next = a_next, a, b_next, b
    return c


def first_places(block: Block, chunks: Chunks) -> list[int]:
    """The place on its group's ring of every column's first slot; 0 for the columns that have no head."""
    place = routes.ring_place(chunks.sides)
    used = chunks.groups * chunks.group_width
    return [place[x % chunks.group_width * chunks.slots] if x < used else 0 for x in range(block.mesh.width)]
