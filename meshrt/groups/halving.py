"""All-reduce by recursive halving and doubling: of a power of two of members, a step each way for every doubling."""

from itertools import pairwise

import numpy as np

from meshrt.groups.group import Group, hollow
from meshrt.groups.rings import Arrays, Link, Times


def steps_of(size: int) -> list[int] | None:
    """How far apart the partners of each step are, of so many members; None where these are no power of two."""
    return None if size & (size - 1) else [1 << bit for bit in range(size.bit_length() - 1)]


def halving_sum(group: Group, parts: Arrays, times: Times, link: Link) -> tuple[Arrays, Times]:
    """The sum of all members' arrays, on every member, and when each has it; the members are a power of two.

    In each step a member and its partner add up what both hold, each another half of it; when every member has a chunk
    of the sum, they give each other what they have, in the opposite order. Partners are neighbours at first, and half
    of the group apart in the end ("Intra-node Collective Communications", Neuron SDK documentation, Recursive Doubling
    and Halving). Numbers are added in float32, and rounded to the arrays' type to cross the link.
    """
    steps = steps_of(group.size)
    assert steps is not None, group.size
    dtype, shape, ends = parts[0].dtype, parts[0].shape, list(times)
    levels: list[list[tuple[int, int]]] = [[(0, parts[0].size)] * group.size]  # what of it each member adds up
    for apart in steps:
        levels.append([_half(span, bool(member & apart)) for member, span in enumerate(levels[-1])])

    def trade(sent: Arrays, sizes: list[int], apart: int) -> Arrays:
        """What hosted members get of their partners, `sizes` numbers of all members."""
        rows = [[sizes[to] if to == member ^ apart else 0 for to in range(group.size)] for member in range(group.size)]
        arrived = [group.new((sizes[member],), dtype) for member in group.mine]
        links = [link for _ in sent]
        group.all_to_all(
            [[part] for part in sent], [[part] for part in arrived], rows, dtype.itemsize, ends, links, at_once=True
        )
        return arrived

    held = [part.reshape(-1) if group.payload else hollow((part.size,), dtype) for part in parts]
    for apart, (spans, halves) in zip(steps, pairwise(levels), strict=True):
        cut = [
            np.split(own, [_middle(spans[member]) - spans[member][0]])
            for own, member in zip(held, group.mine, strict=True)
        ]
        second = [bool(member & apart) for member in group.mine]
        sent = [both[not later] for both, later in zip(cut, second, strict=True)]
        arrived = trade(sent, [high - low for low, high in halves], apart)
        held = [both[later] for both, later in zip(cut, second, strict=True)]
        if group.payload:
            held = [
                (own.astype(np.float32) + other.astype(np.float32)).astype(dtype)
                for own, other in zip(held, arrived, strict=True)
            ]
        for touched, total in zip(group.touched, held, strict=True):
            touched.read += 2 * total.size * dtype.itemsize
            touched.written += total.size * dtype.itemsize
    for apart, halves in zip(reversed(steps), reversed(levels), strict=False):
        arrived = trade(
            held, [halves[member ^ apart][1] - halves[member ^ apart][0] for member in range(group.size)], apart
        )
        pairs = [
            (other, own) if member & apart else (own, other)
            for own, other, member in zip(held, arrived, group.mine, strict=True)
        ]
        held = [
            np.concatenate(pair) if group.payload else hollow((pair[0].size + pair[1].size,), dtype) for pair in pairs
        ]
    return [total.reshape(shape) if group.payload else group.new(shape, dtype) for total in held], ends


def _middle(span: tuple[int, int]) -> int:
    return (span[0] + span[1] + 1) // 2


def _half(span: tuple[int, int], second: bool) -> tuple[int, int]:
    return (_middle(span), span[1]) if second else (span[0], _middle(span))
