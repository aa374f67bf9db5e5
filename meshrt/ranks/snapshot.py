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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from meshrt.errors import UsageError
from meshrt.ranks.control import Control
from meshrt.ranks.files import write_file

SCHEMA = 1
INDEX = "state.json"
OURS = re.compile(r"state-\d+-\d+\.npz|\.state(-\d+-\d+\.npz|\.json)\.\d+")  # the latter while they are written
AGAIN = "remove the folder and start again, or name another"


@dataclass(frozen=True, eq=False)
class Part:
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

    def fill(self, parts: Mapping[str, Part]) -> None:
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


def _shared(part: Part, rectangle: tuple[int, int, int, int] | None) -> tuple[Any, Any] | None:
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


# --------------------------------------------------------------------------------------------------------- writing


def prepare(control: Control, option: str, folder: str) -> None:
    """Make the folder, if it is not there. UsageError where no state can be kept there. All ranks call it."""
    problem = None
    if control.rank == 0:
        try:
            Path(folder).mkdir(exist_ok=True)
            problem = None if folder else f"{option} '' names no folder"
        except (OSError, ValueError) as error:  # ValueError: a zero byte in its name
            problem = f"{option} {folder} cannot be made a folder: {getattr(error, 'strerror', None) or error}"
    _agree(control, problem)
    if not os.access(folder, os.W_OK | os.X_OK):
        problem = (
            f"{option} {folder} cannot be written on rank {control.rank}: it has to be a folder that all ranks see"
        )
    _agree(control, problem)


def holds_state(control: Control, folder: str) -> bool:
    """Is there a state in the folder, whole or not? The same on all ranks, which call it together."""
    return bool(control.bcast(os.path.exists(Path(folder, INDEX)) if control.rank == 0 else None))


def save(
    control: Control, option: str, folder: str, number: int, facts: Mapping[str, Any], parts: Mapping[str, Part]
) -> None:
    """Replace the state in the folder by another, of a higher number than any before. All ranks call it together.

    `facts` are those of rank 0. UsageError on all ranks where the disk does not take it; the old state is then there.
    """
    path, file_name, problem = Path(folder), f"state-{number}-{control.rank}.npz", None
    written: File | None = None
    arrays: dict[str, Any] = {name: part.array for name, part in parts.items()}
    try:
        _write(option, path / file_name, lambda stream: np.savez(stream, **arrays))
        rectangles = {name: (part.y, part.x, *part.array.shape[:2]) for name, part in parts.items()}
        written = File(file_name, _digest(path / file_name), rectangles)
    except UsageError as error:
        problem = str(error)
    files = control.gather((written, problem))
    if files is not None:
        problem = next((problem for _, problem in files if problem), None)
        if problem is None:
            problem = _replace(option, path, facts, [file for file, _ in files])
    problem = control.bcast(problem)
    if problem is not None:
        with suppress(OSError):
            (path / file_name).unlink(missing_ok=True)
        raise UsageError(problem)


def _replace(option: str, folder: Path, facts: Mapping[str, Any], files: list[File]) -> str | None:
    """Let the index name these files, then remove those of other states; why not, if it cannot be."""
    state = {"schema": SCHEMA, "files": [vars(file) for file in files], "facts": facts}
    text = json.dumps({"digest": _digest_of(state), "state": state}) + "\n"
    try:
        _write(option, folder / INDEX, lambda stream: stream.write(text.encode()))
    except UsageError as error:
        return str(error)
    for path in folder.iterdir():
        if OURS.fullmatch(path.name) and path.name not in {file.name for file in files}:
            with suppress(OSError):  # what cannot be removed is in nobody's way
                path.unlink()
    return None


def _write(option: str, path: Path, write: Callable[[BinaryIO], object]) -> None:
    """As `write_file`, and on the disk before it gets its name. UsageError."""

    def through(stream: BinaryIO) -> None:
        write(stream)
        stream.flush()
        os.fsync(stream.fileno())

    write_file(option, str(path), through)
    with suppress(OSError):  # not every file system lets a folder be synchronised
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _digest(path: Path) -> str:
    import hashlib  # runs that keep no state start sooner without

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(state: Any) -> str:
    import hashlib

    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


# --------------------------------------------------------------------------------------------------------- reading


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
    _agree(control, next(filter(None, (_damage(option, snapshot, file) for file in share)), None))
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
    if not isinstance(state, dict) or index.get("digest") != _digest_of(state):
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
        intact = _digest(path) == file.digest
    except OSError as error:
        return f"{option} {snapshot.folder}: {file.name} cannot be read: {error.strerror or error}; {AGAIN}"
    return None if intact else f"{option} {snapshot.folder}: {file.name} is damaged: {AGAIN}"


def _agree(control: Control, problem: str | None) -> None:
    """UsageError on all ranks where one of them has a problem: the first that has one tells."""
    first_problem = control.allreduce(problem, lambda problems: next(filter(None, problems), None))
    if first_problem is not None:
        raise UsageError(first_problem)
