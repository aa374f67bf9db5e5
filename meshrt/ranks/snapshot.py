"""A run's state on disk: a folder that holds the whole of one state, the last that was written, whatever happens.

    state.json          names the files of the state, with the digest and the place of everything in them, and its facts
    state-12-3.npz      what rank 3 had of every array when state 12 was written

An array of all cores is [height, width, ...] of some mesh. Each rank writes its own rectangle of it with the place of
its first core, so that any number of ranks can read it. Files get their names when all of their bytes are on the disk,
`state.json` after all others, and what it does not name is removed afterwards: a run that is killed leaves the state
before or the new one. Nothing that is read is unpickled.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from meshrt.errors import UsageError
from meshrt.ranks.control import Control
from meshrt.records import dataclass

SCHEMA = 3
INDEX = "state.json"
OURS = re.compile(r"state-\d+-\d+\.npz|\.state(-\d+-\d+\.npz|\.json)\.\d+")  # the latter while they are written
AGAIN = "remove the folder and start again, or name another"


@dataclass(frozen=True, eq=False)
class SnapshotPart:
    """This rank's rectangle [rows, columns, ...] of an array of all cores, the first of them being core (x, y)."""

    array: np.ndarray
    y: int = 0
    x: int = 0


@dataclass(frozen=True)
class File:
    """One rank's arrays: digest of the file, and (y, x, rows, columns) of each array's rectangle by its name."""

    name: str
    digest: str
    places: Mapping[str, tuple[int, int, int, int]]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A state that was found whole. `facts` is what its program wrote down, as JSON keeps it."""

    folder: Path
    facts: dict[str, Any]
    files: tuple[File, ...]

    @property
    def names(self) -> list[str]:
        """Of all arrays, in the order in which they were written."""
        return list(dict.fromkeys(name for file in self.files for name in file.places))

    def fill(self, parts: Mapping[str, SnapshotPart]) -> None:
        """Read into the rectangles of these arrays what any rank wrote of them; the rest of them stays as it is.

        UsageError where a file has no such arrays in it.
        """
        from zipfile import BadZipFile

        for file in self.files:
            shared = {
                name: indices for name, part in parts.items() if (indices := _shared(part, file.places.get(name)))
            }
            if not shared:
                continue
            try:
                with np.load(self.folder / file.name, allow_pickle=False) as stored:
                    for name, (own_index, file_index) in shared.items():
                        parts[name].array[own_index] = stored[name][file_index]
            except (OSError, ValueError, KeyError, BadZipFile) as error:
                raise UsageError(f"{self.folder / file.name} does not hold what was written: {AGAIN}") from error


@contextmanager
def trusted(snapshot: Snapshot) -> Iterator[None]:
    """Where facts are taken as they were written: UsageError if somebody has written others, with a right digest."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(f"{snapshot.folder / INDEX} does not hold what was written ({error!r}): {AGAIN}") from error


def _shared(part: SnapshotPart, rectangle: tuple[int, int, int, int] | None) -> tuple[Any, Any] | None:
    """The cores that a rectangle has in common with a stored one, as indices of both; None where there are none."""
    if rectangle is None:
        return None
    slices = []
    for low, length, low_there, length_there in (
        (part.y, part.array.shape[0], rectangle[0], rectangle[2]),
        (part.x, part.array.shape[1], rectangle[1], rectangle[3]),
    ):
        first, last = max(low, low_there), min(low + length, low_there + length_there)
        if first >= last:
            return None
        slices.append((slice(first - low, last - low), slice(first - low_there, last - low_there)))
    return (slices[0][0], slices[1][0]), (slices[0][1], slices[1][1])


def digest(path: Path) -> str:
    """Of a file."""
    import hashlib  # runs that keep no state start sooner without

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(state: Any) -> str:
    """Of what the index says."""
    import hashlib

    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def load(control: Control, option: str, folder: str) -> Snapshot:
    """The state in the folder, checked to the last byte by all ranks, each a part of its files. UsageError on all."""
    snapshot: Snapshot | None = None
    problem = None
    if control.rank == 0:
        try:
            snapshot = _read_index(option, Path(folder))
        except UsageError as error:
            problem = str(error)
    snapshot, problem = control.bcast((snapshot, problem))
    if snapshot is None:
        raise UsageError(problem)
    share = snapshot.files[control.rank :: control.size]
    agree(control, next(filter(None, (_damage(option, snapshot, file) for file in share)), None))
    return snapshot


def _read_index(option: str, folder: Path) -> Snapshot:
    damaged = f"{option} {folder}: {INDEX} is damaged: {AGAIN}"
    try:
        index = json.loads((folder / INDEX).read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{option} {folder} holds no checkpoint: there is no {INDEX}") from None
    except OSError as error:
        raise UsageError(f"{option} {folder}: {INDEX} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        raise UsageError(damaged) from None
    state = index.get("state") if isinstance(index, dict) else None
    if not isinstance(state, dict) or index.get("digest") != digest_of(state):
        raise UsageError(damaged)
    if state.get("schema") != SCHEMA:
        raise UsageError(f"{option} {folder} was written by another version of meshrt: {AGAIN}")
    snapshot = Snapshot(folder, state.get("facts", {}), ())
    with trusted(snapshot):
        files = tuple(
            File(
                str(entry["name"]),
                str(entry["digest"]),
                {
                    name: (int(y), int(x), int(rows), int(columns))
                    for name, (y, x, rows, columns) in entry["places"].items()
                },
            )
            for entry in state["files"]
        )
    if not all(OURS.fullmatch(file.name) for file in files):
        raise UsageError(damaged)
    return Snapshot(folder, snapshot.facts, files)


def _damage(option: str, snapshot: Snapshot, file: File) -> str | None:
    """What is wrong with a file of a state, if anything."""
    path = snapshot.folder / file.name
    try:
        intact = digest(path) == file.digest
    except OSError as error:
        return f"{option} {snapshot.folder}: {file.name} cannot be read: {error.strerror or error}; {AGAIN}"
    return None if intact else f"{option} {snapshot.folder}: {file.name} is damaged: {AGAIN}"


def agree(control: Control, problem: str | None) -> None:
    """UsageError on all ranks where one of them has a problem: the first that has one tells."""
    first_problem = control.allreduce(problem, lambda problems: next(filter(None, problems), None))
    if first_problem is not None:
        raise UsageError(first_problem)


def holds_state(control: Control, folder: str) -> bool:
    """Is there a state in the folder, whole or not? The same on all ranks, which call it together."""
    return bool(control.bcast(os.path.exists(Path(folder, INDEX)) if control.rank == 0 else None))
