"""What was measured on the packaged mixtures, a line of each recipe, kind of matrix or method."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from meshrt.models.quantize.model import QuantizedMatrix
from meshrt.studies.milo.quality import RecipeOutcome
from meshrt.studies.milo.sizes import shapes_of

TableValue = float | int | str | None


@dataclass(frozen=True)
class TableLine:
    """All lines of a table have the same values, by name."""

    table: str
    model: str
    system: str
    values: Mapping[str, TableValue]

    def json(self) -> dict[str, Any]:
        return asdict(self)


def quality(table: str, model: str, outcomes: Mapping[str, RecipeOutcome]) -> list[TableLine]:
    """Bytes and perplexity; what is lost beyond float16, in nats a token, with its paired standard error."""
    lines = []
    for system, outcome in outcomes.items():
        nats, error = outcome.more_than(outcomes["fp16"])
        values: dict[str, TableValue] = {
            "policy": outcome.policy, "bytes": outcome.bytes, "compensator_bytes": outcome.compensator_bytes,
            "bits_per_weight": outcome.bits_per_weight, "error": outcome.error, "perplexity": outcome.perplexity,
            "nats_more": nats, "standard_error": error,
        }  # fmt: skip
        lines.append(TableLine(table, model, system, values))
    return lines


def kinds(table: str, model: str, outcomes: Mapping[str, RecipeOutcome]) -> list[TableLine]:
    """Table 2: means over the matrices of a kind."""
    lines = []
    for kind, matrices in by_kind(model, outcomes["HQQ"].matrices).items():
        small, large = (np.mean([matrix.residual_rank[at] for matrix in matrices]) for at in (0, 1))
        values: dict[str, TableValue] = {
            "matrices": len(matrices), "kurtosis": float(np.mean([matrix.kurtosis for matrix in matrices])),
            "below_half": float(small), "from_half_on": float(large),
            "share_below_half": float(np.mean([matrix.residual_rank[0] / min(matrix.shape) for matrix in matrices])),
        }  # fmt: skip
        lines.append(TableLine(table, model, kind, values))
    return lines


def correlations(table: str, model: str, outcomes: Mapping[str, RecipeOutcome]) -> list[TableLine]:
    """Figure 5: kurtosis and |W - W_dq| / |W|, over all matrices."""
    return [
        TableLine(table, model, system, {"matrices": len(outcome.matrices), "correlation": correlation(
            [(each.kurtosis, each.weight_error) for each in outcome.matrices])})
        for system, outcome in outcomes.items()
    ]  # fmt: skip


def correlation(pairs: list[tuple[float, float]]) -> float:
    return float(np.corrcoef(np.array(pairs).T)[0, 1])


def rounds(table: str, model: str, outcomes: Mapping[str, RecipeOutcome]) -> list[TableLine]:
    """Figure 7: how the error of equation 13 went, by kind of matrix. Errors are means, relative to |W|."""
    lines = []
    for system, measured in outcomes.items():
        for kind, matrices in by_kind(model, measured.matrices).items():
            curves = [[error for error, _ in matrix.rounds] for matrix in matrices if matrix.rounds]
            if not curves:
                continue
            values: dict[str, TableValue] = {
                "matrices": len(curves),
                "monotone": sum(all(b <= a for a, b in pairwise(curve)) for curve in curves),
                "converged": sum(matrix.stopped_by == "converged" for matrix in matrices),
                "diverged": sum(matrix.stopped_by == "diverged" for matrix in matrices),
                "rounds": float(np.median([len(curve) for curve in curves])),
                "first": float(np.mean([curve[0] for curve in curves])),
                "by_10": float(np.mean([curve[min(10, len(curve)) - 1] for curve in curves])),
                "last": float(np.mean([curve[-1] for curve in curves])),
                "least": float(np.mean([min(curve) for curve in curves])),
            }
            lines.append(TableLine(table, model, f"{kind}, {system}", values))
    return lines


def by_kind(model: str, matrices: tuple[QuantizedMatrix, ...]) -> dict[str, list[QuantizedMatrix]]:
    kind = {matrix.name: matrix.kind for matrix in shapes_of(model).matrices}
    groups: dict[str, list[QuantizedMatrix]] = {}
    for matrix in matrices:
        groups.setdefault(kind[matrix.name], []).append(matrix)
    return groups


LINES = {
    "1": quality, "2": kinds, "3": quality, "4": quality, "6": quality, "8": quality,
    "figure5": correlations, "figure7": rounds, "figure8": quality, "figure11": quality,
}  # fmt: skip
