"""Collectives over nodes as steps of transfers between members: flat rings, hierarchical rings, trees.

Member m of n owns part m of whatever is cut into n parts. Members stand in order of their nodes, `share` of them in
each. In a step a member may send several transfers, one after the other; none reads a part that another one writes.

Hierarchical (two-level rings; of rings "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009):
inside a node a ring adds up, so that each member has a share of the node's sum; members of all nodes that have the same
share add those up, and rings inside nodes spread the sums. A tree has a binary tree of those members in place of their
ring, whose parts follow one another up to the root and down again: two latencies a level of the tree, where a ring has
two a member.
"""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from meshrt.errors import UsageError

ALGORITHMS = ("ring", "hierarchical", "tree")
Parts = tuple[int, ...]
MemberPair = tuple[int, int]  # the source and the target of a part


class MemberTransfer(NamedTuple):
    """Parts of one member to another, which adds them to its own, or has them in place of its own."""

    source: int
    target: int
    parts: Parts
    adds: bool


CourseStep = tuple[MemberTransfer, ...]
Steps = tuple[CourseStep, ...]


def collective(kind: str, algorithm: str, size: int, share: int, root: int = 0) -> Steps:
    """The steps of "reduce_sum", "reduce_scatter", "all_gather" or "broadcast" among `size` members.

    A tree is for sums and broadcasts; what it is asked for of the others is hierarchical. UsageError for a root that is
    none.
    """
    if kind == "broadcast":
        return _broadcast(algorithm, size, share, root)
    if algorithm == "ring":
        ring, own = range(size), [(member,) for member in range(size)]
        first, last = [scattered(ring, own)], [spread(ring, own)]
        return _joined(_wanted(kind, first, last))
    nodes = [range(begin, begin + share) for begin in range(0, size, share)]
    peers = [range(local, size, share) for local in range(share)]  # one of each node
    of_local = [tuple(each) for each in peers]
    inside = [_beside(scattered(node, of_local) for node in nodes), _beside(spread(node, of_local) for node in nodes)]
    if kind == "reduce_sum" and algorithm == "tree":
        middle = [_beside(tree(each, [(member,) for member in each]) for each in peers)]
        return _joined([inside[0], *middle, inside[1]])
    own_of = [[(member,) for member in each] for each in peers]
    between = [_beside(act(each, own) for each, own in zip(peers, own_of, strict=True)) for act in (scattered, spread)]
    return _joined(_wanted(kind, [inside[0], between[0]], [between[1], inside[1]]))


