"""A run's state on disk: a folder that holds the whole of one state, the last that was written, whatever happens.

    state.json          names the files of the state, with the digest and the place of everything in them, and its facts
    state-12-3.npz      what rank 3 had of every array when state 12 was written

An array of all cores is [height, width, ...] of some mesh. Each rank writes its own rectangle of it with the place of
its first core, so that any number of ranks can read it. Files get their names when all of their bytes are on the disk,
`state.json` after all others, and what it does not name is removed afterwards: a run that is killed leaves the state
before or the new one. Nothing that is read is unpickled.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np

from meshrt.errors import UsageError
from meshrt.ranks.control import Control
from meshrt.ranks.files import write_file

SCHEMA = 1
INDEX = "state.json"
OURS = re.compile(r"state-\d+-\d+\.npz|\.state(-\d+-\d+\.npz|\.json)\.\d+")  # the latter while they are written
AGAIN = "remove the folder and start again, or name another"


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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
        for file in self.files:
            wanted = {name: found for name, part in parts.items() if (found := _shared(part, file.places.get(name)))}
            if not wanted:
                continue
            try:
                with np.load(self.folder / file.name, allow_pickle=False) as stored:
                    for name, (here, there) in wanted.items():
                        parts[name].array[here] = stored[name][there]
            except (OSError, ValueError, KeyError, BadZipFile) as error:
                raise UsageError(f"{self.folder / file.name} does not hold what was written: {AGAIN}") from error


@contextmanager
def trusted(found: Snapshot) -> Iterator[None]:
    """Where facts are taken as they were written: UsageError if somebody has written others, with a right digest."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(f"{found.folder / INDEX} does not hold what was written ({error!r}): {AGAIN}") from error


def _shared(part: Part, place: tuple[int, int, int, int] | None) -> tuple[Any, Any] | None:
    """The cores that a rectangle has in common with a stored one, as indices of both; None where there are none."""
    if place is None:
        return None
    slices = []
    for low, length, low_there, length_there in (
        (part.y, part.array.shape[0], place[0], place[2]),
        (part.x, part.array.shape[1], place[1], place[3]),
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
    place, own, problem = Path(folder), f"state-{number}-{control.rank}.npz", None
    told: File | None = None
    arrays: dict[str, Any] = {name: part.array for name, part in parts.items()}
    try:
        _write(option, place / own, lambda stream: np.savez(stream, **arrays))
        places = {name: (part.y, part.x, *part.array.shape[:2]) for name, part in parts.items()}
        told = File(own, _digest(place / own), places)
    except UsageError as error:
        problem = str(error)
    files = control.gather((told, problem))
    if files is not None:
        problem = next((problem for _, problem in files if problem), None)
        if problem is None:
            problem = _replace(option, place, facts, [file for file, _ in files])
    problem = control.bcast(problem)
    if problem is not None:
        with suppress(OSError):
            (place / own).unlink(missing_ok=True)
        raise UsageError(problem)


def _replace(option: str, place: Path, facts: Mapping[str, Any], files: list[File]) -> str | None:
    """Let the index name these files, then remove those of other states; why not, if it cannot be."""
    state = {"schema": SCHEMA, "files": [vars(file) for file in files], "facts": facts}
    text = json.dumps({"digest": _digest_of(state), "state": state}) + "\n"
    try:
        _write(option, place / INDEX, lambda stream: stream.write(text.encode()))
    except UsageError as error:
        return str(error)
    for path in place.iterdir():
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
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(state: Any) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


# --------------------------------------------------------------------------------------------------------- reading


def load(control: Control, option: str, folder: str) -> Snapshot:
    """The state in the folder, checked to the last byte by all ranks, each a part of its files. UsageError on all."""
    found: Snapshot | None = None
    problem = None
    if control.rank == 0:
        try:
            found = _read_index(option, Path(folder))
        except UsageError as error:
            problem = str(error)
    found, problem = control.bcast((found, problem))
    if found is None:
        raise UsageError(problem)
    own = found.files[control.rank :: control.size]
    _agree(control, next(filter(None, (_damage(option, found, file) for file in own)), None))
    return found


def _read_index(option: str, folder: Path) -> Snapshot:
    damaged = f"{option} {folder}: {INDEX} is damaged: {AGAIN}"
    try:
        told = json.loads((folder / INDEX).read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{option} {folder} holds no checkpoint: there is no {INDEX}") from None
    except OSError as error:
        raise UsageError(f"{option} {folder}: {INDEX} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        raise UsageError(damaged) from None
    state = told.get("state") if isinstance(told, dict) else None
    if not isinstance(state, dict) or told.get("digest") != _digest_of(state):
        raise UsageError(damaged)
    if state.get("schema") != SCHEMA:
        raise UsageError(f"{option} {folder} was written by another version of meshrt: {AGAIN}")
    found = Snapshot(folder, state.get("facts", {}), ())
    with trusted(found):
        files = tuple(
            File(
                str(one["name"]),
                str(one["digest"]),
                {
                    name: (int(y), int(x), int(rows), int(columns))
                    for name, (y, x, rows, columns) in one["places"].items()
                },
            )
            for one in state["files"]
        )
    if not all(OURS.fullmatch(file.name) for file in files):
        raise UsageError(damaged)
    return Snapshot(folder, found.facts, files)


def _damage(option: str, found: Snapshot, file: File) -> str | None:
    """What is wrong with a file of a state, if anything."""
    path = found.folder / file.name
    try:
        whole = _digest(path) == file.digest
    except OSError as error:
        return f"{option} {found.folder}: {file.name} cannot be read: {error.strerror or error}; {AGAIN}"
    return None if whole else f"{option} {found.folder}: {file.name} is damaged: {AGAIN}"


def _agree(control: Control, problem: str | None) -> None:
    """UsageError on all ranks where one of them has a problem: the first that has one tells."""
    told = control.allreduce(problem, lambda problems: next(filter(None, problems), None))
    if told is not None:
        raise UsageError(told)
