"""From a policy and a budget, as they are asked for, to the ranks of a model's compensators."""

from collections.abc import Mapping
from typing import Any

from meshrt.models.quantize.policies import Statistics, fit, parse, ranks
from meshrt.models.quantize.shapes import Shapes
from meshrt.models.quantize.sizes import CodeScheme, compensator_bytes


def choose(
    shapes: Shapes, scheme: CodeScheme, policy: str, budget: int | None, statistics: Statistics | None
) -> tuple[dict[str, int], dict[str, Any]]:
    """Ranks by matrix, and what a report says of them. Raises ModelError.

    Ranks are absolute numbers, whatever the matrix: `larger_than_matrix` are those whose factors have more numbers than
    the matrix itself. Such a compensator is a second code of the residual rather than a low-rank one.
    """
    terms = parse(policy)

    def bytes_of(ranks: Mapping[str, int]) -> int:
        return sum(compensator_bytes(scheme, shape, ranks.get(shape.name, 0)) for shape in shapes.matrices)

    if budget is not None:
        terms = fit(terms, shapes.matrices, statistics, budget, bytes_of)
    chosen_ranks = ranks(terms, shapes.matrices, statistics)
    return chosen_ranks, {
        "ranks": "+".join(f"{term.kind}-{term.rank}" for term in terms),
        "budget": budget,
        "compensator_bits": scheme.compensator_bits,
        "larger_than_matrix": [
            shape.name
            for shape in shapes.matrices
            if chosen_ranks.get(shape.name, 0) * (shape.rows + shape.columns) > shape.rows * shape.columns
        ],
    }
