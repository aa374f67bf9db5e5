"""Rows that were emulated, in a file (`--cache`): what was stopped goes on where it was."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import meshrt.studies
from meshrt.studies import store
from meshrt.studies.validate.kind import Emulated
from meshrt.studies.validate.rows import MeasuredRow


@dataclass(frozen=True)
class KeptRows:
    """What is known of rows, by `key_of`: of runs by this code, as the file has it. Without a path there is no file."""

    path: str | None
    code: str
    emulated: Mapping[str, Emulated]

    def keep(self, rank: int, mine: Mapping[str, Emulated]) -> None:
        """What a rank has emulated so far: beside all that was in the file, or in one of its own."""
        if self.path:
            store.write_share(rank, self.path, self.code, _plain({**self.emulated, **mine} if rank == 0 else mine))

    def write(self, comm: Any, everything: Mapping[str, Emulated]) -> None:
        """The file of what all ranks have: all ranks call it."""
        if self.path:
            store.write_all(comm, self.path, self.code, _plain(everything))


def open_rows(comm: Any, path: str | None, csl_folder: Path | None = None) -> KeptRows:
    """What the file holds, or nothing; `csl_folder` has the text that is run. All ranks call it. UsageError."""
    path = store.file_of(path, "")
    if path is None:
        return KeptRows(None, "", {})
    text = [] if csl_folder is None else sorted(csl_folder.rglob("*.csl"))
    code = store.digest([*sorted(Path(meshrt.studies.__path__[0]).rglob("*.py")), *text])
    kept = KeptRows(path, code, store.read_runs(path, code, lambda row: Emulated(**row)))
    comm.Barrier()  # all have read the file before one writes it
    return kept


def key_of(row: MeasuredRow) -> str:
    """Everything that what is emulated of it depends on but the code."""
    return json.dumps([row.kind.name, dict(row.sizes)], sort_keys=True)


def _plain(emulated: Mapping[str, Emulated]) -> dict[str, Any]:
    return {key: asdict(row) for key, row in emulated.items()}
