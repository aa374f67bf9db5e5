"""What was measured on the packaged mixtures, by recipe, in a file: all tables together take a while."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meshrt.models.catalogue import find_model
from meshrt.models.quantize.model import QuantizedMatrix
from meshrt.ranks.console import Console
from meshrt.studies.milo.quality import Recipe, RecipeOutcome, measure
from meshrt.studies.milo.recipes import TINY
from meshrt.studies.store import digest, file_of, read_runs, write_all, write_share


@dataclass
class RecipeOutcomes:
    """Of each recipe what came of it, on so many `stories`."""

    stories: int
    path: str | None = None
    code: str = ""
    found: dict[str, RecipeOutcome] = field(default_factory=dict)

    def key(self, recipe: Recipe) -> str:
        """All that a measurement depends on but code and weights."""
        return json.dumps(asdict(recipe) | {"stories": self.stories})

    def of(self, recipe: Recipe) -> RecipeOutcome:
        return self.found[self.key(recipe)]

    def missing(self, recipes: Iterable[Recipe]) -> list[Recipe]:
        """Those that have not been measured, each once."""
        return [recipe for recipe in dict.fromkeys(recipes) if self.key(recipe) not in self.found]

    def run(self, comm: Any, console: Console, recipes: Iterable[Recipe]) -> None:
        """Measure what is missing, shared out to the ranks, and write it down, each rank its share as it goes along.

        NumPy's BLAS runs on one thread: bits do not depend on how many there are, and for matrices as small as these
        several are slower.
        """
        from threadpoolctl import threadpool_limits

        comm.Barrier()  # all have read the file before one writes it
        wanted = self.missing(recipes)
        mine, measured = wanted[comm.rank :: comm.size], {}
        with threadpool_limits(1, "blas"):
            for done, recipe in enumerate(mine, 1):
                measured[self.key(recipe)] = measure(recipe, self.stories)
                write_share(
                    comm.rank, self.path, self.code, _plain(self.found | measured if comm.rank == 0 else measured)
                )
                console.progress("models quantized", done, len(mine))
        console.clear()
        for part in comm.allgather(measured):
            self.found |= part
        if wanted:
            write_all(comm, self.path, self.code, _plain(self.found))


def open_kept(path: str | None, stories: int) -> RecipeOutcomes:
    """What the file of `reproduce milo` holds by this very code and these weights (studies/store.py). UsageError."""
    path = file_of(path, "milo")
    weights = [file for model in TINY for file in sorted(find_model(model).glob("*.safetensors"))]
    code = digest([*sorted(Path(__file__).parent.glob("*.py")), *weights]) if path else ""
    return RecipeOutcomes(stories, path, code, read_runs(path, code, _measured))


def _plain(measured: Mapping[str, RecipeOutcome]) -> dict[str, Any]:
    return {key: asdict(run) for key, run in measured.items()}


def _measured(data: dict[str, Any]) -> RecipeOutcome:
    """What asdict and JSON have made lists of, as it was."""
    matrices = tuple(
        QuantizedMatrix(**{name: _tuples(value) for name, value in matrix.items()}) for matrix in data["matrices"]
    )
    return RecipeOutcome(**{**data, "matrices": matrices, "losses": _tuples(data["losses"])})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