def all_to_all(
    algorithm: str, size: int, share: int, rows: Sequence[Sequence[int]], neighbours: bool = False
) -> Steps:  # fmt: skip
    """Part source * size + target of each source to its target; of `rows` [from][to], empty parts are not sent.

    A "ring" is flat: in each step everybody sends to who is so many places farther, whatever is between them. Else, and
    where links inside a node join `neighbours` only, parts go inside their node first, to who has the place there that
    their target has in its own, and from there those of all sources of a node together to the target (as the
    hierarchical all-to-all of DeepSpeed-MoE, ICML 2022, https://arxiv.org/abs/2201.05596).
    """
    steps: list[list[tuple[int, int, Sequence[MemberPair]]]]
    if algorithm == "ring" and not neighbours:
        steps = [
            [(at, (at + far) % size, ((at, (at + far) % size),)) for at in range(size)] for far in range(1, size)
        ]  # fmt: skip
    else:
        steps = _inside(size, share, neighbours) + [
            [
                (at, to, tuple((source, to) for source in range(at // share * share, at // share * share + share)))
                for at in range(size) for to in ((at + far * share) % size,)
            ]
            for far in range(1, size // share)
        ]  # fmt: skip
    return tuple(
        tuple(
            MemberTransfer(source, target, kept, False)
            for source, target, parts in step
            if (kept := tuple(begin * size + end for begin, end in parts if rows[begin][end]))
        )
        for step in steps
    )


def _inside(size: int, share: int, neighbours: bool) -> list[list[tuple[int, int, Sequence[MemberPair]]]]:
    """Steps in which all parts come to who has their target's place in its node: (from, to, parts)."""

    def bundle(source: int, far: int) -> list[MemberPair]:
        """What a source has for those places of all nodes that are so much farther than its own."""
        return [(source, target) for target in range((source + far) % share, size, share)]

    def beside(at: int, far: int) -> int:
        return at // share * share + (at + far) % share

    if not neighbours:
        return [[(at, beside(at, far), (*bundle(at, far),)) for at in range(size)] for far in range(1, share)]
    return [
        [
            (at, beside(at, 1), tuple(
                part for further in range(far, share) for part in bundle(beside(at, 1 - far), further)
            ))
            for at in range(size)
        ]
        for far in range(1, share)
    ]  # fmt: skip


def send(pairs: Sequence[tuple[int, int]]) -> Steps:
    """One array of each source to its target."""
    return (tuple(MemberTransfer(source, target, (0,), False) for source, target in pairs),)


def scattered(ring: Sequence[int], parts: Sequence[Parts]) -> Steps:
    """Afterwards ring[i] has the sum of everybody's parts[i]."""
    return _round(ring, parts, 1, True)


def spread(ring: Sequence[int], parts: Sequence[Parts]) -> Steps:
    """ring[i] has parts[i]; afterwards all have all."""
    return _round(ring, parts, 0, False)


def tree(members: Sequence[int], pieces: Sequence[Parts]) -> Steps:
    """The sum of all members' pieces, on all of them: up a binary tree (a heap), and down again."""
    deepest = _depth(len(members) - 1)
    steps = []
    for step in range(len(pieces) + 2 * deepest):
        transfers = []
        for at in range(1, len(members)):
            piece = step - deepest + _depth(at)
            if 0 <= piece < len(pieces):
                transfers.append(MemberTransfer(members[at], members[(at - 1) // 2], pieces[piece], True))
        for at in range(1, len(members)):
            piece = step - deepest - _depth(at) + 1
            if 0 <= piece < len(pieces):
                transfers.append(MemberTransfer(members[(at - 1) // 2], members[at], pieces[piece], False))
        steps.append(tuple(transfers))
    return tuple(steps)


def _broadcast(algorithm: str, size: int, share: int, root: int) -> Steps:
    """The root's array in `size` pieces, which follow one another along chains, or down a tree of nodes."""
    if not 0 <= root < size:
        raise UsageError(f"root {root} is no member of a group of {size}")
    edges: list[tuple[int, int, int]] = []  # from, to, and how many transfers after the first piece's first
    if algorithm == "ring":
        edges += [((root + at) % size, (root + at + 1) % size, at) for at in range(size - 1)]
    else:
        count, local = size // share, root % share
        heads = [(root // share + at) % count * share + local for at in range(count)]
        for at, head in enumerate(heads):
            depth = _depth(at) if algorithm == "tree" else at
            if at:
                before = (at - 1) // 2 if algorithm == "tree" else at - 1
                edges.append((heads[before], head, depth - 1))
            node = [head - local + (local + further) % share for further in range(share)]
            edges += [(node[further], node[further + 1], depth + further) for further in range(share - 1)]
    last = max((depth for *_, depth in edges), default=-1)
    return tuple(
        tuple(
            MemberTransfer(source, target, (step - depth,), False)
            for source, target, depth in edges if 0 <= step - depth < size
        )
        for step in range(size + last if edges else 0)
    )  # fmt: skip


def _round(ring: Sequence[int], parts: Sequence[Parts], behind: int, adds: bool) -> Steps:
    count = len(ring)
    return tuple(
        tuple(
            MemberTransfer(ring[at], ring[(at + 1) % count], parts[(at - behind - step) % count], adds)
            for at in range(count)
        )
        for step in range(count - 1)
    )  # fmt: skip


def _wanted(kind: str, add: list[Steps], give: list[Steps]) -> list[Steps]:
    return {"reduce_scatter": add, "all_gather": give, "reduce_sum": add + give}[kind]


def _joined(parts: Iterable[Steps]) -> Steps:
    """One after the other."""
    return tuple(step for steps in parts for step in steps)


def _beside(parts: Iterable[Steps]) -> Steps:
    """At the same time."""
    return tuple(
        tuple(transfer for step in together for transfer in step) for together in zip_longest(*parts, fillvalue=())
    )


def _depth(at: int) -> int:
    """Of a place in a heap."""
    return (at + 1).bit_length() - 1
