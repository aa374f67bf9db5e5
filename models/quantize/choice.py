"""From a policy and a budget, as they are asked for, to the ranks of a model's compensators."""

from collections.abc import Mapping
from typing import Any

from meshrt.models.quantize.policies import Statistics, fit, parse, ranks
from meshrt.models.quantize.shapes import Shapes
from meshrt.models.quantize.sizes import Scheme, compensator_bytes


def choose(
    shapes: Shapes, scheme: Scheme, policy: str, budget: int | None, known: Statistics | None
) -> tuple[dict[str, int], dict[str, Any]]:
    """Ranks by matrix, and what a report says of them. Raises ModelError.

    Ranks are absolute numbers, whatever the matrix: `larger_than_matrix` are those whose factors have more numbers than
    the matrix itself. Such a compensator is a second code of the residual rather than a low-rank one.
    """
    terms = parse(policy)

    def bytes_of(ranks: Mapping[str, int]) -> int:
        return sum(compensator_bytes(scheme, one, ranks.get(one.name, 0)) for one in shapes.matrices)

    if budget is not None:
        terms = fit(terms, shapes.matrices, known, budget, bytes_of)
    found = ranks(terms, shapes.matrices, known)
    return found, {
        "ranks": "+".join(f"{term.kind}-{term.rank}" for term in terms),
        "budget": budget,
        "compensator_bits": scheme.compensator_bits,
        "larger_than_matrix": [
            one.name
            for one in shapes.matrices
            if found.get(one.name, 0) * (one.rows + one.columns) > one.rows * one.columns
        ],
    }
