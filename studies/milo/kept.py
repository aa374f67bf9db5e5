"""What was measured on the packaged mixtures, by recipe, in a file: all tables together take a while."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meshrt.models.catalogue import find_model
from meshrt.models.quantize.model import Found
from meshrt.ranks.console import Console
from meshrt.studies.milo.quality import Measured, Recipe, measure
from meshrt.studies.milo.recipes import TINY
from meshrt.studies.store import digest, file_of, read_runs, write_all, write_share


@dataclass
class Kept:
    """Of each recipe what came of it, on so many `stories`."""

    stories: int
    path: str | None = None
    code: str = ""
    found: dict[str, Measured] = field(default_factory=dict)

    def key(self, recipe: Recipe) -> str:
        """All that a measurement depends on but code and weights."""
        return json.dumps(asdict(recipe) | {"stories": self.stories})

    def of(self, recipe: Recipe) -> Measured:
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
        mine, outcomes = wanted[comm.rank :: comm.size], {}
        with threadpool_limits(1, "blas"):
            for done, recipe in enumerate(mine, 1):
                outcomes[self.key(recipe)] = measure(recipe, self.stories)
                write_share(
                    comm.rank, self.path, self.code, _plain(self.found | outcomes if comm.rank == 0 else outcomes)
                )
                console.progress("models quantized", done, len(mine))
        console.clear()
        for part in comm.allgather(outcomes):
            self.found |= part
        if wanted:
            write_all(comm, self.path, self.code, _plain(self.found))


def open_kept(path: str | None, stories: int) -> Kept:
    """What the file of `reproduce milo` holds by this very code and these weights (studies/store.py). UsageError."""
    path = file_of(path, "milo")
    weights = [file for model in TINY for file in sorted(find_model(model).glob("*.safetensors"))]
    code = digest([*sorted(Path(__file__).parent.glob("*.py")), *weights]) if path else ""
    return Kept(stories, path, code, read_runs(path, code, _measured))


def _plain(outcomes: Mapping[str, Measured]) -> dict[str, Any]:
    return {key: asdict(outcome) for key, outcome in outcomes.items()}


def _measured(data: dict[str, Any]) -> Measured:
    """What asdict and JSON have made lists of, as it was."""
    matrices = tuple(Found(**{name: _tuples(value) for name, value in matrix.items()}) for matrix in data["matrices"])
    return Measured(**{**data, "matrices": matrices, "losses": _tuples(data["losses"])})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
