"""Rank policies (section 3.2.5): which matrix gets a compensator of which rank.

    uniform-R             every matrix
    dense-R               what every token goes through: attention, dense MLPs, shared experts
    sparse-R              the experts
    frequency-R           experts, R on average in each layer, in proportion to how often they are chosen
    kurtosis-R            R on average, in proportion to the kurtosis above the lowest; of the experts, or of all
                          matrices of a model without experts
    frequency-kurtosis-R  in proportion to the product of both
    kurtosis-steps-R      the published staircase for Mixtral, R 16 or 32

and sums of them, `dense-512+kurtosis-16`. No rank is above the smaller side of its matrix. An average over matrices is
no budget: `fit` finds the R for a number of bytes.

The paper says of its kurtosis policy only that ranks rise with it and average R. Its code has fixed steps: with k the
rounded kurtosis, 0 below 1, then 2^(k + 2) for R = 16 and 2^(k + 3) for 32, and 1024 from 10 on. That is neither
monotone (k = 9 gets more than k = 24) nor of that average (22.0 and 33.4 on its own statistics).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from meshrt.models.errors import ModelError
from meshrt.models.quantize.shapes import MatrixShape
from meshrt.records import dataclass

KINDS = ("uniform", "dense", "sparse", "frequency", "kurtosis", "frequency-kurtosis", "kurtosis-steps")
LEAST_SHARE = 0.01  # of the range of kurtosis, for the matrix with the lowest
STEPS = {16: 2, 32: 3}
HIGHEST_STEP, HIGHEST_RANK = 9, 1024


@dataclass(frozen=True)
class PolicyTerm:
    """One policy and its rank, None where that is to be found."""

    kind: str
    rank: int | None


@dataclass(frozen=True)
class Statistics:
    """Of the weights, by matrix; and how often experts were chosen, by expert, where there are any."""

    kurtosis: Mapping[str, float]
    frequency: Mapping[str, float]


def parse(text: str) -> tuple[PolicyTerm, ...]:
    """`dense-512+kurtosis-16` -> its terms; one of them may lack its rank. Raises ModelError."""
    terms = []
    for part in text.split("+"):
        kind, dash, rank = part.rpartition("-")
        if part in KINDS:
            terms.append(PolicyTerm(part, None))
            continue
        if kind not in KINDS or not dash or not rank.isascii() or not rank.isdecimal() or len(rank) > 9:
            raise ModelError(f"policy {part!r}: give one of {', '.join(KINDS)} with a rank, such as dense-512")
        terms.append(PolicyTerm(kind, int(rank)))
        if kind == "kurtosis-steps" and int(rank) not in STEPS:
            raise ModelError(f"policy {part!r}: the published steps are kurtosis-steps-16 and kurtosis-steps-32")
    if sum(term.rank is None for term in terms) > 1:
        raise ModelError(f"policy {text!r}: one rank at most can be left for a budget to find")
    return tuple(terms)


def needs_text(terms: Sequence[PolicyTerm]) -> bool:
    """Does it go by how often experts are chosen?"""
    return any(term.kind.startswith("frequency") for term in terms)


def ranks(terms: Sequence[PolicyTerm], shapes: Sequence[MatrixShape], statistics: Statistics | None) -> dict[str, int]:
    """The ranks of the matrices that get one. Without statistics, policies that need some give all their average.

    Raises ModelError where a policy has no matrix to give ranks to, or where the average says too little.
    """
    totals: dict[str, int] = {}
    for term in terms:
        if term.rank is None:
            raise ModelError(f"policy {term.kind!r}: give it a rank, such as {term.kind}-16, or a budget of bytes")
        targets = _targets(term.kind, shapes)
        for name, rank in _ranks(term.kind, term.rank, targets, statistics).items():
            totals[name] = totals.get(name, 0) + rank
    return {shape.name: min(totals[shape.name], _most(shape)) for shape in shapes if totals.get(shape.name)}


def fit(
    terms: Sequence[PolicyTerm], shapes: Sequence[MatrixShape], statistics: Statistics | None,
    budget: int, bytes_of: Callable[[Mapping[str, int]], int],
) -> tuple[PolicyTerm, ...]:  # fmt: skip
    """The terms with the rank that is left open as large as `budget` bytes of compensators allow. Raises ModelError."""
    if all(term.rank is not None for term in terms):
        raise ModelError("a budget finds a rank: leave one open, as in dense, or dense-512+kurtosis")

    def at(rank: int) -> tuple[PolicyTerm, ...]:
        return tuple(term if term.rank is not None else replace(term, rank=rank) for term in terms)

    def fits(rank: int) -> bool:
        return bytes_of(ranks(at(rank), shapes, statistics)) <= budget

    low, high = 0, max(map(_most, shapes)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if not low:
        least = bytes_of(ranks(at(1), shapes, statistics))
        raise ModelError(f"budget of {budget} bytes: rank 1 takes {least} already; give that or more")
    return at(low)


def share_out(total: int, weights: Sequence[float], most: Sequence[int]) -> list[int]:
    """`total` in whole parts in proportion to `weights`, none above its `most`: what is over goes to the others.

    By largest remainder, ties to the earlier one; so the parts add up to min(total, sum(most)).
    """
    parts, free = [0] * len(most), [at for at in range(len(most)) if most[at] > 0]
    left = min(total, sum(most))
    while True:
        whole_weight = sum(weights[at] for at in free)
        shares = {at: left * weights[at] / whole_weight if whole_weight else left / len(free) for at in free}
        full = [at for at in free if shares[at] >= most[at]]
        if not full:
            break
        for at in full:
            parts[at] = most[at]
            left -= most[at]
        free = [at for at in free if at not in full]
    for at in free:
        parts[at] = int(shares[at])
    left -= sum(parts[at] for at in free)
    for at in sorted(free, key=lambda at: parts[at] - shares[at])[:left]:
        parts[at] += 1
    return parts


def _most(shape: MatrixShape) -> int:
    return min(shape.rows, shape.columns)


def _targets(kind: str, shapes: Sequence[MatrixShape]) -> list[MatrixShape]:
    experts = [shape for shape in shapes if shape.expert is not None]
    if kind == "uniform" or (kind.startswith("kurtosis") and not experts):
        return list(shapes)
    if kind == "dense":
        return [shape for shape in shapes if shape.expert is None]
    if not experts:
        raise ModelError(f"policy {kind!r}: it gives ranks to experts, and this model has none")
    return experts


def _ranks(kind: str, rank: int, targets: Sequence[MatrixShape], statistics: Statistics | None) -> dict[str, int]:
    if kind in ("uniform", "dense", "sparse"):
        return {shape.name: min(rank, _most(shape)) for shape in targets}
    if statistics is None:
        if kind == "kurtosis-steps" or len({shape.rows + shape.columns for shape in targets}) > 1:
            raise ModelError(f"policy {kind!r}: what it takes depends on the weights, and sizes are told by shape")
        return {shape.name: min(rank, _most(shape)) for shape in targets}
    if kind.startswith("frequency") and not statistics.frequency:
        raise ModelError(f"policy {kind!r}: how often experts are chosen was not counted; give text to count it on")
    if kind == "kurtosis-steps":
        return {shape.name: _step(statistics.kurtosis[shape.name], rank) for shape in targets}
    if kind == "frequency":
        return _by_frequency(rank, targets, statistics.frequency)
    lowest, highest = (end(statistics.kurtosis[shape.name] for shape in targets) for end in (min, max))
    least = LEAST_SHARE * (highest - lowest) or 1.0
    weights = [max(statistics.kurtosis[shape.name] - lowest, least) for shape in targets]
    if kind == "frequency-kurtosis":
        weights = [
            weight * statistics.frequency[shape.expert or ""] for weight, shape in zip(weights, targets, strict=True)
        ]  # fmt: skip
    parts = share_out(rank * len(targets), weights, [_most(shape) for shape in targets])
    return {shape.name: part for shape, part in zip(targets, parts, strict=True)}


def _by_frequency(rank: int, targets: Sequence[MatrixShape], frequency: Mapping[str, float]) -> dict[str, int]:
    """All matrices of an expert get the same, and the experts of a layer the average."""
    layers: dict[str, dict[str, int]] = {}  # the smallest limit of each expert, by layer
    for shape in targets:
        expert = shape.expert or ""
        layer = layers.setdefault(expert.rpartition(".")[0], {})
        layer[expert] = min(layer.get(expert, _most(shape)), _most(shape))
    by_expert: dict[str, int] = {}
    for limits in layers.values():
        parts = share_out(rank * len(limits), [frequency[expert] for expert in limits], list(limits.values()))
        by_expert |= zip(limits, parts, strict=True)
    return {shape.name: by_expert[shape.expert or ""] for shape in targets}


def _step(kurtosis: float, rank: int) -> int:
    k = int(np.rint(kurtosis))
    return 0 if k < 1 else HIGHEST_RANK if k > HIGHEST_STEP else 2 ** (k + STEPS[rank])
