"""Reductions along a line on paper: who sends to whom at which step. Pure functions of the length."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from numbers import Integral

from meshrt.errors import UsageError
from meshrt.mesh.wires.routes import Route, chain, multicast, side_by_side
from meshrt.records import dataclass


@dataclass(frozen=True)
class TreeLevel:
    """One phase of the K-tree: the routes between the members of each group, and who sends at which step."""

    routes: tuple[Route, ...]
    steps: tuple[frozenset[int], ...]


@dataclass(frozen=True)
class TreeRoutes:
    """A reduction on a line of N cores towards one root: phases of partial sums that move on from member to member."""

    n: int
    levels: tuple[TreeLevel, ...]
    root: int
    spread: tuple[Route, ...]  # from the root to all others
    groups: tuple[int, ...] = ()  # in all phases but the last


@cache
def pipeline(n: int) -> TreeRoutes:
    """The pipeline on a line: a chain of additions from the far end, core N - 1, to core 0 (waferllm, section 6.1)."""
    steps = tuple(frozenset((core,)) for core in range(n - 1, 0, -1))
    return TreeRoutes(n, (TreeLevel(chain(n, -1), steps),) if n > 1 else (), 0, multicast(n, 0))


MOST_PHASES = 64  # by then a line of 2^64 cores is added up pair by pair


@cache
def ktree(n: int, phases: int = 2, groups: int | tuple[int, ...] | None = None) -> TreeRoutes:
    """The K-tree of a line: any N, K = `phases` and numbers of `groups` in the first phases, of K - 1 at most.

    In each phase the members (at first all cores, then the roots of the phase before) form groups of neighbours; the
    partial sums of a group come in from both ends to its middle member. The last phase has one group. Where no number
    is given, a phase with r phases to go, itself included, leaves m^((r-1)/r) of its m members as roots. UsageError.
    """
    if not isinstance(phases, Integral) or not 1 <= phases <= MOST_PHASES:
        raise UsageError(f"a K-tree has K = 1 to {MOST_PHASES} phases, not {phases!r}")
    fixed = () if groups is None else (groups,) if isinstance(groups, int) else tuple(groups)
    if len(fixed) > phases - 1:
        numbers = ", ".join(map(str, fixed))
        raise UsageError(
            f"groups {numbers} for K = {phases} phases: the last phase is one group,"
            f" so give {phases - 1} numbers at most"
        )
    members: Sequence[int] = range(n)
    levels, counts = [], []
    for phase in range(phases):
        to_go = phases - phase
        if phase < len(fixed):
            count = fixed[phase]
            if not 1 <= count <= len(members):
                raise UsageError(
                    f"{count} groups of the {len(members)} members of phase {phase + 1} on a line of {n} cores:"
                    f" choose 1 to {len(members)}"
                )
        else:
            count = max(1, round(len(members) ** ((to_go - 1) / to_go)))
        counts.append(count)
        bounds = [len(members) * group // count for group in range(count + 1)]
        parts = [members[low:high] for low, high in pairwise(bounds)]
        levels.append(_tree_level(parts))
        members = [part[len(part) // 2] for part in parts]
    spread = multicast(n, members[0])
    return TreeRoutes(n, tuple(level for level in levels if level.routes), members[0], spread, tuple(counts[:-1]))


def on_stretches(tree: TreeRoutes, copies: int) -> TreeRoutes:
    """The same on each of so many stretches of a line, of N cores each; the root is that of the first."""

    def everywhere(cores: frozenset[int]) -> frozenset[int]:
        return frozenset(core + at * tree.n for core in cores for at in range(copies))

    levels = tuple(
        TreeLevel(side_by_side(level.routes, tree.n, copies), tuple(map(everywhere, level.steps)))
        for level in tree.levels
    )
    return replace(tree, levels=levels, spread=side_by_side(tree.spread, tree.n, copies))


def _tree_level(parts: list[Sequence[int]]) -> TreeLevel:
    """Each member sends to the next towards the middle, once what comes from behind it is in.

    A core takes one packet a step; where both arms of a group are equally long, the right one comes a step later.
    """
    routes, steps = [], dict[int, set[int]]()
    for part in parts:
        middle = len(part) // 2
        arms = [list(part[: middle + 1]), list(part[: middle - 1 if middle else None : -1])]
        for late, arm in enumerate(arms):
            for step, (source, stop) in enumerate(pairwise(arm)):
                clash = late and stop == part[middle] and len(arms[0]) == len(arm)
                steps.setdefault(step + bool(clash), set()).add(source)
                routes.append(Route(source, (stop,)))
    return TreeLevel(tuple(routes), tuple(frozenset(steps[step]) for step in sorted(steps)))
